package xen

import (
	"context"
	"fmt"
	"math"
	"strconv"

	"pagurus/fleet"
)

// The weights of Xen's schedulers: 256 is that of a domain that nothing was said about.
const (
	usualWeight = 256
	leastWeight = 1
	mostWeight  = 65535
)

// weights are the weights of the classes for each CPU of a guest, in the ratios that they have in control groups.
var weights = map[fleet.Class]float64{fleet.Gold: 2 * usualWeight, "": usualWeight, fleet.Normal: usualWeight, fleet.Bronze: usualWeight / 2}

// Class gives a guest the weight of its job's class, and at most the CPUs most for each of its own; 0 is no limit. Xen's
// scheduler keeps both when the guest moves, but the order comes again there. After an error the guest has its old share.
func (d *Driver) Class(g fleet.Guest, class fleet.Class, most float64) error {
	weight, known := weights[class]
	if !known {
		return fmt.Errorf("there is no class %q", class)
	}
	here, err := d.here(g.ID)
	if err == nil {
		_, err = here.status(here.life)
	}
	if err == nil {
		err = d.tools.schedule(here.life, d.domain(g.ID), weight*float64(max(1, g.Need.CPUs)), most*float64(g.Need.CPUs))
	}
	if err != nil {
		return fmt.Errorf("give guest %s its class: %w", g.ID, err)
	}
	return nil
}

// schedule sets a domain's weight and cap. Which of the two schedulers runs is the host's choice; they take the same words.
func (t tools) schedule(ctx context.Context, domain string, weight, cpus float64) error {
	args := []string{"-d", domain, "-w", strconv.Itoa(int(min(mostWeight, max(leastWeight, math.Round(weight))))), "-c", strconv.Itoa(percent(cpus))}
	if err := t.run(ctx, append([]string{"sched-credit2"}, args...)...); err == nil {
		return nil
	}
	return t.run(ctx, append([]string{"sched-credit"}, args...)...)
}

// percent is a number of CPUs as a cap, in percent of one; 0 is none, so the least is 1.
func percent(cpus float64) int {
	if cpus <= 0 {
		return 0
	}
	return max(1, int(math.Round(100*cpus)))
}

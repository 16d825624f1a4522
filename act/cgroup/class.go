package cgroup

import (
	"errors"
	"fmt"

	"pagurus/fleet"
)

// Service is what one guest gets.
type Service struct {
	Class fleet.Class
	CPUs  int     // its CPUs, which determine its weight
	Most  float64 // maximum CPUs; 0: no limit
}

// shares are each class's weight for each of a guest's CPUs; "" is for jobs without a
// class. A class gets twice the CPU time of the next lower one, if both are busy.
var shares = map[fleet.Class]float64{fleet.Gold: 2, "": 1, fleet.Normal: 1, fleet.Bronze: 0.5}

// Class gives a guest the weight of its class and its limit. The guest must have been placed.
func (g *Groups) Class(guest fleet.GuestID, give Service) error {
	share, known := shares[give.Class]
	if !known {
		return fmt.Errorf("there is no class %q", give.Class)
	}
	at, err := g.of(guest)
	if err == nil {
		err = g.tree.make(at, limits{weight: float64(max(1, give.CPUs)) * share, cpus: give.Most})
	}
	if err != nil {
		return fmt.Errorf("give guest %s its class: %w", guest, err)
	}
	return nil
}

// leavingWeight is the weight of all guests, in CPUs, while some of them leave. Sending
// takes CPU time, and with idle time only it would never finish beside a busy owner. It
// costs the owner a fifth of one CPU for some seconds.
const leavingWeight = 0.25

// leastWeight is the kernel's minimum. It is used before Linux 5.15, which has no idle
// groups.
const leastWeight = 0.002

// Deprioritise leaves all guests only idle CPU time, or slightly more while some are
// leaving, and at most cpus CPUs; 0: only the host's own limit. It lasts until Restore,
// even if this process ends. After an error call again.
func (g *Groups) Deprioritise(cpus float64, leaving bool) error {
	if g.cpus > 0 && (cpus <= 0 || cpus > g.cpus) {
		cpus = g.cpus
	}
	weight := leastWeight
	if leaving {
		weight = leavingWeight
	}
	err := g.tree.idle(g.root, !leaving)
	if err = errors.Join(err, g.tree.make(g.root, limits{weight: weight, cpus: cpus})); err != nil {
		return fmt.Errorf("deprioritise guests: %w", err)
	}
	return nil
}

// Restore ends Deprioritise. Otherwise it changes nothing.
func (g *Groups) Restore() error {
	if err := errors.Join(g.tree.idle(g.root, false), g.tree.make(g.root, limits{cpus: g.cpus})); err != nil {
		return fmt.Errorf("have guests run as before: %w", err)
	}
	return nil
}

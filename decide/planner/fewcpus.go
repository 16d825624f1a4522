// This file judges whether a job's ranks have fewer CPUs than they are. One that waits for a message then must not spin: it would take
// the time of the rank that it waits for.

package planner

import (
	"fmt"
	"slices"
	"strings"

	"pagurus/decide/placement"
	"pagurus/fleet"
)

// fewCPUs reports whether ranks of a job that begins have fewer CPUs than they are: in their guests, by their cap, or because guests of a
// machine have more CPUs than it. Room for the job is reserved already.
func (d *draft) fewCPUs(s fleet.JobSpec, chosen []placement.Choice) bool {
	return s.Slots(0) > s.Need.CPUs || s.Cap > 0 && s.Cap < 1 || slices.ContainsFunc(chosen, func(c placement.Choice) bool {
		h := d.base.Hosts[c.Host]
		promised := d.room().CPUs(c.Host)
		for _, id := range d.l.Room().On(h.Facts.Machine) { // hosts of a lab share one machine
			if id != c.Host {
				promised += d.room().CPUs(id)
			}
		}
		return promised > h.Facts.Capacity.CPUs || h.Facts.CPULimit > 0 && float64(d.room().CPUs(c.Host)) > h.Facts.CPULimit
	})
}

// aboutFewCPUs tells whoever asked for a job what was set because its ranks have few CPUs.
func aboutFewCPUs(j fleet.Job) []string {
	name, _, _ := strings.Cut(fleet.YieldWhenIdle, "=")
	own := slices.ContainsFunc(j.Spec.Env, func(v string) bool { return strings.HasPrefix(v, name+"=") })
	if len(j.Environment()) == len(j.Spec.Env) || own {
		return nil
	}
	return []string{fmt.Sprintf("the ranks of %s have fewer CPUs than they are, so one that waits lets others run (%s); --env %s=0 has it spin", j.ID, fleet.YieldWhenIdle, name)}
}

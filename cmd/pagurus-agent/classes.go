package main

import (
	"strings"
	"time"

	"pagurus/act/cgroup"
	"pagurus/act/qemu"
	"pagurus/act/xen"
	"pagurus/decide/timeslice"
	"pagurus/fleet"
	"pagurus/serve/agent"
	"pagurus/serve/monitor"
)

var (
	_ qemu.Cgroups   = (*cgroup.Groups)(nil)
	_ agent.Classes  = classes{}
	_ agent.Slicer   = classes{}
	_ monitor.Guests = classes{}
)

// classes sets guests' service classes: through their control groups, or on a Xen host through Xen's scheduler.
type classes struct {
	*cgroup.Groups
	cpus    int         // of the machine
	domains *xen.Driver // nil: this is no Xen host
}

// Class sets a guest's CPU share.
func (c classes) Class(g fleet.Guest, class fleet.Class, most float64) error {
	if c.domains != nil {
		return c.domains.Class(g, class, most)
	}
	return c.Groups.Class(g.ID, cgroup.Service{Class: class, CPUs: g.Need.CPUs, Most: most * float64(g.Need.CPUs)})
}

// Slice sets a guest's time slice, on a Xen host that of all.
func (c classes) Slice(g fleet.Guest, d time.Duration) error {
	if c.domains != nil {
		return c.domains.Slice(d)
	}
	return c.Groups.Slice(g.ID, d, processors(g))
}

// Counts is how guests fared; of those on a Xen host that is not known.
func (c classes) Counts(all []fleet.Guest) map[fleet.GuestID]timeslice.Counts {
	out := map[fleet.GuestID]timeslice.Counts{}
	if c.domains != nil {
		return out
	}
	for _, g := range all {
		if n, known := c.Groups.Count(g.ID, processors(g)); known {
			out[g.ID] = timeslice.Counts{Ran: n.Ran, Waited: n.Waited, Slept: n.Slept, Preempted: n.Preempted, Whole: true}
		}
	}
	c.Groups.ForgetCounts(func(id fleet.GuestID) bool { _, here := out[id]; return here })
	return out
}

// processors says which threads are a guest's CPUs; nil: all. Of QEMU the threads that serve the guest must run at once.
func processors(g fleet.Guest) func(thread string) bool {
	prefix := g.Kind.Traits().CPUThreads
	if prefix == "" {
		return nil
	}
	return func(thread string) bool { return strings.HasPrefix(thread, prefix) }
}

// slicePolicy says how guests get their time slices. On a Xen host all have one.
func (h *host) slicePolicy(onXen bool) timeslice.Policy {
	p := timeslice.Policy{Base: h.flags.Slice.Length, Adaptive: h.flags.Slice.Adaptive, One: onXen}
	switch {
	case !p.Adaptive:
	case p.One:
		p.Base = timeslice.XenUsual
	default:
		p.Base = timeslice.LinuxUsual
	}
	return p
}

// Deprioritise deprioritises all guests.
func (c classes) Deprioritise(part float64, leaving bool) error {
	if c.domains != nil {
		return c.domains.Deprioritise(part * float64(c.cpus))
	}
	return c.Groups.Deprioritise(part*float64(c.cpus), leaving)
}

// Restore has all guests run as before.
func (c classes) Restore() error {
	if c.domains != nil {
		return c.domains.Restore()
	}
	return c.Groups.Restore()
}

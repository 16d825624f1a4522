package main

import (
	"strings"

	"pagurus/act/cgroup"
	"pagurus/act/qemu"
	"pagurus/act/xen"
	"pagurus/fleet"
	"pagurus/serve/agent"
	"pagurus/serve/monitor"
)

var (
	_ qemu.Cgroups   = (*cgroup.Groups)(nil)
	_ agent.Classes  = classes{}
	_ monitor.Guests = classes{}
)

// classes sets guests' service classes: through their control groups, or on a Xen host through Xen's scheduler.
type classes struct {
	*cgroup.Groups
	cpus    int         // of the machine
	domains *xen.Driver // nil: this is no Xen host
}

// Class sets a guest's CPU share. Of QEMU only the guest's CPU threads get the slice: the
// threads that serve it must run at once.
func (c classes) Class(g fleet.Guest, class fleet.Class, most float64) error {
	if c.domains != nil {
		return c.domains.Class(g, class, most)
	}
	var which func(thread string) bool
	if prefix := g.Kind.Traits().CPUThreads; prefix != "" {
		which = func(thread string) bool { return strings.HasPrefix(thread, prefix) }
	}
	return c.Groups.Class(g.ID, cgroup.Service{Class: class, CPUs: g.Need.CPUs, Most: most * float64(g.Need.CPUs)}, which)
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

package cgroup

import (
	"errors"
	"fmt"

	"pagurus/fleet"
)

// Service is what one guest is given.
type Service struct {
	Class fleet.Class
	CPUs  int     // that it has; its weight is theirs
	Most  float64 // CPUs that it may use; 0: no ceiling
}

// shares are each class's share of a CPU's weight, for each of a guest's CPUs; "" is for
// jobs that asked for no class. A class gets twice the CPU time of the next one below,
// where both want all they can get.
var shares = map[fleet.Class]float64{fleet.Gold: 2, "": 1, fleet.Normal: 1, fleet.Bronze: 0.5}

// Class gives a guest the weight of its class and its ceiling. Those of its threads
// whose names which accepts get the host's time slice; nil accepts all. The guest has
// been placed; threads that it starts later inherit the same.
// Where the kernel has no slices the weight counts alone.
func (g *Groups) Class(guest fleet.GuestID, give Service, which func(thread string) bool) error {
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
	pids, err := g.tree.processes(at)
	errs := []error{err}
	if g.slices {
		for _, pid := range pids {
			errs = append(errs, sliceProcess(pid, g.Slice, which))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("give guest %s its class: %w", guest, err)
	}
	return nil
}

// leavingWeight is what guests weigh together while some of them are sent away,
// in CPUs: sending takes CPU time, and on what nobody else wants it would not
// come to an end beside an owner who wants everything. It costs the owner a
// fifth of one CPU for the seconds that it takes.
const leavingWeight = 0.25

// leastWeight is the kernel's least. It counts before Linux 5.15, which has no
// groups that run on what nobody wants.
const leastWeight = 0.002

// Deprioritise has all guests together run on what nobody else on the machine wants, or
// hardly more while some are leaving, and on no more than cpus CPUs; 0 is no
// ceiling but the host's own. It holds until Restore, whatever becomes of this
// process. After an error call again.
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

// Restore ends Yield. Without one before it changes nothing.
func (g *Groups) Restore() error {
	if err := errors.Join(g.tree.idle(g.root, false), g.tree.make(g.root, limits{cpus: g.cpus})); err != nil {
		return fmt.Errorf("have guests run as before: %w", err)
	}
	return nil
}

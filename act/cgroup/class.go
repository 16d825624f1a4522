package cgroup

import (
	"errors"
	"fmt"
	"time"

	"pagurus/fleet"
)

// service is what a class gets.
type service struct {
	share  float64       // of a CPU's weight, for each of the guest's CPUs
	tenths time.Duration // of Groups.Slice, for each of its threads; 0: the kernel's own
}

// Service is what one guest is given.
type Service struct {
	Class fleet.Class
	CPUs  int     // that it has; its weight is theirs
	Most  float64 // CPUs that it may use; 0: no ceiling
}

// services are the classes, "" for who asked for none. The slices differ by the 30 %
// of Xen's Credit scheduler; who has twice the weight of the next class below gets
// twice its CPU time where both want all they can get.
var services = map[fleet.Class]service{
	fleet.Gold:   {2, 13},
	"":           {1, 0},
	fleet.Normal: {1, 10},
	fleet.Bronze: {0.5, 7},
}

// UsualSlice is that of class normal, twice the kernel's own on two cores and a tenth of
// Xen's: with slices of 30 ms guests of several threads do not get the shares that they
// are due (docs/decisions/019-time-slices.md).
const UsualSlice = 3 * time.Millisecond

// Share is what a class has of a CPU's weight, for each of a guest's CPUs.
func Share(class fleet.Class) float64 { return services[class].share }

// SliceOf is the slice of a class's threads where those of class normal have one of
// that length; 0: the kernel's own.
func SliceOf(class fleet.Class, normal time.Duration) time.Duration {
	return services[class].tenths * normal / 10
}

// Class gives a guest the weight of its class and its ceiling, and those of its threads
// that which picks by their names the time slices; nil: all. It is for guests that have
// been placed; what those threads start later has the same.
// Where the kernel has no slices the weight counts alone.
func (g *Groups) Class(guest fleet.GuestID, give Service, which func(thread string) bool) error {
	s, known := services[give.Class]
	if !known {
		return fmt.Errorf("there is no class %q", give.Class)
	}
	at, err := g.of(guest)
	if err == nil {
		err = g.tree.make(at, limits{weight: float64(max(1, give.CPUs)) * s.share, cpus: give.Most})
	}
	if err != nil {
		return fmt.Errorf("give guest %s its class: %w", guest, err)
	}
	pids, err := g.tree.processes(at)
	errs := []error{err}
	if g.Slices() == "" {
		for _, pid := range pids {
			errs = append(errs, sliceProcess(pid, SliceOf(give.Class, g.Slice), which))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("give guest %s its class: %w", guest, err)
	}
	return nil
}

// Slices says why time slices have no effect here, for people; empty: they have.
func (g *Groups) Slices() string {
	g.slices.Do(func() { g.sliceless = SlicesMissing() })
	return g.sliceless
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

package agent

import (
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pagurus/decide/timeslice"
	"pagurus/fleet"
)

// memorySlicer notes the slices that guests got. Its guests compute beside others.
type memorySlicer struct {
	mu     sync.Mutex
	given  []time.Duration
	counts timeslice.Counts
	fails  error
}

func (m *memorySlicer) Slice(_ fleet.Guest, d time.Duration) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.given = append(m.given, d)
	return m.fails
}

func (m *memorySlicer) Counts(all []fleet.Guest) map[fleet.GuestID]timeslice.Counts {
	m.mu.Lock()
	defer m.mu.Unlock()
	every := timeslice.LinuxUsual
	if n := len(m.given); n > 0 {
		every = m.given[n-1]
	}
	c := &m.counts
	c.Ran, c.Waited, c.Preempted, c.Whole = c.Ran+timeslice.Every/2, c.Waited+timeslice.Every/2, c.Preempted+uint64(timeslice.Every/max(every, 1)), true
	out := map[fleet.GuestID]timeslice.Counts{}
	for _, g := range all {
		out[g.ID] = *c
	}
	return out
}

func (m *memorySlicer) taken() []time.Duration {
	synctest.Wait()
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.given)
}

// A guest has its class's slice from its start, tries a longer one, and keeps that; the host says so, and forgets it with the guest.
func TestSlicesAdapt(t *testing.T) {
	in(t, func(t *testing.T, r *rig) {
		synctest.Wait() // the agent has begun, without a slicer
		m := &memorySlicer{}
		r.a.Slicer, r.a.Slices = m, timeslice.Policy{Base: timeslice.LinuxUsual, Adaptive: true}
		r.a.fares.Policy = r.a.Slices
		r.do(task(fleet.Start, 1))
		r.send(task(fleet.Watch, 1))
		if got := m.taken(); len(got) == 0 || got[0] != timeslice.LinuxUsual {
			t.Fatalf("when it started it was given %v", got)
		}
		time.Sleep(2 * time.Second) // it is seen to run
		for range 14 {
			r.a.adaptOnce(time.Now())
			time.Sleep(timeslice.Every)
		}
		got := m.taken()
		if last := got[len(got)-1]; last != 3*timeslice.LinuxUsual {
			t.Fatalf("it was given %v", got)
		}
		if s := r.facts().Guests["j1g0"].Slice; s == nil || s.Length != 3*timeslice.LinuxUsual || !strings.Contains(s.Why, "a longer slice measured better") {
			t.Errorf("the host says %+v", s)
		}
		r.send(task(fleet.Watch, 1))
		if got = m.taken(); got[len(got)-1] != 3*timeslice.LinuxUsual {
			t.Errorf("when it was held again it was given %v", got)
		}
		m.mu.Lock()
		m.fails = errors.New("no such thing here")
		m.mu.Unlock()
		r.do(task(fleet.Stop, 1))
		r.do(task(fleet.Start, 2))
		time.Sleep(3 * time.Second)
		if f := r.facts(); !slices.ContainsFunc(f.Troubles, func(s string) bool { return strings.Contains(s, "the time slice of guest j1g0: no such thing here") }) {
			t.Errorf("the host says %v", f.Troubles)
		}
	})
}

// With a fixed slice guests without a class are left alone.
func TestFixedSlices(t *testing.T) {
	in(t, func(t *testing.T, r *rig) {
		synctest.Wait() // the agent has begun, without a slicer
		m := &memorySlicer{}
		r.a.Slicer, r.a.Slices = m, timeslice.Policy{Base: 30 * time.Millisecond}
		r.do(task(fleet.Start, 1))
		if got := m.taken(); len(got) != 0 {
			t.Errorf("without a class it was given %v", got)
		}
		r.do(task(fleet.Stop, 1))
		gold := task(fleet.Start, 2)
		gold.Job.Spec.Class = fleet.Gold
		r.do(gold)
		if got := m.taken(); len(got) == 0 || got[0] != 39*time.Millisecond {
			t.Errorf("gold was given %v", got)
		}
	})
}

// A guest that was stopped, or has moved away, is forgotten: when it comes again it begins with its usual slice, however soon.
func TestSliceIsForgottenWithGuest(t *testing.T) {
	for _, leaves := range []fleet.Verb{fleet.Stop, fleet.Discard} {
		in(t, func(t *testing.T, r *rig) {
			synctest.Wait() // the agent has begun, without a slicer
			m := &memorySlicer{}
			r.a.Slicer, r.a.Slices = m, timeslice.Policy{Base: timeslice.LinuxUsual, Adaptive: true}
			r.do(task(fleet.Start, 1))
			r.a.noteSliced("j1g0", timeslice.Given{Length: 3 * timeslice.LinuxUsual, Why: "it measured better"})
			r.do(task(leaves, 1))
			r.do(task(fleet.Start, 2))
			if got := m.taken(); len(got) == 0 || got[len(got)-1] != timeslice.LinuxUsual {
				t.Errorf("after %s it was given %v", leaves, got)
			}
		})
	}
}

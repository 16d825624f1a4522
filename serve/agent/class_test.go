package agent

import (
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pagurus/fleet"
)

// memoryClasses notes the classes that guests got.
type memoryClasses struct {
	mu    sync.Mutex
	given []fleet.Class
	most  float64
	fails error
}

func (c *memoryClasses) Class(_ fleet.Guest, class fleet.Class, most float64) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.most = most
	c.given = append(c.given, class)
	return c.fails
}

func (c *memoryClasses) taken() []fleet.Class {
	synctest.Wait()
	c.mu.Lock()
	defer c.mu.Unlock()
	out := c.given
	c.given = nil
	return out
}

// A guest has its class from the start, on every host and with every agent. A guest without
// a class is left alone. A host that cannot set it reports trouble and runs the guest.
func TestClassFollowsAGuest(t *testing.T) {
	in(t, func(t *testing.T, r *rig) {
		c := &memoryClasses{}
		r.a.Classes = c
		classed := func(v fleet.Verb, gen uint64) fleet.Task {
			out := task(v, gen)
			out.Job.Spec.Class = fleet.Gold
			return out
		}
		is := func(when string, least int) {
			t.Helper()
			got := c.taken()
			if len(got) < least || slices.ContainsFunc(got, func(x fleet.Class) bool { return x != fleet.Gold }) {
				t.Errorf("%s it was given %v", when, got)
			}
		}
		r.do(classed(fleet.Start, 1))
		is("when it started", 1)
		r.send(classed(fleet.Watch, 1))
		is("when it is held, as by the next agent,", 1)
		r.do(classed(fleet.Stop, 1))
		c.taken()
		r.do(classed(fleet.Receive, 2))
		is("when it is about to come", 1)
		r.d.guest("j1g0").run = fleet.Suspended
		r.do(classed(fleet.Activate, 2))
		is("when it has come", 1)
		c.mu.Lock()
		c.fails = errors.New("no such thing here")
		c.mu.Unlock()
		r.send(classed(fleet.Watch, 2))
		time.Sleep(3 * time.Second)
		if f := r.facts(); !slices.ContainsFunc(f.Troubles, func(s string) bool { return strings.Contains(s, "no such thing here") }) {
			t.Errorf("the host says %v", f.Troubles)
		}
		c.taken()
		r.do(task(fleet.Stop, 2))
		r.do(task(fleet.Start, 3))
		if got := c.taken(); len(got) > 0 {
			t.Errorf("without a class it was given %v", got)
		}
		r.do(task(fleet.Stop, 3))
		capped := task(fleet.Start, 4)
		capped.Job.Spec.Cap = 0.5
		r.do(capped)
		if got := c.taken(); len(got) == 0 || got[0] != "" || c.most != 0.5 {
			t.Errorf("with a ceiling and no class it was given %v and %g", got, c.most)
		}
	})
}

// While a guest is sent, the host knows until it has left.
func TestHostKnowsWhoLeaves(t *testing.T) {
	in(t, func(t *testing.T, r *rig) {
		is := func(when string, want bool) {
			t.Helper()
			synctest.Wait()
			if got := r.a.sending(); got != want {
				t.Errorf("%s a guest is being sent: %v", when, got)
			}
		}
		r.do(task(fleet.Start, 1))
		is("before a copy", false)
		release := r.block("copy j1g0")
		r.send(task(fleet.Copy, 1))
		is("during a copy", true)
		release(nil)
		r.expect(task(fleet.Copy, 1).Order, fleet.Done)
		is("between copy and switch", true)
		r.do(task(fleet.Switch, 1))
		r.do(task(fleet.Retire, 1))
		is("when it has gone", false)
	})
}

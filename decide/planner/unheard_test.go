package planner

import (
	"strings"
	"testing"
	"time"

	"pagurus/decide/state"
	"pagurus/fleet"
)

// A controller that was suspended while an order was out has heard no answer because it did not
// listen. It gives hosts the time to be heard that it gives them after its own start; only
// then their silence, and the order's age, count. All hosts were silent for it meanwhile.
func TestSilenceCountsOnlyWhileListening(t *testing.T) {
	for name, c := range map[string]struct {
		led      time.Duration // after it went on, as the controller notes it; <0: it does not
		set      time.Duration // what its clock was set by meanwhile
		then     time.Duration // until the second look
		unknown  [2]bool       // whether the order counts as unknown, at both looks
		heardNow bool          // the host is heard again at once, and carries on with the order
	}{
		"the controller was suspended":     {unknown: [2]bool{false, true}, then: 20 * time.Second},
		"and hosts come back":              {unknown: [2]bool{false, false}, then: 20 * time.Second, heardNow: true},
		"it did not notice":                {led: -1, unknown: [2]bool{true, true}, then: time.Second},
		"its clock was set back by a day":  {set: -24 * time.Hour, unknown: [2]bool{false, true}, then: 20 * time.Second},
		"its clock was set ahead by a day": {set: 24 * time.Hour, unknown: [2]bool{false, false}, then: 20 * time.Second, heardNow: true},
	} {
		t.Run(name, func(t *testing.T) {
			w, _ := running(t, 1, "host1", "host2")
			home := w.s.Guests["j1g0"].Home
			w.must(fleet.Request{Verb: fleet.Migrate, Guest: "j1g0"})
			at := map[fleet.HostID]fleet.HostID{"host1": "host2", "host2": "host1"}[home]
			w.cut("host1")
			w.cut("host2")
			w.now = w.now.Add(time.Hour + c.set)
			if c.led >= 0 {
				x := state.NewIndex(w.s, w.p.Policy)
				x.Led(w.now)
				w.s = x.Share()
			}
			if c.heardNow {
				w.silent["host1"], w.silent["host2"] = false, false
			}
			for _, unknown := range c.unknown {
				w.tick(time.Second)
				m := w.s.Migrations["m1.j1g0"]
				if given := m.Phase != fleet.Preparing; given != unknown {
					t.Fatalf("the order to %s to receive: given up %t, want %t: %s %s", at, given, unknown, m.Phase, m.Cause)
				}
				if unknown && !strings.Contains(m.Cause, "has not been heard from") {
					t.Errorf("the cause is %q", m.Cause)
				}
				w.now = w.now.Add(c.then)
			}
		})
	}
}

package agent

import (
	"strings"
	"testing"

	"pagurus/fleet"
	"pagurus/serve/wire"
)

// What only a newer controller asks or orders is answered in a sentence, and the session goes
// on.
func TestNewerController(t *testing.T) {
	in(t, func(t *testing.T, r *rig) {
		r.s.down <- wire.Down{Query: &wire.Query{ID: 5}}
		if rep := <-r.c.replies; rep.ID != 5 || !strings.HasSuffix(rep.Error, "upgrade the agent") {
			t.Errorf("to a question: %+v", rep)
		}
		dance := task(fleet.Start, 1)
		dance.Order.Verb = "dance"
		r.send(dance)
		if rep := r.expect(dance.Order, fleet.Failed); !strings.Contains(rep.Cause, `does not know the order "dance"`) || !strings.HasSuffix(rep.Cause, "upgrade the agent") {
			t.Errorf("to an order: %+v", rep)
		}
		r.do(task(fleet.Start, 1))
	})
}

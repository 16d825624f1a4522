package container_test

import (
	"strings"
	"testing"
)

// TestHeld: a move that one process keeps from being made is called off within seconds, in
// words that say why, and the guest runs on. TestKernelState has what does move.
func TestHeld(t *testing.T) {
	j := newJobOf(t, "openmpi", 1, jobUser)
	j.compileState("held")
	for n, c := range []struct{ name, says string }{
		{"stopped_by_terminal", "SIGTTIN"},
	} {
		t.Run(c.name, func(t *testing.T) {
			end := j.begin("held", c.name)
			_, err := j.tryMove(0, n+1)
			t.Logf("%v", err)
			if err == nil || !strings.Contains(err.Error(), c.says) {
				t.Errorf("the move says %v", err)
			}
			if o := end(); o.exit.Code != 0 {
				t.Errorf("%s: %+v", c.name, o)
			}
		})
	}
	j.move(0, 9)
}

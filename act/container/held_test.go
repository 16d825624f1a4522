package container_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestHeld: a move that one process prevents is cancelled within seconds, with the reason, and
// the guest keeps running. TestKernelState tests what can move.
func TestHeld(t *testing.T) {
	j := newJobOf(t, "openmpi", 1, jobUser)
	j.compileState("held")
	for n, c := range []struct{ name, says string }{
		{"stopped_by_terminal", "SIGTTIN"},
	} {
		t.Run(c.name, func(t *testing.T) {
			end := j.beginCase("held", c.name)
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

// TestWaitsGoOnWhereTheyAre: waiting calls do not notice that a move was cancelled after CRIU
// had held the processes. Nor do they notice that the guest was suspended for an owner.
func TestWaitsGoOnWhereTheyAre(t *testing.T) {
	j := newJobOf(t, "openmpi", 1, jobUser)
	j.compileState("held")
	cases := slices.DeleteFunc(j.compileState("times"), func(name string) bool {
		return name == "processor_time" // a move changes this, and a cancelled move does not
	})
	end := j.beginCase("held", "stopped_by_terminal")
	_ = os.Remove(filepath.Join(j.files, "stopped_by_terminal.ready"))
	j.keeps("times", cases, func(n int) {
		if n == 1 {
			if _, err := j.tryMove(0, n); err == nil || !strings.Contains(err.Error(), "SIGTTIN") {
				t.Errorf("it was moved, though one process cannot be, or not for that: %v", err)
			}
			return
		}
		d, id := j.drivers[0], j.tasks[0].Guest.ID
		if err := d.Suspend(t.Context(), id); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		if err := d.Resume(t.Context(), id); err != nil {
			t.Fatal(err)
		}
	})
	if o := end(); o.exit.Code != 0 {
		t.Errorf("what kept it says %+v", o)
	}
}

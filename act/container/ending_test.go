package container_test

import (
	"strings"
	"testing"
	"time"

	"pagurus/act/container"
	"pagurus/fleet"
	"pagurus/serve/agent/drivertest"
)

// TestEndings: how the first process of a guest ended is known, also to the next agent, with
// the end of its console.
func TestEndings(t *testing.T) {
	w := newWorld(t)
	for _, c := range []struct {
		id   fleet.GuestID
		end  func(*container.Driver, fleet.GuestID)
		want string
	}{
		{"j1g0", func(_ *container.Driver, id fleet.GuestID) { w.kill(t, 0, id) }, "its first process was killed by SIGKILL"},
		{"j1g1", func(d *container.Driver, id fleet.GuestID) { _, _ = drivertest.Ask(t.Context(), d, id, "exit") }, "its first process ended with exit status 0"},
	} {
		d := w.open(t, 0)
		tk := task(c.id)
		if err := d.Start(t.Context(), tk); err != nil {
			t.Fatal(err)
		}
		if _, err := drivertest.Ask(t.Context(), d, c.id, "report"); err != nil {
			t.Fatal(err)
		}
		ended := d.Ended(c.id)
		c.end(d, c.id)
		select {
		case <-ended:
		case <-time.After(time.Minute):
			t.Fatalf("%s does not end", c.id)
		}
		r := d.Ending(c.id)
		if err := d.Close(); err != nil {
			t.Error(err)
		}
		if r == nil || r.Why != c.want || r.Killed != (c.id == "j1g0") || r.Died != r.Killed || !strings.Contains(r.Sentence(), "; its last console line: witness: up") {
			t.Fatalf("of its end is known: %+v", r)
		}
		next := w.open(t, 0)
		if got := next.Ending(c.id); got == nil || got.Sentence() != r.Sentence() {
			t.Errorf("the next agent knows %+v", got)
		}
		if err := next.Stop(t.Context(), c.id); err != nil || next.Ending(c.id) != nil {
			t.Errorf("after its stop: %+v, %v", next.Ending(c.id), err)
		}
		if err := next.Close(); err != nil {
			t.Error(err)
		}
	}
}

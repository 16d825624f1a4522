package container_test

import (
	"context"
	"testing"
	"time"

	"pagurus/act/container"
	"pagurus/fleet"
	"pagurus/serve/agent"
	"pagurus/serve/agent/drivertest"
)

var _ agent.Reclaimer = (*container.Driver)(nil)

// TestSuspend: a guest that is suspended for an owner does not answer. A driver that is opened
// again also reports it as suspended. It continues unchanged when it is resumed, and can be
// stopped while it is suspended.
func TestSuspend(t *testing.T) {
	w := newWorld(t)
	tk := task("j1g0")
	defer w.sweep(t, tk.Guest.ID)
	d := w.open(t, 0)
	if err := d.Suspend(t.Context(), tk.Guest.ID); err == nil {
		t.Error("a guest that is not here is suspended")
	}
	if err := d.Start(t.Context(), tk); err != nil {
		t.Fatal(err)
	}
	drivertest.Healthy(t, d, tk.Guest.ID)
	for range 2 { // suspending twice is allowed
		if err := d.Suspend(t.Context(), tk.Guest.ID); err != nil {
			t.Fatal(err)
		}
	}
	counts := func(d *container.Driver, as fleet.RunState) {
		t.Helper()
		if all, err := d.Inspect(t.Context()); err != nil || all[tk.Guest.ID].Run != as {
			t.Errorf("it is %s and not %s, %v", all[tk.Guest.ID].Run, as, err)
		}
	}
	silent := func(d *container.Driver) {
		t.Helper()
		counts(d, fleet.Suspended)
		ctx, done := context.WithTimeout(t.Context(), 2*time.Second)
		defer done()
		if said, err := drivertest.Ask(ctx, d, tk.Guest.ID, "status"); err == nil {
			t.Errorf("it is suspended and says %q", said)
		}
	}
	silent(d)
	d.Close()
	d = w.open(t, 0)
	defer d.Close()
	silent(d)
	for range 2 {
		if err := d.Resume(t.Context(), tk.Guest.ID); err != nil {
			t.Fatal(err)
		}
	}
	drivertest.Healthy(t, d, tk.Guest.ID)
	counts(d, fleet.Running)
	if err := d.Suspend(t.Context(), tk.Guest.ID); err != nil {
		t.Fatal(err)
	}
	if err := d.Stop(t.Context(), tk.Guest.ID); err != nil {
		t.Error(err)
	}
}

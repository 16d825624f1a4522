package qemu_test

import (
	"context"
	"testing"
	"time"

	"pagurus/act/qemu"
	"pagurus/fleet"
	"pagurus/serve/agent/drivertest"
)

// TestSlowed: a guest that changes memory faster than it may be sent is slowed until
// it is ready, by pre-copy alone, and is itself again at its target.
func TestSlowed(t *testing.T) {
	w := newWorld(t)
	tk := task("j1g0")
	var hosts [2]*qemu.Driver
	for i := range hosts {
		hosts[i] = w.open(t, i)
		defer hosts[i].Close()
		defer hosts[i].Stop(context.Background(), tk.Guest.ID)
	}
	if err := hosts[0].Start(t.Context(), tk); err != nil {
		t.Fatal(err)
	}
	drivertest.Healthy(t, hosts[0], tk.Guest.ID)
	if got, err := drivertest.Ask(t.Context(), hosts[0], tk.Guest.ID, "dirty 300"); err != nil || got != "ok" && got != "<nil>" {
		t.Fatalf("it says %q, %v", got, err)
	}
	tk.Order.Migration, tk.Limits = "m1", fleet.Limits{Mode: fleet.PreCopy, Slow: true, BytesPerSecond: 100 << 20, Downtime: 40 * time.Millisecond}
	slowed := 0
	p := w.moveTelling(t, tk, hosts[0], hosts[1], func(p fleet.Progress) { slowed = max(slowed, p.SlowedPercent) })
	t.Logf("%d rounds, %d MiB sent, %s in all, %s down, slowed by %d %%", p.Rounds, p.SentBytes>>20, p.Elapsed, p.Downtime, slowed)
	if slowed == 0 {
		t.Error("it was not slowed")
	}
	if _, err := drivertest.Ask(t.Context(), hosts[1], tk.Guest.ID, "dirty 4"); err != nil {
		t.Fatal(err)
	}
	drivertest.Healthy(t, hosts[1], tk.Guest.ID)
}

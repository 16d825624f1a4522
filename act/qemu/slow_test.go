package qemu_test

import (
	"testing"
	"time"

	"pagurus/fleet"
	"pagurus/serve/agent/drivertest"
)

// TestSlowed: a guest that changes memory faster than it can be sent is slowed until it
// is ready, only in pre-copy, and runs at full speed at its target.
func TestSlowed(t *testing.T) {
	w := newWorld(t)
	tk := task("j1g0")
	hosts := w.started(t, tk)
	drivertest.Healthy(t, hosts[0], tk.Guest.ID)
	tell(t, hosts[0], tk.Guest.ID, "dirty 300")
	tk.Order.Migration, tk.Limits = "m1", fleet.Limits{Mode: fleet.PreCopy, Slow: true, BytesPerSecond: 48 << 20, Downtime: 40 * time.Millisecond}
	slowed := 0
	p := w.moveTelling(t, tk, hosts[0], hosts[1], func(p fleet.Progress) { slowed = max(slowed, p.SlowedPercent) })
	t.Logf("%d rounds, %d MiB sent, %s in all, %s down, slowed by %d %%", p.Rounds, p.SentBytes>>20, p.Elapsed, p.Downtime, slowed)
	if slowed == 0 {
		t.Error("it was not slowed")
	}
	tell(t, hosts[1], tk.Guest.ID, "dirty 4")
	drivertest.Healthy(t, hosts[1], tk.Guest.ID)
}

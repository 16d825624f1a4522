package container_test

import (
	"strings"
	"testing"
	"time"

	"pagurus/act/container"
	"pagurus/fleet"
	"pagurus/serve/agent"
	"pagurus/serve/agent/drivertest"
)

var (
	_ agent.Profiler = (*container.Driver)(nil)
	_ agent.Examiner = (*container.Driver)(nil)
)

// TestProfile: a guest whose program dirties at a known rate, round and round in
// 16 MiB, is seen to do so, at the promised price, before it moves and after; one
// that is being moved, or is not here, is left alone.
func TestProfile(t *testing.T) {
	const (
		mib       = 1 << 20
		everyHalf = 30 * time.Second // how often an agent looks
	)
	w := newWorld(t)
	tk := task("j1g0")
	defer w.sweep(t, tk.Guest.ID)
	from, to := w.open(t, 0), w.open(t, 1)
	defer from.Close()
	defer to.Close()
	if _, err := from.Profile(t.Context(), tk.Guest.ID); err == nil {
		t.Error("a guest that is not here has a profile")
	}
	if err := from.Start(t.Context(), tk); err != nil {
		t.Fatal(err)
	}
	drivertest.Healthy(t, from, tk.Guest.ID)
	look := func(d *container.Driver, rate string, least, most float64) {
		t.Helper()
		if _, err := drivertest.Ask(t.Context(), d, tk.Guest.ID, "dirty "+rate); err != nil {
			t.Fatal(err)
		}
		time.Sleep(100 * time.Millisecond)
		p, err := d.Profile(t.Context(), tk.Guest.ID)
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("%s MiB/s: %.1f of %.1f MiB filled, looked for %s of a processor, %+v", rate, float64(p.FilledBytes)/mib, float64(p.MemoryBytes)/mib, p.Took, p.Changed)
		if p.Took > everyHalf/100 {
			t.Errorf("a look took %s of a processor, which is more than 1 %% if done every %s", p.Took, everyHalf)
		}
		if p.FilledBytes < 16*mib || p.FilledBytes > memory {
			t.Errorf("%d MiB are filled", p.FilledBytes/mib)
		}
		for _, c := range p.Changed {
			// A program on a busy machine falls behind; the runtime changes some
			// pages of its own.
			got, all := float64(c.Bytes)/mib, c.Within.Seconds()
			if got > min(most*all, 16)+3 || got < min(least*all, 16)*0.5-1 {
				t.Errorf("%s MiB/s: within %s %.1f MiB changed", rate, c.Within, got)
			}
		}
	}
	look(from, "0", 0, 0)
	look(from, "8", 8, 8)
	if found, err := from.Obstacles(t.Context(), tk.Guest.ID); err != nil || len(found) > 0 {
		t.Errorf("a guest that can move has %q, %v", found, err)
	}

	tk.Order.Migration = "m1.j1g0"
	var err error
	if tk.Listen, err = to.Receive(t.Context(), tk); err != nil {
		t.Fatal(err)
	}
	if _, err := to.Profile(t.Context(), tk.Guest.ID); err == nil {
		t.Error("a guest that has not come yet has a profile")
	}
	if err := from.Copy(t.Context(), tk, func(fleet.Progress) {}); err != nil {
		t.Fatal(err)
	}
	if _, err := from.Profile(t.Context(), tk.Guest.ID); err == nil {
		t.Error("a guest that is being moved was looked at")
	}
	if _, err := from.Switch(t.Context(), tk); err != nil {
		t.Fatal(err)
	}
	if _, err := from.Obstacles(t.Context(), tk.Guest.ID); err == nil {
		t.Error("a guest that has left was examined")
	}
	if err := to.Resume(t.Context(), tk.Guest.ID); err != nil {
		t.Fatal(err)
	}
	if err := from.Stop(t.Context(), tk.Guest.ID); err != nil {
		t.Fatal(err)
	}
	look(to, "8", 8, 8)
}

// TestObstacles: what keeps a guest from being moved is said before anything of a
// move is begun, by the program's name.
func TestObstacles(t *testing.T) {
	w := newWorld(t)
	tk := task("j1g0")
	defer w.sweep(t, tk.Guest.ID)
	d := w.open(t, 0)
	defer d.Close()
	if err := d.Start(t.Context(), tk); err != nil {
		t.Fatal(err)
	}
	drivertest.Healthy(t, d, tk.Guest.ID)
	if _, err := drivertest.Ask(t.Context(), d, tk.Guest.ID, "cipher"); err != nil {
		t.Fatal(err)
	}
	found, err := d.Obstacles(t.Context(), tk.Guest.ID)
	if err != nil || len(found) != 1 || !strings.Contains(found[0], "AF_ALG") {
		t.Errorf("a socket to the kernel's ciphers: %q, %v", found, err)
	}
}

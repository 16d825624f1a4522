package qemu_test

import (
	"context"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"pagurus/act/qemu"
	"pagurus/act/qemu/qmp"
	"pagurus/fleet"
	"pagurus/serve/agent"
	"pagurus/serve/agent/drivertest"
)

var _ agent.Profiler = (*qemu.Driver)(nil)

// TestProfile: the profile of a guest that dirties 16 MiB at a known rate is correct, at
// the promised cost. QEMU's own count of changes is logged beside it.
func TestProfile(t *testing.T) {
	const (
		mib       = 1 << 20
		id        = fleet.GuestID("j1g0")
		everyHalf = 30 * time.Second // how often an agent samples
	)
	w := newWorld(t)
	d := w.open(t, 0)
	defer func() { d.Close() }()
	if _, err := d.Profile(t.Context(), id); err == nil {
		t.Error("a guest that is not here has a profile")
	}
	tk := task(id)
	if err := d.Start(t.Context(), tk); err != nil {
		t.Fatal(err)
	}
	defer func() { d.Stop(context.Background(), id) }()
	drivertest.Healthy(t, d, id)
	for _, rate := range []int64{0, 4, 32} {
		if _, err := drivertest.Ask(t.Context(), d, id, fmt.Sprintf("dirty %d", rate)); err != nil {
			t.Fatal(err)
		}
		// An emulated guest on a busy machine sometimes falls behind and catches up.
		var wrong []string
		for range 3 {
			time.Sleep(time.Second)
			p, err := d.Profile(t.Context(), id)
			if err != nil {
				t.Fatal(err)
			}
			t.Logf("%d MiB/s: %d MiB filled, looked for %s of a processor", rate, p.FilledBytes>>20, p.Took)
			if p.Took > everyHalf/100 {
				t.Errorf("a look took %s of a processor, which is more than 1 %% if done every %s", p.Took, everyHalf)
			}
			if p.MemoryBytes < memory || p.MemoryBytes > memory+mib || p.FilledBytes < 30*mib || p.FilledBytes > p.MemoryBytes {
				t.Errorf("of %d MiB %d are filled", p.MemoryBytes>>20, p.FilledBytes>>20)
			}
			if wrong = misjudged(t, p, float64(rate)); len(wrong) == 0 {
				break
			}
		}
		for _, what := range wrong {
			t.Error(what)
		}
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	t.Logf("qemu itself sees %d MiB change in a second", w.changedInASecond(t, id))
	d = w.open(t, 0)
}

// misjudged names the intervals in which the measured change differs from that of a
// program that dirties rate MiB a second. The kernel and the witness change some pages,
// too.
func misjudged(t *testing.T, p fleet.Profile, rate float64) (wrong []string) {
	t.Helper()
	for _, c := range p.Changed {
		want := min(rate*c.Within.Seconds(), 16)
		got := float64(c.Bytes) / (1 << 20)
		t.Logf("  within %-12s %5.2f MiB changed, the program %5.2f", c.Within, got, want)
		if got > want+3 || got < want*0.6-1 {
			wrong = append(wrong, fmt.Sprintf("within %s %.1f MiB changed, the program dirtied %.1f", c.Within, got, want))
		}
	}
	return wrong
}

// changedInASecond asks QEMU; its monitor must be free.
func (w *world) changedInASecond(t *testing.T, id fleet.GuestID) int64 {
	t.Helper()
	q, err := qmp.Open(t.Context(), filepath.Join(w.hosts[0].Run, "guests", string(id), "qmp.sock"))
	if err != nil {
		t.Fatal(err)
	}
	defer q.Close()
	if err := q.Do(t.Context(), "calc-dirty-rate", map[string]any{"calc-time": 1, "sample-pages": 4096}, nil); err != nil {
		t.Fatal(err)
	}
	for range 100 {
		var out struct {
			Status string `json:"status"`
			Rate   int64  `json:"dirty-rate"`
		}
		if err := q.Do(t.Context(), "query-dirty-rate", nil, &out); err != nil {
			t.Fatal(err)
		}
		if out.Status == "measured" {
			return out.Rate
		}
		time.Sleep(50 * time.Millisecond)
	}
	t.Fatal("qemu does not come to an end with it")
	return 0
}

// TestProfileOfTheMoved: a guest that is being copied is not sampled, nor one that has
// left.
func TestProfileOfTheMoved(t *testing.T) {
	w := newWorld(t)
	from, to := w.open(t, 0), w.open(t, 1)
	defer from.Close()
	defer to.Close()
	tk := task("j1g0")
	if err := from.Start(t.Context(), tk); err != nil {
		t.Fatal(err)
	}
	defer from.Stop(context.Background(), tk.Guest.ID)
	defer to.Stop(context.Background(), tk.Guest.ID)
	drivertest.Healthy(t, from, tk.Guest.ID)
	tk.Order.Migration, tk.Limits = "m1.j1g0", fleet.Limits{BytesPerSecond: 32 << 20}
	var err error
	if tk.Listen, err = to.Receive(t.Context(), tk); err != nil {
		t.Fatal(err)
	}
	if _, err := to.Profile(t.Context(), tk.Guest.ID); err == nil {
		t.Error("a guest that has not come yet has a profile")
	}
	refused := false
	if err := from.Copy(t.Context(), tk, func(fleet.Progress) {
		if !refused {
			_, err := from.Profile(t.Context(), tk.Guest.ID)
			refused = err != nil
		}
	}); err != nil {
		t.Fatal(err)
	}
	if !refused {
		t.Error("a guest that is being copied was looked at")
	}
	if _, err := from.Switch(t.Context(), tk, func(bool) {}); err != nil {
		t.Fatal(err)
	}
	if _, err := from.Profile(t.Context(), tk.Guest.ID); err == nil {
		t.Error("a guest that has left has a profile")
	}
	if err := to.Resume(t.Context(), tk.Guest.ID); err != nil {
		t.Fatal(err)
	}
	p, err := to.Profile(t.Context(), tk.Guest.ID)
	if err != nil || p.FilledBytes == 0 {
		t.Errorf("after its arrival: %+v, %v", p, err)
	}
}

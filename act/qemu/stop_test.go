package qemu_test

import (
	"os"
	"slices"
	"testing"
	"time"

	"pagurus/fleet"
	"pagurus/serve/agent/drivertest"
)

// TestCheckpointStops: a checkpoint stops a guest that changes 64 MiB of memory a second for less time than it takes. The
// log says how long.
func TestCheckpointStops(t *testing.T) {
	w := newWorld(t)
	d := w.open(t, 0)
	defer d.Close()
	const id, runs = "j1g0", 7
	for _, bytes := range []int64{memory, 1 << 30} {
		tk := task(id)
		tk.Guest.Need.MemoryBytes = bytes
		if err := d.Start(t.Context(), tk); err != nil {
			t.Fatal(err)
		}
		if _, err := drivertest.Ask(t.Context(), d, id, "dirty 64"); err != nil {
			t.Fatal(err)
		}
		var stops, alls []time.Duration
		var last fleet.Saved
		for range runs {
			folder, err := os.MkdirTemp(t.TempDir(), "")
			if err != nil {
				t.Fatal(err)
			}
			begun := time.Now()
			for _, step := range []func() error{
				func() error { return d.Arm(t.Context(), id, folder) },
				func() error { return d.Cut(t.Context(), id) },
				func() error { return d.Continue(t.Context(), id) },
				func() (err error) { last, err = d.Saved(t.Context(), id); return err },
			} {
				if err := step(); err != nil {
					t.Fatal(err)
				}
			}
			stops, alls = append(stops, last.Stop), append(alls, time.Since(begun))
		}
		slices.Sort(stops)
		slices.Sort(alls)
		t.Logf("%d MiB, %d MiB written: stopped for %s (%s to %s), all took %s", bytes>>20, last.Bytes>>20,
			stops[runs/2], stops[0], stops[runs-1], alls[runs/2])
		if stops[runs/2] >= alls[runs/2] {
			t.Error("it was stopped all the time")
		}
		drivertest.Healthy(t, d, id)
		if err := d.Stop(t.Context(), id); err != nil {
			t.Fatal(err)
		}
	}
}

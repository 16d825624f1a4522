package qemu_test

import (
	"context"
	"testing"
	"time"

	"pagurus/fleet"
	"pagurus/serve/agent/drivertest"
)

// TestMemoryIsReclaimed: a guest gives unneeded memory to its host, is suspended and
// resumed, and gets all of its memory back. Its memory is correct throughout.
func TestMemoryIsReclaimed(t *testing.T) {
	const free = 64 << 20 // files used it before
	w := newWorld(t)
	d := w.open(t, 0)
	defer d.Close()
	tk := task("j1g0")
	id := tk.Guest.ID
	if err := d.Start(t.Context(), tk); err != nil {
		t.Fatal(err)
	}
	defer d.Stop(context.Background(), id)
	drivertest.Healthy(t, d, id)
	tell(t, d, id, "read", "drop")
	facts := func() fleet.GuestFacts {
		all, err := d.Inspect(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return all[id]
	}
	before := facts().ResidentBytes
	reclaimed, err := d.ReclaimMemory(t.Context(), id, free)
	if err != nil || reclaimed < free/4 || reclaimed > free {
		t.Fatalf("it gave back %d MiB of %d, %v", reclaimed>>20, free>>20, err)
	}
	for end := time.Now().Add(20 * time.Second); before-facts().ResidentBytes < reclaimed/2; time.Sleep(100 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("it gave back %d MiB, and the host has %d of them", reclaimed>>20, (before-facts().ResidentBytes)>>20)
		}
	}
	drivertest.Healthy(t, d, id)
	for range 2 { // a repeated call has no further effect
		if err := d.Suspend(t.Context(), id); err != nil {
			t.Fatal(err)
		}
	}
	if run := facts().Run; run != fleet.Suspended {
		t.Errorf("told to suspend it is %s", run)
	}
	if err := d.Resume(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	if err := d.ReturnMemory(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	drivertest.Healthy(t, d, id)
	if run := facts().Run; run != fleet.Running {
		t.Errorf("told to go on it is %s", run)
	}
}

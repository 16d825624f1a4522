package xen_test

import (
	"os"
	"strings"
	"testing"
	"time"

	"pagurus/act/xen"
	"pagurus/fleet"
	"pagurus/serve/agent/drivertest"
)

// TestMemoryIsReclaimed: a guest gives memory to Xen that it does not need, is suspended and resumed, and gets all of its memory back: when it is told to,
// and at the target of a move.
func TestMemoryIsReclaimed(t *testing.T) {
	if os.Getenv(onXen) == "" {
		return
	}
	const memory, free = 192 << 20, 64 << 20 // the witness uses 16 MiB, and less than half of the memory is not free
	mib := func(d *xen.Driver, id fleet.GuestID) int64 {
		t.Helper()
		facts, err := d.Inspect(t.Context())
		if err != nil || facts[id].ResidentBytes == 0 {
			t.Fatalf("it is not there: %v", err)
		}
		return facts[id].ResidentBytes >> 20
	}
	comes := func(d *xen.Driver, id fleet.GuestID, what string, holds func(mib int64) bool) {
		t.Helper()
		for end := time.Now().Add(2 * time.Minute); !holds(mib(d, id)); time.Sleep(time.Second) {
			if time.Now().After(end) {
				t.Fatalf("%s: it has %d MiB", what, mib(d, id))
			}
		}
	}
	var all, less int64
	reclaim := func(d *xen.Driver, id fleet.GuestID) {
		t.Helper()
		all = mib(d, id)
		reclaimed, err := d.ReclaimMemory(t.Context(), id, free)
		if err != nil || reclaimed < free/4 || reclaimed > free {
			t.Fatalf("it gave back %d MiB of %d, %v", reclaimed>>20, free>>20, err)
		}
		less = all - reclaimed>>20
		comes(d, id, "reclaimed", func(mib int64) bool { return mib <= less+1 })
		t.Logf("it had %d MiB, and has %d", all, mib(d, id))
		drivertest.Healthy(t, d, id)
	}
	w := newWorld(t)
	source, target, k := w.copied(t, "b1g0", memory, func(d *xen.Driver) {
		id := fleet.GuestID("b1g0")
		if _, err := drivertest.Ask(t.Context(), d, id, "drop"); err != nil {
			t.Fatal(err)
		}
		reclaim(d, id)
		for range 2 { // a repeated call has no further effect
			if err := d.Suspend(t.Context(), id); err != nil {
				t.Fatal(err)
			}
		}
		if facts, err := d.Inspect(t.Context()); err != nil || facts[id].Run != fleet.Suspended || !strings.Contains(xl(t, "list", "pgt0-b1g0"), "--p---") {
			t.Errorf("told to suspend it is %q, %v", facts[id].Run, err)
		}
		for range 2 {
			if err := d.Resume(t.Context(), id); err != nil {
				t.Fatal(err)
			}
		}
		if err := d.ReturnMemory(t.Context(), id); err != nil {
			t.Fatal(err)
		}
		comes(d, id, "returned", func(mib int64) bool { return mib >= all })
		drivertest.Healthy(t, d, id)
		reclaim(d, id)
	})
	if err := source.Suspend(t.Context(), k.Guest.ID); err == nil {
		t.Error("a guest was suspended that is being moved")
	}
	p, err := source.Switch(t.Context(), k, func(bool) {})
	if err == nil {
		err = target.Resume(t.Context(), k.Guest.ID)
	}
	if err == nil {
		err = source.Stop(t.Context(), k.Guest.ID)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d MiB were sent of %d", p.SentBytes>>20, less)
	comes(target, k.Guest.ID, "moved", func(mib int64) bool { return mib >= all })
	drivertest.Healthy(t, target, k.Guest.ID)
	if err := target.Stop(t.Context(), k.Guest.ID); err != nil {
		t.Error(err)
	}
}

// TestSlices: the slice of Xen's scheduler is what the driver is told.
func TestSlices(t *testing.T) {
	if os.Getenv(onXen) == "" {
		return
	}
	w := newWorld(t)
	d := w.open(t, 0)
	defer d.Close()
	for _, length := range []time.Duration{10 * time.Millisecond, 30 * time.Millisecond, 90 * time.Millisecond} {
		if err := d.Slice(length); err != nil {
			t.Fatal(err)
		}
		if out := xl(t, "sched-credit", "-s"); !strings.Contains(out, "tslice="+strings.TrimSuffix(length.String(), "s")) {
			t.Errorf("with %s Xen says %q", length, out)
		}
	}
	if err := d.Slice(30 * time.Millisecond); err != nil {
		t.Error(err)
	}
}

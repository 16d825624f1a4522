package qemu_test

import (
	"context"
	"fmt"
	"testing"

	"pagurus/act/qemu"
	"pagurus/fleet"
	"pagurus/serve/agent/drivertest"
)

// TestDroppedCacheIsNotSent: dropped page cache is not sent, compression sends less, and
// the guest's memory is correct after each move.
func TestDroppedCacheIsNotSent(t *testing.T) {
	w := newWorld(t)
	tk := task("j1g0")
	hosts := w.started(t, tk)
	var sent, copied []int64
	for i, c := range []struct {
		limits fleet.Limits
		says   []string
	}{
		{says: []string{"dirty 0", "read"}, limits: fleet.Limits{BytesPerSecond: 64 << 20}},
		{says: []string{"read", "drop"}, limits: fleet.Limits{BytesPerSecond: 64 << 20}},
		{says: []string{"dirty 32", "read"}, limits: fleet.Limits{Compress: fleet.CompressOn, BytesPerSecond: 64 << 20}},
		{says: []string{"read", "drop"}, limits: fleet.Limits{Compress: fleet.CompressOn}},
	} {
		from, to := hosts[i%2], hosts[(i+1)%2]
		if c.limits.Compress == fleet.CompressOn && !from.Abilities().Compress {
			t.Logf("this QEMU does not compress")
			continue
		}
		drivertest.Healthy(t, from, tk.Guest.ID)
		tell(t, from, tk.Guest.ID, c.says...)
		tk.Order.Migration, tk.Limits = fleet.MigrationID(fmt.Sprintf("m%d", i)), c.limits
		p := w.move(t, tk, from, to)
		t.Logf("%v, %+v: %d rounds, %d MiB of memory, %d MiB sent, %s in all, %s down", c.says, c.limits, p.Rounds, p.CopiedBytes>>20, p.SentBytes>>20, p.Elapsed, p.Downtime)
		sent, copied = append(sent, p.SentBytes), append(copied, p.CopiedBytes)
		drivertest.Healthy(t, to, tk.Guest.ID)
	}
	if sent[1] > sent[0]-diskBytes/2 {
		t.Errorf("with its page cache %d MiB were sent, without %d", sent[0]>>20, sent[1]>>20)
	}
	// Page cache does not compress; how often the rest is sent again depends on the
	// machine's load.
	if len(sent) == 4 && (copied[2]-sent[2] < 16<<20 || sent[3] > sent[2]-diskBytes/2 || sent[3]*10 > copied[3]*8) {
		t.Errorf("compressed %d MiB and %d MiB were sent of %d and %d", sent[2]>>20, sent[3]>>20, copied[2]>>20, copied[3]>>20)
	}
}

// started opens both hosts' drivers and starts a guest on the first. All end with the
// test.
func (w *world) started(t *testing.T, tk fleet.Task) (hosts [2]*qemu.Driver) {
	t.Helper()
	for i := range hosts {
		hosts[i] = w.open(t, i)
		t.Cleanup(func() {
			hosts[i].Stop(context.Background(), tk.Guest.ID)
			hosts[i].Close()
		})
	}
	if err := hosts[0].Start(t.Context(), tk); err != nil {
		t.Fatal(err)
	}
	return hosts
}

// tell sends a command to a guest's witness.
func tell(t *testing.T, d *qemu.Driver, id fleet.GuestID, words ...string) {
	t.Helper()
	for _, word := range words {
		if got, err := drivertest.Ask(t.Context(), d, id, word); err != nil || got != "<nil>" && got != "ok" {
			t.Fatalf("%s: it says %q, %v", word, got, err)
		}
	}
}

// move moves a guest from one driver to another.
func (w *world) move(t *testing.T, tk fleet.Task, from, to *qemu.Driver) fleet.Progress {
	t.Helper()
	return w.moveTelling(t, tk, from, to, func(fleet.Progress) {})
}

// moveTelling also reports the copy's progress.
func (w *world) moveTelling(t *testing.T, tk fleet.Task, from, to *qemu.Driver, tell func(fleet.Progress)) fleet.Progress {
	t.Helper()
	listen, err := to.Receive(t.Context(), tk)
	if err != nil {
		t.Fatal(err)
	}
	tk.Listen = listen
	if err := from.Copy(t.Context(), tk, tell); err != nil {
		t.Fatal(err)
	}
	p, err := from.Switch(t.Context(), tk, func(bool) {})
	if err != nil {
		t.Fatal(err)
	}
	if err := to.Resume(t.Context(), tk.Guest.ID); err != nil {
		t.Fatal(err)
	}
	if err := to.FetchRemaining(t.Context(), tk.Guest.ID); err != nil {
		t.Fatal(err)
	}
	if err := from.Stop(t.Context(), tk.Guest.ID); err != nil {
		t.Fatal(err)
	}
	return p
}

package qemu_test

import (
	"testing"
	"time"

	"pagurus/act/qemu"
	"pagurus/fleet"
	"pagurus/internal/testkit"
)

// A guest that is moved by hand runs at the target by itself, and is suspended at the source.
func TestByHand(t *testing.T) {
	w := newWorld(t)
	var d [2]*qemu.Driver
	for i := range d {
		c := w.config(t.Output(), i)
		c.ByHand, c.Snapshots = true, 0
		var err error
		if d[i], err = qemu.Open(t.Context(), c); err != nil {
			t.Fatal(err)
		}
		defer d[i].Close()
	}
	const id = "j1g0"
	if err := d[0].Start(t.Context(), task(id)); err != nil {
		t.Fatal(err)
	}
	runs := func(i int) fleet.RunState {
		all, err := d[i].Inspect(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return all[id].Run
	}
	if m, err := d[0].SendByHand(t.Context(), id, "127.0.0.1:1"); err == nil {
		t.Errorf("where nobody waits it has arrived: %+v", m)
	}
	if got := runs(0); got != fleet.Running {
		t.Errorf("after a move that failed it is %s", got)
	}
	listen, err := d[1].ReceiveByHand(t.Context(), task(id))
	if err != nil {
		t.Fatal(err)
	}
	if again, err := d[1].ReceiveByHand(t.Context(), task(id)); again != listen || err != nil {
		t.Errorf("asked again, it is received at %q, %v, and before at %q", again, err, listen)
	}
	m, err := d[0].SendByHand(t.Context(), id, listen)
	if err != nil || m.Total <= 0 || m.Sent <= 0 {
		t.Fatalf("%+v, %v", m, err)
	}
	testkit.Until(t, 30*time.Second, "it runs at the target", func() bool { return runs(1) == fleet.Running })
	if got := runs(0); got != fleet.Suspended {
		t.Errorf("at the source it is %s", got)
	}
	for i := range d {
		if err := d[i].Stop(t.Context(), id); err != nil {
			t.Error(err)
		}
		if left := w.left(t, i, id); len(left) > 0 {
			t.Errorf("left are %q", left)
		}
	}
}

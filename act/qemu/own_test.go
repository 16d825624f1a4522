package qemu_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	acthost "pagurus/act/host"
	"pagurus/act/qemu"
	"pagurus/fleet"
)

// userOf is the user and the group of a guest's QEMU, from the kernel.
func (w *world) userOf(t *testing.T, host int, id fleet.GuestID) (uid, gid uint32) {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Stat(fmt.Sprintf("/proc/%d", w.process(t, host, id)), &st); err != nil {
		t.Fatal(err)
	}
	return st.Uid, st.Gid
}

// TestUsersOfTheirOwn: each guest of a host has a user and a group that no other has, also after the
// agent's death, and what is given back is given again. Nobody but the guest's user and root can
// open a guest's files.
func TestUsersOfTheirOwn(t *testing.T) {
	w := newWorld(t)
	c := w.config(t.Output(), 0)
	c.UIDs = acthost.UIDs{First: 2_100_000_500, Last: 2_100_000_501}
	w.several(t, &c, 3)
	open := func() *qemu.Driver {
		d, err := qemu.Open(t.Context(), c)
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	d := open()
	defer func() { d.Close() }()
	for _, id := range []fleet.GuestID{"j1g0", "j1g1", "j1g2"} {
		defer func() { d.Stop(context.Background(), id) }()
	}
	start := func(id fleet.GuestID, want uint32) {
		t.Helper()
		if err := d.Start(t.Context(), indexed(id)); err != nil {
			t.Fatal(err)
		}
		if uid, gid := w.userOf(t, 0, id); uid != want || gid != want {
			t.Errorf("guest %s runs as user %d and group %d, want %d", id, uid, gid, want)
		}
	}
	start("j1g0", c.UIDs.First)
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	d = open() // it must know that the first is in use
	start("j1g1", c.UIDs.Last)
	if err := d.Start(t.Context(), indexed("j1g2")); err == nil {
		t.Error("a third guest has one of two users")
	}
	if left := w.left(t, 0, "j1g2"); len(left) > 0 {
		t.Errorf("a guest without a user left %v", left)
	}
	if err := d.Stop(t.Context(), "j1g0"); err != nil {
		t.Fatal(err)
	}
	start("j1g2", c.UIDs.First)

	dir := filepath.Join(w.hosts[0].Run, "guests", "j1g1")
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) < 4 {
		t.Fatalf("its folder has %v: %v", entries, err)
	}
	for _, e := range append([]string{"."}, names(entries)...) {
		var st unix.Stat_t
		if err := unix.Lstat(filepath.Join(dir, e), &st); err != nil {
			t.Fatal(err)
		}
		if uid := c.UIDs.Last; st.Mode&0o007 != 0 && e == "." || st.Uid != 0 && st.Uid != uid || st.Gid != 0 && st.Gid != uid {
			t.Errorf("%s has user %d, group %d and mode %o", e, st.Uid, st.Gid, st.Mode)
		}
	}
}

// indexed is a guest's task with the index that its name ends with.
func indexed(id fleet.GuestID) fleet.Task {
	tk := task(id)
	tk.Guest.Index = int(id[len(id)-1] - '0')
	return tk
}

func names(entries []os.DirEntry) (all []string) {
	for _, e := range entries {
		all = append(all, e.Name())
	}
	return all
}

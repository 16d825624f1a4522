package qemu

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"pagurus/act/host/jail"
)

// TestJailOf: a guest's QEMU sees its own folder, what it boots from, and the devices that it uses; nothing but its
// folder can be written.
func TestJailOf(t *testing.T) {
	binary, err := os.Executable() // it is not started
	if err != nil {
		t.Fatal(err)
	}
	built, err := os.Stat(binary)
	if err != nil {
		t.Fatal(err)
	}
	m := machine{guest: "j1g0", uid: 2_100_000_003, accelerator: Emulation, cpus: 2, memoryBytes: 64 << 20, kernel: "/i/vmlinuz", initrd: "/r/initrd/x", root: "/i/root.img"}
	for name, c := range map[string]struct {
		change  func(*machine, *Driver)
		devices []string
		network bool
	}{
		"emulated":  {func(*machine, *Driver) {}, []string{"/dev/null", "/dev/urandom", device}, false},
		"post-copy": {func(_ *machine, d *Driver) { d.ability.NoPostCopy = "no" }, []string{"/dev/null", "/dev/urandom"}, false},
		"hardware":  {func(m *machine, _ *Driver) { m.accelerator = Hardware }, []string{"/dev/null", "/dev/urandom", kvmDevice, device}, false},
		"by hand":   {func(m *machine, _ *Driver) { m.byHand = true }, []string{"/dev/null", "/dev/urandom", device}, true},
	} {
		d := &Driver{binary: binary}
		d.config.Run = "/r"
		d.needs = needs{seen: map[string]os.FileInfo{binary: built}, files: []jail.File{{Path: "/lib/libz.so", Runs: true}}}
		this := m
		c.change(&this, d)
		want := slices.DeleteFunc(slices.Clone(c.devices), func(path string) bool {
			_, err := os.Stat(path)
			return err != nil // not every machine has every one
		})
		if slices.Contains(c.devices, kvmDevice) && !slices.Contains(want, kvmDevice) {
			continue
		}
		j, err := d.jail(t.Context(), this)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		var has []string
		for _, dev := range j.Devices {
			has = append(has, dev.Path)
		}
		if !slices.Equal(has, want) {
			t.Errorf("%s: it has %v, want %v", name, has, want)
		}
		files := []jail.File{{Path: "/lib/libz.so", Runs: true}, {Path: "/r/guests/j1g0", Writable: true}, {Path: "/i/vmlinuz"}, {Path: "/r/initrd/x"}, {Path: "/i/root.img"}}
		if !slices.Equal(j.Files, files) {
			t.Errorf("%s: it sees %+v", name, j.Files)
		}
		if j.Network != c.network || j.UID != m.uid || j.Folder != "/r/guests/j1g0" || j.Program[0] != binary || j.FileBytes == 0 || j.OpenFiles == 0 {
			t.Errorf("%s: it is %+v", name, j)
		}
	}
}

// TestNeedsAreLookedForAgain: when a library is replaced, written to or removed, as an update does, what QEMU needs is looked for again.
func TestNeedsAreLookedForAgain(t *testing.T) {
	dir := t.TempDir()
	library, other := filepath.Join(dir, "libx.so.1"), filepath.Join(dir, "liby.so.1")
	begin := func() map[string]os.FileInfo {
		seen := map[string]os.FileInfo{}
		for _, path := range []string{library, other} {
			err := os.WriteFile(path, []byte("x"), 0o600)
			if err == nil {
				seen[path], err = os.Stat(path)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		return seen
	}
	for name, change := range map[string]func() error{
		"replaced": func() error {
			return errors.Join(os.WriteFile(library+".new", []byte("x"), 0o600), os.Rename(library+".new", library))
		},
		"written": func() error { return os.WriteFile(library, []byte("xy"), 0o600) },
		"touched": func() error { return os.Chtimes(library, time.Time{}, time.Unix(1, 0)) },
		"removed": func() error { return os.Remove(library) },
	} {
		seen := begin()
		if !unchanged(seen) {
			t.Errorf("before it is %s it has changed", name)
		}
		if err := change(); err != nil || unchanged(seen) {
			t.Errorf("when it is %s nothing has changed: %v", name, err)
		}
	}
	n := needs{seen: map[string]os.FileInfo{}}
	if err := os.WriteFile(library, []byte("#!/bin/sh"), 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := n.of(t.Context(), library); err == nil {
		t.Error("what was never seen is known")
	}
}

package qemu_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"pagurus/act/qemu"
	"pagurus/fleet"
	"pagurus/internal/testkit"
	"pagurus/serve/agent/drivertest"
)

// booted returns the snapshots of the world's image.
func (w *world) booted(t *testing.T) []string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(w.image, "booted", "*"))
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// fromSnapshot reports whether a guest started from a snapshot.
func (w *world) fromSnapshot(t *testing.T, host int, id fleet.GuestID) bool {
	t.Helper()
	line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", w.process(t, host, id)))
	if err != nil {
		t.Fatal(err)
	}
	return bytes.Contains(line, []byte("-incoming"))
}

// TestSnapshots: a guest starts from a snapshot whenever possible, and always starts.
func TestSnapshots(t *testing.T) {
	testkit.Emulated(t, "by KVM all guests boot")
	w := newWorld(t)
	tk := task("j1g0")
	w.ownImage(t)
	kept := filepath.Join(w.image, "booted")
	// An agent that dies meanwhile does not block the next.
	if code := w.apart(t, 0, fleet.Start, tk, "qemu.start.before-save=kill"); code != stepKilled {
		t.Fatalf("it ended with %d", code)
	}
	w.startAtOnce(t, tk)
	d := w.open(t, 0)
	defer d.Close()
	defer d.Stop(context.Background(), tk.Guest.ID)
	for _, c := range []struct {
		name  string
		first func() error
		want  bool
	}{
		{"one there", func() error { return nil }, true},
		{"half", func() error { return os.Truncate(w.booted(t)[0], 20<<20) }, true},
		{"nowhere to put it", func() error {
			if err := os.RemoveAll(kept); err != nil {
				return err
			}
			return os.WriteFile(kept, nil, 0o600)
		}, false},
	} {
		if err := c.first(); err != nil {
			t.Fatal(err)
		}
		if err := d.Start(t.Context(), tk); err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		drivertest.Healthy(t, d, tk.Guest.ID)
		if got := w.fromSnapshot(t, 0, tk.Guest.ID); got != c.want {
			t.Errorf("%s: from a snapshot: %t", c.name, got)
		}
		if found := w.booted(t); c.want && len(found) != 1 {
			t.Errorf("%s: snapshots: %v", c.name, found)
		}
		if err := d.Stop(t.Context(), tk.Guest.ID); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Remove(kept); err != nil {
		t.Fatal(err)
	}
}

// ownImage gives the world an image whose snapshots nobody else makes: other tests run at the same time.
func (w *world) ownImage(t *testing.T) {
	t.Helper()
	own, err := os.MkdirTemp(filepath.Dir(w.image), "own-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(own) })
	if err := os.Chmod(own, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"root.img", "vmlinuz", "modules.cpio"} {
		if err := os.Link(filepath.Join(w.image, name), filepath.Join(own, name)); err != nil {
			t.Fatal(err)
		}
	}
	w.image = own
}

// startAtOnce starts a guest on each of two hosts that share images and have no snapshot.
// Both run, one from the single snapshot that is made.
func (w *world) startAtOnce(t *testing.T, tk fleet.Task) {
	t.Helper()
	var hosts [2]*qemu.Driver
	var wait sync.WaitGroup
	for i := range hosts {
		hosts[i] = w.open(t, i)
		defer hosts[i].Close()
		defer hosts[i].Stop(context.Background(), tk.Guest.ID)
		wait.Go(func() {
			if err := hosts[i].Start(t.Context(), tk); err != nil {
				t.Error(err)
			}
		})
	}
	wait.Wait()
	for _, d := range hosts {
		drivertest.Healthy(t, d, tk.Guest.ID)
	}
	if found := w.booted(t); len(found) != 1 || !w.fromSnapshot(t, 0, tk.Guest.ID) && !w.fromSnapshot(t, 1, tk.Guest.ID) {
		t.Fatalf("of two guests none started from a snapshot; there are %v", found)
	}
}

package qemu_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"pagurus/fleet"
)

// TestEndings: what is kept of real guests that end by themselves says how, also to the
// next agent.
func TestEndings(t *testing.T) {
	w := newWorld(t)
	end := func(name string, id fleet.GuestID, signal unix.Signal, wantWhy, wantReason, wantConsole string) {
		d := w.open(t, 0)
		if err := d.Start(t.Context(), task(id)); err != nil {
			t.Fatal(err)
		}
		ended := d.Ended(id)
		if d.Ending(id) != nil {
			t.Errorf("%s: it has an end already", name)
		}
		if signal != 0 {
			if err := unix.Kill(w.process(t, 0, id), signal); err != nil {
				t.Fatal(err)
			}
		}
		select {
		case <-ended:
		case <-time.After(2 * time.Minute):
			t.Fatalf("%s: the guest does not end", name)
		}
		r := d.Ending(id)
		if err := d.Close(); err != nil {
			t.Error(err)
		}
		if r == nil {
			t.Fatalf("%s: nothing is known of its end", name)
		}
		t.Logf("%s: %+v", name, *r)
		if r.Killed != (signal != 0) || !r.Died { // none has shut down
			t.Errorf("%s: killed %t, died %t", name, r.Killed, r.Died)
		}
		if !strings.Contains(r.Why, wantWhy) || r.Reason != wantReason || !strings.Contains(strings.Join(r.Console, "\n"), wantConsole) {
			t.Errorf("%s: %+v", name, *r)
		}
		if _, err := os.Stat(filepath.Join(r.Folder, "console.log")); err != nil {
			t.Errorf("%s: its console is not kept: %v", name, err)
		}
		next := w.open(t, 0)
		defer next.Close()
		if got := next.Ending(id); got == nil || got.Sentence() != r.Sentence() {
			t.Errorf("%s: the next agent knows %+v", name, got)
		}
		if err := next.Stop(t.Context(), id); err != nil || next.Ending(id) != nil {
			t.Errorf("%s: after its stop %+v, %v", name, next.Ending(id), err)
		}
	}
	end("QEMU is killed", "j1g0", unix.SIGKILL, "QEMU was killed by SIGKILL", "", "")
	end("QEMU is told to end", "j1g1", unix.SIGTERM, "QEMU was told to end by a signal", "host-signal", "")
	w.agent = ender(t)
	w.snapshots = 0
	end("its kernel panics", "j1g2", 0, "its kernel panicked (Kernel panic - not syncing: Attempted to kill init!", "guest-reset", "Kernel Offset")
}

// ender builds a first process that ends at once, at which a kernel panics.
func ender(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	source, path := filepath.Join(dir, "main.go"), filepath.Join(dir, "ender")
	write(t, source, []byte("package main\n\nfunc main() {}\n"))
	cmd := exec.Command("go", "build", "-o", path, source)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build it: %v: %s", err, out)
	}
	return path
}

package qemu_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"pagurus/act/qemu"
	"pagurus/fleet"
	"pagurus/serve/agent/drivertest"
)

// checkpointSteps are the calls for a checkpoint's orders.
var checkpointSteps = map[fleet.Verb]func(ctx context.Context, d *qemu.Driver, t fleet.Task, folder string) error{
	fleet.Arm: func(ctx context.Context, d *qemu.Driver, t fleet.Task, folder string) error {
		return d.Arm(ctx, t.Guest.ID, folder)
	},
	fleet.Cut: func(ctx context.Context, d *qemu.Driver, t fleet.Task, _ string) error { return d.Cut(ctx, t.Guest.ID) },
	fleet.Continue: func(ctx context.Context, d *qemu.Driver, t fleet.Task, _ string) error {
		return d.Continue(ctx, t.Guest.ID)
	},
	fleet.Save: func(ctx context.Context, d *qemu.Driver, t fleet.Task, _ string) error {
		_, err := d.Saved(ctx, t.Guest.ID)
		return err
	},
	fleet.Drop: func(ctx context.Context, d *qemu.Driver, t fleet.Task, _ string) error {
		return d.Disarm(ctx, t.Guest.ID)
	},
	fleet.Restore: func(ctx context.Context, d *qemu.Driver, t fleet.Task, folder string) error {
		return d.Restore(ctx, t, folder)
	},
}

// steps takes some steps of a checkpoint.
func steps(t *testing.T, d *qemu.Driver, tk fleet.Task, folder string, verbs ...fleet.Verb) {
	t.Helper()
	for _, verb := range verbs {
		if err := checkpointSteps[verb](t.Context(), d, tk, folder); err != nil {
			t.Fatalf("%s: %v", verb, err)
		}
	}
}

// TestCheckpointAgentKilled kills the agent at every point of every step. Another agent then repeats the step, and
// what is restored must not notice.
func TestCheckpointAgentKilled(t *testing.T) {
	w := newWorld(t)
	w.folder = t.TempDir()
	tk := task("j1g0")
	d := w.open(t, 0)
	if err := d.Start(t.Context(), tk); err != nil {
		t.Fatal(err)
	}
	drivertest.Healthy(t, d, tk.Guest.ID)
	d.Close()
	for _, s := range []struct {
		host   int
		verb   fleet.Verb
		points []string
	}{
		{0, fleet.Arm, []string{"qemu.arm.before-note"}},
		{0, fleet.Cut, []string{"qemu.cut.before-stop", "qemu.cut.after-stop", "qemu.cut.after-begin"}},
		{0, fleet.Continue, []string{"qemu.continue.after-cont"}},
		{0, fleet.Save, []string{"qemu.saved.before-note"}},
		{0, fleet.Stop, nil},
		{1, fleet.Restore, []string{"qemu.start.after-spawn", "qemu.restore.after-load"}},
		{1, fleet.Activate, []string{"qemu.resume.before"}},
	} {
		for _, point := range s.points {
			if code := w.apart(t, s.host, s.verb, tk, point+"=kill"); code != stepKilled {
				t.Fatalf("%s under a kill at %s ended with %d", s.verb, point, code)
			}
		}
		if code := w.apart(t, s.host, s.verb, tk, ""); code != stepDone {
			t.Fatalf("%s after its agents were killed ended with %d", s.verb, code)
		}
	}
	d = w.open(t, 1)
	defer d.Close()
	drivertest.Healthy(t, d, tk.Guest.ID)
	if err := d.Stop(t.Context(), tk.Guest.ID); err != nil {
		t.Error(err)
	}
	for host := range w.hosts {
		for _, left := range w.left(t, host, tk.Guest.ID) {
			t.Errorf("left behind on host %d: %s", host, left)
		}
	}
}

// TestForgottenCut: without an order to go on the guest runs on by itself, though its agent died, and that checkpoint
// is void. So it is when the guest is told to run otherwise.
func TestForgottenCut(t *testing.T) {
	w := newWorld(t)
	tk := task("j1g0")
	d := w.open(t, 0)
	defer func() { d.Close() }() // it is opened again
	if err := d.Start(t.Context(), tk); err != nil {
		t.Fatal(err)
	}
	void := func(why string) {
		t.Helper()
		if err := d.Continue(t.Context(), tk.Guest.ID); err == nil || !strings.Contains(err.Error(), why) {
			t.Errorf("continue after that: %v", err)
		}
		if _, err := d.Saved(t.Context(), tk.Guest.ID); err == nil || !strings.Contains(err.Error(), why) {
			t.Errorf("saved after that: %v", err)
		}
		drivertest.Healthy(t, d, tk.Guest.ID)
		steps(t, d, tk, "", fleet.Drop)
	}
	run := func() fleet.RunState {
		facts, err := d.Inspect(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return facts[tk.Guest.ID].Run
	}
	steps(t, d, tk, t.TempDir(), fleet.Arm, fleet.Cut)
	if err := d.Resume(t.Context(), tk.Guest.ID); err != nil {
		t.Fatal(err)
	}
	void("told to run on")
	steps(t, d, tk, t.TempDir(), fleet.Arm, fleet.Cut)
	d.Close()
	d = w.open(t, 0)
	for begun := time.Now(); run() != fleet.Running; time.Sleep(100 * time.Millisecond) {
		if time.Since(begun) > 2*fleet.CutHold {
			t.Fatal("it does not run on")
		}
	}
	void("no order to go on")
	// While memory is written the guest runs: telling it so changes nothing.
	folder := t.TempDir()
	steps(t, d, tk, folder, fleet.Arm, fleet.Cut, fleet.Continue)
	if err := d.Resume(t.Context(), tk.Guest.ID); err != nil {
		t.Fatal(err)
	}
	steps(t, d, tk, folder, fleet.Save)
	if err := d.Stop(t.Context(), tk.Guest.ID); err != nil {
		t.Fatal(err)
	}
}

// TestRestoreOfAnother: what differs from the saved guest is said, and nothing is left.
func TestRestoreOfAnother(t *testing.T) {
	w := newWorld(t)
	tk := task("j1g0")
	d := w.open(t, 0)
	defer d.Close()
	if err := d.Start(t.Context(), tk); err != nil {
		t.Fatal(err)
	}
	folder := t.TempDir()
	steps(t, d, tk, folder, fleet.Arm, fleet.Cut, fleet.Continue, fleet.Save)
	if err := d.Stop(t.Context(), tk.Guest.ID); err != nil {
		t.Fatal(err)
	}
	for why, change := range map[string]func(*fleet.Task){
		"number of CPUs was 1, and is 2":                  func(t *fleet.Task) { t.Guest.Need.CPUs = 2 },
		"memory in bytes was 201326592, and is 268435456": func(t *fleet.Task) { t.Guest.Need.MemoryBytes = 256 << 20 },
		"image was , and is sha256:0123":                  func(t *fleet.Task) { t.Guest.Image = "sha256:0123" },
		"needs at least one CPU":                          func(t *fleet.Task) { t.Guest.Need.CPUs = 0 },
	} {
		other := tk
		change(&other)
		if err := d.Restore(t.Context(), other, folder); err == nil || !strings.Contains(err.Error(), why) {
			t.Errorf("%s: %v", why, err)
		}
		for _, left := range w.left(t, 0, tk.Guest.ID) {
			t.Errorf("%s: left behind: %s", why, left)
		}
	}
	// A link in place of the file is not followed.
	state := filepath.Join(folder, "guest.state")
	if err := os.Rename(state, state+".moved"); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(state+".moved", state); err != nil {
		t.Fatal(err)
	}
	if err := d.Restore(t.Context(), tk, folder); err == nil {
		t.Error("a link was followed")
	}
}

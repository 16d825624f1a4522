package qemu_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"pagurus/act/qemu"
	"pagurus/fleet"
	"pagurus/serve/agent/drivertest"
)

// TestStopAndCopyKeepsToItsCeiling: the bandwidth limit also holds for a suspended guest,
// and its QEMU answers meanwhile.
func TestStopAndCopyKeepsToItsCeiling(t *testing.T) {
	const ceiling = 40 << 20
	w := newWorld(t)
	tk := task("j1g0")
	hosts := w.started(t, tk)
	drivertest.Healthy(t, hosts[0], tk.Guest.ID)
	tk.Order.Migration, tk.Limits = "m1", fleet.Limits{Mode: fleet.StopAndCopy, BytesPerSecond: ceiling}
	seen, over := 0, make(chan struct{})
	looks, moved := context.WithCancel(t.Context())
	go func() {
		defer close(over)
		for looks.Err() == nil {
			if facts, err := hosts[0].Inspect(looks); err == nil && facts[tk.Guest.ID].Run == fleet.Suspended {
				seen++
			}
			time.Sleep(50 * time.Millisecond)
		}
	}()
	p := w.move(t, tk, hosts[0], hosts[1])
	moved()
	<-over
	t.Logf("%d MiB sent in %s, %s down, seen suspended %d times", p.SentBytes>>20, p.Elapsed, p.Downtime, seen)
	if least := time.Duration(0.7 * float64(p.SentBytes) / ceiling * float64(time.Second)); p.Downtime < least {
		t.Errorf("it took %s, and had to take %s", p.Downtime, least)
	}
	if seen < 5 {
		t.Error("nobody was told that it is suspended")
	}
	drivertest.Healthy(t, hosts[1], tk.Guest.ID)
}

// TestSwitchOverADeadLine: if the connection is dead during a switch, the guest runs on
// at its source long before TCP gives up.
func TestSwitchOverADeadLine(t *testing.T) {
	w := newWorld(t)
	source, target := w.open(t, 0), w.open(t, 1)
	defer source.Close()
	defer target.Close()
	tk := task("j1g0")
	if err := source.Start(t.Context(), tk); err != nil {
		t.Fatal(err)
	}
	drivertest.Healthy(t, source, tk.Guest.ID)
	tk.Order.Migration, tk.Limits = "m1", fleet.Limits{Mode: fleet.StopAndCopy}
	var err error
	if tk.Listen, err = target.Receive(t.Context(), tk); err != nil {
		t.Fatal(err)
	}
	pid := w.process(t, 1, tk.Guest.ID)
	unix.Kill(pid, unix.SIGSTOP) // its kernel accepts some data, and then none
	defer unix.Kill(pid, unix.SIGCONT)
	if err := source.Copy(t.Context(), tk, func(fleet.Progress) {}); err != nil {
		t.Fatal(err)
	}
	begun := time.Now()
	_, err = source.Switch(t.Context(), tk, func(bool) {})
	t.Logf("after %s: %v", time.Since(begun), err)
	if err == nil || errors.Is(err, fleet.ErrUnsure) {
		t.Fatalf("it is not known to have failed: %v", err)
	}
	if err := source.Resume(t.Context(), tk.Guest.ID); err != nil {
		t.Fatal(err)
	}
	drivertest.Healthy(t, source, tk.Guest.ID)
	unix.Kill(pid, unix.SIGCONT)
	for _, d := range []*qemu.Driver{source, target} {
		if err := d.Stop(t.Context(), tk.Guest.ID); err != nil {
			t.Error(err)
		}
	}
}

// TestHeldByTheNextAgent: a ready guest that waits for its gang is not suspended for long
// when another agent replaces the one that held its copy, also if its QEMU does not answer at first. If QEMU has suspended it
// meanwhile, it runs on without its copy, and a switch certainly fails.
func TestHeldByTheNextAgent(t *testing.T) {
	const wait, looks = 3 * time.Second, 30
	w := newWorld(t)
	source, target := w.open(t, 0), w.open(t, 1)
	defer target.Close()
	tk := task("j1g0")
	if err := source.Start(t.Context(), tk); err != nil {
		t.Fatal(err)
	}
	drivertest.Healthy(t, source, tk.Guest.ID)
	tk.Order.Migration, tk.Limits = "m1", fleet.Limits{AwaitGang: true}
	var err error
	if tk.Listen, err = target.Receive(t.Context(), tk); err != nil {
		t.Fatal(err)
	}
	if err := source.Copy(t.Context(), tk, func(fleet.Progress) {}); err != nil {
		t.Fatal(err)
	}
	source.Close()
	pid := w.process(t, 0, tk.Guest.ID)
	unix.Kill(pid, unix.SIGSTOP) // as on a busy host it does not answer at once
	time.AfterFunc(2*time.Second, func() { unix.Kill(pid, unix.SIGCONT) })
	source = w.open(t, 0)
	defer source.Close()
	last := fleet.RunState("")
	for begun := time.Now(); time.Since(begun) < wait || last != fleet.Running; time.Sleep(wait / looks) {
		facts, err := source.Inspect(t.Context())
		if err != nil || time.Since(begun) > 30*wait {
			t.Fatalf("after %s it is %s: %v", time.Since(begun), last, err)
		}
		last = facts[tk.Guest.ID].Run
	}
	_, err = source.Switch(t.Context(), tk, func(bool) {})
	t.Logf("switched: %v", err)
	if errors.Is(err, fleet.ErrUnsure) {
		t.Fatal(err)
	}
	home := target
	if err != nil {
		home = source
	}
	if err := home.Resume(t.Context(), tk.Guest.ID); err != nil {
		t.Fatal(err)
	}
	drivertest.Healthy(t, home, tk.Guest.ID)
	for _, d := range []*qemu.Driver{source, target} {
		if err := d.Stop(t.Context(), tk.Guest.ID); err != nil {
			t.Error(err)
		}
	}
}

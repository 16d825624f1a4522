package xen_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"pagurus/act/xen"
	"pagurus/fleet"
	"pagurus/internal/testkit"
	"pagurus/serve/agent/drivertest"
)

// TestSuspensionUnanswered: a guest that does not answer when it is to be suspended stays, and runs on as soon as it can.
func TestSuspensionUnanswered(t *testing.T) {
	if os.Getenv(onXen) == "" {
		return
	}
	w := newWorld(t)
	source, target, k := w.copied(t, "s1g0", memory, func(*xen.Driver) {})
	xl(t, "pause", "pgt0-s1g0")
	begun := time.Now()
	_, err := source.Switch(t.Context(), k, func(bool) {})
	t.Logf("after %s: %v", time.Since(begun).Round(time.Second), err)
	if err == nil || errors.Is(err, fleet.ErrUnsure) {
		t.Fatalf("it is not known to have failed: %v", err)
	}
	xl(t, "unpause", "pgt0-s1g0")
	t.Logf("it may run on: %s", xl(t, "list", "-v"))
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	if err := source.Resume(ctx, k.Guest.ID); err != nil {
		t.Fatal(err)
	}
	t.Logf("it runs on: %s", xl(t, "list", "-v"))
	drivertest.Healthy(t, source, k.Guest.ID)
	if err := errors.Join(source.Stop(t.Context(), k.Guest.ID), target.Stop(t.Context(), k.Guest.ID)); err != nil {
		t.Error(err)
	}
	if left := append(w.left(t, 0, k.Guest.ID), w.left(t, 1, k.Guest.ID)...); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

// TestKilledAsItIsMade: whenever a warden is killed while xl makes its domain, nothing is left, not even a domain that has no name yet.
func TestKilledAsItIsMade(t *testing.T) {
	if os.Getenv(onXen) == "" {
		return
	}
	w := newWorld(t)
	w.sayMore(t)
	d := w.open(t, 0)
	defer d.Close()
	before := running(xl(t, "list"))
	for i := range 6 {
		id := fleet.GuestID(fmt.Sprintf("k%dg0", i+1))
		started := make(chan error, 1)
		go func() { started <- d.Start(t.Context(), task(id)) }()
		config := filepath.Join(w.runs[0], "domains", string(id), "domain.cfg")
		testkit.Until(t, time.Minute, "xl may begin", func() bool {
			_, err := os.Stat(config)
			return err == nil
		})
		time.Sleep(time.Duration(i) * 400 * time.Millisecond)
		if err := unix.Kill(w.warden(t, 0, id), unix.SIGKILL); err != nil {
			t.Fatal(err)
		}
		err := <-started
		t.Logf("killed %d ms after the warden began: %v; %s", 400*i, err, xl(t, "list", "-v"))
		if left := w.left(t, 0, id); len(left) > 0 {
			t.Errorf("left behind: %v", left)
		}
		if out := xl(t, "list", "-v"); running(out) > before {
			t.Errorf("a domain is left:\n%s", out)
		}
	}
}

// TestXenstoredStartedAgain: xenstored that is started again knows no domain. A guest goes on, is not said to have ended, and
// can be ended: else it would be started elsewhere, and run twice. So is one whose warden is killed while there is no xenstored, until
// that is back. It is the last test: nothing can be started on the host then.
func TestXenstoredStartedAgain(t *testing.T) {
	if os.Getenv(onXen) == "" {
		return
	}
	w := newWorld(t)
	w.sayMore(t)
	d := w.open(t, 0)
	defer d.Close()
	before := running(xl(t, "list"))
	stay := []fleet.GuestID{"x1g0", "x2g0"}
	for i, id := range stay {
		k := task(id)
		k.Guest.Index = i
		if err := d.Start(t.Context(), k); err != nil {
			t.Fatal(err)
		}
		_, err := drivertest.Ask(t.Context(), d, id, "report")
		for end := time.Now().Add(5 * time.Minute); err != nil && time.Now().Before(end); { // each try has its own limit
			_, err = drivertest.Ask(t.Context(), d, id, "report")
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	const pidFile = "/run/xenstore.pid"
	text, err := os.ReadFile(pidFile)
	if err != nil {
		t.Fatal(err)
	}
	var pid int
	if _, err := fmt.Sscan(string(text), &pid); err != nil || pid <= 1 {
		t.Fatalf("xenstored is %q", text)
	}
	const looks = 25 * time.Second // each warden looks twice
	if err := unix.Kill(pid, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	is := func(when string, known bool) {
		t.Helper()
		time.Sleep(looks)
		facts, err := d.Inspect(t.Context())
		t.Logf("%s: %+v, %v", when, facts, err)
		for _, id := range stay {
			select {
			case <-d.Ended(id):
				t.Fatalf("%s %s is said to have ended: %+v", when, id, d.Ending(id))
			default:
			}
			if (known || err == nil) && facts[id].Run != fleet.Running {
				t.Fatalf("%s %s is %q", when, id, facts[id].Run)
			}
		}
	}
	is("without xenstored", false)
	ended := d.Ended("x2g0")
	if err := unix.Kill(w.warden(t, 0, "x2g0"), unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	is("after a warden was killed", false)
	if err := exec.Command("xenstored", "--pid-file", pidFile).Run(); err != nil {
		t.Fatal(err)
	}
	select {
	case <-ended:
	case <-time.After(2 * time.Minute):
		t.Error("the end of x2g0 is not reported")
	}
	stay = stay[:1]
	is("with a new xenstored", true)
	if out := xl(t, "list"); running(out)-before != len(stay) {
		t.Fatalf("one guest does not run beside the first domain:\n%s", out)
	}
	if err := d.Suspend(t.Context(), "x1g0"); err != nil || !strings.Contains(xl(t, "list"), "--p---") {
		t.Errorf("it is not suspended: %v", err)
	}
	if err := d.Resume(t.Context(), "x1g0"); err != nil || strings.Contains(xl(t, "list"), "--p---") {
		t.Errorf("it is not resumed: %v", err)
	}
	if err := d.Stop(t.Context(), "x1g0"); err != nil {
		t.Error(err)
	}
	// Their domains are dying: the backends of their disks and links hear of nothing without xenstored, and keep their memory.
	if out := xl(t, "list"); running(out) > before {
		t.Errorf("guests are left:\n%s", out)
	}
}

// running counts the domains beside the first, in the table of xl list, that are not dying.
func running(table string) (n int) {
	for _, line := range strings.Split(strings.TrimSpace(table), "\n")[1:] {
		if f := strings.Fields(line); len(f) < 5 || f[1] != "0" && !strings.Contains(f[4], "d") {
			n++
		}
	}
	return n
}

package fence

import (
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"pagurus/act/host"
	"pagurus/fleet"
	"pagurus/internal/note"
)

func TestMain(m *testing.M) {
	if become := Shims[os.Args[0]]; become != nil {
		if err := become(os.Args[1:]); err != nil {
			os.Stderr.WriteString(err.Error() + "\n")
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// openFence makes a host with a lease of some length that it asks for.
func openFence(t *testing.T, run string, length time.Duration) *Fence {
	t.Helper()
	f, err := Open(Config{Run: run, Program: "/proc/self/exe", Length: length, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := f.Remove(); err != nil {
			t.Error(err)
		}
	})
	return f
}

// guestIn makes a guest that is one process in a session of its own, with a child.
func guestIn(t *testing.T, run, kind string, id fleet.GuestID) host.Process {
	t.Helper()
	cmd := exec.Command("sh", "-c", "sleep 1000 & exec sleep 1000")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { _ = cmd.Wait() }()
	t.Cleanup(func() { _ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }) // the whole of what is left
	p, err := host.Find(cmd.Process.Pid)
	dir := filepath.Join(run, kind, string(id))
	if err == nil {
		err = os.MkdirAll(dir, 0o755)
	}
	if err == nil {
		err = note.Replace(filepath.Join(dir, "guest.json"), host.Record{Guest: id, Process: p})
	}
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func within(t *testing.T, limit time.Duration, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(limit); !is(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within %s: %s", limit, what)
		}
	}
}

func renew(t *testing.T, f *Fence, length time.Duration) {
	t.Helper()
	if err := f.Renew(fleet.Lease{Length: length, Asked: Now()}); err != nil {
		t.Fatal(err)
	}
}

// Guests of all kinds run while the lease is renewed, and end when it is not, whoever made it is
// there or not. What ends a domain of Xen is left to do that. A process that has the number of one that ended is not touched.
func TestGuestsEndWithTheLease(t *testing.T) {
	run := t.TempDir()
	f := openFence(t, run, time.Second)
	domain := guestIn(t, run, "domains", "j1g2")
	vm, box, other := guestIn(t, run, "guests", "j1g0"), guestIn(t, run, "containers", "j1g1"), guestIn(t, run, "elsewhere", "x")
	reused := host.Process{PID: other.PID, Ticks: other.Ticks + 1}
	if err := os.MkdirAll(filepath.Join(run, "guests", "j2g0"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := note.Replace(filepath.Join(run, "guests", "j2g0", "guest.json"), host.Record{Guest: "j2g0", Process: reused}); err != nil {
		t.Fatal(err)
	}
	if asked := f.Ask(); asked.Held != 0 || asked.Length != time.Second || asked.Asked == 0 {
		t.Fatalf("asked: %+v", asked)
	}
	child, minder := host.Family(vm.PID), host.Family(domain.PID)[1:]
	for range 15 {
		renew(t, f, time.Second)
		time.Sleep(100 * time.Millisecond)
	}
	if vm.Gone() || box.Gone() || f.Ask().Held != time.Second || f.Stopped("j1g0") != "" {
		t.Fatalf("ended while it was renewed: %t, %t, %+v", vm.Gone(), box.Gone(), f.Ask())
	}
	within(t, 30*time.Second, "guests end", func() bool { return vm.Gone() && box.Gone() && domain.Gone() && host.Alive(child) == 0 })
	if other.Gone() {
		t.Error("a stranger was stopped")
	}
	if len(minder) == 0 || host.Alive(minder) != len(minder) {
		t.Error("what ends the domain was stopped")
	}
	within(t, 5*time.Second, "it is noted", func() bool { return f.Stopped("j1g0") != "" && f.Stopped("j1g1") != "" })
	if why := f.Stopped("j1g0"); !strings.Contains(why, "its lease of 1s") || f.Stopped("j2g0") != "" {
		t.Errorf("why: %q, %q", why, f.Stopped("j2g0"))
	}

	// The same guest, of a job that has begun again and come back, was not stopped, however it ends.
	successor := guestIn(t, filepath.Join(run, "next"), "guests", "j1g0")
	if err := note.Replace(filepath.Join(run, "guests", "j1g0", "guest.json"), host.Record{Guest: "j1g0", Process: successor}); err != nil {
		t.Fatal(err)
	}
	if why := f.Stopped("j1g0"); why != "" || f.Stopped("j1g1") == "" {
		t.Errorf("of the next one: %q, %q", why, f.Stopped("j1g1"))
	}
	within(t, 30*time.Second, "it ends, too, since the lease is over", successor.Gone)
	within(t, 5*time.Second, "that is noted", func() bool { return f.Stopped("j1g0") != "" })

	// What is made while the lease is over ends as well, until it is renewed.
	late := guestIn(t, run, "guests", "j3g0")
	within(t, 30*time.Second, "a late guest ends", late.Gone)
	renew(t, f, time.Hour)
	time.Sleep(3 * again)
	now := guestIn(t, run, "guests", "j4g0")
	time.Sleep(3 * again)
	if now.Gone() {
		t.Error("a guest was stopped though the lease was renewed")
	}
}

// The next agent goes on with the lease of the one before. A process that was killed is replaced,
// and one that was late is so no longer.
func TestNextAgentKeepsTheLease(t *testing.T) {
	run := t.TempDir()
	f := openFence(t, run, time.Hour)
	g := guestIn(t, run, "guests", "j1g0")
	renew(t, f, time.Hour)
	before, err := f.process()
	if err != nil || before.Gone() {
		t.Fatalf("process: %+v, %v", before, err)
	}
	next := openFence(t, run, time.Hour)
	if again, _ := next.process(); again != before || next.Ask().Held != time.Hour {
		t.Errorf("another process: %+v, %+v", again, next.Ask())
	}
	if err := before.End(); err != nil {
		t.Fatal(err)
	}
	if held := next.Ask().Held; held != time.Hour {
		t.Errorf("held: %s", held)
	}
	if again, _ := next.process(); again == before || again.Gone() {
		t.Errorf("not replaced: %+v", again)
	}
	// A shorter lease counts at once.
	renew(t, next, 300*time.Millisecond)
	within(t, 30*time.Second, "the guest ends", g.Gone)
}

// Without a lease nothing is stopped, and no process is left.
func TestNoLease(t *testing.T) {
	run := t.TempDir()
	f := openFence(t, run, 0)
	if asked := f.Ask(); asked != (fleet.Lease{}) {
		t.Fatalf("asked: %+v", asked)
	}
	g := guestIn(t, run, "guests", "j1g0")
	renew(t, f, 700*time.Millisecond)
	p, _ := f.process()
	if asked := f.Ask(); asked.Length != 0 || asked.Held != 700*time.Millisecond || asked.Asked == 0 {
		t.Errorf("asked: %+v", asked)
	}
	renew(t, f, 0)
	if !p.Gone() {
		t.Error("the process runs on")
	}
	time.Sleep(time.Second)
	if g.Gone() || f.Ask() != (fleet.Lease{}) {
		t.Errorf("stopped without a lease: %+v", f.Ask())
	}
}

// A lease of an earlier boot is no lease: the clock began again.
func TestLeaseOfAnEarlierBoot(t *testing.T) {
	run := t.TempDir()
	if err := os.MkdirAll(filepath.Join(run, Folder), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := note.Replace(filepath.Join(run, Folder, leaseFile), lease{Boot: "earlier", Asked: 1, Length: time.Nanosecond}); err != nil {
		t.Fatal(err)
	}
	g := guestIn(t, run, "guests", "j1g0")
	f := openFence(t, run, time.Second)
	if held := f.Ask().Held; held != 0 {
		t.Errorf("held: %s", held)
	}
	if err := serve([]string{run}); err != nil || g.Gone() {
		t.Errorf("%v, stopped %t", err, g.Gone())
	}
}

// What the process rehearses ends no guest of the host, and leaves nothing behind.
func TestRehearsal(t *testing.T) {
	run := t.TempDir()
	g := guestIn(t, run, "guests", "j1g0")
	rehearse(run)
	if g.Gone() {
		t.Error("a guest was ended")
	}
	if _, err := os.Stat(filepath.Join(run, Folder)); err == nil {
		t.Error("it has made a folder")
	}
}

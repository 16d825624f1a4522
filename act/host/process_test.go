package host

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

func TestWatch(t *testing.T) {
	st, err := ReadStat(os.Getpid())
	if err != nil || st.Ticks == 0 {
		t.Fatalf("%+v: %v", st, err)
	}
	p := Process{os.Getpid(), st.Ticks}
	handle, err := p.Watch()
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- Await(handle) }()
	handle.Close()
	if err := <-done; err == nil {
		t.Error("a process that runs is said to have ended")
	}
	p.Ticks++
	if _, err := p.Watch(); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("another process of the same number: %v", err)
	}
	first, err := ReadStat(1)
	if err != nil {
		t.Fatal(err)
	}
	for _, q := range []Process{{1, first.Ticks}, {0, 0}, {-1, 0}} {
		if _, err := q.Watch(); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("process %d is watched: %v", q.PID, err)
		}
	}
	if p.ResidentBytes() == 0 {
		t.Error("a process without memory")
	}
}

// TestEnd: a process found by its working folder ends, and ending it again is not an
// error.
func TestEnd(t *testing.T) {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("sleep", "600")
	cmd.Dir = dir
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	found := ProcessesIn(dir, func(_ int, uid uint32) bool { return uid == uint32(os.Getuid()) })
	if len(found) != 1 || found[0].PID != cmd.Process.Pid {
		t.Fatalf("found %+v, want process %d", found, cmd.Process.Pid)
	}
	for range 2 {
		if err := found[0].End(); err != nil {
			t.Fatal(err)
		}
	}
	if again := ProcessesIn(dir, func(_ int, uid uint32) bool { return uid == uint32(os.Getuid()) }); len(again) != 0 {
		t.Errorf("still found: %+v", again)
	}
}

// A process that has the number of one that was found, and has ended since, is not killed in its place.
func TestKillAllKnowsWhoIsNewer(t *testing.T) {
	before := Ticks()
	time.Sleep(2 * time.Second / userHz)
	cmd := exec.Command("sleep", "600")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cmd.Process.Kill() }()
	st, err := ReadStat(cmd.Process.Pid)
	if now := Ticks(); err != nil || st.Ticks <= before || st.Ticks > now {
		t.Fatalf("it started at %d, between %d and %d: %v", st.Ticks, before, now, err)
	}
	if err := KillAll([]int{cmd.Process.Pid, 1 << 22}, 0, before); err != nil {
		t.Fatal(err)
	}
	if Alive([]int{cmd.Process.Pid}) != 1 {
		t.Error("a newer process was killed")
	}
	if err := KillAll([]int{cmd.Process.Pid}, cmd.Process.Pid, Ticks()); err != nil || Alive([]int{cmd.Process.Pid}) != 1 {
		t.Errorf("one that is spared was killed, %v", err)
	}
	if err := KillAll([]int{cmd.Process.Pid}, 0, Ticks()); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); cmd.ProcessState.Exited() {
		t.Errorf("it ended by itself: %v", err)
	}
}

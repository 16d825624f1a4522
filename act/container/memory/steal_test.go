package memory

import (
	"errors"
	"os/exec"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"pagurus/internal/testkit"
	own "pagurus/internal/thread"
)

// TestStealWaitsForAnEarlierTry: a process that an earlier try traces yet, because the thread of
// that has not ended, is not refused.
func TestStealWaitsForAnEarlierTry(t *testing.T) {
	testkit.Leftovers(t)
	s := startSubject(t, "obey")
	traced, over := make(chan error), make(chan error)
	go func() {
		over <- own.Own(func() error {
			traced <- (&thread{pid: s.pid}).seize()
			time.Sleep(holdLimit / 5)
			return nil
		})
	}()
	if err := <-traced; err != nil {
		t.Fatal(err)
	}
	if err := (&thread{pid: s.pid}).seize(); !errors.Is(err, unix.EPERM) {
		t.Errorf("the kernel lets two trace a thread: %v", err)
	}
	list, err := borrow(t.Context(), []int{s.pid}) // in another process, as the subject's parent is this one
	if err != nil {
		t.Fatal(err)
	}
	defer list[0].drop()
	if list[0].Error != "" {
		t.Error(list[0].Error)
	}
	if err := <-over; err != nil {
		t.Error(err)
	}
	s.do("map 0 1 0")
}

// TestStealOfAnEndedProcess: a process whose parent has not waited for it yet has ended, and is not
// refused as one that is traced.
func TestStealOfAnEndedProcess(t *testing.T) {
	need(t)
	cmd := exec.Command("true")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cmd.Wait() }()
	pid := cmd.Process.Pid
	if err := unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil); err != nil {
		t.Fatal(err)
	}
	begun := time.Now()
	err := own.Own(func() error { return (&thread{pid: pid}).interrupt() })
	if !errors.Is(err, errEnded) || time.Since(begun) > holdLimit {
		t.Errorf("%v, after %v", err, time.Since(begun))
	}
}

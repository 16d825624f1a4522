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

// TestStealOfAProcessWithoutProcessor: a process that only lacks a processor, on a busy machine, does not
// count as one that hangs.
func TestStealOfAProcessWithoutProcessor(t *testing.T) {
	need(t)
	var all, one unix.CPUSet
	if err := unix.SchedGetaffinity(0, &all); err != nil {
		t.Fatal(err)
	}
	for cpu := 0; one.Count() == 0; cpu++ {
		if all.IsSet(cpu) {
			one.Set(cpu)
		}
	}
	spin := func(how unix.SchedAttr) *exec.Cmd {
		cmd := exec.Command("sh", "-c", "echo; while :; do :; done")
		out, err := cmd.StdoutPipe()
		if err == nil {
			err = cmd.Start()
		}
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
		if _, err := out.Read(make([]byte, 1)); err != nil { // until it executes that program
			t.Fatal(err)
		}
		how.Size = unix.SizeofSchedAttr
		if err := errors.Join(unix.SchedSetaffinity(cmd.Process.Pid, &one), unix.SchedSetAttr(cmd.Process.Pid, &how, 0)); err != nil {
			t.Fatal(err)
		}
		return cmd
	}
	starved, other := spin(unix.SchedAttr{Policy: unix.SCHED_IDLE}), spin(unix.SchedAttr{Policy: unix.SCHED_NORMAL, Nice: highest})
	time.Sleep(holdLimit) // until it has had its share
	defer time.AfterFunc(2*holdLimit, func() { _ = other.Process.Kill() }).Stop()
	list, err := borrow(t.Context(), []int{starved.Process.Pid})
	if err != nil {
		t.Fatal(err)
	}
	defer list[0].drop()
	if list[0].Error != "" {
		t.Errorf("after %s: %s", list[0].Stopped, list[0].Error)
	}
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

package interrupted

import (
	"encoding/binary"
	"os"
	"os/exec"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// TestRest: the remaining time is never less than the whole time minus the elapsed time. It is
// never infinite or zero if the whole time is not.
func TestRest(t *testing.T) {
	endless := int32(-1)
	for _, c := range []struct {
		limit uint64
		slept time.Duration
		want  uint64
	}{
		{6000, 0, 6000}, {6000, 1999 * time.Microsecond, 5999}, {6000, 999 * time.Microsecond, 6000}, {6000, 7 * time.Second, 0},
		{0, time.Second, 0}, {uint64(uint32(endless)), time.Second, uint64(uint32(endless))},
	} {
		if got := rest(c.limit, c.slept); got != c.want {
			t.Errorf("of %d ms, after %s, %d ms are left, not %d", c.limit, c.slept, got, c.want)
		}
	}
}

// span is a program's memory. Go moves variables on a stack.
var span [32]byte

// TestSleeping: the rest of a sleep goes into a register, rounded up. A sleep that is too long
// for that, or of a program that may not make that call, starts again.
func TestSleeping(t *testing.T) {
	set := func(n int, sec, nsec uint64) {
		binary.LittleEndian.PutUint64(span[16*n:], sec)
		binary.LittleEndian.PutUint64(span[16*n+8:], nsec)
	}
	whole := uint64(uintptr(unsafe.Pointer(&span[0])))
	thread := func(slept time.Duration) *thread {
		return &thread{pid: os.Getpid(), slept: slept, call: call{number: unix.SYS_NANOSLEEP, arguments: [6]uint64{whole, 0}}}
	}
	set(0, 6, 0)
	if c := thread(1500100 * time.Microsecond).again(); c.number != unix.SYS_POLL || c.arguments != [6]uint64{0, 0, 4500} {
		t.Errorf("of 6 s after 1.5001 s it calls %+v", c)
	}
	set(1, 2, 1)
	th := thread(time.Second)
	th.call.arguments[1] = whole + 16
	if c := th.again(); c.number != unix.SYS_POLL || c.arguments[2] != 2001 {
		t.Errorf("of 2.000000001 s, as the kernel says, it calls %+v", c)
	}
	th.foreign = true
	if c := th.again(); c != th.call {
		t.Errorf("one with filters of its own calls %+v", c)
	}
	set(0, 1<<31, 0)
	if th := thread(time.Second); th.again() != th.call {
		t.Errorf("of 68 years it calls %+v", th.again())
	}
}

// TestLook: a sleep is found with about its elapsed time, never more. That also works after the
// sleeper was stopped and continued, when the kernel has forgotten the call.
func TestLook(t *testing.T) {
	begun := time.Now()
	cmd := exec.Command("sleep", "30")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}()
	time.Sleep(time.Second)
	pid := cmd.Process.Pid
	look := func() *thread {
		t.Helper()
		th := NoteWaits(pid).threads[pid]
		if th == nil || th.call.number != unix.SYS_CLOCK_NANOSLEEP {
			t.Fatalf("it sees %+v", th)
		}
		return th
	}
	if th := look(); th.slept > time.Since(begun) || th.slept < 500*time.Millisecond {
		t.Errorf("after a second it has slept for %s", th.slept)
	}
	for _, signal := range []unix.Signal{unix.SIGSTOP, unix.SIGCONT} {
		if err := cmd.Process.Signal(signal); err != nil {
			t.Fatal(err)
		}
		time.Sleep(100 * time.Millisecond)
	}
	if th := look(); th.slept > 150*time.Millisecond {
		t.Errorf("after it was continued it has slept for %s", th.slept)
	}
}

package memory

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestCalls: threads execute calls and continue. A thread that has ended is reported. If nothing
// is thawed no call is made.
func TestCalls(t *testing.T) {
	sleeper := exec.Command("sleep", "100")
	if err := sleeper.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = sleeper.Process.Kill(); _ = sleeper.Wait() }()
	time.Sleep(50 * time.Millisecond) // until it executes that program
	pid := sleeper.Process.Pid
	personality := func() string {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/personality", pid))
		if err != nil {
			t.Fatal(err)
		}
		return strings.TrimSpace(string(text))
	}
	calls := []Call{
		{Thread: 1<<22 - 1, Number: unix.SYS_PERSONALITY},
		{Thread: pid, Number: unix.SYS_PERSONALITY, Arguments: [3]uint64{0x40000}},
		{Thread: pid, Number: 100000},
		{Thread: pid, Number: unix.SYS_SET_MEMPOLICY, Arguments: [3]uint64{2, 0, 65}, Second: []byte{1, 0, 0, 0, 0, 0, 0, 0}},
	}
	wrong := errors.New("it stays frozen")
	if _, err := Calls(calls[:2], func() error { return wrong }); !errors.Is(err, wrong) || personality() != "00000000" {
		t.Errorf("%v, and its personality is %s", err, personality())
	}
	failed, err := Calls(calls[:2], func() error { return nil })
	if err != nil || failed == nil || !strings.Contains(failed.Error(), "thread 4194303: ") || personality() != "00040000" {
		t.Errorf("%v, %v, and its personality is %s", err, failed, personality())
	}
	if failed, _ := Calls(calls[1:], func() error { return nil }); !errors.Is(failed, unix.ENOSYS) {
		t.Errorf("a call that the kernel does not know: %v", failed)
	}
	if text, err := os.ReadFile(fmt.Sprintf("/proc/%d/numa_maps", pid)); err != nil || !strings.Contains(string(text), " bind:0 ") {
		t.Errorf("its memory is not bound: %s %v", text, err)
	}
	if err := sleeper.Process.Signal(unix.Signal(0)); err != nil {
		t.Error(err)
	}
	for end := time.Now().Add(5 * time.Second); ; time.Sleep(time.Millisecond) {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err == nil && strings.Contains(string(text), "(sleep) S") {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("it does not go on: %s %v", text, err)
		}
	}
}

package cgroup

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"pagurus/internal/testkit"
)

// kernels returns the kernel's own report of a thread's slice.
func kernels(t *testing.T, tid int) time.Duration {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/sched", tid))
	if err != nil {
		t.Skip("this kernel does not tell: ", err)
	}
	for line := range strings.Lines(string(text)) {
		if name, v, found := strings.Cut(line, ":"); found && strings.TrimSpace(name) == "se.slice" {
			var n int64
			if _, err := fmt.Sscan(v, &n); err != nil {
				t.Fatal(err)
			}
			return time.Duration(n)
		}
	}
	t.Skip("this kernel does not tell a thread's slice")
	return 0
}

func TestSlices(t *testing.T) {
	testkit.Root(t)
	if why := SlicesMissing(); why != "" {
		if !strings.Contains(why, "6.12") {
			t.Errorf("it does not say what is needed: %s", why)
		}
		t.Skip(why)
	}
	// Not this process's child: the tests may run in a class without slices.
	cmd := exec.Command("chrt", "-o", "0", "sh", "-c", "read x; sleep 30 & echo $!; wait")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	pid := cmd.Process.Pid
	defer func() { cmd.Process.Kill(); cmd.Wait() }()
	testkit.Until(t, 10*time.Second, "it is of the normal class", func() bool {
		a, err := unix.SchedGetAttr(pid, 0)
		text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
		return err == nil && a.Policy == policyNormal && string(text) == "sh\n"
	})
	own := kernels(t, pid)
	for _, want := range []time.Duration{39 * time.Millisecond, 30 * time.Millisecond, 21 * time.Millisecond} {
		if err := sliceProcess(pid, want, nil); err != nil {
			t.Fatal(err)
		}
		if got := kernels(t, pid); got != want {
			t.Errorf("the kernel has %s, want %s", got, want)
		}
	}
	for name, want := range map[string]time.Duration{"qemu": 21 * time.Millisecond, "sh": 25 * time.Millisecond} {
		if err := sliceProcess(pid, 25*time.Millisecond, func(n string) bool { return n == name }); err != nil {
			t.Fatal(err)
		}
		if got := kernels(t, pid); got != want {
			t.Errorf("threads named %s were picked and the kernel has %s, want %s", name, got, want)
		}
		if err := sliceProcess(pid, 21*time.Millisecond, nil); err != nil {
			t.Fatal(err)
		}
	}
	// Its children inherit it.
	fmt.Fprintln(in)
	var child int
	if _, err := fmt.Fscan(out, &child); err != nil {
		t.Fatal(err)
	}
	defer unix.Kill(child, unix.SIGKILL)
	if got := kernels(t, child); got != 21*time.Millisecond {
		t.Errorf("a child has %s", got)
	}
	for _, odd := range []time.Duration{time.Nanosecond, time.Hour} {
		if err := sliceProcess(pid, odd, nil); err != nil {
			t.Errorf("%s: %v", odd, err)
		}
	}
	if err := sliceProcess(pid, 0, nil); err != nil || kernels(t, pid) != own {
		t.Errorf("the kernel's own slice is %s, was %s: %v", kernels(t, pid), own, err)
	}
	if err := sliceProcess(1<<22+1, time.Millisecond, nil); err != nil {
		t.Errorf("a process that is gone: %v", err)
	}
	// A thread of another class is unchanged.
	if text, err := exec.Command("chrt", "-i", "-p", "0", fmt.Sprint(pid)).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	if err := sliceProcess(pid, 39*time.Millisecond, nil); err != nil {
		t.Error(err)
	}
	if a, err := unix.SchedGetAttr(pid, 0); err != nil || a.Policy == policyNormal {
		t.Errorf("its class is %+v: %v", a, err)
	}
}

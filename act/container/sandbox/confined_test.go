package sandbox

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"pagurus/internal/testkit"
)

// TestLoose: what a thread's status says beyond a container's rights is named.
func TestLoose(t *testing.T) {
	confined := "Name:\tx\nState:\tS (sleeping)\nCapInh:\t0000000000000000\nCapPrm:\t00000000000404eb\nCapEff:\t00000000000404eb\nCapBnd:\t00000000000404fb\n" +
		"CapAmb:\t0000000000000000\nNoNewPrivs:\t1\nSeccomp:\t2\nSeccomp_filters:\t1\n"
	if says := loose(confined); says != "" {
		t.Errorf("a confined one %s", says)
	}
	for _, c := range []struct{ was, is, want string }{
		{"CapBnd:\t00000000000404fb", "CapBnd:\t00000000002404fb", "has the capabilities 00000000002404fb (CapBnd)"},
		{"CapAmb:\t0000000000000000", "CapAmb:\t0000000000002000", "(CapAmb)"},
		{"CapInh:\t0000000000000000", "CapInh:\tx", "(CapInh)"},
		{"NoNewPrivs:\t1", "NoNewPrivs:\t0", "may get new privileges"},
		{"Seccomp:\t2", "Seccomp:\t0", "may make every system call"},
		{"Seccomp:\t2", "Seccomp:\t1", "may make every system call"},
		{"Seccomp:\t2\n", "", "does not say"},
	} {
		if says := loose(strings.Replace(confined, c.was, c.is, 1)); !strings.Contains(says, c.want) {
			t.Errorf("with %q it %q, want %q", c.is, says, c.want)
		}
	}
	if says := loose("State:\tZ (zombie)\nCapEff:\tffffffffffffffff\n"); says != "" {
		t.Errorf("one that has ended %s", says)
	}
}

// TestHigher: a limit that can be raised beyond a container's is named.
func TestHigher(t *testing.T) {
	const text = "Limit                     Soft Limit           Hard Limit           Units     \nMax core file size        0                    1                    bytes     \n" +
		"Max open files            1024                 65536                files     \nMax nice priority         0                    0                    \nMax realtime priority     0                    0                    \n"
	if says := higher(text); says != "" {
		t.Errorf("a container's %s", says)
	}
	for _, c := range []struct{ was, is, want string }{
		{"65536", "65537", "has a higher limit (Max open files) of 65537"},
		{"1                    bytes", "unlimited            bytes", "has a higher limit (Max core file size) of unlimited"},
		{"priority     0                    0 ", "priority     0                    99", "(Max realtime priority) of 99"},
		{"Max nice priority ", "Max other ", "does not say"},
	} {
		if says := higher(strings.Replace(text, c.was, c.is, 1)); !strings.Contains(says, c.want) {
			t.Errorf("with %q it %q, want %q", c.is, says, c.want)
		}
	}
	own, err := os.ReadFile("/proc/self/limits")
	if err != nil || higher(string(own)) == "does not say its limits" {
		t.Errorf("this kernel does not say limits so: %s, %v", own, err)
	}
}

// TestConfinedProcesses: a process of this machine is not confined, nor is one in others
// than the first's, or with every right; which of these is told.
func TestConfinedProcesses(t *testing.T) {
	testkit.Root(t)
	start := func(flags uintptr, script string) int {
		t.Helper()
		cmd := exec.Command("sh", "-c", script+"; echo; exec sleep 1000")
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: flags, Pdeathsig: syscall.SIGKILL}
		out, err := cmd.StdoutPipe()
		if err == nil {
			err = cmd.Start()
		}
		if err == nil {
			_, err = out.Read(make([]byte, 1))
		}
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
		return cmd.Process.Pid
	}
	const all = unix.CLONE_NEWPID | unix.CLONE_NEWNS | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC | unix.CLONE_NEWNET
	const lower = "ulimit -n 1024; ulimit -c 0; ulimit -r 0 2>/dev/null; ulimit -e 0 2>/dev/null"
	first := start(all, lower)
	for says, pids := range map[string][]int{
		"is in this host's namespace ipc:": {os.Getpid()},
		"is in this host's namespace net:": {start(all&^unix.CLONE_NEWNET, lower)},
		"has the capabilities":             {first},
		"of its own":                       {first, start(all, lower)},
	} {
		if says == "of its own" { // the first alone is refused for its capabilities
			if got, err := strays(pids[1], pids[0]); err != nil || !strings.Contains(got, says) {
				t.Errorf("want %q, got %q, %v", says, got, err)
			}
			continue
		}
		if err := Confined(pids); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("process %d of the guest %s", pids[0], says)) {
			t.Errorf("want %q, got %v", says, err)
		}
	}
	cmd := exec.Command("true")
	if err := cmd.Run(); err != nil {
		t.Fatal(err)
	}
	if err := Confined([]int{cmd.Process.Pid}); err != nil {
		t.Errorf("a process that has ended: %v", err)
	}
}

// TestHasty: a thread that goes before those of a container, as only root's does, is named.
func TestHasty(t *testing.T) {
	testkit.Root(t)
	for want, s := range map[string]unix.SchedAttr{
		"":                                     {Policy: unix.SCHED_BATCH, Nice: 19},
		"is scheduled by the policy 1":         {Policy: unix.SCHED_FIFO, Priority: 1},
		"is scheduled by the policy 2":         {Policy: unix.SCHED_RR, Priority: 99},
		"is scheduled with the nice value -20": {Nice: -20},
	} {
		cmd := exec.Command("sleep", "100")
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		err := unix.SchedSetAttr(cmd.Process.Pid, &s, 0)
		says, failed := hasty(fmt.Sprint(cmd.Process.Pid))
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if errors.Is(err, unix.EPERM) && s.Policy != unix.SCHED_BATCH && s.Nice == 0 {
			continue // this machine's control groups have no share of real time
		}
		if err != nil || failed != nil || says != want {
			t.Errorf("%+v: it %q, want %q; %v, %v", s, says, want, err, failed)
		}
	}
}

package sandbox

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

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

// TestConfinedProcesses: this process is not confined, which the kernel tells.
func TestConfinedProcesses(t *testing.T) {
	testkit.Root(t)
	if err := Confined([]int{os.Getpid()}); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("process %d of the guest has the capabilities", os.Getpid())) {
		t.Errorf("root of this machine: %v", err)
	}
	cmd := exec.Command("true")
	if err := cmd.Run(); err != nil {
		t.Fatal(err)
	}
	if err := Confined([]int{cmd.Process.Pid}); err != nil {
		t.Errorf("a process that has ended: %v", err)
	}
}

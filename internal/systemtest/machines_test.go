package systemtest

import (
	"os"
	"os/exec"
	"testing"
	"time"

	"pagurus/internal/testkit"
)

// machinesVariable has the folder of the packages that machines install, when the ring of
// machines is asked for: make test-machines.
const machinesVariable = "PAGURUS_TEST_MACHINES"

// machinesSuites has the suites of the machines in turn; empty: the default.
const machinesSuites = "PAGURUS_TEST_MACHINES_SUITES"

// The scripts that need machines with kernels and systemd of their own. Emulated, they take
// the whole computer for minutes, so other rings leave them out; not by a skip, since
// nothing is missing.
func TestMachines(t *testing.T) {
	packages := os.Getenv(machinesVariable)
	if packages == "" {
		return
	}
	testkit.Root(t, "ip", "qemu-system-x86_64", "qemu-img", "mmdebstrap", "ssh", "ganesha.nfsd")
	if _, err := os.Stat(labRecord); err == nil {
		t.Fatal("a lab is up: `pagurus lab down` first, this test makes its own")
	}
	testkit.Image(t, "openmpi")
	testkit.Image(t, "lammps")
	testkit.Leftovers(t)
	t.Cleanup(func() { pagurus(t, "lab", "down") })
	up := func() {
		begun := time.Now()
		args := []string{"lab", "up", "--machines", "3", "--packages", packages}
		if suites := os.Getenv(machinesSuites); suites != "" {
			args = append(args, "--suite", suites)
		}
		pagurus(t, args...)
		t.Logf("three machines were installed and have joined in %s", time.Since(begun).Round(time.Second))
	}
	up()
	each(t, "testdata/machines", func() {
		consoles(t)
		pagurus(t, "lab", "down")
		up()
	})
}

// consoles shows what the machines' controllers and agents said last.
func consoles(t *testing.T) {
	t.Helper()
	for _, host := range []string{"host1", "host2", "host3"} {
		t.Log(host + ":\n" + tell("lab", "exec", host, "--", "journalctl", "--no-pager", "--lines", "40", "--unit", "pagurus-*"))
	}
	here, err := os.ReadFile("/var/lib/pagurus/lab/log/host4.log") // this machine's own agent
	t.Logf("here (%v):\n%s", err, here[max(0, len(here)-8<<10):])
}

// tell runs a command that may fail, for what it says.
func tell(args ...string) string {
	out, err := exec.Command("../../bin/pagurus", args...).CombinedOutput()
	if err != nil {
		return string(out) + err.Error()
	}
	return string(out)
}

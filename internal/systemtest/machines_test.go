package systemtest

import (
	"fmt"
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
	onMachines(t, 3, 0, "testdata/machines", "openmpi", "lammps", functions)
}

// The shortest of them, which takes a third of the time.
func TestTwoMachines(t *testing.T) { onMachines(t, 2, 0, "testdata/machine", "openmpi") }

// Two of three machines are Xen hosts.
func TestXenMachines(t *testing.T) { onMachines(t, 3, 2, "testdata/xen", "openmpi", "lammps") }

// functions is an image with Debian's generic kernel, which has a driver of the virtual functions of the card that QEMU emulates.
const functions = "functions"

// onMachines runs the scripts of a folder on machines, some of them Xen hosts, which are made again after one that failed.
func onMachines(t *testing.T, machines, xen int, scripts string, images ...string) {
	packages := os.Getenv(machinesVariable)
	if packages == "" {
		return
	}
	testkit.Root(t, "ip", "qemu-system-x86_64", "qemu-img", "mmdebstrap", "ssh", "ganesha.nfsd", "mkfs.xfs", "openssl")
	if _, err := os.Stat(labRecord); err == nil {
		t.Fatal("a lab is up: `pagurus lab down` first, this test makes its own")
	}
	for _, image := range images {
		if image == functions {
			pagurus(t, "image", "build", functions, "--packages", "netpipe-tcp,netbase", "--kernel", "generic")
			continue
		}
		testkit.Image(t, image)
	}
	testkit.Leftovers(t)
	t.Cleanup(func() { pagurus(t, "lab", "down") })
	up := func() {
		begun := time.Now()
		args := []string{"lab", "up", "--machines", fmt.Sprint(machines), "--xen", fmt.Sprint(xen), "--packages", packages}
		if xen > 0 { // QEMU's emulation of hardware virtualization is at its limits with two processors: guests reset themselves
			args = append(args, "--machine-cpus", "1")
		}
		if suites := os.Getenv(machinesSuites); suites != "" {
			args = append(args, "--suite", suites)
		}
		pagurus(t, args...)
		t.Logf("%d machines were installed and have joined in %s", machines, time.Since(begun).Round(time.Second))
	}
	up()
	each(t, scripts, func() {
		consoles(t, machines)
		pagurus(t, "lab", "down")
		up()
	})
}

// consoles shows what the machines' controllers and agents said last.
func consoles(t *testing.T, machines int) {
	t.Helper()
	for n := range machines {
		host := fmt.Sprintf("host%d", n+1)
		t.Log(host + ":\n" + tell("lab", "exec", host, "--", "journalctl", "--no-pager", "--lines", "40", "--unit", "pagurus-*"))
	}
	// This machine's own agent is the one after them.
	here, err := os.ReadFile(fmt.Sprintf("/var/lib/pagurus/lab/log/host%d.log", machines+1))
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

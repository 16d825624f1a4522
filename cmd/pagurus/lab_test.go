package main

import (
	"bytes"
	"encoding/json"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"pagurus/act/daemon"
	"pagurus/cmd/pagurus/labnet"
	"pagurus/fleet"
	"pagurus/internal/testkit"
)

// commandLimit is far above the time of any command in these tests.
const commandLimit = 2 * time.Minute

// pagurus runs the real binary and returns its output and exit code.
func pagurus(t *testing.T, args ...string) (out string, code int) {
	t.Helper()
	path, err := filepath.Abs("../../bin/pagurus")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path); err != nil {
		t.Fatalf("%v: build first, with make", err)
	}
	c := exec.Command(path, args...)
	var said bytes.Buffer
	c.Stdout, c.Stderr = &said, &said
	c.Dir = t.TempDir()
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	late := time.AfterFunc(commandLimit, func() { _ = c.Process.Kill() })
	defer late.Stop()
	_ = c.Wait() // only its exit code counts
	if !late.Stop() {
		t.Fatalf("pagurus %v took longer than %s: %s", args, commandLimit, said.String())
	}
	return said.String(), c.ProcessState.ExitCode()
}

// must runs pagurus, which must succeed.
func must(t *testing.T, args ...string) string {
	t.Helper()
	out, code := pagurus(t, args...)
	if code != 0 {
		t.Fatalf("pagurus %s: exit %d\n%s", strings.Join(args, " "), code, out)
	}
	return out
}

// alone ensures that only the test's lab is up, and takes it down at the end.
func alone(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("contract ring: make test")
	}
	testkit.Root(t, "ip", "qemu-system-x86_64", "ganesha.nfsd")
	if _, err := readLab(); err == nil {
		t.Fatal("a lab is up: `pagurus lab down` first, this test makes its own")
	}
	testkit.Leftovers(t)
	t.Cleanup(func() { must(t, "lab", "down") })
}

// parts gives the lab's daemons by name.
func parts(t *testing.T) map[string]part {
	t.Helper()
	out, _ := pagurus(t, "lab", "status", "--json")
	var s struct{ Parts []part }
	if err := json.Unmarshal([]byte(out), &s); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	all := map[string]part{}
	for _, p := range s.Parts {
		all[p.Name] = p
	}
	return all
}

func TestLabComesUpOnceAndWhole(t *testing.T) {
	alone(t)
	must(t, "lab", "up", "--hosts", "2", "--cpus-per-host", "0.5", "--mem-per-host", "1G")
	before := parts(t)
	if out := must(t, "lab", "up"); !strings.Contains(out, "the lab is up: 2 hosts") {
		t.Errorf("again: %s", out)
	}
	if out, code := pagurus(t, "lab", "up", "--hosts", "3"); code != 1 || !strings.Contains(out, "lab down") {
		t.Errorf("another lab: %d, %s", code, out)
	}
	if out, code := pagurus(t, "up"); code != 1 || !strings.Contains(out, "a lab is already running") {
		t.Errorf("up beside the lab: %d, %s", code, out)
	}
	must(t, "lab", "kill", "host1")
	if out, code := pagurus(t, "lab", "status"); code != 1 || !strings.Contains(out, "gone") {
		t.Errorf("with a dead agent: %d, %s", code, out)
	}
	must(t, "lab", "up")
	after := parts(t)
	for name, p := range after {
		if !p.Running || (p.PID == before[name].PID) != (name != "host1") {
			t.Errorf("%s was %+v and is %+v", name, before[name], p)
		}
	}
	var hosts []fleet.Host
	if err := json.Unmarshal([]byte(must(t, "hosts", "--json")), &hosts); err != nil || len(hosts) != 2 {
		t.Fatalf("%v, %+v", err, hosts)
	}
	for _, h := range hosts {
		if f := h.Facts; !f.Connected || f.CPULimit != 0.5 || f.Capacity.MemoryBytes != 1<<30 || f.Abilities[fleet.VM].Accelerator == "" {
			t.Errorf("%s says %+v", h.ID, f)
		}
	}
	if out := must(t, "lab", "exec", "host2", "--", "ip", "-br", "addr", "show", "eth0"); !strings.Contains(out, "198.18.0.2/24") {
		t.Errorf("host2 has %s", out)
	}
	must(t, "lab", "restart", "controller")
	if out, code := pagurus(t, "lab", "exec", "host2", "--", "sh", "-c", "exit 5"); code != 5 {
		t.Errorf("exit %d: %s", code, out)
	}
}

// Whatever was killed, and in any state, down removes all of it.
func TestLabDownAfterEverythingWasKilled(t *testing.T) {
	alone(t)
	must(t, "image", "build", "openmpi")
	must(t, "lab", "up", "--hosts", "2")
	must(t, "run", "--detach", "-n", "2", "--guests", "2", "--", "sleep", "600")
	running := func() bool { return strings.Count(must(t, "guests"), "running") == 2 }
	for end := time.Now().Add(time.Minute); !running(); time.Sleep(200 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("no guests: %s", must(t, "jobs"))
		}
	}
	for _, name := range []string{"host1", "controller", "host2"} {
		must(t, "lab", "kill", name)
	}
	inside, err := residents()
	if err != nil || len(inside) < 3 { // two guests and the file server
		t.Fatalf("in the lab's networks are %v, %v", inside, err)
	}
	if err := inside[0].End(0); err != nil { // a guest, or the file server
		t.Fatal(err)
	}
	if err := os.Remove(labRecord); err != nil {
		t.Fatal(err)
	}
	must(t, "lab", "down")
	must(t, "lab", "down")
	for _, p := range inside {
		if p.Alive() {
			t.Errorf("process %d still runs", p.PID)
		}
	}
	for _, path := range []string{labRun, labState} {
		if _, err := os.Stat(path); err == nil {
			t.Errorf("%s is still there", path)
		}
	}
}

// A lab that cannot start completely leaves nothing.
func TestLabThatCannotComeUp(t *testing.T) {
	alone(t)
	// Another program has the controller's port.
	if err := labnet.EnsureBridge(labnet.IPv4); err != nil {
		t.Fatal(err)
	}
	thief, err := net.Listen("tcp", lab{}.labEndpoint())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = thief.Close() })
	out, code := pagurus(t, "lab", "up")
	if code != 1 || !strings.Contains(out, "address already in use") {
		t.Errorf("exit %d: %s", code, out)
	}
	if status, code := pagurus(t, "lab", "status"); code != 1 || !strings.Contains(status, "no lab is up") {
		t.Errorf("after %q: exit %d: %s", out, code, status)
	}
	if left := daemon.Namespaces(labNamespace); len(left) > 0 {
		t.Errorf("namespaces %v are left", left)
	}
}

func TestUpIsOneHostUntilToldToEnd(t *testing.T) {
	alone(t)
	state := t.TempDir()
	run := filepath.Join(t.TempDir(), "run")
	path, err := filepath.Abs("../../bin/pagurus")
	if err != nil {
		t.Fatal(err)
	}
	c := exec.Command(path, "up", "--run", run, "--state", state, "--host", "only", "--accelerator", "tcg")
	var log bytes.Buffer
	c.Stdout, c.Stderr = &log, &log
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Process.Kill(); _ = c.Wait() })
	socket := "unix:" + filepath.Join(run, "controller.sock")
	up := func() bool {
		out, code := pagurus(t, "--controller", socket, "hosts", "--json")
		return code == 0 && strings.Contains(out, `"connected":true`)
	}
	for end := time.Now().Add(30 * time.Second); !up(); time.Sleep(100 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not up: %s", log.String())
		}
	}
	if err := c.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	if err := c.Wait(); err != nil {
		t.Errorf("%v: %s", err, log.String())
	}
	must(t, "agent", "--sweep", "--host", "only", "--run", run, "--state", state)
}

func TestDoctorLooksAtThisMachine(t *testing.T) {
	alone(t)
	out, code := pagurus(t, "doctor", "--json")
	var found []struct {
		Name string
		OK   bool
	}
	if err := json.Unmarshal([]byte(out), &found); err != nil || code != 0 || len(found) < 10 {
		t.Errorf("exit %d, %v: %s", code, err, out)
	}
}

// TestCPULists: invalid lists and those of unknown hosts or CPUs are refused, and a lab
// remembers the request.
func TestCPULists(t *testing.T) {
	lists, err := cpuLists([]string{"host2=0"}, 2)
	if err != nil || len(lists) != 1 || lists["host2"].String() != "0" {
		t.Fatalf("%v, %v", lists, err)
	}
	text, err := json.Marshal(lab{Hosts: 2, CPUList: lists})
	var again lab
	if err == nil {
		err = json.Unmarshal(text, &again)
	}
	if err != nil || !reflect.DeepEqual(again.CPUList, lists) {
		t.Errorf("%s is %v, %v", text, again.CPUList, err)
	}
	if none, err := cpuLists(nil, 2); none != nil || err != nil {
		t.Errorf("%v, %v", none, err)
	}
	for words, says := range map[string]string{
		"host2": "of the form HOST=CPUS", "host2=": "of the form HOST=CPUS", "host2=a": "not a list of CPUs", "host3=0": "not a host of this lab", "=0": "not a host of this lab",
		"host2=8191": "you may use", "host2=0 host2=0": "twice",
	} {
		if _, err := cpuLists(strings.Fields(words), 2); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%q: %v", words, err)
		}
	}
}

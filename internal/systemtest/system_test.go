// Package systemtest is the system ring: the real binaries, a real lab, real guests with
// real MPI, driven by scripts of what a user types (testdata/*.txtar). The scripts of a
// folder share one lab of three hosts; after a failure the next gets a new one. A script
// that leaves something behind fails the ring.
package systemtest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"pagurus/fleet"
	"pagurus/internal/testkit"
	"pagurus/serve/wire"
)

// bin is where make puts the binaries.
func bin(t *testing.T) string {
	dir, err := filepath.Abs("../../bin")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(dir, "pagurus")); err != nil {
		t.Fatalf("%v: build first, with make", err)
	}
	return dir
}

// pagurus runs one command to its end; a failure fails the test.
func pagurus(t *testing.T, args ...string) string {
	t.Helper()
	out, err := exec.Command(filepath.Join(bin(t), "pagurus"), args...).CombinedOutput()
	if err != nil {
		t.Fatalf("pagurus %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

// labRecord exists as long as a lab does.
const labRecord = "/run/pagurus/lab/lab.json"

// alone ensures that the images exist and that only the ring's lab is up, and takes it down
// at the end.
func alone(t *testing.T) {
	t.Helper()
	testkit.Root(t, "ip", "qemu-system-x86_64", "mmdebstrap", "ganesha.nfsd")
	if _, err := os.Stat(labRecord); err == nil {
		t.Fatal("a lab is up: `pagurus lab down` first, this test makes its own")
	}
	for _, name := range []string{"openmpi", "mpich"} {
		testkit.Image(t, name)
	}
	testkit.Leftovers(t)
	t.Cleanup(func() { pagurus(t, "lab", "down") })
}

// The scripts that need a lab.
func TestLab(t *testing.T) { inLab(t, "testdata/lab") }

// Likewise in a lab whose hosts trust their network. Hosts here are namespaces, where
// wireguard-go takes processor time from guests, so these take less time.
func TestPlainLab(t *testing.T) { inLab(t, "testdata/plain", "--encryption", "none") }

func inLab(t *testing.T, dir string, flags ...string) {
	alone(t)
	if accelerator, cpu := testkit.Virtual(); accelerator != "" {
		flags = append(flags, "--accelerator", accelerator, "--cpu", cpu)
	}
	up := func() { pagurus(t, append([]string{"lab", "up", "--hosts", "3"}, flags...)...) }
	up()
	each(t, dir, func() { // the next script must not meet what a failed one left
		logs(t)
		pagurus(t, "lab", "down")
		up()
	})
}

// logs shows the end of the logs of the lab's daemons.
func logs(t *testing.T) {
	t.Helper()
	files, _ := filepath.Glob("/var/lib/pagurus/lab/log/*.log")
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			t.Error(err)
		}
		t.Logf("%s:\n%s", filepath.Base(f), text[max(0, len(text)-2<<10):])
	}
}

// The scripts that start and end labs themselves, or need none.
func TestAlone(t *testing.T) {
	alone(t)
	each(t, "testdata/alone", func() {
		logs(t)
		pagurus(t, "lab", "down")
	})
}

// Likewise those that take a minute and more.
func TestLongScripts(t *testing.T) {
	alone(t)
	each(t, "testdata/long", func() {
		logs(t)
		pagurus(t, "lab", "down")
	})
}

// The scripts of one cluster of a single host, which runs no guest.
func TestUp(t *testing.T) {
	testkit.Root(t, "ip", "pgrep")
	testkit.Leftovers(t)
	each(t, "testdata/up", func() {})
}

// each runs the scripts of a folder one after another: left to itself
// testscript runs them side by side, and they share a lab. mend follows one that failed.
func each(t *testing.T, dir string, mend func()) {
	files, err := filepath.Glob(filepath.Join(dir, "*.txtar"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no scripts in %s: %v", dir, err)
	}
	for _, f := range files {
		if !t.Run(filepath.Base(f), func(t *testing.T) { testscript.Run(t, script(t, f)) }) {
			mend()
		}
	}
}

// scriptLimit is how long one script may take: emulated machines that pin the memory of emulated guests take minutes for a step.
const scriptLimit = 30 * time.Minute

func script(t *testing.T, file string) testscript.Params {
	path := bin(t)
	return testscript.Params{
		Files:    []string{file},
		Deadline: time.Now().Add(scriptLimit),
		Setup: func(e *testscript.Env) error {
			// Jobs also run as an ordinary user, who needs access to the folder.
			for d := e.WorkDir; d != "/" && d != "/tmp" && d != "/var/tmp"; d = filepath.Dir(d) {
				if err := os.Chmod(d, 0o755); err != nil {
					break
				}
			}
			e.Setenv("PATH", path+":"+os.Getenv("PATH"))
			e.Setenv("PAGURUS", filepath.Join(path, "pagurus"))
			e.Setenv("PAGURUS_CONFIG", "") // the machine's configuration is not about these
			e.Setenv("WITNESS", witness())
			e.Setenv("MELT", source("show/demo/in.melt"))
			e.Setenv("PATTERN", source("internal/testkit/pattern/pattern.c"))
			e.Setenv("EXAMPLES", source("docs/examples"))
			return nil
		},
		Condition: func(word string) (bool, error) {
			switch word {
			case "twocores":
				return twoCores(), nil
			case "kvm":
				out, err := exec.Command(filepath.Join(path, "pagurus-agent"), "accelerator").Output()
				return strings.TrimSpace(string(out)) == "kvm", err
			}
			return false, fmt.Errorf("%q is no condition", word)
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"until":  until,
			"within": within,
			"phase":  phase,
			"ended":  ended,
			"slow":   slow,

			"speaking": speaking,
			"capture":  capture,
		},
	}
}

// twoCores reports whether CPUs 0 and 1 are on different cores.
func twoCores() bool {
	text, err := os.ReadFile("/sys/devices/system/cpu/cpu0/topology/thread_siblings_list")
	siblings, wrong := fleet.ParseCPUs(strings.TrimSpace(string(text)))
	return err == nil && wrong == nil && runtime.NumCPU() > 1 && !siblings.Has(1)
}

func witness() string {
	return source("internal/testkit/witness/witness.c")
}

// source is the path of a file of the repository.
func source(name string) string {
	p, _ := filepath.Abs(filepath.Join("../..", name))
	return p
}

// untilLimit is how long a busy machine may take for a script's condition.
const untilLimit = 90 * time.Second

// until runs a shell command repeatedly until it succeeds:
//
//	until 'pagurus job ls --json | grep -q running'
func until(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: until 'COMMAND'")
	}
	attempt(ts, args[0], untilLimit)
}

// within is until with a limit: within 10s 'COMMAND'.
func within(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: within DURATION 'COMMAND'")
	}
	limit, err := time.ParseDuration(args[0])
	ts.Check(err)
	attempt(ts, args[1], limit)
}

func attempt(ts *testscript.TestScript, command string, limit time.Duration) {
	var out []byte
	var err error
	for end := time.Now().Add(limit); time.Now().Before(end); time.Sleep(200 * time.Millisecond) {
		c := exec.Command("sh", "-c", command)
		c.Dir = ts.Getenv("WORK")
		c.Env = append(os.Environ(), "PATH="+ts.Getenv("PATH"), "WORK="+ts.Getenv("WORK"))
		for _, name := range []string{wire.ControllerVariable, wire.CredentialsVariable} {
			if value := ts.Getenv(name); value != "" {
				c.Env = append(c.Env, name+"="+value)
			}
		}
		if out, err = c.CombinedOutput(); err == nil {
			return
		}
	}
	ts.Fatalf("%s", fmt.Sprintf("still not so after %s: %s: %v\n%s", limit, command, err, out))
}

package testkit

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestHostsReachOneAnother(t *testing.T) {
	Leftovers(t)
	hosts := Hosts(t, 3)
	for _, h := range hosts[1:] {
		hosts[0].Run("ping", "-c1", "-W5", h.Addr.String())
	}
	if names := strings.Join(links(), " "); strings.Contains(names, UplinkName+"@") {
		t.Errorf("the machine's own namespace was touched: %s", names)
	}
}

func TestDoRunsOnTheHostOnly(t *testing.T) {
	Root(t, "ip")
	h := Hosts(t, 1)[0]
	h.Must(func() error {
		out, err := exec.Command("ip", "-br", "addr").Output()
		if err == nil && !strings.Contains(string(out), h.Addr.String()) {
			t.Errorf("inside, the address is missing: %s", out)
		}
		return err
	})
	out, err := exec.Command("ip", "-br", "addr").Output()
	if err != nil || strings.Contains(string(out), h.Addr.String()) {
		t.Errorf("outside: %v %s", err, out)
	}
}

// A process that a test forgets ends with its host.
func TestProcessesEndWithTheirHost(t *testing.T) {
	Root(t, "ip", "sleep")
	ended := make(chan error, 1)
	t.Run("forgets", func(t *testing.T) {
		forgotten := Hosts(t, 1)[0].Command(context.Background(), "sleep", "600")
		if err := forgotten.Start(); err != nil {
			t.Fatal(err)
		}
		go func() { ended <- forgotten.Wait() }()
	})
	select {
	case <-ended:
	case <-time.After(programLimit):
		t.Error("it lives on")
	}
}

func TestLeftoversSeesWhatIsOurs(t *testing.T) {
	Root(t, "sleep")
	t.Setenv(markVariable, "sees")
	scope := leftoverScope{mark: markVariable + "=sees", folder: "/nowhere"}
	cmd := exec.Command("sleep", "600")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	// The kernel shows the environment shortly after the program's start.
	Until(t, programLimit, "a process with the mark is seen", func() bool {
		_, ok := scope.process(cmd.Process.Pid)
		return ok
	})
	other := leftoverScope{mark: markVariable + "=see", folder: "/nowhere"}
	if _, ok := other.process(cmd.Process.Pid); ok {
		t.Error("a process with another test's mark was taken for ours")
	}
	cmd.Process.Kill()
	cmd.Wait()
}

// The names that the lab and the agents' tests really use.
func TestLeftoversSeesLinksAndFiles(t *testing.T) {
	for _, name := range []string{"pglab0", "pglab12", "pgb000155", "pgt000155.3"} {
		if !ourLink.MatchString(name) {
			t.Errorf("the link %s is not seen", name)
		}
	}
	for _, name := range []string{"eth0", "pglab", "pgt0", "br0"} {
		if ourLink.MatchString(name) {
			t.Errorf("the link %s is taken for ours", name)
		}
	}
	Root(t, "ip")
	const link = "pglab9999" // no lab has such a host
	run(t, "ip", "link", "add", link, "type", "bridge")
	t.Cleanup(func() { run(t, "ip", "link", "del", link) })
	dir, err := os.MkdirTemp("/tmp", "pga-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	alone := leftoverScope{mark: markVariable + "=nobody", folder: "/nowhere", alone: true}.things()
	beside := leftoverScope{mark: markVariable + "=nobody", folder: "/nowhere"}.things()
	for _, thing := range []string{"link " + link, "file " + dir} {
		if !alone[thing] {
			t.Errorf("a test that is alone does not see %s", thing)
		}
		if beside[thing] {
			t.Errorf("a test beside others takes %s for its own", thing)
		}
	}
}

func TestFindImage(t *testing.T) {
	store := t.TempDir()
	if _, err := findImage(store, "mine"); err == nil {
		t.Error("an image was found where there is none")
	}
	folder := filepath.Join(store, "blobs", "sha256-1")
	put := func(path, text string) {
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	label := filepath.Join(store, "names", "mine.json")
	put(label, `{"name": "mine"}`)
	if _, err := findImage(store, "mine"); err == nil {
		t.Error("an image was found by a label without a digest")
	}
	put(label, `{"name": "mine", "digest": "sha256-1"}`)
	if _, err := findImage(store, "mine"); err == nil {
		t.Error("an image was found, and only its label is there")
	}
	put(filepath.Join(folder, "image.json"), "{}")
	if got, err := findImage(store, "mine"); got != folder || err != nil {
		t.Errorf("found %q: %v", got, err)
	}
}

package testkit

import (
	"context"
	"os/exec"
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

// A process that a test forgets is ended with its host.
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
	// The kernel shows the environment a moment after the program has begun.
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

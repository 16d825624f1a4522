package fault

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"
)

func TestMain(m *testing.M) {
	if folder := os.Getenv("FAULT_TEST_CLOCK"); folder != "" {
		before := Ahead("a.clock")
		if os.WriteFile(filepath.Join(folder, strconv.Itoa(os.Getpid())), []byte("-3h\n"), 0o600) != nil || before != 0 || Ahead("a.clock") != -3*time.Hour || Ahead("b.clock") != 0 {
			os.Exit(4)
		}
		os.Exit(0)
	}
	if name := os.Getenv("FAULT_TEST_POINT"); name != "" {
		if err := Point(name); err != nil {
			os.Exit(3)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func TestPoint(t *testing.T) {
	const list = "a.b=kill, c=error,d=sleep:1ms,e,f=nonsense"
	for point, want := range map[string]int{"a.b": killed, "c": 3, "d": 0, "e": 0, "f": 0, "g": 0} {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), "FAULT_TEST_POINT="+point, Environment+"="+list)
		err := cmd.Run()
		code := 0
		if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
			code = exit.ExitCode()
		} else if err != nil {
			t.Fatal(err)
		}
		if code != want {
			t.Errorf("at %s the process exits with %d, want %d", point, code, want)
		}
	}
}

// A process told to wait for a file waits, and goes on when the file exists.
func TestUntil(t *testing.T) {
	path := filepath.Join(t.TempDir(), "go")
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "FAULT_TEST_POINT=a.b", Environment+"=a.b=until:"+path)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	over := make(chan error, 1)
	go func() { over <- cmd.Wait() }()
	select {
	case err := <-over:
		t.Fatalf("it did not wait: %v", err)
	case <-time.After(200 * time.Millisecond):
	}
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := <-over; err != nil {
		t.Error(err)
	}
}

// A process's clock is set by a file of its own, while it runs.
func TestAhead(t *testing.T) {
	folder := t.TempDir()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "FAULT_TEST_CLOCK="+folder, Environment+"=a.clock=ahead:"+folder)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
	if Ahead("a.clock") != 0 {
		t.Error("a clock that nobody wants set is ahead")
	}
}

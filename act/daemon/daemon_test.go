package daemon

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"pagurus/internal/testkit"
)

func TestDaemon(t *testing.T) {
	dir := t.TempDir()
	d := Daemon{Name: "the sleeper", Command: []string{"sh", "-c", "echo it began; exec sleep 100"},
		PIDFile: filepath.Join(dir, "run", "pid"), LogFile: filepath.Join(dir, "log", "text")}
	if _, ok := d.Running(); ok {
		t.Error("it runs before it is started")
	}
	if err := d.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = d.Stop(0) })
	first, ok := d.Running()
	if !ok {
		t.Fatal("it does not run")
	}
	if session, err := unix.Getsid(first.PID); err != nil || session != first.PID {
		t.Errorf("its session is %d, %v", session, err)
	}
	if err := d.Start(); err != nil {
		t.Fatal(err)
	}
	if second, _ := d.Running(); second != first {
		t.Error("there are two now")
	}
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end) && !strings.Contains(d.Died().Error(), "it began"); {
		time.Sleep(5 * time.Millisecond)
	}
	if says := d.Died().Error(); !strings.Contains(says, "it began") || !strings.Contains(says, d.LogFile) {
		t.Errorf("its log is not shown: %s", says)
	}
	for range 2 {
		if err := d.Stop(time.Second); err != nil {
			t.Error(err)
		}
	}
	if _, ok := d.Running(); ok || first.Alive() {
		t.Error("it still runs")
	}
	d.Command = []string{filepath.Join(dir, "none")}
	if err := d.Start(); err == nil || !strings.Contains(err.Error(), "the sleeper") {
		t.Errorf("got %v", err)
	}
}

// A daemon does not keep inherited files: a lock of flock(1) would be held as long as the
// daemon lives.
func TestDaemonKeepsNothingOpen(t *testing.T) {
	dir := t.TempDir()
	inherited, err := unix.Open(filepath.Join(dir, "lock"), unix.O_CREAT|unix.O_RDWR, 0o600) // not close-on-exec
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(inherited)
	d := Daemon{Name: "the sleeper", Command: []string{"sleep", "100"}, PIDFile: filepath.Join(dir, "pid"), LogFile: filepath.Join(dir, "log")}
	if err := d.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = d.Stop(0) })
	p, _ := d.Running()
	open, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", p.PID))
	if err != nil || len(open) == 0 {
		t.Fatalf("it has %v, %v", open, err)
	}
	for _, fd := range open {
		if to, err := os.Readlink(fd); err == nil && strings.HasPrefix(to, filepath.Join(dir, "lock")) {
			t.Errorf("it keeps %s open", to)
		}
	}
}

func sleeper(t *testing.T, script string) (*exec.Cmd, Process) {
	t.Helper()
	c := exec.Command("sh", "-c", script)
	out, err := c.StdoutPipe()
	if err == nil {
		err = c.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Process.Kill(); _ = c.Wait() })
	if _, err := out.Read(make([]byte, 8)); err != nil { // it has set its traps
		t.Fatal(err)
	}
	p, err := Find(c.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	return c, p
}

func TestEnd(t *testing.T) {
	for name, script := range map[string]string{
		"in good order": "echo; exec sleep 100",
		"killed":        "trap '' TERM; echo; while :; do sleep 0.1; done",
	} {
		t.Run(name, func(t *testing.T) {
			_, p := sleeper(t, script)
			if !p.Alive() {
				t.Fatal("it does not run")
			}
			if err := p.End(200 * time.Millisecond); err != nil {
				t.Fatal(err)
			}
			if p.Alive() {
				t.Error("it still runs, and was not waited for")
			}
			if err := p.End(time.Second); err != nil {
				t.Errorf("once more: %v", err)
			}
		})
	}
}

// A process with a reused PID is left alone.
func TestAnotherProcessIsLeftAlone(t *testing.T) {
	_, p := sleeper(t, "echo; exec sleep 100")
	stranger := Process{PID: p.PID, Ticks: p.Ticks - 1}
	if stranger.Alive() {
		t.Error("taken for another")
	}
	if err := stranger.End(0); err != nil || !p.Alive() {
		t.Errorf("%v, alive: %v", err, p.Alive())
	}
	found, err := Processes(func(pid int) bool { return pid == p.PID })
	if err != nil || len(found) != 1 || found[0] != p {
		t.Errorf("found %v, %v", found, err)
	}
}

func TestLock(t *testing.T) {
	path := filepath.Join(t.TempDir(), "below", "a.lock")
	l, err := HoldLock(path, "the first")
	if err != nil {
		t.Fatal(err)
	}
	_, err = HoldLock(path, "the second")
	var held Held
	if !errors.As(err, &held) || held.By != "the first" {
		t.Errorf("got %v", err)
	}
	if err := l.Release(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the file is still there: %v", err)
	}
	if l, err = HoldLock(path, "the third"); err != nil {
		t.Fatal(err)
	}
	if err := l.Release(); err != nil {
		t.Error(err)
	}
}

// TestLockIsWaitedFor: the child of a killed process soon releases its lock.
func TestLockIsWaitedFor(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	first, err := HoldLock(path, "the first")
	if err != nil {
		t.Fatal(err)
	}
	time.AfterFunc(100*time.Millisecond, func() { first.file.Close() })
	second, err := HoldLock(path, "the second")
	if err != nil {
		t.Fatal(err)
	}
	if err := second.Release(); err != nil {
		t.Error(err)
	}
}

// A contended lock never has two holders.
func TestLockExcludes(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.lock")
	inside := make(chan struct{}, 1)
	failed := make(chan error, 8)
	for range cap(failed) {
		go func() {
			failed <- func() error {
				for end := time.Now().Add(300 * time.Millisecond); time.Now().Before(end); {
					l, err := HoldLock(path, "me")
					if errors.As(err, new(Held)) {
						continue
					}
					if err != nil {
						return err
					}
					select {
					case inside <- struct{}{}:
					default:
						return errors.New("two have it")
					}
					<-inside
					if err := l.Release(); err != nil {
						return err
					}
				}
				return nil
			}()
		}()
	}
	for range cap(failed) {
		if err := <-failed; err != nil {
			t.Error(err)
		}
	}
}

// visits names the namespace that a helper process visits.
const visits = "PAGURUS_TEST_VISITS"

// begins is how often a helper process still has to exec itself.
const begins = "PAGURUS_TEST_BEGINS"

func TestMain(m *testing.M) {
	if n, err := strconv.Atoi(os.Getenv(begins)); err == nil {
		replaceItself(n)
		return
	}
	if n := Namespace(os.Getenv(visits)); n != "" {
		if err := visit(n); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// replaceItself replaces the process by itself, usually from a thread other than the first,
// and finally waits until its input is closed.
func replaceItself(n int) {
	if n == 0 {
		fmt.Println("done")
		_, _ = io.Copy(io.Discard, os.Stdin)
		return
	}
	runtime.LockOSThread()
	_ = os.Setenv(begins, strconv.Itoa(n-1))
	err := make(chan error)
	go func() {
		runtime.LockOSThread()
		err <- unix.Exec("/proc/self/exe", os.Args, os.Environ())
	}()
	fmt.Println(<-err)
}

// A process that execs never counts as ended: for a moment its first thread is dead, and
// the thread that replaces it is not there yet.
func TestProcessThatReplacesItselfIsAlive(t *testing.T) {
	c := exec.Command("/proc/self/exe")
	c.Env = append(os.Environ(), begins+"=100")
	stdin, err := c.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	p, err := Find(c.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	said := make(chan string, 1)
	go func() {
		word := make([]byte, 100)
		n, _ := stdout.Read(word)
		said <- string(word[:n])
	}()
	looks, dead := 0, 0
	for word := ""; word == ""; looks++ {
		if !p.Alive() {
			dead++
		}
		select {
		case word = <-said:
			if word != "done\n" {
				t.Errorf("it says %q", word)
			}
		default:
		}
	}
	if dead > 0 {
		t.Errorf("of %d looks %d found it dead", looks, dead)
	}
	stdin.Close()
	if err := c.Wait(); err != nil {
		t.Error(err)
	}
	if p.Alive() {
		t.Error("alive after its end")
	}
}

// visit is called by a process's first thread.
func visit(n Namespace) error {
	for range 5 {
		if err := n.Do(func() error { return nil }); err != nil {
			return err
		}
	}
	if Residents([]Namespace{n})(os.Getpid()) {
		return errors.New("it has stayed there")
	}
	return nil
}

func TestNamespace(t *testing.T) {
	if testing.Short() {
		t.Skip("contract ring: make test")
	}
	testkit.Leftovers(t)
	n := Namespace(fmt.Sprintf("pgtest-daemon-%d", os.Getpid()))
	t.Cleanup(func() {
		if err := n.Remove(); err != nil {
			t.Error(err)
		}
	})
	// A name left by a reboot.
	if err := os.MkdirAll(namespaces, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(n.path(), nil, 0o444); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := n.Ensure(); err != nil {
			t.Fatal(err)
		}
	}
	if !n.Exists() || len(Namespaces(string(n))) != 1 {
		t.Error("it is not there")
	}
	c := exec.Command("sleep", "100")
	err := n.Do(func() error {
		links, err := net.Interfaces()
		if err == nil && len(links) != 1 {
			err = fmt.Errorf("it has %d links", len(links))
		}
		return errors.Join(err, c.Start())
	})
	if err != nil {
		t.Fatal(err)
	}
	// A process that visits from its first thread, which cannot end, leaves again: a lab
	// that stops kills all processes in its hosts.
	visitor := exec.Command(os.Args[0])
	visitor.Env = append(os.Environ(), visits+"="+string(n))
	if out, err := visitor.CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
	found, err := Processes(Residents([]Namespace{n}))
	if err != nil || len(found) != 1 || found[0].PID != c.Process.Pid {
		t.Errorf("found %v, %v", found, err)
	}
	for _, p := range found {
		if err := p.End(0); err != nil {
			t.Error(err)
		}
	}
	if err := c.Wait(); err == nil || c.ProcessState.Sys().(interface{ Signal() unix.Signal }).Signal() != unix.SIGKILL {
		t.Errorf("it ended with %v", err)
	}
	for range 2 {
		if err := n.Remove(); err != nil {
			t.Error(err)
		}
	}
	if err := n.Do(func() error { return nil }); err == nil {
		t.Error("one that is gone was entered")
	}
}

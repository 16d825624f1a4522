package top

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"pagurus/fleet"
	"pagurus/show/view"
)

// terminal is a real pseudo-terminal.
type terminal struct {
	user, program *os.File // its two ends
	mu            sync.Mutex
	shown         strings.Builder
}

func openTerminal(t *testing.T) *terminal {
	t.Helper()
	user, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	var n int
	if raw, err := user.SyscallConn(); err != nil {
		t.Fatal(err)
	} else if err := raw.Control(func(fd uintptr) {
		if err := unix.IoctlSetPointerInt(int(fd), unix.TIOCSPTLCK, 0); err != nil {
			t.Error(err)
		}
		if n, err = unix.IoctlGetInt(int(fd), unix.TIOCGPTN); err != nil {
			t.Error(err)
		}
	}); err != nil {
		t.Fatal(err)
	}
	program, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.IoctlSetWinsize(int(program.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 24, Col: 100}); err != nil {
		t.Fatal(err)
	}
	term := &terminal{user: user, program: program}
	over := make(chan struct{})
	go func() {
		defer close(over)
		buffer := make([]byte, 4096)
		for {
			n, err := user.Read(buffer)
			term.mu.Lock()
			term.shown.Write(buffer[:n])
			term.mu.Unlock()
			if err != nil {
				return
			}
		}
	}()
	t.Cleanup(func() { _ = program.Close(); _ = user.Close(); <-over })
	return term
}

func (term *terminal) text() string {
	term.mu.Lock()
	defer term.mu.Unlock()
	return term.shown.String()
}

// until waits until the screen has shown something.
func (term *terminal) until(t *testing.T, want string) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if strings.Contains(term.text(), want) {
			return
		}
	}
	t.Fatalf("it never showed %q: %q", want, term.text())
}

// asked is a controller with one cluster, which remembers what it was asked.
type asked struct {
	requests chan fleet.Request
	fails    chan error // ends FollowCluster; a nil one panics
}

func (a asked) FollowCluster(ctx context.Context, each func(view.Cluster) error, _ func(string)) error {
	if err := each(cluster("")); err != nil {
		return err
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case err := <-a.fails:
		if err == nil {
			panic("on purpose")
		}
		return err
	}
}

func (a asked) Predict(context.Context, fleet.Request) (fleet.Forecast, error) {
	return forecast("j1g0"), nil
}

func (a asked) Ask(_ context.Context, r fleet.Request) (fleet.Answer, error) {
	a.requests <- r
	return fleet.Answer{Notes: []string{"it is done"}}, nil
}

func (a asked) Explain(context.Context, string) ([]string, error) { return []string{"because"}, nil }

// Keys on a terminal reach the controller, and whatever ends the screen, the terminal is as before.
func TestTerminalIsAsBefore(t *testing.T) {
	refused := errors.New("refused")
	for name, c := range map[string]struct {
		end  func(*terminal, asked)
		want string
	}{
		"q":       {func(term *terminal, _ asked) { _, _ = term.user.WriteString("q") }, ""},
		"Ctrl-C":  {func(term *terminal, _ asked) { _, _ = term.user.WriteString("\x03") }, ""},
		"SIGTERM": {func(*terminal, asked) { _ = syscall.Kill(os.Getpid(), syscall.SIGTERM) }, "ended by terminated"},
		"SIGHUP":  {func(*terminal, asked) { _ = syscall.Kill(os.Getpid(), syscall.SIGHUP) }, "ended by hangup"},
		"refused": {func(_ *terminal, a asked) { a.fails <- refused }, "refused"},
		"a panic": {func(_ *terminal, a asked) { a.fails <- nil }, "a bug ended the screen; what it says is above"},
	} {
		t.Run(name, func(t *testing.T) {
			term := openTerminal(t)
			before, err := unix.IoctlGetTermios(int(term.program.Fd()), unix.TCGETS)
			if err != nil {
				t.Fatal(err)
			}
			a := asked{make(chan fleet.Request, 1), make(chan error)}
			ended := make(chan error, 1)
			go func() { ended <- Run(t.Context(), a, Terminal{In: term.program, Out: term.program, Color: true}) }()
			term.until(t, "host10")
			if _, err := term.user.WriteString("d"); err != nil {
				t.Fatal(err)
			}
			term.until(t, "40 ms")
			if _, err := term.user.WriteString("y"); err != nil {
				t.Fatal(err)
			}
			if r := <-a.requests; r.Verb != fleet.Drain || r.Host != "host1" {
				t.Errorf("%+v", r)
			}
			term.until(t, "it is done")
			c.end(term, a)
			if err := <-ended; fmt.Sprint(err) != c.want && (err != nil || c.want != "") {
				t.Errorf("it ends with %v", err)
			}
			after, err := unix.IoctlGetTermios(int(term.program.Fd()), unix.TCGETS)
			if err != nil || *after != *before {
				t.Errorf("the terminal was %+v and is %+v, %v", before, after, err)
			}
			term.until(t, "\x1b[?1049l") // back to the first screen
			term.until(t, "\x1b[?25h")   // with its cursor
		})
	}
}

package owner

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/godbus/dbus/v5"
	"golang.org/x/sys/unix"

	"pagurus/internal/testkit"
)

// A key on a terminal is seen, and its time is by this process's clock.
func TestTerminalInput(t *testing.T) {
	testkit.Root(t)
	master, path := terminal(t)
	i := &input{root: "/", logind: &logind{}, devices: map[string]*mark{}}
	now := time.Now()
	if !i.scanDevices([]string{path, "/dev/no-such-terminal"}, now) {
		t.Fatalf("%s has no time", path)
	}
	first := i.last
	// The kernel rounds a terminal's times to eight seconds, to hide single keys.
	testkit.Until(t, 30*time.Second, "the key is seen", func() bool {
		typeKey(t, master, path)
		now = time.Now()
		i.scanDevices([]string{path}, now)
		return i.last.After(first)
	})
	if !i.last.Equal(now) {
		t.Errorf("the key came %s before it was seen", now.Sub(i.last))
	}
}

// A time in the future, as after a clock was set back, is not input; nor is an unchanged
// time.
func TestClockThatJumps(t *testing.T) {
	file := filepath.Join(t.TempDir(), "tty1")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	set := func(at time.Time) {
		if err := os.Chtimes(file, at, at); err != nil {
			t.Fatal(err)
		}
	}
	i := &input{devices: map[string]*mark{}}
	now := time.Now()
	set(now.Add(time.Hour))
	for range 2 {
		if i.scanDevices([]string{file}, now); !i.last.IsZero() {
			t.Errorf("input came at %s", i.last)
		}
	}
	set(now.Add(-time.Hour)) // the clock is right again and a key was typed
	if i.scanDevices([]string{file}, now); !i.last.Equal(now) {
		t.Errorf("input came at %s, want %s", i.last, now)
	}
	if i.scanDevices([]string{file}, now.Add(time.Minute)); !i.last.Equal(now) {
		t.Errorf("without input it came at %s", i.last)
	}
}

// Without a bus, terminals and the keyboard controller count, with a note that this is
// incomplete; without those nothing counts.
func TestWithoutLogind(t *testing.T) {
	t.Setenv("DBUS_SYSTEM_BUS_ADDRESS", "unix:path=/no/such/bus")
	root := t.TempDir()
	i := openInput(root)
	write := func(name, text string) string {
		file := filepath.Join(root, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, []byte(text), 0o600)); err != nil {
			t.Fatal(err)
		}
		return file
	}
	idle := func(least, most time.Duration) {
		t.Helper()
		d, err := i.idle(t.Context())
		if !errors.Is(err, errNoLogind) || d == nil || *d < least || *d > most {
			t.Errorf("idle for %v, want %s to %s: %v", d, least, most, err)
		}
	}
	write("dev/input/event0", "") // its time is never set
	write("dev/input/mice", "")
	if d, err := i.idle(t.Context()); !errors.Is(err, errNoLogind) || d != nil {
		t.Errorf("nothing is there that tells, it says %v: %v", d, err)
	}
	write("proc/interrupts", "  1:  3  4  IO-APIC  1-edge  i8042\n")
	idle(never, never)
	write("proc/interrupts", "  1:  3  5  IO-APIC  1-edge  i8042\n")
	idle(0, time.Minute)
	i = openInput(root)
	file := write("dev/tty1", "")
	past := time.Now().Add(-time.Hour)
	if err := os.Chtimes(file, past, past); err != nil {
		t.Fatal(err)
	}
	idle(59*time.Minute, 61*time.Minute)
	if err := os.Chtimes(file, time.Now(), time.Now()); err != nil {
		t.Fatal(err)
	}
	idle(0, time.Minute)
}

// Which sessions are persons', and whether terminal or desktop shows their input.
func TestSessions(t *testing.T) {
	now := time.Now()
	for name, c := range map[string]struct {
		class, kind, tty string
		locked           bool
		is               bool
		wantTTY          string
		wantIdle         bool
	}{
		"ssh":                               {class: "user", kind: "tty", tty: "pts/0", is: true, wantTTY: "pts/0"},
		"a copy over ssh":                   {class: "user", kind: "unspecified"},
		"a desktop":                         {class: "user", kind: "wayland", is: true},
		"a desktop on a terminal":           {class: "user", kind: "wayland", tty: "tty2", is: true},
		"an older one":                      {class: "user", kind: "x11", tty: "tty2", is: true},
		"one that is locked":                {class: "user", kind: "x11", tty: "tty2", locked: true, is: true, wantIdle: true},
		"root":                              {class: "user-early", kind: "tty", tty: "tty1", is: true, wantTTY: "tty1"},
		"one without a manager":             {class: "user-light", kind: "tty", tty: "tty1", is: true, wantTTY: "tty1"},
		"who has still to say who they are": {class: "user-incomplete", kind: "tty", tty: "tty1"},
		"a greeter":                         {class: "greeter", kind: "wayland", tty: "tty1"},
		"a job at night":                    {class: "background", kind: "unspecified"},
	} {
		s, is := read(map[string]dbus.Variant{
			"Class": dbus.MakeVariant(c.class), "Type": dbus.MakeVariant(c.kind), "TTY": dbus.MakeVariant(c.tty),
			"State": dbus.MakeVariant("active"), "LockedHint": dbus.MakeVariant(c.locked),
		}, now)
		if is != c.is || s.tty != c.wantTTY || s.idleSince.IsZero() == c.wantIdle {
			t.Errorf("%s: person %v, terminal %q, idle since %s", name, is, s.tty, s.idleSince)
		}
	}
}

// A bus that never answers costs its limit, once a minute.
func TestBusThatHangs(t *testing.T) {
	path := filepath.Join(t.TempDir(), "bus")
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if err := unix.Bind(fd, &unix.SockaddrUnix{Name: path}); err != nil {
		t.Fatal(err)
	}
	if err := unix.Listen(fd, 8); err != nil {
		t.Fatal(err)
	}
	t.Setenv("DBUS_SYSTEM_BUS_ADDRESS", "unix:path="+path)
	l := &logind{}
	begun := time.Now()
	if _, err := l.sessions(t.Context(), begun); err == nil {
		t.Fatal("it answered")
	}
	if took := time.Since(begun); took > 20*busLimit {
		t.Errorf("it took %s", took)
	}
	if l.retry.Before(begun.Add(retryAfter)) {
		t.Errorf("it is asked again at %s", l.retry)
	}
}

// TestLogind runs the real bus and logind in a separate environment.
func TestLogind(t *testing.T) {
	testkit.Root(t, "unshare", "dbus-daemon", logindProgram)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "unshare", "-m", "-p", "-f", "--mount-proc", "--kill-child", must(os.Executable()))
	cmd.Env = append(os.Environ(), role+"=logind")
	if text, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, text)
	}
}

const logindProgram = "/lib/systemd/systemd-logind"

// insideLogind is TestLogind's part as the first process of its namespaces. Logind finds
// the sessions at its start, as after its own restart: opening one would need systemd.
func insideLogind() error {
	if err := errors.Join(unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""), unix.Mount("tmpfs", "/run", "tmpfs", 0, "")); err != nil {
		return err
	}
	for _, d := range []string{"dbus", "systemd/seats", "systemd/sessions", "systemd/users", "systemd/inhibit", "systemd/system", "user", "udev/data"} {
		if err := os.MkdirAll("/run/"+d, 0o755); err != nil {
			return err
		}
	}
	master, path, err := openTerminal()
	if err != nil {
		return err
	}
	leader := exec.Command("sleep", "120")
	if err := leader.Start(); err != nil {
		return err
	}
	write := func(name, text string) {
		err = errors.Join(err, os.WriteFile("/run/systemd/"+name, []byte(text), 0o644))
	}
	const common = "UID=0\nUSER=root\nACTIVE=1\nSTATE=active\nREALTIME=1700000000000000\nMONOTONIC=1000000\n"
	session := func(name, rest string) {
		write("sessions/"+name, fmt.Sprintf("%sSCOPE=session-%s.scope\nLEADER=%d\n%s", common, name, leader.Process.Pid, rest))
	}
	write("users/0", "NAME=root\nSTATE=active\nSTOPPING=no\nREALTIME=1\nMONOTONIC=1\nSESSIONS=c1 c2\n")
	session("c1", "REMOTE=1\nTYPE=tty\nCLASS=user\nTTY="+path[len("/dev/"):]+"\n")
	session("c2", "REMOTE=0\nTYPE=x11\nCLASS=user\nDISPLAY=:0\nTTY=tty2\n")
	session("c3", "REMOTE=0\nTYPE=x11\nCLASS=greeter\nDISPLAY=:1\n")
	if err != nil {
		return err
	}
	if text, err := exec.Command("dbus-daemon", "--system", "--fork", "--nopidfile").CombinedOutput(); err != nil {
		return fmt.Errorf("the bus: %w: %s", err, text)
	}
	daemon := exec.Command(logindProgram)
	daemon.Stderr = os.Stderr
	if err := daemon.Start(); err != nil {
		return err
	}
	return useLogind(master, path)
}

// useLogind simulates people at a machine.
func useLogind(master *os.File, path string) error {
	os.Unsetenv("DBUS_SYSTEM_BUS_ADDRESS")
	ctx := context.Background()
	i := openInput("/")
	var people []session
	err := until(func() (bool, error) {
		var err error
		i.logind.retry = time.Time{}
		people, err = i.logind.sessions(ctx, time.Now())
		return err == nil && len(people) == 2, err
	})
	if err != nil {
		return fmt.Errorf("two people are logged in, logind says %v: %w", people, err)
	}
	if d, err := i.idle(ctx); err != nil || *d > time.Second {
		return fmt.Errorf("a desktop in use is idle for %s: %w", d, err)
	}
	if err := hint(true); err != nil {
		return err
	}
	// The desktop reports idle; the terminal was last used an hour ago.
	past := time.Now().Add(-time.Hour)
	if err := os.Chtimes(path, past, past); err != nil {
		return err
	}
	i.devices = map[string]*mark{}
	i.last = time.Time{}
	said := time.Now()
	if err := until(func() (bool, error) {
		d, err := i.idle(ctx)
		i.last = time.Time{} // only the present state
		return err == nil && *d > 0 && *d < time.Since(said)+time.Second && len(people) == 2, err
	}); err != nil {
		return fmt.Errorf("the desktop's idle hint: %w", err)
	}
	time.Sleep(1200 * time.Millisecond)
	d, err := i.idle(ctx)
	if err != nil || *d < time.Second || *d > time.Since(said)+time.Second {
		return fmt.Errorf("a desktop idle for %s is idle for %s: %w", time.Since(said), d, err)
	}
	if err := key(master, path); err != nil {
		return err
	}
	if err := until(func() (bool, error) {
		if err := key(master, path); err != nil {
			return false, err
		}
		d, err := i.idle(ctx)
		return err == nil && *d < 100*time.Millisecond, err
	}); err != nil {
		return fmt.Errorf("a key on the terminal: %w", err)
	}
	if err := hint(false); err != nil {
		return err
	}
	if err := until(func() (bool, error) { d, err := i.idle(ctx); return err == nil && *d == 0, err }); err != nil {
		return fmt.Errorf("somebody is back at the desktop: %w", err)
	}
	return i.close()
}

// hint sets a desktop's idle hint in logind.
func hint(idle bool) error {
	c, err := dbus.Dial(defaultBus)
	if err != nil {
		return err
	}
	defer c.Close()
	if err := errors.Join(c.Auth(nil), c.Hello()); err != nil {
		return err
	}
	o := c.Object(login, "/org/freedesktop/login1/session/c2")
	if call := o.Call(login+".Session.TakeControl", 0, false); call.Err != nil && idle {
		_ = call.Err // some versions do not need it
	}
	return o.Call(login+".Session.SetIdleHint", 0, idle).Err
}

func until(holds func() (bool, error)) error {
	var err error
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		var is bool
		if is, err = holds(); is {
			return nil
		}
	}
	return errors.Join(errors.New("not within 30 s"), err)
}

// terminal makes a terminal and returns the end for typing.
func terminal(t *testing.T) (master *os.File, path string) {
	t.Helper()
	master, path, err := openTerminal()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { master.Close() })
	return master, path
}

func openTerminal() (*os.File, string, error) {
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, "", err
	}
	var n int
	raw, err := master.SyscallConn()
	if err == nil {
		err = errors.Join(raw.Control(func(fd uintptr) {
			n, err = unix.IoctlGetInt(int(fd), unix.TIOCGPTN)
			err = errors.Join(err, unix.IoctlSetPointerInt(int(fd), unix.TIOCSPTLCK, 0))
		}), err)
	}
	return master, fmt.Sprintf("/dev/pts/%d", n), err
}

func typeKey(t *testing.T, master *os.File, path string) {
	t.Helper()
	if err := key(master, path); err != nil {
		t.Fatal(err)
	}
}

// key types a line, which a program on the terminal reads.
func key(master *os.File, path string) error {
	slave, err := os.OpenFile(path, os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		return err
	}
	defer slave.Close()
	if _, err := master.Write([]byte("x\n")); err != nil {
		return err
	}
	_, err = slave.Read(make([]byte, 16))
	return err
}

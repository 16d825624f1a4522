package kernelstate

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"pagurus/act/container/criu"
)

// Ways to lock a file.
func byFlockCall(how int) func(fd int) error {
	return func(fd int) error { return unix.Flock(fd, how) }
}
func byFcntl(command int, how int16) func(fd int) error {
	return func(fd int) error { return unix.FcntlFlock(uintptr(fd), command, &unix.Flock_t{Type: how}) }
}

// open makes a file, or opens it again.
func open(t *testing.T, path string) *os.File {
	t.Helper()
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

func mustLock(t *testing.T, f *os.File, by func(fd int) error) {
	t.Helper()
	if err := by(int(f.Fd())); err != nil {
		t.Fatal(err)
	}
}

// TestLocked: a process's exclusive locks are reported, once and with the file's name. Shared
// locks, locks elsewhere and locks on files without a name are not.
func TestLocked(t *testing.T) {
	for name, c := range map[string]struct {
		by    func(fd int) error
		alone bool
	}{
		"flock":        {byFlockCall(unix.LOCK_EX), true},
		"flock shared": {byFlockCall(unix.LOCK_SH), false},
		"POSIX":        {byFcntl(unix.F_SETLK, unix.F_WRLCK), true},
		"POSIX shared": {byFcntl(unix.F_SETLK, unix.F_RDLCK), false},
		"OFD":          {byFcntl(unix.F_OFD_SETLK, unix.F_WRLCK), true},
		"OFD shared":   {byFcntl(unix.F_OFD_SETLK, unix.F_RDLCK), false},
	} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "job's files")
			if err := os.Mkdir(dir, 0o700); err != nil {
				t.Fatal(err)
			}
			path := filepath.Join(dir, "a file")
			f := open(t, path)
			if _, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0); err != nil { // it ends with the test
				t.Fatal(err)
			}
			mustLock(t, f, c.by)
			found := Locked(os.Getpid(), dir+"/")
			if !c.alone {
				if len(found) > 0 {
					t.Errorf("it says %q", found)
				}
				return
			}
			if len(found) != 1 || !strings.Contains(found[0], "a file\" for itself alone") || !strings.HasPrefix(found[0], "kernelstate.tes (process ") {
				t.Errorf("it says %q", found)
			}
			if err := Locks(os.Getpid(), dir); !errors.Is(err, criu.ErrTransient) {
				t.Errorf("%v", err)
			}
			for _, elsewhere := range []string{"", path[:len(path)-1], t.TempDir()} {
				if found := Locked(os.Getpid(), elsewhere); len(found) > 0 {
					t.Errorf("below %q it says %q", elsewhere, found)
				}
			}
			if err := os.Remove(path); err != nil {
				t.Fatal(err)
			}
			if err := Locks(os.Getpid(), dir); err != nil {
				t.Errorf("without a name: %v", err)
			}
		})
	}
}

// TestLasting: a short lock is not reported.
func TestLasting(t *testing.T) {
	dir := t.TempDir()
	f := open(t, filepath.Join(dir, "file"))
	mustLock(t, f, byFlockCall(unix.LOCK_EX))
	if found := LastingLocks(t.Context(), os.Getpid(), dir); len(found) != 1 {
		t.Errorf("it says %q", found)
	}
	unlocked := make(chan error)
	time.AfterFunc(locksLast/4, func() { unlocked <- unix.Flock(int(f.Fd()), unix.LOCK_UN) })
	if found := LastingLocks(t.Context(), os.Getpid(), dir); len(found) > 0 {
		t.Errorf("of a moment it says %q", found)
	}
	if err := <-unlocked; err != nil { // before the file is closed
		t.Error(err)
	}
}

// TestRelease: others can take a released lock.
func TestRelease(t *testing.T) {
	dir := t.TempDir()
	for name, c := range map[string]struct{ has, wants func(fd int) error }{
		"flock": {byFlockCall(unix.LOCK_SH), byFlockCall(unix.LOCK_EX | unix.LOCK_NB)},
		"OFD":   {byFcntl(unix.F_OFD_SETLK, unix.F_RDLCK), byFcntl(unix.F_OFD_SETLK, unix.F_WRLCK)},
	} {
		path := filepath.Join(dir, name)
		mustLock(t, open(t, path), c.has)
		other := open(t, path)
		if err := c.wants(int(other.Fd())); !errors.Is(err, unix.EAGAIN) {
			t.Errorf("%s: while others have it: %v", name, err)
		}
		Release(os.Getpid(), dir)
		if err := c.wants(int(other.Fd())); err != nil {
			t.Errorf("%s: when it was let go of: %v", name, err)
		}
		other.Close()
	}
}

// TestParse reads lines that the kernel writes, and others.
func TestParse(t *testing.T) {
	const none = "none"
	for line, want := range map[string]string{
		"lock:\t1: FLOCK  ADVISORY  WRITE 359 00:13:11691 0 EOF\n": "FLOCK 00:13:11691 alone",
		"lock:\t1: FLOCK  ADVISORY  READ 0 00:13:11691 0 EOF\n":    "FLOCK 00:13:11691 shared",
		"lock:\t2: POSIX  ADVISORY  WRITE 7 fd:01:5 10 19\n":       "POSIX fd:01:5 alone",
		"lock:\t1: OFDLCK ADVISORY  READ -1 08:01:77 0 0\n":        "OFDLCK 08:01:77 shared",
		"lock:\t1: LEASE  ACTIVE    WRITE 7 08:01:77 0 EOF\n":      "LEASE 08:01:77 alone",
		"lock:\t1: LEASE  ACTIVE    READ 7 08:01:77 0 EOF\n":       "LEASE 08:01:77 shared",
		"lock:\t1: LEASE  BREAKING  READ 7 08:01:77 0 EOF\n":       "LEASE 08:01:77 alone",
		"flags:\t0100002\n": none, "lock:\t1: FLOCK\n": none, "lock:": none, "": none,
	} {
		l, ok := parse(line)
		got := none
		if ok {
			got = l.kind + " " + l.file + " alone"
			if l.shared {
				got = l.kind + " " + l.file + " shared"
			}
		}
		if got != want {
			t.Errorf("%q is %s, want %s", line, got, want)
		}
	}
}

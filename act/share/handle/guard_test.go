package handle

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"pagurus/internal/testkit"
)

// A guard that cannot answer ends, and says why, while its server waits for ever.
func TestNobodyAnswers(t *testing.T) {
	testkit.Root(t)
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	a := &answerer{listener: int(null.Fd()), stands: &standIns{}}
	done := make(chan error, 1)
	go func() { done <- a.guard(make(chan error)) }()
	select {
	case err := <-done:
		if !errors.Is(err, unix.ENOTTY) || !strings.Contains(err.Error(), "nobody answers") {
			t.Errorf("it says %v", err)
		}
	case <-time.After(20 * time.Second):
		t.Error("it goes on")
	}
}

// standIn makes one for a file, and returns a descriptor of it as the server has it.
func standIn(t *testing.T, s *standIns, path string) (fd int) {
	t.Helper()
	file, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(file)
	if _, err := s.make(file, func(standIn int) (int, error) { fd, err = unix.Dup(standIn); return fd, err }); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	return fd
}

// open counts the descriptors of a file here.
func open(t *testing.T, path string) (n int) {
	t.Helper()
	all, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	for _, fd := range all {
		if to, _ := os.Readlink("/proc/self/fd/" + fd.Name()); strings.HasPrefix(to, path) {
			n++
		}
	}
	return n
}

// What a stand-in stood for is let go, so that a removed file takes no room. Who asks later is told to ask again, and does not
// take the stand-in for the file. A file that only has a stand-in's inode is no stand-in.
func TestStandInsAreForgotten(t *testing.T) {
	path := filepath.Join(t.TempDir(), "big")
	if err := os.WriteFile(path, []byte("content"), 0o600); err != nil {
		t.Fatal(err)
	}
	var s standIns
	first := standIn(t, &s, path)
	for range mostStandIns {
		standIn(t, &s, path)
	}
	if n := open(t, path); n != mostStandIns {
		t.Errorf("%d are remembered", n)
	}
	last := standIn(t, &s, path)
	if fd, err := s.file(last); err != nil {
		t.Error(err)
	} else {
		unix.Close(fd)
	}
	if _, err := s.file(first); !errors.Is(err, unix.EAGAIN) {
		t.Errorf("one too many: %v", err)
	}
	other, err := os.Create(filepath.Join(filepath.Dir(path), "another"))
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	var st unix.Stat_t
	if err := errors.Join(os.Remove(path), os.Remove(other.Name()), unix.Fstat(int(other.Fd()), &st)); err != nil {
		t.Fatal(err)
	}
	s.mu.Lock()
	s.files[st.Ino] = -1
	s.mu.Unlock()
	if _, err := s.file(int(other.Fd())); !errors.Is(err, errOwn) {
		t.Errorf("another file with a stand-in's inode: %v", err)
	}
	testkit.Until(t, 20*time.Second, "the removed file is let go", func() bool { return open(t, path) == 0 })
	if _, err := s.file(last); !errors.Is(err, unix.EAGAIN) {
		t.Errorf("one that is too old: %v", err)
	}
}

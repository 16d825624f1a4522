package share

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestServerAfterAnUpdate: while an agent holds a program that was replaced since, as by an update, its servers begin.
func TestServerAfterAnUpdate(t *testing.T) {
	n, folder := job(t, user)
	s := stage(t, n)
	write(t, filepath.Join(folder, "input"), "here\n", user, 0o600)
	from, err := os.Open("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	defer from.Close()
	path := filepath.Join(t.TempDir(), "shim")
	to, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY, 0o755)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(to, from); err != nil {
		t.Fatal(err)
	}
	to.Close()
	fd, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	s.shares.Close()
	s.shim = fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), fd)
	s.open()
	s.apply(n)
	if got := s.guest.Run("nfs-ls", url(n, folder, user)); !strings.Contains(got, "input") {
		t.Errorf("it serves %q", got)
	}
	s.apply()
	if _, err := os.Lstat(s.file("")); err == nil {
		t.Error("its folder is left")
	}
}

package host

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// A process is reached by its own socket alone, whatever it puts in its place.
func TestDialSocket(t *testing.T) {
	own, other := t.TempDir(), t.TempDir()
	listen := func(path string) {
		t.Helper()
		l, err := net.Listen("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { l.Close() })
	}
	listen(filepath.Join(own, "own.sock"))
	listen(filepath.Join(other, "other.sock"))
	for _, err := range []error{
		os.Symlink(filepath.Join(other, "other.sock"), filepath.Join(own, "link.sock")),
		os.Symlink("own.sock", filepath.Join(own, "turn.sock")),
		os.WriteFile(filepath.Join(own, "file.sock"), nil, 0o600),
		unix.Mkfifo(filepath.Join(own, "pipe.sock"), 0o600),
		os.Mkdir(filepath.Join(own, "folder.sock"), 0o700),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	folder, err := os.OpenFile(own, unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer folder.Close()
	c, err := DialSocket(t.Context(), folder, "own.sock", os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	c.Close()
	for name, cause := range map[string]string{
		"link.sock": "no socket", "turn.sock": "no socket", "file.sock": "no socket", "pipe.sock": "no socket", "folder.sock": "no socket", "none.sock": "no such file",
	} {
		if c, err := DialSocket(t.Context(), folder, name, os.Getpid()); err == nil || !strings.Contains(err.Error(), cause) {
			t.Errorf("%s: got %v, %v", name, c, err)
		}
	}
	if c, err := DialSocket(t.Context(), folder, "own.sock", os.Getppid()); err == nil || !strings.Contains(err.Error(), "listens on it") {
		t.Errorf("of another process: got %v, %v", c, err)
	}
}

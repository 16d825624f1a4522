package sandbox

import (
	"bufio"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"pagurus/internal/testkit"
)

// store is a container's memory.
func store(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, folder), 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestWords(t *testing.T) {
	dir := store(t)
	if got := LastWords(dir); got != "" {
		t.Errorf("nothing says %q", got)
	}
	text := strings.Repeat("x\n", 9000) + "a\r\n\n\x1b[0mb\nc\x07\n"
	if err := os.WriteFile(dir+Console, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := LastWords(dir); got != "x; x; x; a; b; c" {
		t.Errorf("it says %q", got)
	}
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, []byte("secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	os.Remove(dir + Console)
	if err := os.Symlink(secret, dir+Console); err != nil {
		t.Fatal(err)
	}
	if got := LastWords(dir); got != "" {
		t.Errorf("a link was followed to %q", got)
	}
	os.RemoveAll(dir + folder)
	if err := os.Symlink(filepath.Dir(secret), dir+folder); err != nil {
		t.Fatal(err)
	}
	if got := LastWords(dir); got != "" {
		t.Errorf("a link was followed to %q", got)
	}
}

func TestDial(t *testing.T) {
	dir := store(t)
	if _, err := DialAgent(t.Context(), dir); err == nil {
		t.Error("nobody was reached")
	}
	// As in the container, where the path is short.
	t.Chdir(dir + folder)
	listener, err := net.Listen("unix", "link.sock")
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		if conn, err := listener.Accept(); err == nil {
			conn.Write([]byte("hello\n"))
			conn.Close()
		}
	}()
	conn, err := DialAgent(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	if word, err := bufio.NewReader(conn).ReadString('\n'); err != nil || word != "hello\n" {
		t.Errorf("it says %q: %v", word, err)
	}
	conn.Close()
	listener.Close()
	elsewhere, err := net.Listen("unix", filepath.Join(t.TempDir(), "host.sock"))
	if err != nil {
		t.Fatal(err)
	}
	defer elsewhere.Close()
	os.Remove(dir + Link)
	if err := os.Symlink(elsewhere.Addr().String(), dir+Link); err != nil {
		t.Fatal(err)
	}
	if _, err := DialAgent(t.Context(), dir); err == nil {
		t.Error("a link led to a socket of the host's")
	}
}

// apart makes this process run with mounts and a network of its own.
const apart = "PAGURUS_INSIDE_TEST_APART"

// TestLinked: a connection counts from its beginning until the agent, here this process, has
// closed it.
func TestLinked(t *testing.T) {
	testkit.Root(t)
	if os.Getenv(apart) == "" {
		cmd := exec.Command("/proc/self/exe", "-test.run=^TestLinked$", "-test.v")
		cmd.Env = append(os.Environ(), apart+"=1")
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNS | unix.CLONE_NEWNET}
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%v\n%s", err, out)
		}
		return
	}
	for _, err := range []error{
		unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""), unix.Mount("test", "/run", "tmpfs", 0, ""), os.Mkdir(folder, 0o755),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	listener := listenApart(t)
	defer listener.Close()
	linked := func(want bool, when string) {
		t.Helper()
		testkit.Until(t, 10*time.Second, when, func() bool {
			got, err := AgentLinked(os.Getpid())
			if err != nil {
				t.Fatal(err)
			}
			return got == want
		})
	}
	linked(false, "nobody has connected")
	conn, err := net.Dial("unix", Link)
	if err != nil {
		t.Fatal(err)
	}
	linked(true, "it is not taken yet")
	taken, err := listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	linked(true, "it is taken")
	conn.Close()
	linked(true, "the host has closed it")
	taken.Close()
	linked(false, "both have closed it")
}

// listenApart listens as the guest agent does: in another network than the host's.
func listenApart(t *testing.T) (listener net.Listener) {
	t.Helper()
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // the network ends with this thread
		err := unix.Unshare(unix.CLONE_NEWNET)
		if err == nil {
			listener, err = net.Listen("unix", Link)
		}
		done <- err
	}()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	return listener
}

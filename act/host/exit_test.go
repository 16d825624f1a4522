package host

import (
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// TestAwaitExit: how a child ends is known, and from Linux 6.15 on how a process ends that
// another process reaps, as one that an earlier agent started.
func TestAwaitExit(t *testing.T) {
	_, err := remembersExits(t)
	late := err == nil
	for _, c := range []struct {
		script string
		want   Exit
		says   string
	}{
		{"exit 3", Exit{Known: true, Status: 3}, "ended with exit status 3"},
		{"exit 0", Exit{Known: true}, "ended with exit status 0"},
		{"kill -9 $$", Exit{Known: true, Signal: syscall.SIGKILL}, "was killed by SIGKILL"},
		{"kill -SEGV $$", Exit{Known: true, Signal: syscall.SIGSEGV}, "was killed by SIGSEGV"},
	} {
		own := exec.Command("sh", "-c", "read x; "+c.script)
		if got := exitOfScript(t, own, ""); got != c.want || got.String() != c.says {
			t.Errorf("a child with %q: %+v, %s", c.script, got, got)
		}
		other := exec.Command("sh", "-c", "exec 3<&0; sh -c 'read x <&3; "+c.script+"' & echo $!; wait; true")
		got := exitOfScript(t, other, "first")
		if got != c.want && (late || got.Known) {
			t.Errorf("another's child with %q: %+v", c.script, got)
		}
	}
}

// remembersExits asks the kernel about a process that has ended.
func remembersExits(t *testing.T) (int, error) {
	t.Helper()
	c := exec.Command("true")
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	fd, err := unix.PidfdOpen(c.Process.Pid, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if err := c.Wait(); err != nil {
		t.Fatal(err)
	}
	if !remembered(fd).Known {
		return 0, syscall.ENOTTY
	}
	return 0, nil
}

// exitOfScript gives how the process ends that the script is, or whose PID is its first
// line, once it gets a line.
func exitOfScript(t *testing.T, c *exec.Cmd, pid string) Exit {
	t.Helper()
	in, err := c.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	at := c.Process.Pid
	if pid != "" {
		line := make([]byte, 20)
		n, err := out.Read(line)
		if err != nil {
			t.Fatal(err)
		}
		if at, err = strconv.Atoi(strings.TrimSpace(string(line[:n]))); err != nil {
			t.Fatal(err)
		}
		defer c.Wait()
	}
	p, err := Find(at)
	if err != nil {
		t.Fatal(err)
	}
	handle, err := p.Watch()
	if err != nil {
		t.Fatal(err)
	}
	defer handle.Close()
	if _, err := in.Write([]byte("go\n")); err != nil {
		t.Fatal(err)
	}
	e, err := AwaitExit(handle)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

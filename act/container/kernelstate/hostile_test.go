package kernelstate

import (
	"encoding/json"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// hostileSockets are notes of a source that was taken over: each had a target's agent end, or write elsewhere.
var hostileSockets = map[string]string{
	"a kind that is not there":  `{"Kinds":[],"Sockets":[{"Process":1,"FD":3,"Kind":0}]}`,
	"a kind below 0":            `{"Kinds":[{"Kind":{"Family":2,"Type":2,"Protocol":17}}],"Sockets":[{"Process":1,"FD":3,"Kind":-1}]}`,
	"a message to nowhere":      `{"Kinds":[{"Kind":{"Family":2,"Type":2,"Protocol":17}}],"Sockets":[{"FD":3,"Messages":[{"From":"127.0.0.1:5","To":"","Data":"eA=="}]}]}`,
	"a message of two families": `{"Kinds":[{"Kind":{"Family":2,"Type":2,"Protocol":17}}],"Sockets":[{"FD":3,"Messages":[{"From":"127.0.0.1:5","To":"[::1]:6","Data":"eA=="}]}]}`,
	"a buffer of no size":       `{"Kinds":[{"Kind":{"Family":2,"Type":2,"Protocol":17},"Options":{"1/7":""}}],"Sockets":[{"FD":3}]}`,
	"a buffer of three bytes":   `{"Kinds":[{"Kind":{"Family":2,"Type":2,"Protocol":17}}],"Sockets":[{"FD":3,"Options":{"1/8":"AAAA"}}]}`,
	"no notes":                  `[]`,
}

func TestNotesOfALyingSource(t *testing.T) {
	for name, text := range hostileSockets {
		if err := restoreSockets(&Container{}, []byte(text)); err == nil {
			t.Errorf("%s is taken", name)
		}
	}
	const good = `{"Kinds":[{"Kind":{"Family":2,"Type":2,"Protocol":17},"Options":{"1/7":"AAABAA=="}}],"Sockets":[{"FD":3,"Messages":[{"From":"127.0.0.1:5","To":"127.0.0.1:6","Data":"eA=="}]}]}`
	if n, err := readSockets([]byte(good)); err != nil || len(n.Sockets) != 1 {
		t.Errorf("%+v, %v", n, err)
	}
}

// FuzzSockets: what another host has recorded of sockets ends no agent, and each message that is taken is a packet.
func FuzzSockets(f *testing.F) {
	for _, text := range hostileSockets {
		f.Add([]byte(text))
	}
	f.Add([]byte(`{"Kinds":[{"Kind":{"Family":10,"Type":2,"Protocol":17}}],"Sockets":[{"FD":3,"Letters":[{"To":"/a","From":"@b"}],"Groups":[{"Level":0,"Filter":"AA=="}],"Messages":[{"From":"[::1]:5","To":"[::ffff:1.2.3.4]:6","Data":"eA=="}]}]}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		n, err := readSockets(text)
		if err != nil {
			return
		}
		for _, s := range n.Sockets {
			_ = n.Kinds[s.Kind]
			for _, m := range s.Messages {
				if len(m.packet()) < udpHeader+len(m.Data) {
					t.Errorf("%+v has no packet", m)
				}
				_ = socketAddress(m.To.Addr())
			}
		}
	})
}

// socketAddress does with an address what sending to it does.
func socketAddress(a netip.Addr) any {
	if a.Is4() {
		return a.As4()
	}
	return a.As16()
}

// FuzzAttributes: nor does what it has recorded of threads and timers.
func FuzzAttributes(f *testing.F) {
	f.Add([]byte(`{"Threads":[{"Process":1,"Inside":1,"IOPriority":16385,"Schedule":{"Policy":1,"Priority":99},"Memory":{"Mode":"bind=static","Nodes":"0-3"}}]}`))
	f.Add([]byte(`{"Processes":[{"Inside":1,"Cores":"23"}]}`))
	f.Add([]byte(`[{"Process":1,"FD":3}]`))
	f.Fuzz(func(t *testing.T, text []byte) {
		var all attributes
		if json.Unmarshal(text, &all) == nil {
			for _, a := range all.Threads {
				if a.Memory != nil {
					_, _, _ = a.Memory.numbers()
				}
			}
		}
		nobody := &Container{}
		_ = restoreAttributes(nobody, text) // no process is there
		_ = restoreTimers(nobody, text)
	})
}

// TestLettersFollowNoLink: a program that puts a link in the place of its socket, before it is moved, has nothing written to a socket
// that only this process could reach.
func TestLettersFollowNoLink(t *testing.T) {
	dir := t.TempDir()
	listen := func(name string) *net.UnixConn {
		c, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: filepath.Join(dir, name), Net: "unixgram"})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return c
	}
	own, hosts := listen("own"), listen("hosts")
	for name, make := range map[string]func(string) error{
		"link":   func(at string) error { return os.Symlink(filepath.Join(dir, "hosts"), at) },
		"file":   func(at string) error { return os.WriteFile(at, nil, 0o600) },
		"folder": func(at string) error { return os.Mkdir(at, 0o700) },
		"none":   func(string) error { return nil },
	} {
		at := filepath.Join(dir, name)
		if err := make(at); err != nil {
			t.Fatal(err)
		}
		s := socket{owner: os.Getpid()}
		if _, done, err := s.address(at); err == nil {
			done()
			t.Errorf("a %s is taken for the socket", name)
		}
	}
	if _, _, err := (socket{owner: os.Getpid()}).address(""); err == nil {
		t.Error("a socket without a name has an address")
	}
	to, done, err := socket{owner: os.Getpid()}.address(filepath.Join(dir, "own"))
	if err != nil {
		t.Fatal(err)
	}
	defer done()
	if err := (letter{Data: []byte("hello")}).send(to, &Container{}); err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 16)
	if n, err := own.Read(b); err != nil || string(b[:n]) != "hello" {
		t.Errorf("it hears %q, %v", b[:n], err)
	}
	_ = hosts.SetReadDeadline(time.Now().Add(10 * time.Millisecond))
	if n, err := hosts.Read(b); err == nil {
		t.Errorf("the other socket hears %q", b[:n])
	}
}

// TestNoSourceGivesASchedule: a source's word makes no thread one of real time, nor quicker than it is.
func TestNoSourceGivesASchedule(t *testing.T) {
	cmd := exec.Command("sleep", "100")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	pid := cmd.Process.Pid
	before, err := unix.SchedGetAttr(pid, 0)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range []unix.SchedAttr{
		{Policy: unix.SCHED_FIFO, Priority: 99}, {Policy: unix.SCHED_RR, Priority: 1}, {Nice: -20}, {Policy: unix.SCHED_BATCH, Nice: -20},
		{Policy: unix.SCHED_DEADLINE, Runtime: 1e6, Deadline: 1e7, Period: 1e7},
	} {
		_ = attributesOf{Schedule: &s}.schedule(pid, &Container{}) // some it refuses
		if now, err := unix.SchedGetAttr(pid, 0); err != nil || now.Policy != before.Policy || now.Nice != before.Nice || now.Priority != before.Priority {
			t.Errorf("%+v: it has %+v, %v", s, now, err)
		}
	}
	realTime := ioRealTime<<ioClassShift | 4
	if err := (attributesOf{IOPriority: &realTime}).settings(pid); err == nil || !strings.Contains(err.Error(), "real time") {
		t.Errorf("an I/O priority of real time: %v", err)
	}
}

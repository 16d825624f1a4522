package share

import (
	"bytes"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"pagurus/fleet"
	"pagurus/internal/testkit"
)

// again makes the network of a job that has begun again, in place of the overlay, and removes the one before.
func (s *testbed) again(n fleet.Network) fleet.Network {
	s.t.Helper()
	next := n
	next.Subnet = n.Subnet.Again()
	s.host.Run("ip", "link", "del", n.Subnet.ShareName())
	s.host.Run("ip", "link", "del", n.Subnet.BridgeName())
	s.host.Run("ip", "link", "add", next.Subnet.BridgeName(), "type", "bridge")
	s.host.Run("ip", "link", "set", next.Subnet.BridgeName(), "up")
	s.pair(next)
	return next
}

// A job that has begun again has a server that knows nothing of its guests of before, also if the agent never heard that
// the network of before was not wanted any more.
func TestServerOfAJobThatBeganAgain(t *testing.T) {
	n, folder := job(t, user)
	s := stage(t, n)
	s.apply(n)
	write(t, filepath.Join(folder, "input"), "here\n", user, 0o600)
	for _, restarted := range []bool{false, true} {
		before := s.pid()
		known := filepath.Join(recordsPath(filepath.Join(s.run, "shares", "j1")), "a-guest-of-before")
		write(t, known, "", user, 0o600)
		if restarted {
			s.shares.Close()
			s.open()
		}
		n = s.again(n)
		s.apply(n)
		if s.pid() == before {
			t.Errorf("restarted %v: the server of before serves", restarted)
		}
		if _, err := os.Stat(known); err == nil {
			t.Errorf("restarted %v: the server knows guests of before", restarted)
		}
		s.host.Run("ip", "link", "set", "guest", "master", n.Subnet.BridgeName())
		if got := s.guest.Run("nfs-ls", url(n, folder, user)); !bytes.Contains([]byte(got), []byte("input")) {
			t.Errorf("restarted %v: it lists %s", restarted, got)
		}
		before = s.pid()
		if s.apply(n); s.pid() != before {
			t.Errorf("restarted %v: applying again started it again", restarted)
		}
	}
}

// A guest that goes on from a checkpoint, and was killed long after it, uses its files.
func TestGuestFromACheckpointUsesItsFiles(t *testing.T) {
	testkit.Root(t, "qemu-system-x86_64", "go")
	image := testkit.Image(t, "openmpi")
	n, folder := job(t, user)
	s := stage(t, n)
	s.apply(n)
	top := t.TempDir()
	monitor, state := filepath.Join(top, "monitor"), filepath.Join(top, "state")
	c := &clientGuest{image: image, initrd: clientInitrd(t, image), folder: folder, console: filepath.Join(top, "console"), words: "only=append"}
	kill := c.start(s, n, "-monitor", "unix:"+monitor+",server=on,wait=off")
	defer kill()
	c.says(t, "CLIENT holding")
	held := filepath.Join(folder, "held")
	size := func() int64 {
		found, err := os.Stat(held)
		if err != nil {
			t.Fatal(err)
		}
		return found.Size()
	}
	writesOn := func(what string) {
		t.Helper()
		then := size()
		testkit.Until(t, bootLimit, what, func() bool { return size() > then+100 })
	}
	writesOn("the guest writes")
	order(t, monitor, "migrate exec:cat>"+state)
	then := size()
	order(t, monitor, "cont")
	writesOn("the guest writes after its checkpoint")
	kill()
	if err := os.Truncate(held, then); err != nil {
		t.Fatal(err)
	}
	next := s.again(n)
	s.apply(next)
	defer c.start(s, next, "-incoming", "exec:cat "+state)()
	begun := time.Now()
	writesOn("the guest writes on from its checkpoint")
	// The server of before would have let it wait until that forgets the guest of before, or without end.
	t.Logf("it wrote on after %v", time.Since(begun))
}

// order gives QEMU an order of its monitor for people, and returns when that is carried out.
func order(t *testing.T, monitor, text string) {
	t.Helper()
	conn, err := net.Dial("unix", monitor)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(bootLimit)); err != nil {
		t.Fatal(err)
	}
	prompt := func() (said []byte) {
		t.Helper()
		for part := make([]byte, 4<<10); !bytes.HasSuffix(said, []byte("(qemu) ")); {
			n, err := conn.Read(part)
			if err != nil {
				t.Fatalf("%s: %v: %s", text, err, said)
			}
			said = append(said, part[:n]...)
		}
		return said
	}
	prompt()
	if _, err := conn.Write([]byte(text + "\n")); err != nil {
		t.Fatal(err)
	}
	if said := prompt(); bytes.Contains(said, []byte("Error")) {
		t.Fatalf("%s: %s", text, said)
	}
}

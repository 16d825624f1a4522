package main

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"pagurus/internal/testkit"
)

// A link like those of a lab's hosts is cut, slowed and made lossy, and is as before after
// healing.
func TestLinks(t *testing.T) {
	testkit.Root(t, "ip")
	testkit.Leftovers(t)
	const host, here, there = "host98", "198.18.98.1", "198.18.98.2"
	space := fmt.Sprintf("pgtest-chaos-%d", os.Getpid())
	ip := func(args ...string) {
		t.Helper()
		if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
			t.Fatalf("ip %s: %v: %s", strings.Join(args, " "), err, out)
		}
	}
	ip("netns", "add", space)
	t.Cleanup(func() { ip("netns", "del", space) })
	ip("link", "add", "pglab98", "type", "veth", "peer", "name", "eth0", "netns", space)
	ip("addr", "add", here+"/30", "dev", "pglab98")
	ip("link", "set", "pglab98", "up")
	ip("-n", space, "addr", "add", there+"/30", "dev", "eth0")
	ip("-n", space, "link", "set", "eth0", "up")
	heard := func() (n int) { return sent(t, space, here, 150) }
	testkit.Until(t, time.Minute, "the link carries", func() bool { return heard() > 0 })
	if n := heard(); n < 145 {
		t.Fatalf("%d of 150 came over a sound link", n)
	}
	for _, c := range []struct {
		kind        kind
		least, most int
	}{{linkCut, 0, 0}, {linkSlow, 145, 150}, {linkLossy, 100, 149}} {
		heal, err := impair(c.kind, host)
		if err != nil {
			t.Fatalf("%s: %v", c.kind, err)
		}
		if n := heard(); n < c.least || n > c.most {
			t.Errorf("%s: %d of 150 came", c.kind, n)
		}
		if err := heal(); err != nil {
			t.Fatalf("%s: %v", c.kind, err)
		}
		testkit.Until(t, time.Minute, "the link is sound again", func() bool { return heard() >= 145 })
		var run chaos // of two overlapping ones, one is repeated later
		over := make(chan error)
		for range 2 {
			go func() { over <- run.strain(t.Context(), fault{Kind: c.kind, Lasts: 300 * time.Millisecond}, host) }()
		}
		if first, second := <-over, <-over; !errors.Is(first, errMissed) || second != nil {
			t.Errorf("%s, twice at once: %v, %v", c.kind, first, second)
		}
	}
}

// sent sends datagrams from a namespace and counts those that arrive.
func sent(t *testing.T, space, to string, n int) (came int) {
	t.Helper()
	l, err := net.ListenPacket("udp", net.JoinHostPort(to, "0"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	_, port, _ := net.SplitHostPort(l.LocalAddr().String())
	script := fmt.Sprintf("for i in $(seq %d); do echo $i > /dev/udp/%s/%s; done", n, to, port)
	_ = exec.Command("ip", "netns", "exec", space, "bash", "-c", script).Run() // fails over a cut link
	for piece := make([]byte, 64); ; came++ {
		if l.SetReadDeadline(time.Now().Add(100*time.Millisecond)) != nil {
			return came
		}
		if _, _, err := l.ReadFrom(piece); err != nil {
			return came
		}
	}
}

// The store's disk is filled and then has room again.
func TestFill(t *testing.T) {
	testkit.Root(t)
	testkit.Leftovers(t)
	disk := disk{filepath.Join(t.TempDir(), "store")}
	if err := disk.mount(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if out, err := exec.Command("umount", disk.folder).CombinedOutput(); err != nil {
			t.Errorf("%v: %s", err, out)
		}
	})
	write := func() error { return os.WriteFile(filepath.Join(disk.folder, "some"), make([]byte, 1<<20), 0o600) }
	for left, works := range map[int64]bool{0: false, nearlyFull: true} {
		empty, err := disk.fill(left)
		if err != nil {
			t.Fatal(err)
		}
		if err := write(); (err == nil) != works {
			t.Errorf("with %d bytes left: %v", left, err)
		}
		if err := empty(); err != nil {
			t.Fatal(err)
		}
		if err := write(); err != nil {
			t.Errorf("with room again: %v", err)
		}
		if err := os.Remove(filepath.Join(disk.folder, "some")); err != nil {
			t.Fatal(err)
		}
	}
}

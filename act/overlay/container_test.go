package overlay

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"pagurus/fleet"
	"pagurus/internal/testkit"
)

// peers are the containers' ends and frame queues in a host's namespace.
func (s *station) peers() (found []string) {
	for line := range strings.Lines(s.Run("ip", "-br", "link", "show")) {
		name, _, _ := strings.Cut(strings.Fields(line)[0], "@")
		if strings.HasPrefix(name, "pgc") || strings.HasPrefix(name, "pgh") {
			found = append(found, name)
		}
	}
	slices.Sort(found)
	return found
}

func (s *station) mustHavePeers(stage, want string) {
	s.t.Helper()
	if got := strings.Join(s.peers(), " "); got != want {
		s.t.Errorf("%s: the host has the containers' links %q instead of %q", stage, got, want)
	}
}

// A container's end is left alone wherever it is. If it dies with its namespace, the port
// is made again, also with another kind.
func TestContainersPort(t *testing.T) {
	s := stations(t, "a")[0]
	machines := network("j1", 1, "a", "a", "a", "b")
	n := contained(machines)
	s.apply(n)
	s.mustHavePeers("made", "pgc700001.0 pgc700001.1")
	index := func() string {
		number, _, _ := strings.Cut(s.Run("ip", "-o", "link", "show", "dev", "pgt700001.0"), ":")
		return number
	}
	first, state := index(), s.state()
	if !strings.Contains(state, "link pgt700001.0 veth in pgb700001 mtu 1450 up hooks answer-arp group-forward 0xfffd") {
		t.Errorf("the port is not as it should be:\n%s", state)
	}

	in := testkit.Namespace(t)
	s.Run("ip", "link", "set", "pgc700001.0", "netns", in.Namespace, "name", "eth0")
	s.apply(n)
	s.mustHavePeers("taken", "pgc700001.1")
	if now := index(); now != first || !strings.Contains(in.Run("ip", "-br", "link"), "eth0") {
		t.Errorf("the port that is taken was made again: number %s was %s", now, first)
	}
	in.Run("ip", "link", "del", "eth0") // as when a namespace ends
	s.mustHavePeers("dead", "pgc700001.1")
	s.apply(n)
	s.mustHavePeers("made again", "pgc700001.0 pgc700001.1")
	if now := s.state(); now != state || index() == first {
		t.Errorf("made again it is number %s\n%s\ninstead of\n%s", index(), now, state)
	}

	s.apply(machines)
	s.mustHavePeers("machines", "")
	s.Run("ip", "tuntap", "add", "pgh700001.0", "mode", "tap") // of an earlier container
	s.apply(n)
	s.mustHavePeers("containers again", "pgc700001.0 pgc700001.1")
	s.Run("ip", "tuntap", "add", "pgh700001.0", "mode", "tap")
	s.apply(n)
	s.mustHavePeers("frames wait for one", "pgc700001.0 pgc700001.1 pgh700001.0")
	if now := s.state(); !strings.HasPrefix(now, state[:strings.Index(state, "link pgt")]) {
		t.Errorf("containers again:\n%s\ninstead of\n%s", now, state)
	}
	gone := n
	gone.Ports = n.Ports[1:]
	s.apply(gone)
	s.mustHavePeers("one is gone", "pgc700001.1")
	s.Run("ip", "tuntap", "add", "pgh700001.1", "mode", "tap")
	s.Must(func() error { return s.Clear(context.Background()) })
	s.mustHavePeers("cleared", "")
	if text := s.state(); text != "" {
		t.Errorf("after Clear there is still\n%s", text)
	}
}

// Applying keeps other packages' filters on a container's port, beside those that
// forward.
func TestOthersFiltersStay(t *testing.T) {
	s := stations(t, "a")[0]
	n := contained(network("j1", 1, "a", "a", "b"))
	n.Endpoints[0].Next = "198.18.0.2"
	s.apply(n)
	for side, priority := range map[string]uint16{"ingress": fleet.CutPriority, "egress": fleet.QueuePriority} {
		s.Run("tc", "filter", "add", "dev", "pgt700001.0", side, "prio", fmt.Sprint(priority), "bpf", "bytecode", "1,6 0 0 4294967295", "classid", "1:1")
	}
	look := func() string {
		return s.Run("sh", "-c", "tc filter show dev pgt700001.0 ingress; tc filter show dev pgt700001.0 egress")
	}
	before := look()
	if strings.Count(before, "flowid 1:1") != 2 {
		t.Fatalf("the filters are not there:\n%s", before)
	}
	s.Must(func() error { return s.Forward(1, 0) })
	s.apply(n)
	s.Run("ip", "link", "set", "pgt700001.0", "down")
	s.apply(n, network("j2", 2, "a", "a"))
	s.Must(func() error { return s.Deliver(1, 0) })
	if after := look(); after != before {
		t.Errorf("the filters were\n%s\nnow\n%s", before, after)
	}
}

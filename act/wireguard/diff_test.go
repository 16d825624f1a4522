package wireguard

import (
	"net/netip"
	"strings"
	"testing"

	"pagurus/fleet"
)

const (
	keyA = "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAE="
	keyB = "BBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBA="
	keyC = "CCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCA="
)

func peer(host fleet.HostID, key string, number uint32, at string) fleet.WireGuardPeer {
	return fleet.WireGuardPeer{Host: host, Key: key, Address: fleet.WireGuardAddr(number), Endpoint: at}
}

func wanted(peers ...fleet.WireGuardPeer) fleet.WireGuard {
	return fleet.WireGuard{Address: fleet.WireGuardAddr(1), MTU: fleet.WireGuardMTU, Peers: peers}
}

var own = fleet.WireGuardEnd{Key: keyA, Port: 7462}

// state is the state that is wanted with these peers, after edits.
func state(t *testing.T, w fleet.WireGuard, edit ...func(*State)) State {
	t.Helper()
	s, err := Want(w, own)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range edit {
		e(&s)
	}
	return s
}

func TestDiff(t *testing.T) {
	b, c := peer("b", keyB, 2, "198.18.0.2:7462"), peer("c", keyC, 3, "198.18.0.3:7462")
	moved, calls, far := b, b, b
	far.Ways = []string{b.Endpoint}
	moved.Endpoint, calls.Endpoint = "198.18.9.2:7462", ""
	for name, each := range map[string]struct {
		have State
		want fleet.WireGuard
		is   string
	}{
		"nothing is there": {State{}, wanted(b), "make the device; set the key; set peer " + keyB + " fe80::2 at 198.18.0.2:7462; set the link"},
		"the same":         {state(t, wanted(b, c)), wanted(c, b), ""},
		"a peer comes":     {state(t, wanted(b)), wanted(b, c), "set peer " + keyC + " fe80::3 at 198.18.0.3:7462"},
		"a peer goes":      {state(t, wanted(b, c)), wanted(b), "remove peer " + keyC},
		"a peer has moved": {state(t, wanted(b)), wanted(moved), "set peer " + keyB + " fe80::2 at 198.18.9.2:7462"},
		"a peer is far":    {state(t, wanted(b)), wanted(far), "set peer " + keyB + " fe80::2 at "},
		"it stays far":     {state(t, wanted(far), func(s *State) { s.Peers[keyB] = Peer{fleet.WireGuardAddr(2), "203.0.113.1:9", true} }), wanted(far), ""},
		"a peer calls":     {state(t, wanted(b)), wanted(calls), ""},
		"a peer's new key": {state(t, wanted(peer("b", keyC, 2, b.Endpoint))), wanted(b), "remove peer " + keyC + "; set peer " + keyB + " fe80::2 at 198.18.0.2:7462"},
		"another own key":  {state(t, wanted(b), func(s *State) { s.Key = keyC }), wanted(b), "set the key"},
		"it is down":       {state(t, wanted(b), func(s *State) { s.Up = false }), wanted(b), "set the link"},
		"a peer may send from more": {state(t, wanted(b), func(s *State) { s.Peers[keyB] = Peer{Endpoint: b.Endpoint} }), wanted(b),
			"set peer " + keyB + " fe80::2 at 198.18.0.2:7462"},
	} {
		var said []string
		for _, change := range Diff(each.have, state(t, each.want)) {
			said = append(said, change.String())
		}
		if got := strings.Join(said, "; "); got != each.is {
			t.Errorf("%s:\n%s\nwanted\n%s", name, got, each.is)
		}
	}
}

func TestWantRefuses(t *testing.T) {
	b := peer("b", keyB, 2, "198.18.0.2:7462")
	for name, w := range map[string]fleet.WireGuard{
		"no address":            {MTU: fleet.WireGuardMTU},
		"another kind":          {Address: netip.MustParseAddr("198.18.0.1")},
		"no key":                wanted(peer("b", "", 2, b.Endpoint)),
		"no endpoint's":         wanted(peer("b", keyB, 2, "b:7462")),
		"two hosts of one key":  wanted(b, peer("c", keyB, 3, b.Endpoint)),
		"a host with our key":   wanted(peer("b", keyA, 2, b.Endpoint)),
		"a peer without number": wanted(peer("b", keyB, 0, b.Endpoint)),
	} {
		if s, err := Want(w, own); err == nil {
			t.Errorf("%s: it wants %v", name, s)
		}
	}
}

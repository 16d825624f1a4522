package overlay

import (
	"flag"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"pagurus/fleet"
)

var update = flag.Bool("update", false, "write the golden files again")

func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("%s: got\n%s\nwant\n%s", path, got, want)
	}
}

func config(host string, address string) Config {
	return Config{Host: fleet.HostID(host), Address: netip.MustParseAddr(address), Port: DefaultPort}
}

// network is a job's network as seen by host. Guest i is at hosts[i] ("a", "b", or "?"
// for an unknown host). host's guests have ports.
func network(job string, subnet fleet.Subnet, host string, hosts ...string) fleet.Network {
	addresses := map[string]string{"a": "198.18.0.1", "b": "198.18.0.2", "c": "198.18.0.3", "?": ""}
	n := fleet.Network{Job: fleet.JobID(job), Subnet: subnet}
	for i, h := range hosts {
		guest := fleet.GuestID(job + "g" + string(rune('0'+i)))
		n.Endpoints = append(n.Endpoints, fleet.Endpoint{Addr: subnet.GuestAddr(i), MAC: subnet.GuestMAC(i),
			Host: fleet.HostID(h), VTEP: addresses[h], Guest: guest})
		if h == host {
			n.Ports = append(n.Ports, fleet.Port{Guest: guest, Index: i, MAC: subnet.GuestMAC(i)})
		}
	}
	return n
}

// contained makes every guest with a port a container.
func contained(n fleet.Network) fleet.Network {
	n.Ports = slices.Clone(n.Ports)
	for i := range n.Ports {
		n.Ports[i].Kind = fleet.Container
	}
	return n
}

func want(t *testing.T, c Config, networks ...fleet.Network) State {
	t.Helper()
	s, err := Want(c, networks)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// TestWantGateway: frames for a job's way to the Internet go to the host that leads, and there to its port.
func TestWantGateway(t *testing.T) {
	n := network("j1", 1, "a", "a", "b")
	bridge, tunnel, gate, mac := n.Subnet.BridgeName(), n.Subnet.TunnelName(), n.Subnet.GatewayName(), n.Subnet.GatewayMAC()
	n.Endpoints = append(n.Endpoints, fleet.Endpoint{Addr: n.Subnet.GatewayAddr(), MAC: mac, Host: "b", VTEP: "198.18.0.2", Gate: true})
	away := want(t, config("a", "198.18.0.1"), n)
	if away.Forward[Key{bridge, mac}] != tunnel || away.Tunnel[Key{tunnel, mac}] != "198.18.0.2" || away.Links[gate].Kind != "" {
		t.Errorf("where another host leads:\n%s", away)
	}
	n.Gateway = &fleet.Gateway{Guests: 2}
	here := want(t, config("b", "198.18.0.2"), n)
	if here.Forward[Key{bridge, mac}] != gate || here.Links[gate].Kind != tapKind || here.Links[gate].Master != bridge || here.Links[gate].Port != guestPort {
		t.Errorf("on the host that leads:\n%s", here)
	}
	if here.Neighbours[Key{bridge, n.Subnet.GatewayAddr().String()}] != mac {
		t.Error("nobody answers for the gateway's address")
	}
}

func TestWant(t *testing.T) {
	n := network("j1", 1, "a", "a", "b", "?")
	n.Share = &fleet.Share{Export: "/home/x", UID: 1000}
	n.Endpoints = append(n.Endpoints, fleet.Endpoint{Addr: n.Subnet.ShareAddr(), MAC: n.Subnet.ShareMAC(), Host: "a", VTEP: "198.18.0.1"})
	golden(t, "want.txt", want(t, config("a", "198.18.0.1"), n).String())
}

// A host's file client has a port of its own where it is, and is reached by the tunnel from
// elsewhere.
func TestWantFileClient(t *testing.T) {
	n := network("j1", 1, "a", "a", "b")
	for i, host := range []fleet.HostID{"a", "b"} {
		number := uint32(i + 1)
		n.Endpoints = append(n.Endpoints, fleet.Endpoint{Addr: fleet.ClientAddr(number), MAC: fleet.ClientMAC(number), Host: host, VTEP: fmt.Sprintf("198.18.0.%d", i+1), Mount: true})
	}
	n.Mount = &fleet.Mount{Addr: fleet.ClientAddr(1), MAC: fleet.ClientMAC(1)}
	golden(t, "client.txt", want(t, config("a", "198.18.0.1"), n).String())
}

// Invalid parts are left out, and the rest is made.
func TestWantNonsense(t *testing.T) {
	for name, spoil := range map[string]func(*fleet.Network){
		"endpoint":      func(n *fleet.Network) { n.Endpoints[0].MAC = "nonsense" },
		"no address":    func(n *fleet.Network) { n.Endpoints[0].Addr = netip.Addr{} },
		"multicast MAC": func(n *fleet.Network) { n.Endpoints[0].MAC = "01:00:5e:00:00:01" },
		"InfiniBand MAC": func(n *fleet.Network) {
			n.Endpoints[0].MAC = "00:00:00:00:fe:80:00:00:00:00:00:00:02:00:5e:10:00:00:00:01"
		},
		"host's address":     func(n *fleet.Network) { n.Endpoints[1].VTEP = "somewhere" },
		"host's address, v6": func(n *fleet.Network) { n.Endpoints[1].VTEP = "fd00::1" },
		"index":              func(n *fleet.Network) { n.Ports[0].Index = 4711 },
		"kind":               func(n *fleet.Network) { n.Ports[0].Kind = "teapot" },
		"subnet":             func(n *fleet.Network) { n.Subnet = fleet.MostSubnet + 1 },
	} {
		t.Run(name, func(t *testing.T) {
			bad, good := network("j1", 1, "a", "a", "b"), network("j2", 2, "a", "a", "b")
			spoil(&bad)
			s, err := Want(config("a", "198.18.0.1"), []fleet.Network{bad, good})
			if err == nil || !strings.Contains(err.Error(), "job j1") {
				t.Errorf("error %v does not name the job", err)
			}
			if len(Diff(State{}, s)) == 0 || s.Links[good.Subnet.TapName(0)].Kind != tapKind {
				t.Error("the other job's network is missing")
			}
		})
	}
}

func TestDiff(t *testing.T) {
	a := config("a", "198.18.0.1")
	here, there := network("j1", 1, "a", "a", "b"), network("j1", 1, "a", "a", "b")
	there.Endpoints[0].Host, there.Endpoints[0].VTEP = "b", "198.18.0.2"
	gone := there
	gone.Ports = nil
	arriving := network("j1", 1, "a", "b", "b")
	arriving.Ports = here.Ports
	full, boxed := want(t, a, here), want(t, a, contained(here))
	besides := func(s State, links map[string]Link) State {
		s.Links = maps.Clone(s.Links)
		maps.Copy(s.Links, links)
		return s
	}
	altered := func(alter func(s State)) State {
		s := want(t, a, here)
		alter(s)
		return s
	}
	for _, c := range []struct {
		name       string
		have, want State
	}{
		{"the same", full, full},
		{"from nothing", newState(), full},
		{"to nothing", full, newState()},
		{"guest has left, its port stays", full, want(t, a, there)},
		{"guest has left for good", full, want(t, a, gone)},
		{"guest is to arrive", want(t, a, network("j1", 1, "a", "b", "b")), want(t, a, arriving)},
		{"guest has arrived", want(t, a, arriving), full},
		{"other guest has moved on", full, want(t, a, network("j1", 1, "a", "a", "c"))},
		{"another address of this host", full, want(t, config("a", "198.18.0.9"), here)},
		{"bridge of the wrong kind", altered(func(s State) { s.Links["pgb700001"] = Link{Kind: "dummy"} }), full},
		{"port without a bridge", altered(func(s State) {
			l := s.Links["pgt700001.0"]
			l.Master, l.HasPort, l.Port = "", false, Port{}
			s.Links["pgt700001.0"] = l
			delete(s.Forward, Key{"pgb700001", "02:70:67:00:01:01"})
		}), full},
		{"learning, flooding, down", altered(func(s State) {
			l := s.Links["pgt700001.0"]
			l.Up, l.Port = false, Port{Learning: true, Unknown: true, Multicast: true, Broadcast: true}
			s.Links["pgt700001.0"] = l
		}), full},
		{"garbage", altered(func(s State) {
			s.Links["pgt700001.7"] = Link{Kind: tapKind, Up: true}
			s.Links["pgnabcdef"] = Link{Kind: pairKind}
			s.Forward[Key{"pgb700001", "02:00:00:00:00:01"}] = "pgx700001 (learnt)"
			s.Tunnel[Key{"pgx700001", "00:00:00:00:00:00"}] = "198.18.0.9,198.18.0.8"
			s.Neighbours[Key{"pgb700001", "10.128.1.99"}] = "02:00:00:00:00:01"
		}), full},
		{"containers from nothing", newState(), boxed},
		{"machine becomes a container", full, boxed},
		{"container becomes a machine", besides(boxed, map[string]Link{"pgc700001.0": {Kind: pairKind}, "pgh700001.0": {Kind: tapKind}}), full},
		{"container's own links", besides(boxed, map[string]Link{"pgc700001.0": {Kind: pairKind}, "pgh700001.0": {Kind: tapKind, Up: true}}), boxed},
		{"others' links in their place", besides(boxed, map[string]Link{"pgc700001.0": {Kind: tapKind}, "pgh700001.0": {Kind: pairKind}, "pgc700001.7": {Kind: pairKind}}), boxed},
	} {
		t.Run(c.name, func(t *testing.T) {
			var lines strings.Builder
			for _, change := range Diff(c.have, c.want) {
				lines.WriteString(change.String() + "\n")
			}
			golden(t, "diff-"+strings.NewReplacer(" ", "-", ",", "", "'", "").Replace(c.name)+".txt", lines.String())
		})
	}
}

// modelled applies a change as the kernel would, for the tables.
func modelled(s State, c Change) {
	switch c.Verb {
	case addLink, setLink:
		if old, ok := s.Links[c.Key.Link]; ok && old.Master != c.Link.Master {
			modelledFlush(s, c.Key.Link)
		}
		s.Links[c.Key.Link] = c.Link
	case deleteLink:
		modelledFlush(s, c.Key.Link)
		delete(s.Links, c.Key.Link)
		for name, l := range s.Links {
			if l.Master == c.Key.Link {
				l.Master, l.HasPort, l.Port = "", false, Port{}
				s.Links[name] = l
			}
		}
	case setForward:
		s.Forward[c.Key] = c.Value
	case deleteForward:
		delete(s.Forward, c.Key)
	case setTunnel:
		s.Tunnel[c.Key] = c.Value
	case deleteTunnel:
		delete(s.Tunnel, c.Key)
	case setNeighbour:
		s.Neighbours[c.Key] = c.Value
	case deleteNeighbour:
		delete(s.Neighbours, c.Key)
	}
}

func modelledFlush(s State, link string) {
	for k, port := range s.Forward {
		if k.Link == link || port == link {
			delete(s.Forward, k)
		}
	}
	for k := range s.Tunnel {
		if k.Link == link {
			delete(s.Tunnel, k)
		}
	}
	for k := range s.Neighbours {
		if k.Link == link {
			delete(s.Neighbours, k)
		}
	}
}

// Between random states: the changes lead to the wanted state, no entry ever points to a
// missing link, and nothing is left to change.
func TestDiffLeadsThere(t *testing.T) {
	state := func(r *rapid.T, name string) State {
		var networks []fleet.Network
		for subnet := range fleet.Subnet(2) {
			if !rapid.Bool().Draw(r, name) {
				continue
			}
			hosts := rapid.SliceOfN(rapid.SampledFrom([]string{"a", "b", "c", "?"}), 0, 4).Draw(r, name)
			n := network("j", subnet, "a", hosts...)
			if rapid.Bool().Draw(r, name) {
				n.Share = &fleet.Share{}
			}
			if rapid.Bool().Draw(r, name) {
				n = contained(n)
			}
			networks = append(networks, n)
		}
		s, err := Want(config("a", rapid.SampledFrom([]string{"198.18.0.1", "198.18.0.9"}).Draw(r, name)), networks)
		if err != nil {
			r.Fatal(err)
		}
		for _, link := range sorted(s.Links) {
			if rapid.IntRange(0, 9).Draw(r, name) == 0 {
				modelled(s, Change{Verb: deleteLink, Key: Key{Link: link}})
			}
		}
		return s
	}
	rapid.Check(t, func(r *rapid.T) {
		have, want := state(r, "have"), state(r, "want")
		for _, port := range want.Forward {
			if _, ok := want.Links[port]; !ok {
				return // a wanted state always has them
			}
		}
		for _, l := range want.Links {
			if _, ok := want.Links[l.Master]; l.Master != "" && !ok || l.Kind != bridgeKind && l.Master == "" {
				return
			}
		}
		for _, c := range Diff(have, want) {
			if _, ok := have.Links[c.Value]; c.Verb == setForward && !ok {
				r.Fatalf("%s: no such link", c)
			}
			if _, ok := have.Links[c.Link.Master]; c.Link.Master != "" && !ok {
				r.Fatalf("%s: no such bridge", c)
			}
			modelled(have, c)
		}
		if rest := Diff(have, want); len(rest) != 0 || have.String() != want.String() {
			r.Fatalf("%d changes remain, the first %v; have\n%s\nwant\n%s", len(rest), rest, have, want)
		}
	})
}

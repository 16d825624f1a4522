package ways

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"pagurus/fleet"
)

func host(id fleet.HostID, site, address, from string, edit ...func(*fleet.WireGuardFacts)) fleet.Host {
	w := &fleet.WireGuardFacts{WireGuardEnd: fleet.WireGuardEnd{Key: "key of " + string(id), Port: 7462}}
	for _, e := range edit {
		e(w)
	}
	return fleet.Host{ID: id, Number: 1, Facts: fleet.Facts{Connected: true, Site: site, Address: address, From: from, WireGuard: w}}
}

func cluster(all ...fleet.Host) map[fleet.HostID]fleet.Host {
	out := map[fleet.HostID]fleet.Host{}
	for _, h := range all {
		out[h.ID] = h
	}
	return out
}

func relays(w *fleet.WireGuardFacts) { w.Relays = true }

func TestWhoSharesANetwork(t *testing.T) {
	office := host("office", "", "10.0.0.1", "10.0.0.1")
	for name, c := range map[string]struct {
		other fleet.Host
		is    bool
	}{
		"its neighbour":               {host("b", "", "10.0.0.2", "10.0.0.2"), true},
		"the controller's machine":    {host("b", "", "10.0.0.2", ""), true},
		"another site":                {host("b", "lab", "10.0.0.2", "10.0.0.2"), false},
		"behind NAT":                  {host("b", "", "192.168.1.2", "203.0.113.1"), false},
		"not heard of yet":            {fleet.Host{ID: "b"}, true},
		"one with IPv6 alone":         {host("b", "", "2001:db8::2", "2001:db8::2"), false},
		"a site of no name, and NAT ": {host("b", "", "10.0.0.1", "203.0.113.1"), false},
	} {
		if Together(office, c.other) != c.is || Together(c.other, office) != c.is {
			t.Errorf("%s: together is not %v", name, c.is)
		}
	}
	if six := host("six", "", "2001:db8::1", "2001:db8::1"); !Together(six, host("b", "", "fd00::2", "")) {
		t.Error("hosts with IPv6 alone do not share a network")
	}
	// Who is behind one NAT, or says so, may be in one network, or behind a provider's.
	home := host("home", "", "192.168.1.2", "203.0.113.1")
	for _, from := range []string{"203.0.113.1", "203.0.113.2"} {
		if Together(home, host("b", "", "192.168.1.3", from)) {
			t.Errorf("hosts behind NAT at %s share a network", from)
		}
	}
}

func TestWhereAHostMayBeCalled(t *testing.T) {
	seen := func(at ...string) func(*fleet.WireGuardFacts) {
		return func(w *fleet.WireGuardFacts) { w.Mapped = at }
	}
	for name, c := range map[string]struct {
		h  fleet.Host
		is string
	}{
		"open":                {host("b", "", "198.51.100.1", "198.51.100.1", seen("198.51.100.1:7462")), "198.51.100.1:7462"},
		"NAT":                 {host("b", "", "192.168.1.2", "203.0.113.1", seen("203.0.113.1:4711")), "192.168.1.2:7462 203.0.113.1:4711 203.0.113.1:7462"},
		"no server was heard": {host("b", "", "192.168.1.2", "203.0.113.1"), "192.168.1.2:7462 203.0.113.1:7462"},
		"IPv6 alone":          {host("b", "", "2001:db8::1", "2001:db8::1", seen("[2001:db8::1]:7462")), "[2001:db8::1]:7462"},
		"it says anything":    {host("b", "", "192.168.1.2", "192.168.1.2", seen("x", "1.2.3.4:5", "5.6.7.8:9", "6.6.6.6:6")), "192.168.1.2:7462 1.2.3.4:5"},
		"the controller's":    {host("b", "", "127.0.0.1", ""), ""},
		"of many":             {host("b", "", "255.255.255.255", "224.0.0.1", seen("240.0.0.1:1", "[ff02::1]:2")), ""},
		"of the caller":       {host("b", "", "0.0.0.0", "169.254.1.1", seen("[::1]:1", "[::ffff:127.0.0.1]:7462")), ""},
		"no port":             {host("b", "", "10.0.0.1", "", seen("10.0.0.1:0", "[fe80::1%eth0]:7")), "10.0.0.1:7462"},
	} {
		if got := strings.Join(To(c.h, c.h.Facts.WireGuard.WireGuardEnd), " "); got != c.is {
			t.Errorf("%s: %s, wanted %s", name, got, c.is)
		}
	}
}

func TestEachSiteHasAnEnvoy(t *testing.T) {
	away := host("a1", "a", "", "")
	away.Facts.Connected = false
	keyless := host("b1", "b", "", "", func(w *fleet.WireGuardFacts) { w.Key = "" })
	got := Envoys(cluster(away, host("a2", "a", "", ""), host("a3", "a", "", ""), keyless, host("b2", "b", "", ""), host("none", "", "", "")))
	if len(got) != 2 || got["a"] != "a2" || got["b"] != "b2" {
		t.Errorf("they are %v", got)
	}
}

func TestWhoRelays(t *testing.T) {
	pair := PairOf("b", "a")
	path := func(to fleet.HostID, p fleet.Path) func(*fleet.WireGuardFacts) {
		return func(w *fleet.WireGuardFacts) { w.Paths = map[fleet.HostID]fleet.Path{to: p} }
	}
	a, b := host("a", "A", "192.168.1.2", "203.0.113.1"), host("b", "B", "192.168.1.2", "203.0.113.2")
	near := host("near", "N", "198.51.100.1", "198.51.100.1", relays, path("a", fleet.Path{Latency: 5 * time.Millisecond}))
	far := host("far", "F", "198.51.100.2", "198.51.100.2", relays, path("a", fleet.Path{Latency: 50 * time.Millisecond}))
	has := far
	has.Facts.WireGuard = &fleet.WireGuardFacts{Relays: true, Relayed: []fleet.RelayPort{{Hosts: pair, Port: 1}}}
	hasToo := near
	hasToo.Facts.WireGuard = &fleet.WireGuardFacts{Relays: true, Relayed: has.Facts.WireGuard.Relayed, Paths: near.Facts.WireGuard.Paths}
	usesFar := host("a", "A", "192.168.1.2", "203.0.113.1", path("b", fleet.Path{NeedsRelay: true, Relay: "far"}))
	natted, gone, unwilling := near, near, near
	natted.Facts.From, gone.Facts.Connected = "203.0.113.9", false
	unwilling.Facts.WireGuard = &fleet.WireGuardFacts{}
	deadA := host("a", "A", "192.168.1.2", "203.0.113.1", path("b", fleet.Path{NeedsRelay: true, Relay: "far", Dead: true}))
	after := func(path fleet.Path) fleet.Host {
		path.NeedsRelay = true
		return host("a", "A", "192.168.1.2", "203.0.113.1", func(w *fleet.WireGuardFacts) { w.Paths = map[fleet.HostID]fleet.Path{"b": path} })
	}
	off := b
	off.Facts.Connected = false
	third := host("third", "T", "198.51.100.3", "198.51.100.3", relays)
	for name, c := range map[string]struct {
		hosts map[fleet.HostID]fleet.Host
		is    fleet.HostID
	}{
		"a third after two":                 {cluster(after(fleet.Path{Relay: "far", Dead: true, Silent: []fleet.HostID{"near", "far"}}), b, hasToo, has, third), "third"},
		"a third while the second is":       {cluster(after(fleet.Path{Relay: "far", Silent: []fleet.HostID{"near"}}), b, hasToo, has, third), "far"},
		"no new one for a host that is off": {cluster(after(fleet.Path{Relay: "far", Dead: true, Silent: []fleet.HostID{"far"}}), off, hasToo, has, third), "far"},
		"after all the first again":         {cluster(after(fleet.Path{Relay: "third", Dead: true, Silent: []fleet.HostID{"near", "far", "third"}}), b, near, has, third), "near"},
		"the nearer one":                    {cluster(a, b, near, far), "near"},
		"one that does already":             {cluster(a, b, near, has), "far"},
		"one that is used":                  {cluster(usesFar, b, hasToo, has), "far"},
		"not one by whom nothing came":      {cluster(deadA, b, near, has), "near"},
		"such a one rather than none":       {cluster(deadA, b, has), "far"},
		"not one behind NAT":                {cluster(a, b, natted, far), "far"},
		"not one that is away":              {cluster(a, b, gone, far), "far"},
		"not one that does not want":        {cluster(a, b, unwilling), ""},
		"not one of the two":                {cluster(host("a", "A", "198.51.100.3", "198.51.100.3", relays), b), ""},
	} {
		if got := Relays(c.hosts, []Pair{pair})[pair]; got != c.is {
			t.Errorf("%s: it is %q, wanted %q", name, got, c.is)
		}
	}
}

// A host that says that it reaches nobody takes no relay from others, and those in use stay.
func TestRelaysAreShared(t *testing.T) {
	near := host("near", "N", "198.51.100.1", "198.51.100.1", relays)
	var greedy, many []Pair
	for i := range fleet.MostRelayed + 3 {
		greedy = append(greedy, PairOf("a", fleet.HostID(strings.Repeat("b", i+1))))
		many = append(many, PairOf(fleet.HostID(strings.Repeat("c", i+1)), fleet.HostID(strings.Repeat("d", i+1))))
	}
	if got := Relays(cluster(near), greedy); len(got) != mostOfHost {
		t.Errorf("%d pairs of one host are relayed", len(got))
	}
	if got := Relays(cluster(near), many); len(got) != fleet.MostRelayed {
		t.Errorf("one host relays for %d pairs", len(got))
	}
	used := PairOf("x", "y")
	near.Facts.WireGuard.Relayed = []fleet.RelayPort{{Hosts: used, Port: 7470}}
	x := host("x", "X", "192.168.1.2", "203.0.113.1", func(w *fleet.WireGuardFacts) {
		w.Paths = map[fleet.HostID]fleet.Path{"y": {Relay: "near", NeedsRelay: true}}
	})
	got := Relays(cluster(near, x), slices.Concat(greedy, many, []Pair{used, used}))
	if len(got) != fleet.MostRelayed || got[used] != "near" {
		t.Errorf("of %d pairs one that is in use is relayed by %q", len(got), got[used])
	}
}

func TestOthersHearOfChanges(t *testing.T) {
	is := host("a", "A", "192.168.1.2", "203.0.113.1").Facts
	with := func(edit func(*fleet.WireGuardFacts)) fleet.Facts {
		return host("a", "A", "192.168.1.2", "203.0.113.1", edit).Facts
	}
	for name, c := range map[string]struct {
		to      fleet.Facts
		differs bool
	}{
		"the same":    {is, false},
		"seen":        {with(func(w *fleet.WireGuardFacts) { w.Mapped = []string{"203.0.113.1:1"} }), true},
		"a path":      {with(func(w *fleet.WireGuardFacts) { w.Paths = map[fleet.HostID]fleet.Path{"b": {NeedsRelay: true}} }), true},
		"elsewhere":   {host("a", "A", "192.168.1.2", "203.0.113.7").Facts, true},
		"a relay":     {with(relays), true},
		"no facts":    {fleet.Facts{Site: "A", Address: "192.168.1.2", From: "203.0.113.1"}, true},
		"nothing new": {with(func(w *fleet.WireGuardFacts) { w.Relayed = slices.Clip(w.Relayed) }), false},
	} {
		if Differ(is, c.to) != c.differs || Differ(c.to, is) != c.differs {
			t.Errorf("%s: differs is not %v", name, c.differs)
		}
	}
	slow := func(d time.Duration) fleet.Facts {
		return with(func(w *fleet.WireGuardFacts) { w.Paths = map[fleet.HostID]fleet.Path{"b": {Latency: d}} })
	}
	dead := func(relays ...fleet.HostID) fleet.Facts {
		return with(func(w *fleet.WireGuardFacts) { w.Paths = map[fleet.HostID]fleet.Path{"b": {Silent: relays}} })
	}
	if !Differ(dead("r1"), dead("r1", "r2")) {
		t.Error("who no longer relays is nobody's business")
	}
	if Differ(slow(1), slow(2)) {
		t.Error("a latency is everybody's business")
	}
}

// An agent keeps what works, prefers what is direct, and asks for a relay when nothing is.
func TestChoose(t *testing.T) {
	now := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	ago := func(d time.Duration) time.Time { return now.Add(-d) }
	at := netip.MustParseAddrPort
	lan, outside, relay, roamed := at("192.168.1.2:7462"), at("203.0.113.1:4711"), at("198.51.100.1:7470"), at("203.0.113.8:1")
	try := func(at netip.AddrPort, answered time.Time, took time.Duration) Try {
		return Try{At: at, Answered: answered, Took: took}
	}
	silent := func(t Try) Try { t.Silent = true; return t }
	none := []Try{{At: lan}, {At: outside}}
	long := ago(time.Minute)
	for name, c := range map[string]struct {
		p  Peer
		is Choice
	}{
		"it has only begun":                {Peer{Begun: ago(time.Second), Tries: none, Relay: relay}, Choice{}},
		"none is there":                    {Peer{Begun: long, Tries: none}, Choice{NeedsRelay: true}},
		"a relay is":                       {Peer{Begun: long, Tries: none, Relay: relay, Relayed: now}, Choice{NeedsRelay: true, Call: relay}},
		"the relay works":                  {Peer{Begun: long, Tries: none, Relay: relay, Relayed: long, Now: relay, Heard: ago(time.Second)}, Choice{NeedsRelay: true, Kind: fleet.RelayedPath}},
		"the relay has time":               {Peer{Begun: long, Tries: none, Relay: relay, Relayed: ago(time.Second), Now: relay}, Choice{NeedsRelay: true}},
		"the relay does not":               {Peer{Begun: long, Tries: none, Relay: relay, Relayed: long, Now: relay, Heard: ago(20 * time.Second)}, Choice{NeedsRelay: true, Dead: true}},
		"another relay":                    {Peer{Begun: long, Tries: none, Relay: relay, Relayed: now, Now: roamed, Heard: now}, Choice{NeedsRelay: true, Call: relay}},
		"an answer":                        {Peer{Begun: now, Tries: []Try{{At: lan}, try(outside, now, 9)}}, Choice{Kind: fleet.DirectPath, Call: outside}},
		"the faster one":                   {Peer{Begun: now, Tries: []Try{try(outside, now, 9), try(lan, now, 1)}}, Choice{Kind: fleet.DirectPath, Call: lan}},
		"the present one, though slower":   {Peer{Begun: now, Tries: []Try{try(lan, now, 1), try(outside, now, 9)}, Now: outside}, Choice{Kind: fleet.DirectPath}},
		"direct after a relay":             {Peer{Begun: long, Tries: []Try{try(outside, now, 9)}, Relay: relay, Relayed: long, Now: relay, Heard: now}, Choice{Kind: fleet.DirectPath, Call: outside}},
		"the present one is silent":        {Peer{Begun: long, Tries: []Try{try(lan, long, 1), try(outside, now, 9)}, Now: lan, Heard: now}, Choice{Kind: fleet.DirectPath, Call: outside}},
		"checks are lost, packets are not": {Peer{Begun: long, Tries: []Try{try(lan, long, 1)}, Relay: relay, Relayed: long, Now: lan, Heard: now}, Choice{Kind: fleet.DirectPath}},
		"all are silent":                   {Peer{Begun: long, Tries: []Try{try(lan, long, 1)}, Relay: relay, Relayed: now, Now: lan, Heard: long}, Choice{NeedsRelay: true, Call: relay}},
		"answers, and nothing inside":      {Peer{Begun: long, Tries: []Try{try(outside, now, 9)}, Relay: relay, Relayed: now, Now: outside, Heard: ago(20 * time.Second), Unheard: ago(20 * time.Second)}, Choice{NeedsRelay: true, Call: relay, Silent: true}},
		"nothing inside, and no relay":     {Peer{Begun: long, Tries: []Try{try(outside, now, 9)}, Now: outside, Unheard: ago(20 * time.Second)}, Choice{NeedsRelay: true, Silent: true}},
		"nothing inside, and another way":  {Peer{Begun: long, Tries: []Try{try(outside, now, 9), try(lan, now, 10)}, Now: outside, Unheard: ago(20 * time.Second)}, Choice{Call: lan, Kind: fleet.DirectPath, Silent: true}},
		"nothing inside for a moment":      {Peer{Begun: long, Tries: []Try{try(outside, now, 9)}, Now: outside, Unheard: ago(19 * time.Second)}, Choice{Kind: fleet.DirectPath}},
		"it was silent lately":             {Peer{Begun: long, Tries: []Try{silent(try(outside, now, 9))}, Relay: relay, Relayed: long, Now: relay, Heard: now}, Choice{NeedsRelay: true, Kind: fleet.RelayedPath}},
		"the controller forgot the relay":  {Peer{Begun: long, Tries: none, Now: relay, Heard: now}, Choice{NeedsRelay: true}},
	} {
		if got := Choose(c.p, now); got != c.is {
			t.Errorf("%s:\n%+v\nwanted\n%+v", name, got, c.is)
		}
	}
}

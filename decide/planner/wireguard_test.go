package planner

import (
	"strings"
	"testing"
	"time"

	"pagurus/decide/desired"
	"pagurus/fleet"
)

// encrypted is a world whose hosts have WireGuard keys, but for those named.
func encrypted(t *testing.T, keyless ...fleet.HostID) *world {
	w := newWorld(t, "host1", "host2", "host3")
	for id, h := range w.s.Hosts {
		h.Facts.WireGuard = &fleet.WireGuardFacts{WireGuardEnd: fleet.WireGuardEnd{Key: "key of " + string(id), Port: 7462}}
		w.s.Hosts[id] = h
	}
	for _, id := range keyless {
		h := w.s.Hosts[id]
		h.Facts.WireGuard = nil
		w.s.Hosts[id] = h
	}
	w.observe(fleet.Observation{Encryption: fleet.AutoEncryption})
	if w.s.Cluster.Encryption != fleet.AutoEncryption {
		t.Fatal("the cluster does not encrypt")
	}
	return w
}

func peers(w *world, of fleet.HostID) string {
	wanted := desired.Wanted(w.s, of).WireGuard
	if wanted == nil {
		return "nothing"
	}
	var said []string
	for _, p := range wanted.Peers {
		said = append(said, string(p.Host)+" "+p.Key+" "+p.Address.String()+" "+p.Endpoint)
	}
	return strings.Join(said, "; ")
}

// senders are the addresses from which a host takes frames of its first network.
func senders(w *world, host fleet.HostID) string {
	networks := desired.Wanted(w.s, host).Networks
	if len(networks) == 0 {
		return "no network"
	}
	return strings.Join(networks[0].Peers, " ")
}

// Hosts are peers while they have a job together, and reach each other inside alone.
func TestHostsOfAJobArePeers(t *testing.T) {
	w := encrypted(t)
	if got := peers(w, "host1"); got != "" {
		t.Errorf("before there is a job, host1 has the peers %s", got)
	}
	r := submission(2)
	r.Spec.On = []fleet.HostID{"host1", "host2"}
	job := w.must(r).Job
	w.answerAll()
	if mtu := w.s.Jobs[job].MTU; mtu != 1350 {
		t.Errorf("the job's MTU is %d", mtu)
	}
	const one, two = "host1 key of host1 fe80::1 192.0.2.1:7462", "host2 key of host2 fe80::2 192.0.2.2:7462"
	for host, want := range map[fleet.HostID]string{"host1": two, "host2": one, "host3": ""} {
		if got := peers(w, host); got != want {
			t.Errorf("%s has the peers %q, wanted %q", host, got, want)
		}
	}
	said := func() string {
		text, err := w.p.Explain(w.s, Subject{Host: "host1"})
		if err != nil {
			t.Fatal(err)
		}
		return strings.Join(text, "\n")
	}
	if got := said(); !strings.Contains(got, "It has no WireGuard device now") {
		t.Errorf("explained: %s", got)
	}
	for id, by := range map[fleet.HostID]fleet.Protection{"host1": fleet.KernelWireGuard, "host2": fleet.UserWireGuard} {
		h := w.s.Hosts[id]
		facts := *h.Facts.WireGuard
		facts.By = by
		h.Facts.WireGuard = &facts
		w.s.Hosts[id] = h
	}
	if got := said(); !strings.Contains(got, "What passes between it and host2 is encrypted: by wireguard kernel here and wireguard-go there.") {
		t.Errorf("explained: %s", got)
	}
	for _, e := range desired.Wanted(w.s, "host1").Networks[0].Endpoints {
		if want := map[fleet.HostID]string{"host1": "fe80::1", "host2": "fe80::2"}[e.Host]; e.VTEP != want {
			t.Errorf("%s of %s is at %s, wanted %s", e.Addr, e.Host, e.VTEP, want)
		}
	}
	for host, want := range map[fleet.HostID]string{"host1": "fe80::2", "host2": "fe80::1", "host3": "no network"} {
		if got := senders(w, host); got != want {
			t.Errorf("%s takes frames from %q, wanted %q", host, got, want)
		}
	}
	home := w.s.Guests["j1g1"].Home
	w.must(fleet.Request{Verb: fleet.Migrate, Guests: []fleet.GuestID{"j1g1"}, To: "host3"})
	if got := peers(w, "host3"); !strings.Contains(got, string(home)) || !strings.Contains(got, "host1") {
		t.Errorf("before it takes in a guest, host3 has the peers %q", got)
	}
	// Nobody loses a frame of a guest that moves: until the move is over all take frames from both hosts.
	for host, want := range map[fleet.HostID]string{"host1": "fe80::2 fe80::3", "host2": "fe80::1 fe80::3", "host3": "fe80::1 fe80::2"} {
		if got := senders(w, host); home == "host2" && got != want {
			t.Errorf("before the guest moves, %s takes frames from %q, wanted %q", host, got, want)
		}
	}
	w.answerAll()
	if got := senders(w, "host1"); home == "host2" && got != "fe80::3" {
		t.Errorf("when a guest has moved from host2 to host3, host1 takes frames from %q", got)
	}
	if got := peers(w, "host2"); home == "host2" && got != "" {
		t.Errorf("when its guest has left, host2 has the peers %q", got)
	}
	// The endpoint and the key follow what a host says, and stay while it is not heard.
	h := w.s.Hosts["host3"]
	h.Facts.Address, h.Facts.WireGuard = "192.0.2.33", &fleet.WireGuardFacts{WireGuardEnd: fleet.WireGuardEnd{Key: "another", Port: 7}}
	w.s.Hosts["host3"] = h
	w.tick(time.Second)
	h = w.s.Hosts["host3"]
	if h.WireGuard.Key != "another" {
		t.Errorf("stored is %v", h.WireGuard)
	}
	h.Facts.Address, h.Facts.WireGuard = "", nil
	w.s.Hosts["host3"] = h
	if got := peers(w, "host1"); got != "host3 another fe80::3 192.0.2.33:7" {
		t.Errorf("host1 has the peers %q", got)
	}
	without := w.s.Apply(fleet.Changeset{GoneHosts: []fleet.HostID{"host3"}}, w.s.Revision+1)
	if wanted := desired.Wanted(without, "host1").WireGuard; len(wanted.Peers) != 0 {
		t.Errorf("a host that was removed is still a peer: %v", wanted.Peers)
	}
}

// A change of the cluster's encryption waits for its jobs: their networks would be cut off.
func TestEncryptionChangesWithoutJobs(t *testing.T) {
	w := encrypted(t)
	job := w.must(submission(1)).Job
	w.answerAll()
	w.observe(fleet.Observation{Encryption: fleet.NoEncryption})
	if w.s.Cluster.Encryption != fleet.AutoEncryption {
		t.Error("it changed while a job was there")
	}
	w.must(fleet.Request{Verb: fleet.Cancel, Job: job})
	w.answerAll()
	w.tick(time.Second)
	w.observe(fleet.Observation{Encryption: fleet.NoEncryption})
	if w.s.Cluster.Encryption != fleet.NoEncryption {
		t.Fatalf("it is %s without a job", w.s.Cluster.Encryption)
	}
	if got := peers(w, "host1"); got != "nothing" {
		t.Errorf("host1 still wants %q", got)
	}
	j := w.s.Jobs[w.must(submission(1)).Job]
	if j.NetworkMTU() != fleet.NetworkMTU || desired.Wanted(w.s, j.ShareHost).Networks[0].Endpoints[0].VTEP[:3] != "192" {
		t.Errorf("a job's MTU is %d where nothing is encrypted", j.NetworkMTU())
	}
}

// In clear, a job on hosts with IPv6 alone has frames that fit.
func TestMTUOfHostsWithIPv6Alone(t *testing.T) {
	w := newWorld(t, "host1", "host2")
	for id, h := range w.s.Hosts {
		h.Facts.Address = "2001:db8::" + string(id[len(id)-1])
		w.s.Hosts[id] = h
	}
	if mtu := w.s.Jobs[w.must(submission(2)).Job].NetworkMTU(); mtu != fleet.NetworkMTU6 {
		t.Errorf("the MTU is %d", mtu)
	}
}

// Nothing goes in clear because a host has no key: it is not reached, and takes no guests.
func TestHostWithoutAKeyIsNotReached(t *testing.T) {
	w := encrypted(t, "host2")
	f := desired.Barred(w.s.Hosts["host2"].Facts, w.s.Cluster)
	if trouble := f.Abilities[fleet.VM].Trouble; !strings.Contains(trouble, "too old for that") || len(f.Troubles) != 1 {
		t.Errorf("it says %q and %q", trouble, f.Troubles)
	}
	if w.s.Hosts["host2"].Facts.Abilities[fleet.VM].Trouble != "" {
		t.Error("the facts that came are changed")
	}
	r := submission(2)
	r.Spec.On = []fleet.HostID{"host1", "host2"}
	w.must(r)
	for _, e := range desired.Wanted(w.s, "host1").Networks[0].Endpoints {
		if e.Host == "host2" && e.VTEP != "" {
			t.Errorf("%s is reached at %s", e.Host, e.VTEP)
		}
	}
	if got := peers(w, "host1"); got != "" {
		t.Errorf("host1 has the peers %q", got)
	}
	h := w.s.Hosts["host3"]
	h.Number = 0 // of a host that an earlier Pagurus knew
	w.s.Hosts["host3"] = h
	if wanted := desired.Wanted(w.s, "host3").WireGuard; wanted == nil || wanted.Address.IsValid() {
		t.Errorf("a host without a number is told %v", wanted)
	}
	if f := desired.Barred(w.s.Hosts["host1"].Facts, w.s.Cluster); len(f.Troubles) != 0 {
		t.Errorf("a host with a key is told %q", f.Troubles)
	}
	if f := desired.Barred(w.s.Hosts["host2"].Facts, fleet.Cluster{}); len(f.Troubles) != 0 {
		t.Errorf("where nothing is encrypted it is told %q", f.Troubles)
	}
}

// Hosts in different networks get each other's ways, one host of each site is always connected, and who is not reached
// directly gets a relay once that says where it relays.
func TestHostsInDifferentNetworks(t *testing.T) {
	w := encrypted(t)
	set := func(id fleet.HostID, site, address, from string, edit func(*fleet.WireGuardFacts)) {
		h := w.s.Hosts[id]
		h.Facts.Site, h.Facts.Address, h.Facts.From = site, address, from
		own := *h.Facts.WireGuard
		edit(&own)
		h.Facts.WireGuard = &own
		w.s.Hosts[id] = h
	}
	needs := func(to ...fleet.HostID) func(*fleet.WireGuardFacts) {
		return func(f *fleet.WireGuardFacts) {
			f.Mapped, f.Paths = []string{"203.0.113.1:4711"}, map[fleet.HostID]fleet.Path{}
			for _, id := range to {
				f.Paths[id] = fleet.Path{NeedsRelay: true}
			}
		}
	}
	set("host1", "ada", "192.168.1.2", "203.0.113.1", needs())
	set("host2", "bob", "192.168.1.2", "203.0.113.2", func(*fleet.WireGuardFacts) {})
	set("host3", "hall", "198.51.100.1", "198.51.100.1", func(f *fleet.WireGuardFacts) { f.Relays = true })
	peer := func(of, id fleet.HostID) fleet.WireGuardPeer {
		for _, p := range desired.Wanted(w.s, of).WireGuard.Peers {
			if p.Host == id {
				return p
			}
		}
		t.Fatalf("%s has no peer %s", of, id)
		return fleet.WireGuardPeer{}
	}
	if got := strings.Join(peer("host2", "host1").Ways, " "); got != "192.168.1.2:7462 203.0.113.1:4711 203.0.113.1:7462" {
		t.Errorf("host1 is called at %s", got)
	}
	relays := func() []fleet.RelayPair { return desired.Wanted(w.s, "host3").WireGuard.Relays }
	if peer("host1", "host2").Relay != nil || len(relays()) > 0 {
		t.Error("somebody relays before it is needed")
	}
	set("host1", "ada", "192.168.1.2", "203.0.113.1", needs("host2", "host9", "host1"))
	want := fleet.RelayPair{Hosts: [2]fleet.HostID{"host1", "host2"}, Keys: [2]string{"key of host1", "key of host2"}}
	if got := relays(); len(got) != 1 || got[0] != want {
		t.Errorf("host3 relays for %v", got)
	}
	if peer("host1", "host2").Relay != nil {
		t.Error("a relay counts before it says where it is")
	}
	set("host3", "hall", "198.51.100.1", "198.51.100.1", func(f *fleet.WireGuardFacts) {
		f.Relayed = []fleet.RelayPort{{Hosts: want.Hosts, Port: 7470}, {Hosts: [2]fleet.HostID{"host1", "host3"}, Port: 7471}}
	})
	for _, ends := range [][2]fleet.HostID{{"host1", "host2"}, {"host2", "host1"}} {
		if r := peer(ends[0], ends[1]).Relay; r == nil || r.Host != "host3" || r.Endpoint != "198.51.100.1:7470" {
			t.Errorf("%s reaches %s by %v", ends[0], ends[1], r)
		}
	}
	if peer("host1", "host3").Relay != nil {
		t.Error("a host that says so relays for others than it was asked to")
	}
	if r := peer("host1", "host2").Relay; r == nil || r.Key != "key of host3" {
		t.Errorf("host1 does not get its relay's key: %+v", r)
	}
	// While both do not call the relay stays, if they have a job together.
	away := func(back bool) {
		for _, id := range []fleet.HostID{"host1", "host2"} {
			h := w.s.Hosts[id]
			h.Facts.Connected = back
			w.s.Hosts[id] = h
		}
	}
	away(false)
	if got := relays(); len(got) > 0 {
		t.Errorf("without a job and without a call host3 relays for %v", got)
	}
	away(true)
	r := submission(2)
	r.Spec.On = []fleet.HostID{"host1", "host2"}
	r.Spec.Need.CPUs = 3 // one for each
	w.must(r)
	w.answerAll()
	away(false)
	if got := relays(); len(got) != 1 || got[0] != want {
		t.Errorf("while nobody hears the two of a job host3 relays for %v", got)
	}
}

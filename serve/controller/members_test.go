package controller

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"pagurus/fleet"
	"pagurus/serve/identity"
	"pagurus/serve/wire"
)

// token makes a join token.
func (r *rig) token(t fleet.JoinToken) string {
	r.t.Helper()
	t.Uses, t.Expires = max(1, t.Uses), time.Now().Add(time.Hour)
	a, err := r.client.Ask(r.ctx, fleet.Request{Verb: fleet.AddToken, Token: &t})
	if err != nil || a.Token == "" {
		r.t.Fatal(a, err)
	}
	return a.Token
}

// member joins by a token and gives a client that the controller knows.
func (r *rig) member(token string, j wire.Joining) *wire.Client {
	r.t.Helper()
	dir := r.t.TempDir()
	if _, err := wire.Enrol(r.ctx, r.addr, token, dir, j); err != nil {
		r.t.Fatal(err)
	}
	c, err := wire.Dial(wire.Config{Address: r.addr, Credentials: dir})
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { _ = c.Close() })
	return c
}

// overAfter waits for a session to end, and gives the reason.
func (r *rig) overAfter(s *wire.AgentSession) error {
	r.t.Helper()
	for {
		if _, err := s.Receive(r.ctx); err != nil {
			return err
		}
	}
}

// A rogue agent, with a certificate of its own, counts as itself only: it takes no other
// name, no other machine, no other address, asks for nothing and passes no stream.
func TestRogueAgent(t *testing.T) {
	r := newRig(t)
	host := r.member(r.token(fleet.JoinToken{Role: fleet.HostRole}), wire.Joining{Host: "host7", Machine: "m7", Address: "192.0.2.7"})
	facts := r.facts("host7")
	facts.Machine = "m7"
	for what, spoil := range map[string]func(*wire.Hello){
		"says that it is host1":          func(h *wire.Hello) { h.Host = "host1" },
		"another machine identity":       func(h *wire.Hello) { h.Facts.Machine = "machine" },
		"its address is 192.0.2.1":       func(h *wire.Hello) { h.Facts.Address = "192.0.2.1" },
		"belongs to cluster another one": func(h *wire.Hello) { h.Cluster = "another one" },
	} {
		hello := wire.Hello{Host: "host7", Facts: facts}
		spoil(&hello)
		if _, err := host.Attach(r.ctx, hello); err == nil || !strings.Contains(err.Error(), what) {
			t.Errorf("%s: %v", what, err)
		}
	}
	// It may be itself, at the address that it calls from or joined with, and not change later.
	for _, address := range []string{"192.0.2.7", "127.0.0.1"} {
		good := facts
		good.Address = address
		s, err := host.Attach(r.ctx, wire.Hello{Host: "host7", Facts: good})
		if err != nil {
			t.Fatal(err)
		}
		good.Machine = "machine"
		if err := s.Send(r.ctx, wire.Up{Facts: &good}); err != nil {
			t.Fatal(err)
		}
		if err := r.overAfter(s); !strings.Contains(err.Error(), "another machine identity") {
			t.Errorf("facts of another machine: %v", err)
		}
		s.Close()
	}
	// Reports of orders to others end the session.
	s, err := host.Attach(r.ctx, wire.Hello{Host: "host7", Facts: facts})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Send(r.ctx, wire.Up{Report: &fleet.Report{Order: fleet.Order{Verb: fleet.Watch, Host: "host1"}, Outcome: fleet.Done}}); err != nil {
		t.Fatal(err)
	}
	if err := r.overAfter(s); !strings.Contains(err.Error(), `reports on an order to "host1"`) {
		t.Errorf("a report of another host: %v", err)
	}
	s.Close()
	for _, verb := range []fleet.RequestVerb{fleet.Submit, fleet.Drain, fleet.Claim, fleet.AddToken, fleet.SetUser, fleet.Forget} {
		_, err := host.Ask(r.ctx, fleet.Request{Verb: verb, Host: "host7", Spec: &fleet.JobSpec{}})
		r.refused(err, http.StatusForbidden, "may not")
	}
	_, err = host.Snapshot(r.ctx)
	r.refused(err, http.StatusForbidden)
	r.attach("host1")
	job := r.submit(1)
	r.until("the job to run", running(job))
	_, _, err = host.ReadStream(r.ctx, wire.Place{Job: job, Stream: fleet.Stdin})
	r.refused(err, http.StatusForbidden, "does not run on host7")
	_, err = host.WriteStream(r.ctx, wire.Place{Job: job, Stream: fleet.Stdout}, []byte("forged"), true)
	r.refused(err, http.StatusForbidden, "does not run on host7")
}

// A host registers its own WireGuard key: not one of another host, nor its own as another host's.
func TestKeysOfOtherHosts(t *testing.T) {
	r := newRig(t)
	r.attach("host1")
	rogue := r.member(r.token(fleet.JoinToken{Role: fleet.HostRole}), wire.Joining{Host: "host7", Machine: "m7", Address: "192.0.2.7"})
	facts := func(key string) fleet.Facts {
		f := r.facts("host7")
		f.Machine, f.WireGuard = "m7", &fleet.WireGuardFacts{WireGuardEnd: fleet.WireGuardEnd{Key: key, Port: 7462}}
		return f
	}
	if _, err := rogue.Attach(r.ctx, wire.Hello{Host: "host1", Facts: facts(keyOf("host7"))}); err == nil || !strings.Contains(err.Error(), "says that it is host1") {
		t.Errorf("its key as that of host1: %v", err)
	}
	const taken = "its WireGuard key is that of host host1"
	if _, err := rogue.Attach(r.ctx, wire.Hello{Host: "host7", Facts: facts(keyOf("host1"))}); err == nil || !strings.Contains(err.Error(), taken) {
		t.Errorf("the key of host1 as its own: %v", err)
	}
	s, err := rogue.Attach(r.ctx, wire.Hello{Host: "host7", Facts: facts(keyOf("host7"))})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	later := facts(keyOf("host1"))
	if err := s.Send(r.ctx, wire.Up{Facts: &later}); err != nil {
		t.Fatal(err)
	}
	if err := r.overAfter(s); !strings.Contains(err.Error(), taken) {
		t.Errorf("the key of host1, later: %v", err)
	}
	if key := r.until("host1's key to be stored", func(s fleet.Snapshot) bool { return s.Hosts["host1"].WireGuard.Key != "" }).Hosts["host1"].WireGuard.Key; key != keyOf("host1") {
		t.Errorf("host1 has the key %q", key)
	}
}

// The controller gives hosts their peers, and takes back those that are gone.
func TestPeersFollowHosts(t *testing.T) {
	r := newRig(t)
	r.stop()
	r.encryption = fleet.AutoEncryption
	r.start()
	r.until("the cluster to encrypt", func(s fleet.Snapshot) bool { return s.Cluster.Encryption == fleet.AutoEncryption })
	one, two := r.attach("host1"), r.attach("host2")
	job := r.submit(2)
	knows := func(host fleet.HostID) func(wire.Down) bool {
		return func(d wire.Down) bool {
			return d.Wanted != nil && d.Wanted.WireGuard != nil && len(d.Wanted.WireGuard.Peers) == 1 && d.Wanted.WireGuard.Peers[0].Key == keyOf(host)
		}
	}
	r.until("the job to run", running(job))
	if s := r.now(); s.Guests["j1g0"].Home != s.Guests["j1g1"].Home {
		one.hears("host2 as a peer", knows("host2"))
		two.hears("host1 as a peer", knows("host1"))
	}
	if _, err := r.client.Ask(r.ctx, fleet.Request{Verb: fleet.Cancel, Job: job}); err != nil {
		t.Fatal(err)
	}
	r.until("the job to end", jobEnded(job))
	one.hears("no peers", func(d wire.Down) bool {
		return d.Wanted != nil && len(d.Wanted.Networks) == 0 && d.Wanted.WireGuard != nil && len(d.Wanted.WireGuard.Peers) == 0
	})
}

// A host that is forgotten is out at once, with its session and with its certificate. Its
// name is free for one that joins again.
func TestForgottenHostIsOut(t *testing.T) {
	r := newRig(t)
	token := r.token(fleet.JoinToken{Role: fleet.HostRole, Uses: 2, SameID: true})
	host := r.member(token, wire.Joining{Host: "host7", Machine: "machine"})
	facts := r.facts("host7")
	facts.Address = "127.0.0.1"
	s, err := host.Attach(r.ctx, wire.Hello{Host: "host7", Facts: facts})
	if err != nil {
		t.Fatal(err)
	}
	if err := host.Renew(r.ctx); err != nil {
		t.Fatal(err)
	}
	if _, err := r.client.Ask(r.ctx, fleet.Request{Verb: fleet.Forget, Host: "host7"}); err != nil {
		t.Fatal(err)
	}
	if err := r.overAfter(s); !strings.Contains(err.Error(), "removed from the cluster") {
		t.Errorf("the session of a forgotten host: %v", err)
	}
	_, err = host.Attach(r.ctx, wire.Hello{Host: "host7", Facts: facts})
	r.refused(err, http.StatusUnauthorized, "was removed", "pagurus join")
	r.refused(errors.Unwrap(host.Renew(r.ctx)), http.StatusUnauthorized, "was removed")
	again := r.member(token, wire.Joining{Host: "host7", Machine: "machine"})
	if _, err := again.Attach(r.ctx, wire.Hello{Host: "host7", Facts: facts}); err != nil {
		t.Error(err)
	}
	// Root on the controller's machine cannot be a host that has joined.
	_, err = r.tryAttach(wire.Hello{Host: "host7", Facts: facts})
	if err == nil || !strings.Contains(err.Error(), "--credentials") {
		t.Errorf("root as a host that has joined: %v", err)
	}
}

// A host whose agent calls on the socket has a certificate for other hosts, and for nobody else.
func TestHostOnTheSocketIsKnownToOthers(t *testing.T) {
	r := newRig(t)
	folder := t.TempDir()
	if err := r.client.Certify(r.ctx, folder, "head"); err != nil {
		t.Fatal(err)
	}
	other := r.member(r.token(fleet.JoinToken{Role: fleet.HostRole}), wire.Joining{Host: "host7", Machine: "machine"})
	greet := func() {
		t.Helper()
		serves, calls := net.Pipe()
		defer serves.Close()
		defer calls.Close()
		done := make(chan error, 1)
		server := tls.Server(serves, r.client.Credentials().Serving())
		go func() { done <- server.HandshakeContext(r.ctx) }()
		if err := tls.Client(calls, other.Credentials().Calling("head")).HandshakeContext(r.ctx); err != nil {
			t.Errorf("another host does not take it: %v", err)
		}
		if err := <-done; err != nil {
			t.Errorf("it does not take another host: %v", err)
		}
		if peer, err := r.client.Credentials().Peer(server.ConnectionState()); err != nil || peer != "host7" {
			t.Errorf("it takes another host for %q: %v", peer, err)
		}
	}
	greet()
	if err := r.client.Renew(r.ctx); err != nil {
		t.Error(err)
	}
	greet()

	// It is used again, without the controller; another name needs another one.
	gone, cancel := context.WithCancel(r.ctx)
	cancel()
	if err := r.client.Certify(gone, folder, "head"); err != nil {
		t.Error(err)
	}
	greet()
	if err := r.client.Certify(r.ctx, folder, "elsewhere"); err != nil {
		t.Error(err)
	}
	if who, err := r.client.Credentials().Subject(); err != nil || who.Name != "elsewhere" {
		t.Errorf("it is of %v: %v", who, err)
	}

	r.refused(errors.Unwrap(r.client.Certify(r.ctx, t.TempDir(), "host7")), http.StatusForbidden, "has joined with a certificate of its own")
	r.refused(errors.Unwrap(r.client.Certify(r.ctx, t.TempDir(), "a/b")), http.StatusForbidden)
	shown, err := wire.Dial(wire.Config{Address: r.addr, Credentials: folder})
	if err != nil {
		t.Fatal(err)
	}
	defer shown.Close()
	_, err = shown.Snapshot(r.ctx)
	r.refused(err, http.StatusUnauthorized)
}

// A host whose certificate has ended while it was off is back with its first call. If it was
// removed meanwhile it stays out.
func TestHostIsBackAfterItsCertificate(t *testing.T) {
	r := newRig(t)
	facts := r.facts("host7")
	facts.Address = "127.0.0.1"
	for _, removed := range []bool{false, true} {
		dir := t.TempDir()
		token := r.token(fleet.JoinToken{Role: fleet.HostRole})
		if _, err := wire.Enrol(r.ctx, r.addr, token, dir, wire.Joining{Host: "host7", Machine: "machine"}); err != nil {
			t.Fatal(err)
		}
		request, err := identity.Request(dir)
		if err != nil {
			t.Fatal(err)
		}
		ended, err := r.ctl.Authority.Sign(request, identity.Subject{Role: identity.Host, Name: "host7"}, time.Now().Add(-time.Minute-identity.Lifetime))
		if err != nil {
			t.Fatal(err)
		}
		if err := identity.Save(dir, ended, r.ctl.Authority.Certificate(), identity.Login{}); err != nil {
			t.Fatal(err)
		}
		if removed {
			if _, err := r.client.Ask(r.ctx, fleet.Request{Verb: fleet.Forget, Host: "host7"}); err != nil {
				t.Fatal(err)
			}
		}
		c, err := wire.Dial(wire.Config{Address: r.addr, Credentials: dir})
		if err != nil {
			t.Fatal(err)
		}
		s, err := c.Attach(r.ctx, wire.Hello{Host: "host7", Facts: facts})
		if removed {
			r.refused(err, http.StatusUnauthorized, "was removed")
		} else if err != nil {
			t.Fatal(err)
		} else if err := s.Close(); err != nil {
			t.Error(err)
		}
		_ = c.Close()
		if _, err := r.client.Ask(r.ctx, fleet.Request{Verb: fleet.Forget, Host: "host7"}); err != nil && !removed {
			t.Fatal(err)
		}
	}
}

// Users act on their own jobs, as the uid that an administrator gave them.
func TestRogueUser(t *testing.T) {
	r := newRig(t)
	r.attach("host1")
	for _, u := range []fleet.User{{ID: "ada", Role: fleet.UserRole, UID: 1001, GID: 100, Groups: []uint32{7}}, {ID: "grace", Role: fleet.UserRole, UID: 1002, GID: 100}} {
		if _, err := r.client.Ask(r.ctx, fleet.Request{Verb: fleet.SetUser, User: &u}); err != nil {
			t.Fatal(err)
		}
	}
	ada := r.member(r.token(fleet.JoinToken{Role: fleet.UserRole, User: "ada"}), wire.Joining{})
	grace := r.member(r.token(fleet.JoinToken{Role: fleet.UserRole, User: "grace"}), wire.Joining{})
	q := fleet.Request{Verb: fleet.Submit, By: fleet.Caller{Admin: true}, Spec: &fleet.JobSpec{
		Args: []string{"./a.out"}, Dir: "/home/ada", Ranks: 1, Guests: 1, Image: "openmpi", Machine: "machine", UID: 0, GID: 0, Env: []string{"SECRET=1"},
		Need: fleet.Resources{CPUs: 1, MemoryBytes: 256 << 20}, On: []fleet.HostID{"host1"},
	}}
	_, err := ada.Ask(r.ctx, q)
	r.refused(err, http.StatusForbidden, "the machine that you submit from")
	// From now on a host calls from where ada does.
	host := r.member(r.token(fleet.JoinToken{Role: fleet.HostRole}), wire.Joining{Host: "host7", Machine: "machine"})
	facts := r.facts("host7")
	facts.Address = "127.0.0.1"
	if _, err := host.Attach(r.ctx, wire.Hello{Host: "host7", Facts: facts}); err != nil {
		t.Fatal(err)
	}
	r.until("the host's address to be known", func(s fleet.Snapshot) bool { return s.Hosts["host7"].Facts.Address == facts.Address })
	a, err := ada.Ask(r.ctx, q)
	if err != nil {
		t.Fatal(err)
	}
	j := r.until("ada's job to run", running(a.Job)).Jobs[a.Job]
	if j.Spec.UID != 1001 || j.Spec.GID != 100 || len(j.Spec.Groups) != 1 {
		t.Errorf("ada's job runs as %d:%d, %v", j.Spec.UID, j.Spec.GID, j.Spec.Groups)
	}
	_, err = grace.Ask(r.ctx, fleet.Request{Verb: fleet.Cancel, Job: a.Job})
	r.refused(err, http.StatusUnprocessableEntity, "belongs to another user")
	_, _, err = grace.ReadStream(r.ctx, wire.Place{Job: a.Job, Stream: fleet.Stdout})
	r.refused(err, http.StatusForbidden, "is not yours")
	_, err = grace.WriteStream(r.ctx, wire.Place{Job: a.Job, Stream: fleet.Stdin}, []byte("x"), false)
	r.refused(err, http.StatusForbidden, "is not yours")
	_, err = grace.Trace(r.ctx, a.Job)
	r.refused(err, http.StatusForbidden, "is not yours")
	s, err := grace.Snapshot(r.ctx)
	if err != nil {
		t.Fatal(err)
	}
	if s.Jobs[a.Job].Spec.Env != nil || len(s.Tokens) != 0 || len(s.Users) != 1 {
		t.Errorf("grace sees %v, %d tokens, %d users", s.Jobs[a.Job].Spec.Env, len(s.Tokens), len(s.Users))
	}
	if _, err := ada.Ask(r.ctx, fleet.Request{Verb: fleet.Logout}); err != nil {
		t.Fatal(err)
	}
	_, err = ada.Snapshot(r.ctx)
	r.refused(err, http.StatusUnauthorized, "has ended", "pagurus login")
}

// A question is answered by the host that was asked, and by no other.
func TestForgedReply(t *testing.T) {
	c := New(Config{})
	answer := make(chan wire.Reply, 1)
	c.asking.replies[7] = question{"host1", answer}
	c.answered("host7", wire.Reply{ID: 7, Error: "forged"})
	c.answered("host1", wire.Reply{ID: 7})
	if r := <-answer; r.Error != "" {
		t.Errorf("a forged reply was taken: %+v", r)
	}
}

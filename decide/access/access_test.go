package access

import (
	"crypto/sha256"
	"encoding/base64"
	"slices"
	"strings"
	"testing"

	"pagurus/fleet"
)

// The world of these tests: ada's job j1 with guest j1g0 on office, which grace owns, and
// grace's job j2 with guest j2g0 on node.
func world() View {
	jobs := map[fleet.JobID]fleet.Job{"j1": {ID: "j1", Spec: fleet.JobSpec{UID: 1}}, "j2": {ID: "j2", Spec: fleet.JobSpec{UID: 2}}}
	guests := map[fleet.GuestID]fleet.Guest{"j1g0": {ID: "j1g0", Job: "j1", Home: "office"}, "j2g0": {ID: "j2g0", Job: "j2", Home: "node"}}
	users := map[fleet.UserID]fleet.User{"ada": {ID: "ada", UID: 1}, "grace": {ID: "grace", UID: 2, Owns: []fleet.HostID{"office"}}}
	tokens := map[fleet.TokenID]fleet.JoinToken{"ada's": {ID: "ada's", User: "ada", Access: true}, "ada's login": {ID: "ada's login", User: "ada"}}
	return View{
		Token: func(id fleet.TokenID) (fleet.JoinToken, bool) { t, ok := tokens[id]; return t, ok },
		Job:   func(id fleet.JobID) (fleet.Job, bool) { j, ok := jobs[id]; return j, ok },
		Guest: func(id fleet.GuestID) (fleet.Guest, bool) { g, ok := guests[id]; return g, ok },
		User:  func(id fleet.UserID) (fleet.User, bool) { u, ok := users[id]; return u, ok },
		Move: func(id fleet.MoveID) []fleet.JobID {
			return map[fleet.MoveID][]fleet.JobID{"m1": {"j1"}, "m2": {"j2"}, "m3": {"j1", "j2"}}[id]
		},
	}
}

var (
	root  = fleet.Caller{Admin: true}
	ada   = fleet.Caller{UID: 1, User: "ada"}
	grace = fleet.Caller{UID: 2, User: "grace"}
	uid9  = fleet.Caller{UID: 9}
	agent = fleet.Caller{Host: "office"}
	rogue = fleet.Caller{Host: "office", Admin: true, UID: 1, User: "ada"} // whatever else a connection may claim
)

// Every request of every caller: who is named may make it, everybody else may not.
func TestEveryRequest(t *testing.T) {
	all := map[string]fleet.Caller{"root": root, "ada": ada, "grace": grace, "uid9": uid9, "agent": agent, "rogue": rogue}
	users := []string{"root", "ada", "grace", "uid9"}
	cases := []struct {
		request fleet.Request
		may     []string
	}{
		{fleet.Request{Verb: fleet.Submit}, users},
		{fleet.Request{Verb: fleet.Logout}, users},
		{fleet.Request{Verb: fleet.Cancel, Job: "j1"}, []string{"root", "ada"}},
		{fleet.Request{Verb: fleet.Cancel, Job: "j2"}, []string{"root", "grace"}},
		{fleet.Request{Verb: fleet.Cancel, Job: "none"}, users}, // the answer says that there is none
		{fleet.Request{Verb: fleet.RemoveJob, Job: "j1"}, []string{"root", "ada"}},
		{fleet.Request{Verb: fleet.RemoveJob, Job: "j2"}, []string{"root", "grace"}},
		{fleet.Request{Verb: fleet.MakeCheckpoint, Job: "j1"}, []string{"root", "ada"}},
		{fleet.Request{Verb: fleet.SuspendJob, Job: "j1"}, []string{"root", "ada"}},
		{fleet.Request{Verb: fleet.ResumeJob, Job: "j1"}, []string{"root", "ada"}},
		{fleet.Request{Verb: fleet.RemoveCheckpoint, Checkpoint: "j2c1"}, []string{"root", "grace"}},
		{fleet.Request{Verb: fleet.RemoveCheckpoint, Job: "j1", Checkpoint: "j2c1"}, []string{"root"}},
		{fleet.Request{Verb: fleet.TakeCheckpoint, Job: "j1"}, []string{"root", "ada"}},
		{fleet.Request{Verb: fleet.Restart, Job: "j1"}, []string{"root", "ada"}},
		{fleet.Request{Verb: fleet.Restart, Job: "j1", Checkpoint: "j1c1"}, []string{"root", "ada"}},
		{fleet.Request{Verb: fleet.Restart, Job: "j1", Checkpoint: "j2c1"}, []string{"root"}}, // another's memory
		{fleet.Request{Verb: fleet.SendSignal, Job: "j1"}, []string{"root", "ada"}},
		{fleet.Request{Verb: fleet.Grow, Job: "j1"}, []string{"root", "ada"}},
		{fleet.Request{Verb: fleet.Migrate, Job: "j1"}, []string{"root", "ada"}},
		{fleet.Request{Verb: fleet.Migrate, Guest: "j1g0"}, []string{"root", "ada"}},
		{fleet.Request{Verb: fleet.Migrate, Guests: []fleet.GuestID{"j1g0", "j2g0"}}, []string{"root"}},
		{fleet.Request{Verb: fleet.Migrate, Guest: "j1g0", Host: "office"}, []string{"root", "ada", "grace"}}, // grace empties her host
		{fleet.Request{Verb: fleet.Migrate, Guest: "j1g0", Host: "node"}, []string{"root", "ada"}},
		{fleet.Request{Verb: fleet.Migrate, Job: "j1", Host: "office"}, []string{"root", "ada"}},
		{fleet.Request{Verb: fleet.CancelMove, Move: "m1"}, []string{"root", "ada"}},
		{fleet.Request{Verb: fleet.CancelMove, Move: "m3"}, []string{"root"}},
		{fleet.Request{Verb: fleet.Drain, Host: "office"}, []string{"root"}},
		{fleet.Request{Verb: fleet.Undrain, Host: "office"}, []string{"root"}},
		{fleet.Request{Verb: fleet.Forget, Host: "office"}, []string{"root"}},
		{fleet.Request{Verb: fleet.SetPolicy, Host: "office"}, []string{"root", "grace"}},
		{fleet.Request{Verb: fleet.Claim, Host: "office"}, []string{"root", "grace"}},
		{fleet.Request{Verb: fleet.Release, Host: "office"}, []string{"root", "grace"}},
		{fleet.Request{Verb: fleet.Claim, Host: "node"}, []string{"root"}},
		{fleet.Request{Verb: fleet.Claim}, []string{"root"}},
		{fleet.Request{Verb: fleet.Isolate, Host: "office"}, []string{"root"}},
		{fleet.Request{Verb: fleet.SetRules}, []string{"root"}},
		{fleet.Request{Verb: fleet.AddToken}, []string{"root"}},
		{fleet.Request{Verb: fleet.AddToken, Token: &fleet.JoinToken{Role: fleet.UserRole, User: "ada"}}, []string{"root"}}, // a login
		{fleet.Request{Verb: fleet.AddToken, Token: &fleet.JoinToken{Role: fleet.UserRole, User: "ada", Access: true}}, []string{"root", "ada"}},
		{fleet.Request{Verb: fleet.AddToken, Token: &fleet.JoinToken{Role: fleet.AdminRole, User: "ada", Access: true}}, []string{"root"}},
		{fleet.Request{Verb: fleet.AddToken, Token: &fleet.JoinToken{Role: fleet.UserRole, Access: true}}, []string{"root"}},
		{fleet.Request{Verb: fleet.DropToken}, []string{"root"}},
		{fleet.Request{Verb: fleet.DropToken, Token: &fleet.JoinToken{ID: "ada's"}}, []string{"root", "ada"}},
		{fleet.Request{Verb: fleet.DropToken, Token: &fleet.JoinToken{ID: "ada's login", User: "ada", Access: true}}, []string{"root"}},
		{fleet.Request{Verb: fleet.DropToken, Token: &fleet.JoinToken{ID: "none"}}, []string{"root"}},
		{fleet.Request{Verb: fleet.SetUser}, []string{"root"}},
		{fleet.Request{Verb: fleet.DropUser}, []string{"root"}},
		{fleet.Request{Verb: "nonsense"}, nil},
	}
	asked := map[fleet.RequestVerb]bool{}
	for _, c := range cases {
		asked[c.request.Verb] = true
		for name, by := range all {
			r := c.request
			r.By = by
			if why := MayAsk(world(), r); (why == "") != slices.Contains(c.may, name) {
				t.Errorf("%s asks %+v: %q", name, c.request, why)
			}
		}
	}
	for verb := range requests {
		if !asked[verb] {
			t.Errorf("no caller asked for %q", verb)
		}
		if !Known(verb) || Known(verb+"!") {
			t.Errorf("%q is not told from what is no request", verb)
		}
		if (requests[verb] == admin || requests[verb] == ownToken) && words[verb] == "" {
			t.Errorf("there are no words for %q", verb)
		}
		if (requests[verb] == ownJob || requests[verb] == moveGuest) && doing[verb] == "" {
			t.Errorf("there are no words for %q", verb)
		}
	}
}

// Every call of every role.
func TestEveryCall(t *testing.T) {
	for what := range calls {
		for _, by := range []fleet.Caller{root, ada, agent, rogue} {
			host, isRoot := by.Host != "", by.Host == "" && by.Admin
			want := map[Call]bool{ReadCluster: !host, ReadTrace: !host, ReadOutput: !host, ReadUsage: !host, Ask: !host, ReadImage: true, Renew: true, PassStream: true, Attach: host || isRoot, CopyParts: !host, HandParts: host || isRoot, BackUp: isRoot, ReadAudit: isRoot, RemoveHead: isRoot}[what]
			if why := MayCall(by, what); (why == "") != want {
				t.Errorf("%+v calls %q: %q", by, what, why)
			}
		}
	}
	if MayCall(root, "nonsense") == "" {
		t.Error("a call that there is not is allowed")
	}
}

// Streams: users read output and write input of their own jobs; hosts that may have the
// guest of the program do the reverse, and no other host does anything.
func TestEveryStream(t *testing.T) {
	j := fleet.Job{ID: "j1", Spec: fleet.JobSpec{UID: 1}}
	still := fleet.Guest{ID: "j1g0", Job: "j1", Home: "office", State: fleet.GuestRunning}
	moving := fleet.Guest{ID: "j1g0", Job: "j1", Home: "office", State: fleet.GuestMoving, Migration: "m"}
	ended := fleet.Guest{ID: "j1g0", Job: "j1", Home: "office", State: fleet.GuestEnded}
	m := fleet.Migration{ID: "m", From: "office", To: "node", Phase: fleet.Copying}
	node, other := fleet.Caller{Host: "node"}, fleet.Caller{Host: "third"}
	for _, c := range []struct {
		by     fleet.Caller
		guest  fleet.Guest
		m      fleet.Migration
		stream string
		write  bool
		may    bool
	}{
		{ada, still, fleet.Migration{}, fleet.Stdout, false, true},
		{ada, still, fleet.Migration{}, fleet.Stdin, true, true},
		{ada, still, fleet.Migration{}, fleet.Stdout, true, false},
		{grace, still, fleet.Migration{}, fleet.Stdout, false, false},
		{grace, still, fleet.Migration{}, fleet.Stdin, true, false},
		{root, still, fleet.Migration{}, fleet.Stdout, true, true},
		{agent, still, fleet.Migration{}, fleet.Stdout, true, true},
		{agent, still, fleet.Migration{}, fleet.Stdin, false, true},
		{agent, still, fleet.Migration{}, fleet.Stdout, false, false},
		{agent, still, fleet.Migration{}, fleet.Stdin, true, false},
		{agent, ended, fleet.Migration{}, fleet.Stderr, true, true}, // its last words
		{node, still, fleet.Migration{}, fleet.Stdout, true, false},
		{node, moving, m, fleet.Stdout, true, true},
		{agent, moving, m, fleet.Stdin, false, true},
		{other, moving, m, fleet.Stdout, true, false},
		{other, moving, m, fleet.Stdin, false, false},
	} {
		if why := MayPass(c.by, Stream{j, c.guest, c.m, c.stream}, c.write); (why == "") != c.may {
			t.Errorf("%+v: %q", c, why)
		}
	}
}

// An agent is what its certificate says, on the machine that joined, at the address that
// it calls from or joined with.
func TestClaims(t *testing.T) {
	up := func(id fleet.HostID, address, machine string) fleet.Host {
		return fleet.Host{ID: id, Address: address, Facts: fleet.Facts{Connected: true, Address: address, Machine: machine}}
	}
	silent := up("silent", "10.0.0.3", "m3")
	silent.Facts.Connected, silent.WireGuard.Key = false, keyOf("silent")
	has := func(key string) *fleet.WireGuardFacts {
		return &fleet.WireGuardFacts{WireGuardEnd: fleet.WireGuardEnd{Key: key}}
	}
	hosts := map[fleet.HostID]fleet.Host{"node": up("node", "10.0.0.4", "m4"), "lab1": up("lab1", "10.0.0.5", "m1"), "silent": silent}
	joined := fleet.Host{ID: "office", Credential: fleet.Credential{Key: "k", Machine: "m1", Address: "10.0.0.9"}}
	sited := joined
	sited.Credential.Site = "room2"
	for _, c := range []struct {
		by    fleet.Caller
		h     fleet.Host
		says  fleet.Facts
		from  string
		words string // empty: it may
	}{
		{agent, joined, fleet.Facts{Machine: "m1", Address: "10.0.0.1"}, "10.0.0.1", ""},
		{agent, joined, fleet.Facts{Machine: "m1", Address: "10.0.0.9"}, "10.0.0.1", ""},
		{agent, joined, fleet.Facts{Machine: "m1", Address: "10.0.0.2"}, "10.0.0.1", "join again with --address 10.0.0.2"},
		{agent, joined, fleet.Facts{Machine: "m2", Address: "10.0.0.1"}, "10.0.0.1", "another machine identity"},
		{agent, fleet.Host{ID: "node", Credential: joined.Credential}, fleet.Facts{Machine: "m1", Address: "10.0.0.1"}, "10.0.0.1", "the agent of office says that it is node"},
		{root, fleet.Host{ID: "lab"}, fleet.Facts{Machine: "any"}, "", ""},
		// Two hosts do not have one address, unless they are on one machine or one does not call.
		{agent, joined, fleet.Facts{Machine: "m1", Address: "10.0.0.4"}, "10.0.0.4", "which host node uses"},
		{agent, joined, fleet.Facts{Machine: "m1", Address: "10.0.0.5"}, "10.0.0.5", ""},
		{agent, joined, fleet.Facts{Machine: "m1", Address: "10.0.0.3"}, "10.0.0.3", ""},
		{root, fleet.Host{ID: "head"}, fleet.Facts{Machine: "m9", Address: "10.0.0.4"}, "", "which host node uses"},
		{root, fleet.Host{ID: "node"}, fleet.Facts{Machine: "m4", Address: "10.0.0.4"}, "", ""},
		{root, joined, fleet.Facts{Machine: "m1"}, "", "--credentials"},
		// Nor one WireGuard key, also where one does not call.
		{agent, joined, fleet.Facts{Machine: "m1", Address: "10.0.0.1", WireGuard: has(keyOf("office"))}, "10.0.0.1", ""},
		{agent, joined, fleet.Facts{Machine: "m1", Address: "10.0.0.1", WireGuard: has(keyOf("silent"))}, "10.0.0.1", "its WireGuard key is that of host silent"},
		{root, fleet.Host{ID: "node"}, fleet.Facts{Machine: "m4", Address: "10.0.0.4", WireGuard: has(keyOf("silent"))}, "", "its WireGuard key is that of host silent"},
		// A key has one text, so another's cannot be said in other words; and nobody gets what is no key.
		{agent, joined, fleet.Facts{Machine: "m1", Address: "10.0.0.1", WireGuard: has("mine")}, "10.0.0.1", "which is none"},
		{agent, joined, fleet.Facts{Machine: "m1", Address: "10.0.0.1", WireGuard: has(respelled(keyOf("silent")))}, "10.0.0.1", "which is none"},
		{agent, joined, fleet.Facts{Machine: "m1", Address: "10.0.0.1", WireGuard: has(keyOf("silent")[:20] + "\n" + keyOf("silent")[20:])}, "10.0.0.1", "which is none"},
		// What a key of low order has in common with another everybody knows.
		{agent, joined, fleet.Facts{Machine: "m1", Address: "10.0.0.1", WireGuard: has(base64.StdEncoding.EncodeToString(make([]byte, 32)))}, "10.0.0.1", "which is none"},
		{agent, joined, fleet.Facts{Machine: "m1", Address: "10.0.0.1", WireGuard: has(base64.StdEncoding.EncodeToString(append([]byte{1}, make([]byte, 31)...)))}, "10.0.0.1", "which is none"},
		{agent, joined, fleet.Facts{Machine: "m1", Address: "10.0.0.1", WireGuard: has("7P///////////////////////////////////////38=")}, "10.0.0.1", "which is none"},
		{agent, joined, fleet.Facts{Machine: "m1", Address: "10.0.0.1", WireGuard: has("4Ot6fDtBuK4WVuP68Z/EatoJjeucMrH9hmIFFl9JuAA=")}, "10.0.0.1", "which is none"},
		// A host is in the site of its token, if that has one.
		{agent, sited, fleet.Facts{Machine: "m1", Address: "10.0.0.1", Site: "room2"}, "10.0.0.1", ""},
		{agent, sited, fleet.Facts{Machine: "m1", Address: "10.0.0.1", Site: "room3"}, "10.0.0.1", "token for site \"room2\""},
		{agent, sited, fleet.Facts{Machine: "m1", Address: "10.0.0.1"}, "10.0.0.1", "token for site \"room2\""},
		{agent, joined, fleet.Facts{Machine: "m1", Address: "10.0.0.1", Site: "room3"}, "10.0.0.1", ""},
	} {
		c.says.From = c.from
		if why := MayBe(c.by, c.h, c.says, hosts, fleet.NoEncryption); (why == "") != (c.words == "") || !strings.Contains(why, c.words) {
			t.Errorf("%+v: %q", c, why)
		}
	}
}

// keyOf is a host's WireGuard key.
func keyOf(id string) string {
	key := sha256.Sum256([]byte(id))
	return base64.StdEncoding.EncodeToString(key[:])
}

// respelled is a text of the same key to who is not strict: it differs in bits that are not used.
func respelled(key string) string {
	const digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
	last := len(key) - 2 // before the "="
	return key[:last] + string(digits[strings.IndexByte(digits, key[last])^1]) + "="
}

// Where a cluster encrypts, a host behind NAT may say an address that it does not call from, and which another has
// in its own network. It takes nobody's place: an address that a host really calls from is its own.
func TestHostsBehindNAT(t *testing.T) {
	natted := func(id fleet.HostID, machine string) fleet.Host {
		return fleet.Host{ID: id, Facts: fleet.Facts{Connected: true, Address: "192.168.1.5", From: "203.0.113.1", Machine: machine}}
	}
	hosts := map[fleet.HostID]fleet.Host{
		"home": natted("home", "m1"),
		"node": {ID: "node", Facts: fleet.Facts{Connected: true, Address: "10.0.0.4", From: "10.0.0.4", Machine: "m4"}},
	}
	joined := fleet.Host{ID: "office", Credential: fleet.Credential{Key: "k", Machine: "m2"}}
	for _, c := range []struct {
		encryption    fleet.Encryption
		address, from string
		words         string
	}{
		{fleet.AutoEncryption, "192.168.1.5", "203.0.113.9", ""},
		{fleet.AutoEncryption, "192.168.1.5", "203.0.113.1", ""}, // even behind the same one: the other key is called there in vain
		{fleet.AutoEncryption, "192.168.1.5", "192.168.1.5", ""}, // the controller's own network has the address, too
		{fleet.AutoEncryption, "10.0.0.4", "10.0.0.4", "which host node uses"},
		{fleet.AutoEncryption, "10.0.0.4", "203.0.113.9", ""}, // node is not moved by that
		{fleet.NoEncryption, "192.168.1.5", "203.0.113.9", "needs a cluster that encrypts"},
		{"", "192.168.1.5", "203.0.113.9", "needs a cluster that encrypts"},
	} {
		says := fleet.Facts{Machine: "m2", Address: c.address, From: c.from}
		if why := MayBe(agent, joined, says, hosts, c.encryption); (why == "") != (c.words == "") || !strings.Contains(why, c.words) {
			t.Errorf("%+v: %q", c, why)
		}
	}
	// A claim does not keep the one out that has the address.
	claimed := map[fleet.HostID]fleet.Host{"rogue": {ID: "rogue", Facts: fleet.Facts{Connected: true, Address: "10.0.0.4", From: "203.0.113.9", Machine: "m9"}}}
	if why := MayBe(agent, joined, fleet.Facts{Machine: "m2", Address: "10.0.0.4", From: "10.0.0.4"}, claimed, fleet.AutoEncryption); why != "" {
		t.Errorf("a host that says so takes another's address: %q", why)
	}
}

// A program in a guest asks for its own job, and for little.
func TestWhatAProgramMayAsk(t *testing.T) {
	own := fleet.Caller{UID: 1, Guest: "j1g0"}
	for _, r := range []fleet.Request{
		{Verb: fleet.Migrate, Guests: []fleet.GuestID{"j1g0"}}, {Verb: fleet.Migrate, Guest: "j1g0", To: "node"}, {Verb: fleet.Migrate, Job: "j1"}, {Verb: fleet.MakeCheckpoint, Job: "j1"}, {Verb: fleet.Grow, Job: "j1"},
	} {
		r.By = own
		if why := MayAsk(world(), r); why != "" {
			t.Errorf("%+v: %s", r, why)
		}
		for name, by := range map[string]fleet.Caller{
			"another guest": {UID: 1, Guest: "j2g0"}, "one with another's uid": {UID: 2, Guest: "j1g0"}, "none": {UID: 1, Guest: "none"}, "an administrator's": {UID: 1, Guest: "j1g0", Admin: true}, "a host": {UID: 1, Guest: "j1g0", Host: "office"},
		} {
			if r.By = by; MayAsk(world(), r) == "" {
				t.Errorf("%s may ask %+v", name, r)
			}
		}
	}
	for verb := range requests {
		for _, r := range []fleet.Request{
			{Verb: verb, Job: "j2"}, {Verb: verb, Guest: "j2g0"}, {Verb: verb, Guests: []fleet.GuestID{"j1g0", "j2g0"}}, {Verb: verb, Guest: "none"}, {Verb: verb, Move: "m1"}, {Verb: verb, Checkpoint: "j1c1"}, {Verb: verb, Host: "office", Job: "j1"},
		} {
			if r.By = own; MayAsk(world(), r) == "" {
				t.Errorf("a program may ask %+v", r)
			}
		}
		if r := (fleet.Request{Verb: verb, Job: "j1", By: own}); !steering[verb] && MayAsk(world(), r) == "" {
			t.Errorf("a program may %s", verb)
		}
	}
}

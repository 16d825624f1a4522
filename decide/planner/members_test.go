package planner

import (
	"slices"
	"strings"
	"testing"
	"time"

	"pagurus/fleet"
)

// members is a cluster to which requests are made one after the other.
type members struct {
	t *testing.T
	p Planner
	s fleet.Snapshot
}

func newMembers(t *testing.T) *members {
	s := fleet.NewSnapshot()
	s.At = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	return &members{t: t, s: s}
}

// ask makes a request as root. words are in the refusal; empty: it is taken.
func (m *members) ask(r fleet.Request, words string) fleet.Answer {
	m.t.Helper()
	if !r.By.Admin && r.By.User == "" {
		r.By = fleet.Caller{Admin: true}
	}
	return m.step(r, words)
}

// step gives the planner one event. words are in the refusal; empty: it is taken.
func (m *members) step(ev fleet.Event, words string) fleet.Answer {
	m.t.Helper()
	d, err := m.p.Step(m.s, ev)
	switch {
	case err == nil && words != "":
		m.t.Errorf("%+v was taken, want %q", ev, words)
	case err != nil && (words == "" || !strings.Contains(err.Error(), words)):
		m.t.Errorf("%+v: %v, want %q", ev, err, words)
	}
	at := m.s.At
	m.s = m.s.Apply(d.Change, m.s.Revision+1)
	m.s.At = at
	return d.Answer
}

func (m *members) token(t fleet.JoinToken, words string) {
	m.t.Helper()
	m.ask(fleet.Request{Verb: fleet.AddToken, Token: &t}, words)
}

func (m *members) enrol(host fleet.HostID, e fleet.Enrolment, words string) fleet.Answer {
	m.t.Helper()
	e.Host = host
	return m.step(fleet.Observation{Enrolment: &e}, words)
}

func TestHostsEnrol(t *testing.T) {
	m := newMembers(t)
	hour := m.s.At.Add(time.Hour)
	good := fleet.JoinToken{ID: "t", Hash: "h", Role: fleet.HostRole, Uses: 2, Expires: hour}
	for words, spoil := range map[string]func(*fleet.JoinToken){
		"no token":                func(k *fleet.JoinToken) { k.Hash = "" },
		"not a role":              func(k *fleet.JoinToken) { k.Role = "king" },
		"--uses from 1":           func(k *fleet.JoinToken) { k.Uses = 0 },
		"--ttl from":              func(k *fleet.JoinToken) { k.Expires = m.s.At },
		"at most 32 printable":    func(k *fleet.JoinToken) { k.Site = strings.Repeat("x", 33) },
		"no space at its ends":    func(k *fleet.JoinToken) { k.Site = "room " },
		"cannot live for 732d":    func(k *fleet.JoinToken) { k.Expires = m.s.At.Add(2 * 366 * 24 * time.Hour) },
		"--ttl from 1m to":        func(k *fleet.JoinToken) { k.Expires = m.s.At.Add(2 * 366 * 24 * time.Hour) },
		"needs a user":            func(k *fleet.JoinToken) { k.Role = fleet.UserRole },
		"needs a user of":         func(k *fleet.JoinToken) { k.Role, k.User = fleet.AdminRole, "none" },
		"a token for hosts is no": func(k *fleet.JoinToken) { k.User = "x" },
	} {
		bad := good
		spoil(&bad)
		m.token(bad, words)
	}
	m.token(good, "")
	m.token(good, "") // asked twice
	other := good
	other.Hash = "other"
	m.token(other, "already")
	one := fleet.Enrolment{Token: "t", Hash: "h", Key: "k1", Machine: "m1"}
	with := func(change func(*fleet.Enrolment)) fleet.Enrolment { e := one; change(&e); return e }
	m.enrol("node", with(func(e *fleet.Enrolment) { e.Token = "x" }), "does not know the token")
	m.enrol("node", with(func(e *fleet.Enrolment) { e.Hash = "x" }), "does not know the token")
	m.enrol("node", with(func(e *fleet.Enrolment) { e.Key = "" }), "no key")
	m.enrol("node", with(func(e *fleet.Enrolment) { e.Machine = "" }), "systemd-machine-id-setup")
	m.enrol("no de", one, "cannot be the name of a host")
	m.enrol("node", with(func(e *fleet.Enrolment) { e.Foreign = true }), "a controller's own machine")
	m.enrol("", one, "use it with `pagurus join`")
	m.s.Hosts["first"] = fleet.Host{ID: "first", Address: "10.0.0.1"}
	m.enrol("node", with(func(e *fleet.Enrolment) { e.Address = "10.0.0.1" }), "host first has the address")
	for address, words := range map[string]string{
		"here": "is not an IP address", "10.0.0.1:7461": "is not an IP address", "10.0.0.1/24": "is not an IP address", "10.0.0.1 ": "is not an IP address",
		"0.0.0.0": "not the address of one host", "::": "not the address of one host", "224.0.0.1": "not the address of one host", "255.255.255.255": "not the address of one host",
		"::ffff:10.0.0.1": "as 10.0.0.1", "FD00::1": "as fd00::1",
	} {
		m.enrol("node", with(func(e *fleet.Enrolment) { e.Address = address }), words)
	}
	for range 3 { // with the same key it costs one use
		m.enrol("node", one, "")
	}
	if h := m.s.Hosts["node"]; h.Credential.Key != "k1" || h.Credential.Machine != "m1" || h.State != fleet.HostUp {
		t.Errorf("node is %+v", h)
	}
	m.enrol("node", with(func(e *fleet.Enrolment) { e.Key = "k2" }), "there is a host node already")
	m.enrol("copy", with(func(e *fleet.Enrolment) { e.Key = "k2" }), "the same machine identity")
	if left := m.s.Tokens["t"].Uses; left != 1 {
		t.Errorf("%d uses are left after one host joined and others were refused", left)
	}
	m.enrol("two", fleet.Enrolment{Token: "t", Hash: "h", Key: "k2", Machine: "m2"}, "")
	m.enrol("three", fleet.Enrolment{Token: "t", Hash: "h", Key: "k3", Machine: "m3"}, "used up")
	m.s.At = hour
	m.enrol("node", one, "expired on")
	m.s.At = hour.Add(-time.Minute)
	m.token(fleet.JoinToken{ID: "lab", Hash: "h", Role: fleet.HostRole, Uses: 9, Expires: hour, SameID: true}, "")
	m.enrol("host1", fleet.Enrolment{Token: "lab", Hash: "h", Key: "k4", Machine: "m1"}, "")
	m.enrol("host2", fleet.Enrolment{Token: "lab", Hash: "h", Key: "k5", Machine: "m1"}, "")
	// Who is forgotten is gone with the key, whether its agent runs or not.
	h := m.s.Hosts["two"]
	h.Facts = fleet.Facts{SeenAt: m.s.At, Connected: true}
	m.s.Hosts["two"] = h
	m.ask(fleet.Request{Verb: fleet.Forget, Host: "two"}, "")
	if _, there := m.s.Hosts["two"]; there {
		t.Error("a host that was forgotten is still there")
	}
	m.ask(fleet.Request{Verb: fleet.DropToken, Token: &fleet.JoinToken{ID: "lba"}}, "there is no token lba")
	m.ask(fleet.Request{Verb: fleet.DropToken, Token: &fleet.JoinToken{ID: "lab"}}, "")
	m.enrol("host3", fleet.Enrolment{Token: "lab", Hash: "h", Key: "k6", Machine: "m1"}, "does not know the token")
}

// A controller that the others do not take keeps its use of the token; one whose answer was lost asks again with its key.
func TestControllersEnrol(t *testing.T) {
	m := newMembers(t)
	m.token(fleet.JoinToken{ID: "t", Hash: "h", Role: fleet.ControllerRole, Uses: 1, Expires: m.s.At.Add(time.Hour)}, "")
	left := func(want int) {
		t.Helper()
		if n := m.s.Tokens["t"].Uses; n != want {
			t.Errorf("%d uses are left, not %d", n, want)
		}
	}
	one := fleet.Enrolment{Token: "t", Hash: "h", Key: "k1", Controller: "c2"}
	two, gone := one, one
	two.Key, gone.NotLetIn = "k2", true
	m.enrol("node", fleet.Enrolment{Token: "t", Hash: "h", Key: "k1", Machine: "m"}, "use it with `pagurus controller join`")
	m.enrol("", gone, "")
	left(1)
	m.enrol("", one, "")
	m.enrol("", one, "")
	left(0)
	m.enrol("", two, "used up")
	m.enrol("", gone, "")
	m.enrol("", gone, "")
	left(1)
	m.enrol("", two, "")
	left(0)
	two.NotLetIn, two.Hash = true, "x"
	m.enrol("", two, "does not know the token")
	left(0)
}

func TestUsersEnrol(t *testing.T) {
	m := newMembers(t)
	hour := m.s.At.Add(time.Hour)
	set := func(u fleet.User, words string) {
		t.Helper()
		m.ask(fleet.Request{Verb: fleet.SetUser, User: &u}, words)
	}
	set(fleet.User{ID: "", Role: fleet.UserRole}, "needs a name")
	set(fleet.User{ID: "ada", Role: fleet.HostRole}, "not the role of a user")
	set(fleet.User{ID: "ada", Role: fleet.UserRole, Owns: []fleet.HostID{"none"}}, "no host none")
	set(fleet.User{ID: "ada", Role: fleet.UserRole, UID: 7, Keys: []string{"forged"}}, "")
	for words, u := range map[string]fleet.User{"run as root": {UID: 0, GID: 7}, "in root's group": {UID: 9, GID: 0}} {
		u.ID, u.Role = "toor", fleet.UserRole
		if got := m.ask(fleet.Request{Verb: fleet.SetUser, User: &u}, ""); !strings.Contains(strings.Join(got.Notes, " "), words) {
			t.Errorf("%+v goes unsaid: %q", u, got.Notes)
		}
	}
	m.ask(fleet.Request{Verb: fleet.DropUser, User: &fleet.User{ID: "toor"}}, "")
	set(fleet.User{ID: "eve", Role: fleet.UserRole, UID: 9, GID: 9, Groups: []uint32{0}}, "root's group 0")
	set(fleet.User{ID: "eve", Role: fleet.AdminRole, UID: 7}, "uid 7 is that of user ada")
	m.token(fleet.JoinToken{ID: "a", Hash: "h", Role: fleet.AdminRole, User: "ada", Uses: 1, Expires: hour}, "not an administrator")
	m.token(fleet.JoinToken{ID: "t", Hash: "h", Role: fleet.UserRole, User: "ada", Uses: 100, Expires: hour}, "")
	m.enrol("node", fleet.Enrolment{Token: "t", Hash: "h", Key: "k", Machine: "m"}, "use it with `pagurus login`")
	for i := range 20 {
		key := string(rune('a' + i))
		for range 2 {
			if got := m.enrol("", fleet.Enrolment{Token: "t", Hash: "h", Key: key}, ""); got.User != "ada" {
				t.Errorf("logged in as %q", got.User)
			}
		}
	}
	u := m.s.Users["ada"]
	if len(u.Keys) != mostLogins || slices.Contains(u.Keys, "forged") || u.Keys[mostLogins-1] != "t" {
		t.Errorf("ada's logins are %q", u.Keys)
	}
	if left := m.s.Tokens["t"].Uses; left != 80 {
		t.Errorf("%d uses are left", left)
	}
	set(fleet.User{ID: "ada", Role: fleet.AdminRole, UID: 8}, "")
	if u := m.s.Users["ada"]; len(u.Keys) != mostLogins || u.UID != 8 || u.Role != fleet.AdminRole {
		t.Errorf("ada changed is %+v", u)
	}
	m.ask(fleet.Request{Verb: fleet.Logout, By: fleet.Caller{User: "ada"}, Key: "t"}, "")
	if u := m.s.Users["ada"]; len(u.Keys) != mostLogins-1 || slices.Contains(u.Keys, "t") {
		t.Errorf("after a logout ada's logins are %q", u.Keys)
	}
	m.ask(fleet.Request{Verb: fleet.Logout, By: fleet.Caller{Admin: true}}, "not logged in")
	m.s.Jobs["j1"] = fleet.Job{ID: "j1", Spec: fleet.JobSpec{UID: 8}, State: fleet.JobRunning}
	got := m.ask(fleet.Request{Verb: fleet.DropUser, User: &fleet.User{ID: "ada"}}, "")
	if len(m.s.Users)+len(m.s.Tokens) != 0 || len(got.Notes) != 1 || !strings.Contains(got.Notes[0], "pagurus cancel j1") {
		t.Errorf("after ada was removed there are %+v and %+v; notes %q", m.s.Users, m.s.Tokens, got.Notes)
	}
	m.ask(fleet.Request{Verb: fleet.DropUser, User: &fleet.User{ID: "ada"}}, "no user ada")
	m.enrol("", fleet.Enrolment{Token: "t", Hash: "h", Key: "z"}, "does not know the token")
}

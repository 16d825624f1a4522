package controller

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"pagurus/fleet"
	"pagurus/serve/wire"
)

// TestTokenAskedForTwice: the same request under a key is told the same token, which lets somebody in; another one is told none.
func TestTokenAskedForTwice(t *testing.T) {
	r := newRig(t)
	q := fleet.Request{Verb: fleet.AddToken, ID: "once", Asks: "a", Token: &fleet.JoinToken{Role: fleet.HostRole, Uses: 1, Expires: time.Now().Add(time.Hour)}}
	ask := func(q fleet.Request) string {
		t.Helper()
		a, err := r.client.Ask(r.ctx, q)
		if err != nil || a.Token == "" {
			t.Fatalf("%+v, %v", a, err)
		}
		return a.Token
	}
	first := ask(q)
	if again := ask(q); again != first {
		t.Errorf("%s, then %s", first, again)
	}
	if _, err := wire.Enrol(r.ctx, r.addr, first, t.TempDir(), wire.Joining{Host: "newcomer", Machine: "m9"}); err != nil {
		t.Errorf("nobody joins by it: %v", err)
	}
	if again := ask(q); again != first {
		t.Errorf("%s, then %s", first, again)
	}
	other := q
	if other.Asks = "b"; other.Token != nil {
		_, err := r.client.Ask(r.ctx, other)
		r.refused(err, http.StatusUnprocessableEntity, "asks something else")
	}
	if _, err := r.client.Ask(r.ctx, fleet.Request{Verb: fleet.DropToken, Token: &fleet.JoinToken{ID: fleet.TokenID(strings.Split(first, ".")[0])}}); err != nil {
		t.Fatal(err)
	}
	if next := ask(q); next == first {
		t.Error("a token that was removed is there again")
	}
}

// TestTokensForPrograms: a token for programs is its user's, as long as the cluster has both, and nothing else is one.
func TestTokensForPrograms(t *testing.T) {
	r := newRig(t)
	for _, u := range []fleet.User{{ID: "ada", Role: fleet.UserRole, UID: 1000, GID: 100}, {ID: "boss", Role: fleet.AdminRole, UID: 1001, GID: 100}} {
		if _, err := r.client.Ask(r.ctx, fleet.Request{Verb: fleet.SetUser, User: &u}); err != nil {
			t.Fatal(err)
		}
	}
	makes := func(c *wire.Client, user fleet.UserID, role fleet.Role, life time.Duration) (string, error) {
		a, err := c.Ask(r.ctx, fleet.Request{Verb: fleet.AddToken, Token: &fleet.JoinToken{Role: role, User: user, Access: true, Expires: time.Now().Add(life)}})
		return a.Token, err
	}
	must := func(text string, err error) string {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	ada := r.member(r.token(fleet.JoinToken{Role: fleet.UserRole, User: "ada"}), wire.Joining{})
	own := must(makes(ada, "ada", fleet.UserRole, time.Hour))
	less := must(makes(r.client, "boss", fleet.UserRole, time.Hour))
	all := must(makes(r.client, "boss", fleet.AdminRole, time.Hour))
	short := must(makes(r.client, "ada", fleet.UserRole, 500*time.Millisecond))
	for what, c := range map[string]struct {
		user fleet.UserID
		role fleet.Role
	}{"somebody else's": {"boss", fleet.UserRole}, "an administrator's": {"ada", fleet.AdminRole}} {
		if _, err := makes(ada, c.user, c.role, time.Hour); err == nil {
			t.Errorf("a user makes %s token", what)
		}
	}
	m := r.ctl.Members()
	for _, c := range []struct {
		token string
		want  fleet.Caller
	}{
		{own, fleet.Caller{UID: 1000, GID: 100, User: "ada"}},
		{less, fleet.Caller{UID: 1001, GID: 100, User: "boss"}},
		{all, fleet.Caller{UID: 1001, GID: 100, User: "boss", Admin: true}},
	} {
		if by, err := m.Bearer(r.ctx, c.token, "127.0.0.1"); err != nil || by.Caller != c.want || by.Token == "" || by.Expired {
			t.Errorf("%+v, %v", by, err)
		}
	}
	if _, err := wire.Enrol(r.ctx, r.addr, own, t.TempDir(), wire.Joining{}); err == nil || !strings.Contains(err.Error(), "nobody joins by this token") {
		t.Errorf("somebody logs in by it: %v", err)
	}
	id, secret, _ := strings.Cut(own, ".")
	other, _, _ := strings.Cut(all, ".")
	joining := r.token(fleet.JoinToken{Role: fleet.UserRole, User: "ada"}) // before the other ends: a new one has the controller forget those
	time.Sleep(600 * time.Millisecond)
	for what, c := range map[string]struct{ token, says string }{
		"a token for joining":   {joining, "for joining"},
		"one that has expired":  {short, "expired"},
		"another's secret":      {other + "." + secret, "does not know"},
		"an ID alone":           {id, "not a whole"},
		"nothing":               {"", "not a whole"},
		"one without a secret":  {id + ".." + secret, "not a whole"},
		"one that is not there": {"0000000000." + secret, "does not know"},
	} {
		if by, err := m.Bearer(r.ctx, c.token, ""); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %+v, %v", what, by, err)
		}
	}
	s, err := ada.Snapshot(r.ctx)
	if err != nil || len(s.Tokens) != 2 { // that and the one that expired
		t.Errorf("she sees %v, %v", s.Tokens, err)
	}
	if _, err := ada.Ask(r.ctx, fleet.Request{Verb: fleet.DropToken, Token: &fleet.JoinToken{ID: fleet.TokenID(other)}}); err == nil {
		t.Error("a user removes another's token")
	}
	if _, err := ada.Ask(r.ctx, fleet.Request{Verb: fleet.DropToken, Token: &fleet.JoinToken{ID: fleet.TokenID(id)}}); err != nil {
		t.Error(err)
	}
	if _, err := m.Bearer(r.ctx, own, ""); err == nil {
		t.Error("it counts after it was removed")
	}
	if _, err := r.client.Ask(r.ctx, fleet.Request{Verb: fleet.DropUser, User: &fleet.User{ID: "boss"}}); err != nil {
		t.Fatal(err)
	}
	if _, err := m.Bearer(r.ctx, all, ""); err == nil {
		t.Error("it counts after its user was removed")
	}
}

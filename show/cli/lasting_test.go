package cli

import (
	"context"
	"crypto/x509"
	"errors"
	"io"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"pagurus/fleet"
	"pagurus/internal/testkit"
	"pagurus/serve/identity"
	"pagurus/serve/wire"
)

// members are a cluster's users, who log in from elsewhere.
type members struct {
	authority *identity.Authority
	leads     atomic.Bool // otherwise nothing is renewed
	renewals  atomic.Int32
}

func (m *members) Identify(_ context.Context, c *x509.Certificate, _ string) (wire.Peer, error) {
	who, err := m.authority.Verify(c, time.Now())
	expired := errors.Is(err, identity.ErrExpired)
	if err != nil && !expired {
		return wire.Peer{}, &wire.Error{Status: 401, Reason: err.Error()}
	}
	return wire.Peer{Caller: fleet.Caller{UID: 1000, User: fleet.UserID(who.Name)}, Files: []string{"machine"}, Expired: expired}, nil
}

func (m *members) Bearer(context.Context, string, string) (wire.Peer, error) {
	return wire.Peer{}, errors.New("nobody has a token here")
}

func (m *members) Local(p wire.Peer) wire.Peer { return p }

func (m *members) Join(context.Context, identity.Token, wire.Joining, bool) (wire.Joined, error) {
	return wire.Joined{}, errors.New("nobody joins here")
}

func (m *members) NotLetIn(context.Context, identity.Token, wire.Joining) error { return nil }

func (m *members) Renew(_ context.Context, p wire.Peer, q wire.Renewing) (wire.Renewed, error) {
	if !m.leads.Load() {
		return wire.Renewed{}, &wire.Error{Status: wire.NotLeading, Reason: "this controller does not lead yet"}
	}
	m.renewals.Add(1)
	c, err := m.authority.Sign([]byte(q.Request), identity.Subject{Role: identity.User, Name: string(p.User)}, time.Now())
	return wire.Renewed{Certificate: string(c)}, err
}

// login makes a folder of a user's credentials.
func (m *members) login(t *testing.T, address string, at time.Time) string {
	t.Helper()
	dir := t.TempDir()
	request, err := identity.Request(dir)
	if err != nil {
		t.Fatal(err)
	}
	c, err := m.authority.Sign(request, identity.Subject{Role: identity.User, Name: "ada"}, at)
	if err != nil {
		t.Fatal(err)
	}
	if err := identity.Save(dir, c, m.authority.Certificate(), identity.Login{Controller: address, User: "ada"}); err != nil {
		t.Fatal(err)
	}
	return dir
}

// TestCommandsOutliveTheCertificate: a job may run for weeks, and what waits for it, follows it
// or feeds it goes on, though the certificate that it began with has ended and the controller
// was restarted.
func TestCommandsOutliveTheCertificate(t *testing.T) {
	for life, late := 4*time.Second, true; late; life *= 2 {
		if life > 40*time.Second {
			t.Fatalf("commands took more than %s to begin", life)
		}
		t.Run(life.String(), func(t *testing.T) { late = !outliveTheCertificate(t, life) })
	}
}

// outliveTheCertificate reports whether a certificate of that life lasted until all commands had
// begun.
func outliveTheCertificate(t *testing.T, life time.Duration) bool {
	t.Helper()
	w := newWorld(t)
	authority, err := identity.OpenAuthority(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	w.members = &members{authority: authority}
	w.stop()
	w.serve()
	end := time.Now().Add(life)
	login := w.members.login(t, w.addr, end.Add(-identity.Lifetime))
	w.runs(func(job fleet.JobID) {
		w.says(job, fleet.Stdout, "before ", false)
		w.says(job, fleet.Stdout, w.heard(job), false)
		w.ends(job, exited(7))
	})
	t.Chdir(t.TempDir())
	remote := func(args ...string) []string {
		return append([]string{"--controller", w.addr, "--credentials", login}, args...)
	}
	input, typed := io.Pipe()
	defer typed.Close()
	run := w.beginWith(input, remote("run", "-n", "1", "--", "./a.out")...)
	begins := func(b *begun) *begun {
		t.Helper()
		testkit.Until(t, life, "it shows the beginning", func() bool { return strings.Contains(b.out.String(), "before") })
		return b
	}
	begins(run)
	logs := begins(w.beginCommand(remote("logs", "-f", "j1")...))
	wait := w.beginCommand(remote("wait", "j1")...)
	list := w.beginCommand(remote("--json", "job", "ls", "--watch")...)
	testkit.Until(t, life, "the list shows the job", func() bool { return strings.Contains(list.out.String(), "running") })
	if time.Now().After(end.Add(-time.Second)) {
		return false
	}

	time.Sleep(time.Until(end))
	w.stop()
	w.members.leads.Store(true)
	w.serve()
	if _, err := io.WriteString(typed, "after"); err != nil {
		t.Fatal(err)
	}
	typed.Close()
	for _, c := range []struct {
		of   *begun
		out  string
		code int
	}{{run, "before after", 7}, {logs, "before after", 0}, {wait, "", 7}} {
		select {
		case code := <-c.of.code:
			if out := c.of.out.String(); code != c.code || out != c.out {
				t.Errorf("%d, %q, %q", code, out, c.of.err.String())
			}
		case <-time.After(20 * time.Second):
			t.Errorf("it did not end: %q, %q", c.of.out.String(), c.of.err.String())
		}
	}
	testkit.Until(t, 20*time.Second, "the list shows that the job ended", func() bool { return strings.Contains(list.out.String(), "ended") })
	// `wait` shows nothing as it begins: on a busy machine it may find what another renewed.
	if n := w.members.renewals.Load(); n < 3 {
		t.Errorf("%d renewals of three commands that had begun", n)
	}
	return true
}

package wire

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"pagurus/fleet"
	"pagurus/serve/identity"
)

// seen is what a controller saw of certificates.
type seen struct {
	mu       sync.Mutex
	refuses  error          // what renewals are answered with; nil: with a certificate
	renewals int            // that were asked for
	shown    map[string]int // calls, by the certificate's number
}

func (n *seen) add(c *x509.Certificate) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.shown == nil {
		n.shown = map[string]int{}
	}
	n.shown[c.SerialNumber.String()]++
}

func (n *seen) renewal() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.renewals++
	return n.refuses
}

// from has renewals answered with err from now on, and forgets what was before.
func (n *seen) from(err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.refuses, n.renewals, n.shown = err, 0, nil
}

// count gives the renewals and the certificates that were shown.
func (n *seen) count() (renewals, certificates int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.renewals, len(n.shown)
}

// agedAuthority makes an authority that is a year old: members have certificates of it that ended.
func agedAuthority(t *testing.T, dir string) *identity.Authority {
	t.Helper()
	if _, err := identity.OpenAuthority(dir); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, identity.AuthorityFile)
	pair, err := tls.LoadX509KeyPair(path, filepath.Join(dir, identity.AuthorityKeyFile))
	if err != nil {
		t.Fatal(err)
	}
	form := *pair.Leaf
	form.NotBefore = form.NotBefore.AddDate(-1, 0, 0)
	der, err := x509.CreateCertificate(rand.Reader, &form, &form, pair.Leaf.PublicKey, pair.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
	authority, err := identity.OpenAuthority(dir)
	if err != nil {
		t.Fatal(err)
	}
	return authority
}

var (
	ada    = identity.Subject{Role: identity.User, Name: "ada"}
	aHost  = identity.Subject{Role: identity.Host, Name: "h"}
	notYet = &Error{NotLeading, "this controller does not lead yet"}
	month  = 30 * 24 * time.Hour
)

// lived is a client whose certificate ended after d, or will.
func (s *served) lived(t *testing.T, who identity.Subject, d time.Duration) (*Client, string) {
	t.Helper()
	dir := s.credentialsOf(t, who, time.Now().Add(d-identity.Lifetime))
	return dialed(t, Config{Address: s.addr, Credentials: dir}), dir
}

// patientWorld holds reads until the returned function is called.
func patientWorld(t *testing.T) (*world, func()) {
	w := &world{snap: fleet.NewSnapshot(), changes: make(chan fleet.Snapshot), image: t.TempDir(), held: make(chan struct{}), holds: make(chan struct{}, 100)}
	if err := os.WriteFile(filepath.Join(w.image, "disk"), []byte("disk"), 0o644); err != nil {
		t.Fatal(err)
	}
	w.attach = func(ctx context.Context, _ Hello, s *HostSession) error {
		err := s.Send(ctx, Down{Wanted: &fleet.Wanted{}})
		<-s.Done()
		return err
	}
	release := sync.OnceFunc(func() { close(w.held) })
	t.Cleanup(release)
	return w, release
}

// holdReads has n long polls wait at the controller, each on a connection of its own.
func (s *served) holdReads(ctx context.Context, c *Client, n int) chan error {
	ended := make(chan error, n)
	for range n {
		go func() {
			_, _, err := c.ReadStream(ctx, Place{Job: "held", Stream: fleet.Stdin})
			ended <- err
		}()
	}
	for range n {
		select {
		case <-s.holds:
		case err := <-ended: // it was refused, which allEnd says
			ended <- err
		}
	}
	return ended
}

func allEnd(t *testing.T, ended chan error) {
	t.Helper()
	for range cap(ended) {
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
}

// uses are the requests of a client that a running job or host depends on, of each kind.
func uses(ctx context.Context, c *Client, who identity.Subject) map[string]func() error {
	streams := map[string]func() error{
		"read": func() error { _, _, err := c.ReadStream(ctx, Place{"j", fleet.Stdin, 0, 0}); return err },
		"write": func() error {
			_, err := c.WriteStream(ctx, Place{"j", fleet.Stdout, 0, 0}, make([]byte, pieceBytes), false)
			return err
		},
		"image": func() error {
			return c.FetchImageFile(ctx, "sha256-0123456789012345678901234567890123456789012345678901234567890123", "disk", io.Discard)
		},
	}
	if who.Role == identity.Host {
		streams["attach"] = func() error {
			s, err := c.Attach(ctx, Hello{Host: fleet.HostID(who.Name)})
			if err != nil {
				return err
			}
			return s.Close()
		}
		return streams
	}
	streams["snapshot"] = func() error { _, err := c.Snapshot(ctx); return err }
	streams["explain"] = func() error { _, err := c.Explain(ctx, About{Job: "j"}); return err }
	streams["trace"] = func() error { _, err := c.Trace(ctx, "j"); return err }
	streams["ask"] = func() error { _, err := c.Ask(ctx, fleet.Request{Verb: fleet.Cancel, Job: "j"}); return err }
	streams["watch"] = func() error {
		ctx, stop := context.WithCancel(ctx)
		defer stop()
		_, err := c.Watch(ctx)
		return err
	}
	return streams
}

// together makes requests at once.
func together(t *testing.T, of map[string]func() error) {
	t.Helper()
	var all sync.WaitGroup
	for name, do := range of {
		for range 3 {
			all.Go(func() {
				if err := do(); err != nil {
					t.Errorf("%s: %v", name, err)
				}
			})
		}
	}
	all.Wait()
}

// A long poll keeps its connection while the certificate is renewed. Later requests must not
// go over it: it shows the old certificate for ever, and that ends.
func TestOldCertificatesLeaveWithTheirConnections(t *testing.T) {
	w, release := patientWorld(t)
	ctx, s := limited(t), serve(t, w)
	var polls []chan error
	clients := map[identity.Subject]*Client{aHost: s.member(t, aHost), ada: s.member(t, ada)}
	for who, c := range clients {
		polls = append(polls, s.holdReads(ctx, c, 4))
		if err := c.Renew(ctx); err != nil {
			t.Fatal(err)
		}
		if err := uses(ctx, c, who)["read"](); err != nil { // on a connection that is kept, as some are in use
			t.Error(err)
		}
	}
	release()
	for _, ended := range polls {
		allEnd(t, ended)
	}
	for who, c := range clients {
		s.seen.from(nil)
		time.Sleep(20 * time.Millisecond) // a connection that is kept is back by now
		together(t, uses(ctx, c, who))
		if _, shown := s.seen.count(); shown != 1 {
			t.Errorf("%s: after the renewal %d certificates are in use", who, shown)
		}
	}
}

// A certificate ends while requests are under way and others are idle: what is under way
// ends well, and everything later, at once, costs one renewal.
func TestCertificateEndsUnderItsConnections(t *testing.T) {
	for life := 3 * time.Second; !endsUnderItsConnections(t, life); life *= 2 {
		if life > 30*time.Second {
			t.Fatalf("connections took more than %s", life)
		}
	}
}

// endsUnderItsConnections reports whether a certificate of that life lasted until its connections
// were made.
func endsUnderItsConnections(t *testing.T, life time.Duration) bool {
	t.Helper()
	w, release := patientWorld(t)
	ctx, s := limited(t), serve(t, w)
	s.seen.from(notYet) // it is renewed in vain at first
	end := time.Now().Add(life)
	clients := map[identity.Subject]*Client{}
	var polls []chan error
	for _, who := range []identity.Subject{aHost, ada} {
		clients[who], _ = s.lived(t, who, time.Until(end))
		polls = append(polls, s.holdReads(ctx, clients[who], 4))
		together(t, uses(ctx, clients[who], who))
	}
	if time.Now().After(end.Add(-time.Second)) {
		release()
		return false
	}
	if renewals, _ := s.seen.count(); renewals != 2 {
		t.Errorf("%d tries in time of two clients", renewals)
	}
	time.Sleep(time.Until(end))
	release()
	for _, ended := range polls {
		allEnd(t, ended)
	}
	s.seen.from(nil)
	for who, c := range clients {
		together(t, uses(ctx, c, who))
	}
	if renewals, _ := s.seen.count(); renewals != 2 {
		t.Errorf("%d renewals of two clients", renewals)
	}
	return true
}

// A machine that slept through the end of its certificate is back with its first request of
// any kind, also if its network came a moment after that.
func TestAsleepForAMonth(t *testing.T) {
	w, _ := patientWorld(t)
	ctx, s := limited(t), serve(t, w)
	for _, who := range []identity.Subject{aHost, ada} {
		for name := range uses(ctx, nil, who) {
			for _, late := range []bool{false, true} {
				c, dir := s.lived(t, who, -month)
				if late {
					s.stop()
					if err := uses(ctx, c, who)[name](); !errors.Is(err, ErrNoController) {
						t.Errorf("%s of %s without a network: %v", name, who, err)
					}
					s.start(t)
				}
				s.seen.from(nil)
				if err := uses(ctx, c, who)[name](); err != nil {
					t.Errorf("%s of %s, late %v: %v", name, who, late, err)
				}
				if renewals, _ := s.seen.count(); renewals != 1 {
					t.Errorf("%s of %s, late %v: %d renewals", name, who, late, renewals)
				}
				if kept := dialed(t, Config{Address: s.addr, Credentials: dir}); time.Now().After(kept.RenewAt()) {
					t.Errorf("%s of %s: the renewed certificate was not kept", name, who)
				}
			}
		}
	}
}

// Half of a certificate's time is enough: a client that makes requests renews by itself.
func TestRenewedInTime(t *testing.T) {
	w, _ := patientWorld(t)
	ctx, s := limited(t), serve(t, w)
	for d, want := range map[time.Duration]int{identity.Lifetime/2 - time.Hour: 1, identity.Lifetime/2 + time.Hour: 0} {
		c, _ := s.lived(t, ada, d)
		s.seen.from(nil)
		for range 2 {
			together(t, uses(ctx, c, ada))
		}
		if renewals, _ := s.seen.count(); renewals != want {
			t.Errorf("%s before its end it was renewed %d times", d, renewals)
		}
	}
}

// Whoever may not renew hears why, and no request is repeated for ever. A controller that does
// not lead, or is away, has refused nothing.
func TestRenewalIsRefused(t *testing.T) {
	w, _ := patientWorld(t)
	ctx, s := limited(t), serve(t, w)
	for _, r := range []struct {
		who      identity.Subject
		end      time.Duration
		refuses  error
		says     string
		renewals int
	}{
		{identity.Subject{Role: identity.User, Name: "removed"}, identity.Lifetime, nil, "removed", 0},
		{identity.Subject{Role: identity.User, Name: "removed"}, -time.Hour, nil, "removed", 0},
		{ada, -identity.RenewWithin - time.Hour, nil, "too long ago to be renewed", 0},
		{ada, -time.Hour, &Error{http.StatusForbidden, "no"}, "your certificate has expired: `pagurus login`", 2},
		{ada, -time.Hour, notYet, "does not lead yet", 2},
	} {
		c, _ := s.lived(t, r.who, r.end)
		s.seen.from(r.refuses)
		_, err := c.Snapshot(ctx)
		says(t, fmt.Sprint(r), err, r.says)
		if wants := r.refuses == notYet; errors.Is(err, ErrNoController) != wants {
			t.Errorf("%v: a later try may succeed is %v: %v", r, !wants, err)
		}
		if renewals, _ := s.seen.count(); renewals != r.renewals {
			t.Errorf("%v: %d renewals", r, renewals)
		}
	}
}

// A connection whose certificate does not count is of no more use. So a client that cannot
// renew, such as an older one, does not use it again after its certificate was renewed elsewhere.
func TestConnectionEndsWithARefusal(t *testing.T) {
	w, _ := patientWorld(t)
	ctx, s := limited(t), serve(t, w)
	for _, r := range []struct {
		end    time.Duration
		path   string
		status int
	}{
		{-time.Hour, "/v1/snapshot", http.StatusUnauthorized}, {-time.Hour, "/v1/watch", http.StatusUnauthorized},
		{-time.Hour, whoAmIPath, http.StatusOK}, {time.Hour, "/v1/snapshot", http.StatusOK}, {time.Hour, "/v1/nothing", http.StatusNotFound},
	} {
		c, _ := s.lived(t, ada, r.end)
		q, err := http.NewRequestWithContext(ctx, http.MethodGet, c.base+r.path, bytes.NewReader(nil))
		if err != nil {
			t.Fatal(err)
		}
		c.authorize(q.Header)
		a, err := c.renewal.under.Load().RoundTrip(q)
		if err != nil {
			t.Fatal(err)
		}
		a.Body.Close()
		if a.StatusCode != r.status || a.Close != (r.status == http.StatusUnauthorized) {
			t.Errorf("%+v: %s, the connection ends: %v", r, a.Status, a.Close)
		}
	}
}

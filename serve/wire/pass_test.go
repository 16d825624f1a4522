package wire

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"pagurus/fleet"
	"pagurus/serve/identity"
)

// two are two controllers of one cluster. The first leads, unless nobody does.
func two(t *testing.T) (leads, other *served, nobody *atomic.Bool) {
	t.Helper()
	nobody = &atomic.Bool{}
	leads = serve(t, &world{snap: fleet.Snapshot{Revision: 5}, changes: make(chan fleet.Snapshot, 1)})
	leads.stop()
	passing := func(here bool) *Passing {
		return &Passing{
			Calling: leads.authority.Calling("c"), Serves: "127.0.0.9",
			IsController: func(c *x509.Certificate) bool { return leads.authority.IsController(c, time.Now()) },
			Known:        func() []string { return []string{leads.addr, other.addr} },
			Machines:     func() []string { return []string{"here", "there", "away"} },
			Leads: func(context.Context) (string, bool) {
				if nobody.Load() {
					return "", false
				}
				return leads.addr, here
			},
		}
	}
	leads.passing = passing(true)
	dir, err := os.MkdirTemp("", "wire")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	os.Chmod(dir, 0o755)
	other = &served{world: &world{}, authority: leads.authority, socket: filepath.Join(dir, "controller.sock"), machine: "there", passing: passing(false)}
	other.start(t)
	leads.start(t)
	return leads, other, nobody
}

// TestPassedOn: the controller that leads knows who called another one as that one does.
func TestPassedOn(t *testing.T) {
	leads, other, nobody := two(t)
	ctx := limited(t)
	ada := dialed(t, Config{Address: other.addr, Credentials: leads.credentials(t, identity.Subject{Role: identity.User, Name: "ada"})})
	if by, err := ada.WhoAmI(ctx); err != nil || by.User != "ada" || by.Admin {
		t.Fatalf("%+v, %v", by, err)
	}
	// She cannot have the word of who calls left out on the way: a controller would be taken for her.
	sly, err := http.NewRequestWithContext(ctx, http.MethodGet, ada.base+"/v1/whoami", nil)
	if err != nil {
		t.Fatal(err)
	}
	ada.authorize(sly.Header)
	sly.Header.Set("Connection", passedHeader)
	r, err := ada.http.Do(sly)
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(r.Body)
	r.Body.Close()
	if err != nil || r.StatusCode != http.StatusOK || !strings.Contains(string(text), "ada") {
		t.Errorf("%s: %s, %v", r.Status, text, err)
	}
	if _, err := ada.Ask(ctx, fleet.Request{Verb: fleet.Submit, Spec: &fleet.JobSpec{Machine: "at 127.0.0.9"}}); err != nil { // as the other controller is called from here
		t.Fatal(err)
	}
	host := dialed(t, Config{Address: other.addr, Credentials: leads.credentials(t, identity.Subject{Role: identity.Host, Name: "h"})})
	if _, err := host.Snapshot(ctx); status(t, err) != http.StatusForbidden {
		t.Errorf("a host reads the cluster: %v", err)
	}
	if _, err := other.userClient(t, 4242).Ask(ctx, fleet.Request{Verb: fleet.Submit, Spec: &fleet.JobSpec{}}); err != nil {
		t.Fatal(err)
	}
	if q := leads.asked[1]; q.By != (fleet.Caller{UID: 4242, GID: 4243}) || q.Spec.Machine != "there" || !slices.Equal(q.Spec.Groups, []uint32{7, 4000000000}) {
		t.Errorf("believed %+v of %+v", q.Spec, q.By)
	}
	if _, err := other.client(t).Ask(ctx, fleet.Request{Verb: fleet.Submit, Spec: &fleet.JobSpec{Machine: "here"}}); err != nil { // root may name any
		t.Error(err)
	}
	if len(other.asked) != 0 {
		t.Errorf("one that does not lead answered %+v", other.asked)
	}
	watching, stop := context.WithCancel(ctx)
	seen, err := ada.Watch(watching)
	if err != nil {
		t.Fatal(err)
	}
	leads.changes <- fleet.Snapshot{Revision: 9}
	if s := <-seen; s.Revision != 9 {
		t.Errorf("watched %+v", s)
	}
	stop()
	if want := []string{leads.addr, other.addr}; !slices.Equal(identity.Controllers(ada.addresses.folder), want) {
		t.Errorf("learned %v, not %v", identity.Controllers(ada.addresses.folder), want)
	}
	nobody.Store(true)
	if _, err := other.client(t).Snapshot(ctx); !errors.Is(err, ErrNoController) {
		t.Errorf("nobody leads: %v", err)
	}
}

// TestPassedOnByNobody: who is no controller cannot say who called.
func TestPassedOnByNobody(t *testing.T) {
	leads, other, _ := two(t)
	root := base64.StdEncoding.EncodeToString([]byte(`{"local":{"uid":0,"admin":true}}`))
	host, err := identity.Load(leads.credentials(t, identity.Subject{Role: identity.Host, Name: "h"}))
	if err != nil {
		t.Fatal(err)
	}
	for _, at := range []*served{leads, other} {
		for name, config := range map[string]*tls.Config{"a host": host.Client(), "a stranger": identity.Joining(leads.authority.Fingerprint())} {
			for _, path := range []string{"/v1/snapshot", betweenPath + "images"} {
				c := &http.Client{Transport: &http.Transport{TLSClientConfig: config}}
				r, err := http.NewRequestWithContext(limited(t), http.MethodGet, "https://"+at.addr+path, nil)
				if err != nil {
					t.Fatal(err)
				}
				r.Header.Set(passedHeader, root)
				answer, err := c.Do(r)
				if err != nil {
					t.Fatal(err)
				}
				answer.Body.Close()
				c.CloseIdleConnections()
				if answer.StatusCode < http.StatusBadRequest {
					t.Errorf("%s who says that root called gets %s of %s", name, answer.Status, path)
				}
			}
		}
	}
}

// TestNextAddress: a client that knows several controllers calls the next one when one is gone.
func TestNextAddress(t *testing.T) {
	leads, other, _ := two(t)
	ctx := limited(t)
	ada := dialed(t, Config{Address: other.addr, Credentials: leads.credentials(t, identity.Subject{Role: identity.User, Name: "ada"})})
	if _, err := ada.Snapshot(ctx); err != nil {
		t.Fatal(err)
	}
	other.stop()
	if s, err := ada.Snapshot(ctx); err != nil || s.Revision != 5 {
		t.Fatalf("%+v, %v", s, err)
	}
	again := dialed(t, Config{Address: other.addr, Credentials: ada.addresses.folder}) // another process
	if s, err := again.Snapshot(ctx); err != nil || s.Revision != 5 {
		t.Fatalf("%+v, %v", s, err)
	}
}

// TestTurnSkipsNobody: requests that fail side by side turn to the next controller once, and to each in turn.
func TestTurnSkipsNobody(t *testing.T) {
	c := &Client{http: &http.Client{}, addresses: &addresses{own: "a", all: []string{"a", "b", "c"}}}
	first, second := c.asked(), c.asked()
	c.turn(first, ErrNoController)
	c.turn(second, ErrNoController)
	if at := c.asked(); at != "b" {
		t.Errorf("after two that asked a it asks %s", at)
	}
	c.addresses.after("b") // no connection was made
	c.turn("b", ErrNoController)
	if at := c.asked(); at != "c" {
		t.Errorf("after a connection that failed it asks %s", at)
	}
}

// TestNobodyFeignsAController: no host joins as the machine of any controller, but by that controller itself.
func TestNobodyFeignsAController(t *testing.T) {
	leads, other, _ := two(t)
	for _, c := range []struct {
		by      *served
		machine string
		foreign bool
	}{
		{leads, "here", false}, {leads, "there", true}, {leads, "away", true}, {leads, "elsewhere", false},
		{other, "here", true}, {other, "there", false}, {other, "away", true}, {other, "elsewhere", false},
	} {
		leads.joins = nil
		folder := filepath.Join(t.TempDir(), "host")
		_, err := Enrol(limited(t), c.by.addr, leads.authority.NewToken().String(), folder, Joining{Host: "h", Machine: c.machine})
		if err != nil || !slices.Equal(leads.joins, []bool{c.foreign}) || len(other.joins) > 0 {
			t.Errorf("%s by the controller of %s: foreign %v, %v", c.machine, c.by.machine, leads.joins, err)
		}
	}
}

// TestFailedJoinOfAController: one that gets no place is counted as if it had not shown its token, and tries again with the same key.
func TestFailedJoinOfAController(t *testing.T) {
	leads, other, _ := two(t)
	state, token := t.TempDir(), leads.authority.NewToken().String()
	for _, by := range []*served{leads, other} {
		_, err := EnrolController(limited(t), by.addr, token, state, Joining{Controller: "c3", Peer: "192.0.2.3:7463"})
		says(t, "no controller lets another in", err, "--peer")
	}
	if n := len(leads.notLetIn); n != 2 || len(other.notLetIn) > 0 {
		t.Fatalf("%d were not let in", n)
	}
	first, err := identity.RequestKey([]byte(leads.notLetIn[0]))
	second, again := identity.RequestKey([]byte(leads.notLetIn[1]))
	if err != nil || again != nil || first != second {
		t.Errorf("keys %s, %s: %v, %v", first, second, err, again)
	}
}

package wire

import (
	"context"
	"encoding/json"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/coder/websocket"

	"pagurus/fleet"
	"pagurus/serve/identity"
)

// versioned is a server of one version of the protocol.
func versioned(t *testing.T, w *world, protocol int) *served {
	t.Helper()
	s := serve(t, w)
	s.stop()
	s.protocol = &protocol
	s.start(t)
	return s
}

// Versions that are one apart work together in all that a client and an agent do. Others are
// refused, and each way says which side to upgrade. A refused request does nothing.
func TestVersions(t *testing.T) {
	ctx := limited(t)
	for _, v := range []struct {
		client, controller int
		upgrade            string // empty: they work together
	}{
		{1, 1, ""}, {0, 1, ""}, {1, 0, ""}, {4, 5, ""}, {5, 4, ""},
		{0, 2, "upgrade this "}, {3, 1, "upgrade the controller"}, {1, 9, "upgrade this "}, {2, 0, "upgrade the controller"},
	} {
		w := &world{attach: echo, changes: make(chan fleet.Snapshot, 1)}
		s := versioned(t, w, v.controller)
		w.changes <- fleet.Snapshot{}
		watching, stop := context.WithCancel(ctx)
		admin := func() *Client {
			c := s.client(t)
			c.protocol = &v.client
			return c
		}
		host := s.member(t, identity.Subject{Role: identity.Host, Name: "h"})
		host.protocol = &v.client
		for what, do := range map[string]func() error{
			"ask":      func() error { _, err := admin().Ask(ctx, fleet.Request{Verb: fleet.Drain, Host: "h"}); return err },
			"predict":  func() error { _, err := admin().Predict(ctx, fleet.Request{Verb: fleet.Drain, Host: "h"}); return err },
			"snapshot": func() error { _, err := admin().Snapshot(ctx); return err },
			"watch":    func() error { _, err := admin().Watch(watching); return err },
			"write": func() error {
				_, err := admin().WriteStream(ctx, Place{"j1", fleet.Stdin, 0, 0}, []byte("x"), false)
				return err
			},
			"renew": func() error { return host.Renew(ctx) },
			"attach": func() error {
				a, err := host.Attach(ctx, Hello{Host: "h"})
				if err == nil {
					a.Close()
				}
				return err
			},
		} {
			err := do()
			switch {
			case v.upgrade == "" && err != nil:
				t.Errorf("%s of %d at %d: %v", what, v.client, v.controller, err)
			case v.upgrade != "":
				says(t, what, err, v.upgrade, "speaks version")
				if err != nil && status(t, err) != http.StatusUnprocessableEntity {
					t.Errorf("%s: status %d", what, status(t, err))
				}
			}
		}
		if v.upgrade != "" && len(s.asked) > 0 {
			t.Errorf("a client of %d was refused, and has had %v done", v.client, s.asked)
		}
		if said, err := admin().Controller(ctx); err != nil || said != (Spoken{v.controller, "build"}) {
			t.Errorf("the controller of %d says %+v, %v", v.controller, said, err)
		}
		stop()
	}
}

// The server refuses also a caller that does not judge by itself, as old agents do not, and
// tells the controller whose agent it was.
func TestServerRefuses(t *testing.T) {
	ctx, s := limited(t), versioned(t, &world{attach: echo}, 2)
	host := s.member(t, identity.Subject{Role: identity.Host, Name: "h"})
	for _, path := range []string{agentPath, "/v1/snapshot", "/v1/join"} {
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, host.base+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		if path == "/v1/join" {
			r.Method = http.MethodPost
		}
		answer, err := host.http.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		err = host.problem(answer)
		answer.Body.Close()
		if status(t, err) != http.StatusUnprocessableEntity {
			t.Errorf("%s: %v", path, err)
		}
		says(t, path, err, "speaks version 0", "the controller version 2", "upgrade this ")
	}
	if len(s.refused) != 1 || s.refused[0] != "h: the agent of h speaks version 0 of the protocol and the controller version 2, and only versions that are one apart work together: upgrade the agent of h" {
		t.Errorf("the controller hears %q", s.refused)
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, host.base+"/v1/whoami", nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set(protocolHeader, "two")
	answer, err := host.http.Do(r)
	if err != nil || answer.StatusCode != http.StatusBadRequest {
		t.Errorf("a version that is no number: %v, %v", answer.Status, err)
	}
	answer.Body.Close()
}

// Joining a controller that is too far apart leaves nothing on either side.
func TestJoinApart(t *testing.T) {
	ctx := limited(t)
	for protocol, upgrade := range map[int]string{fleet.Protocol() + 2: "upgrade this pagurus", fleet.Protocol() + 1: ""} {
		s, dir := versioned(t, &world{}, protocol), filepath.Join(t.TempDir(), "credentials")
		_, err := Enrol(ctx, s.addr, s.authority.NewToken().String(), dir, Joining{Host: "h", Machine: "m"})
		if upgrade == "" {
			if err != nil || len(s.joins) != 1 {
				t.Errorf("version %d: %v", protocol, err)
			}
			continue
		}
		says(t, "a newer controller", err, upgrade)
		if _, err := os.Stat(dir); err == nil || len(s.joins) > 0 {
			t.Error("half of it was done")
		}
	}
}

// A controller from before there were versions makes what it is asked for without a look at
// the version. So a client that is too new for it asks for its version first.
func TestControllerFromBefore(t *testing.T) {
	ctx, asked := limited(t), []string{}
	old := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked = append(asked, r.Method+" "+r.URL.Path)
		_, _ = w.Write([]byte("{}"))
	}))
	defer old.Close()
	c := &Client{address: "old", base: old.URL, http: old.Client()}
	for protocol, works := range map[int]bool{1: true, 2: false} {
		c.protocol = &protocol
		c.controller.Store(nil)
		asked = nil
		_, err := c.Ask(ctx, fleet.Request{Verb: fleet.Drain})
		if works && (err != nil || len(asked) != 2) {
			t.Errorf("version %d: %v, %q", protocol, err, asked)
		}
		if !works {
			says(t, "too new", err, "the controller version 0", "upgrade the controller")
			if len(asked) != 1 || asked[0] != "GET /v1/whoami" {
				t.Errorf("it was asked for %q", asked)
			}
		}
	}
}

// A field that is unknown here is ignored if the caller is newer, and a mistake otherwise. An
// unknown request is refused either way.
func TestUnknownFields(t *testing.T) {
	ctx, s := limited(t), versioned(t, &world{}, 4)
	for protocol, works := range map[int]bool{3: false, 4: false, 5: true} {
		c := s.client(t)
		c.protocol = &protocol
		for _, path := range []string{"/v1/ask", "/v1/predict"} {
			err := c.call(ctx, http.MethodPost, path, []byte(`{"verb":"drain","host":"h","colour":"red"}`), &struct{}{})
			if (err == nil) != works {
				t.Errorf("%s of version %d: %v", path, protocol, err)
			}
			if !works {
				says(t, path, err, `unknown field "colour"`)
			}
		}
		err := c.call(ctx, http.MethodPost, "/v1/ask", []byte(`{"verb":"paint"}`), &struct{}{})
		if err == nil || strings.Contains(err.Error(), "upgrade the controller") != works {
			t.Errorf("an unknown request of version %d: %v", protocol, err)
		}
	}
}

// A message of a kind that is unknown here is ignored if the other side is newer. Otherwise
// it ends the session.
func TestUnknownMessages(t *testing.T) {
	ctx := limited(t)
	for theirs, lives := range map[int]bool{1: false, 2: true} {
		ours := 1
		s := versioned(t, &world{attach: echo}, ours)
		c := s.client(t)
		c.protocol = &theirs
		conn, err := c.connect(ctx, agentPath)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range []string{`{"hello":{"host":"h","colour":1}}`, `{"news":{}}`, `{"report":{"order":{"attempt":7},"colour":1}}`} {
			if err := conn.Write(ctx, websocket.MessageText, []byte(m)); err != nil {
				break
			}
		}
		var got Down
		for err == nil && got.Task == nil {
			var b []byte
			if _, b, err = conn.Read(ctx); err == nil {
				err = json.Unmarshal(b, &got)
			}
		}
		if lives != (got.Task != nil && got.Task.Order.Attempt == 7) {
			t.Errorf("an agent of version %d: %+v, %v", theirs, got, err)
		}
		conn.CloseNow()
	}
	for theirs, lives := range map[int]bool{1: false, 2: true} {
		w := &world{attach: func(ctx context.Context, _ Hello, s *HostSession) error {
			for _, m := range []string{`{"wanted":{"cluster":"c","colour":1}}`, `{"news":{}}`, `{"task":{"order":{"attempt":7}}}`} {
				_ = s.conn.Write(ctx, websocket.MessageText, []byte(m))
			}
			<-s.Done()
			return nil
		}}
		ours := 1
		s := versioned(t, w, theirs)
		c := s.client(t)
		c.protocol = &ours
		a, err := c.Attach(ctx, Hello{Host: "h"})
		if err != nil {
			t.Fatal(err)
		}
		var got Down
		for err == nil && got.Task == nil {
			got, err = a.Receive(ctx)
		}
		if lives != (got.Task != nil) {
			t.Errorf("a controller of version %d: %+v, %v", theirs, got, err)
		}
		a.Close()
	}
}

// Nobody answers: that is told, and not that the version is unknown.
func TestControllerIsAway(t *testing.T) {
	l, err := net.Listen("unix", filepath.Join(t.TempDir(), "c.sock"))
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
	if said, err := dialed(t, Config{Address: "unix:" + l.Addr().String()}).Controller(limited(t)); err == nil {
		t.Errorf("nobody says %+v", said)
	}
}

package page

import (
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"pagurus/fleet"
	"pagurus/serve/wire"
	"pagurus/show/api"
	"pagurus/show/scripted"
)

// town is a scripted controller behind a real server, whose only token is "token".
type town struct {
	*scripted.Controller
	url string
	end func()
}

func newTown(t *testing.T, snap fleet.Snapshot) *town {
	t.Helper()
	l, err := wire.ListenFace("127.0.0.1:0", nil, true)
	if err != nil {
		t.Fatal(err)
	}
	w := &town{Controller: scripted.New(t, snap), url: "http://" + l.Addr().String()}
	members := scripted.NewBearers(map[string]fleet.Caller{"token": {UID: 1, User: "admin", Admin: true}})
	w.end = w.Serve(wire.ServeConfig{Faces: []net.Listener{l}, Face: api.New(nil), Page: New(), Members: members})
	t.Cleanup(w.end)
	return w
}

// TestServed: the page is where the interface is, for whoever calls the controller by its name, and opens nothing else.
func TestServed(t *testing.T) {
	w := newTown(t, fleet.NewSnapshot())
	for _, c := range []struct {
		path, headers string
		status        int
		says          string
	}{
		{"/", "", 200, "<title>Pagurus</title>"},
		{"/", "Sec-Fetch-Site: cross-site", 200, "<title>Pagurus</title>"}, // a link leads here
		{"/", "Host: rebound.example", 403, "another site"},
		{"/page/main.js", "Host: rebound.example", 403, "another site"},
		{"/page/main.js", "", 200, "import"},
		{"/page/nothing", "", 404, "begins at /"},
		{"/v1/snapshot", "Authorization: Bearer token", 404, "there is nothing here"},
		{"/pages", "", 404, "there is nothing here"},
		{"/api/v1/hosts", "", 401, "send a token"},
	} {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, w.url+c.path, nil)
		if err != nil {
			t.Fatal(err)
		}
		if name, value, has := strings.Cut(c.headers, ": "); has && name == "Host" {
			r.Host = value
		} else if has {
			r.Header.Set(name, value)
		}
		answer, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(answer.Body)
		answer.Body.Close()
		if err != nil || answer.StatusCode != c.status || !strings.Contains(string(text), c.says) {
			t.Errorf("%s with %q: %s, %.200s", c.path, c.headers, answer.Status, text)
		}
		if answer.Header.Get("X-Content-Type-Options") != "nosniff" || answer.Header.Get("Content-Security-Policy") == "" {
			t.Errorf("%s with %q: %v", c.path, c.headers, answer.Header)
		}
	}
}

package page

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

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

// crowd is a cluster of many hosts in sites of a hundred, with two guests on each.
func crowd(hosts int) fleet.Snapshot {
	s := fleet.NewSnapshot()
	s.At = time.Now()
	for i := range hosts {
		id := fleet.HostID(fmt.Sprintf("host%d", i+1))
		s.Hosts[id] = fleet.Host{ID: id, State: fleet.HostUp, Facts: fleet.Facts{SeenAt: s.At, Connected: true, Site: fmt.Sprintf("site%d", i/100+1), Capacity: fleet.Resources{CPUs: 8, MemoryBytes: 32 << 30}, LoadCPUs: float64(i % 8)}}
		for k := range 2 {
			job := fleet.JobID(fmt.Sprintf("j%d", i/4+1))
			g := fleet.GuestID(fmt.Sprintf("%sg%d", job, i%4*2+k))
			s.Guests[g] = fleet.Guest{ID: g, Job: job, Index: i%4*2 + k, Home: id, State: fleet.GuestRunning, Need: fleet.Resources{CPUs: 2, MemoryBytes: 4 << 30}}
			s.Jobs[job] = fleet.Job{ID: job, State: fleet.JobRunning, Spec: fleet.JobSpec{Args: []string{"./solve", string(job)}, Ranks: 16, Guests: 8}}
		}
	}
	return s
}

package page

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"pagurus/fleet"
	"pagurus/serve/wire"
	"pagurus/show/api"
)

// town is a scripted controller behind a real server, whose only token is "token".
type town struct {
	wire.Controller
	wire.Members
	url string

	mu      sync.Mutex
	snap    fleet.Snapshot
	changed chan struct{}
	asked   []fleet.Request

	foresees func(context.Context)       // if set, what comes before a prediction
	answers  func(context.Context) error // if set, what comes before an answer
	end      func()
}

func newTown(t *testing.T, snap fleet.Snapshot) *town {
	t.Helper()
	w := &town{snap: snap, changed: make(chan struct{})}
	l, err := wire.ListenFace("127.0.0.1:0", nil, true)
	if err != nil {
		t.Fatal(err)
	}
	w.url = "http://" + l.Addr().String()
	ctx, cancel := context.WithCancel(context.Background())
	over := make(chan struct{})
	go func() {
		defer close(over)
		c := wire.ServeConfig{Faces: []net.Listener{l}, Face: api.New(nil), Page: New(), Names: []string{"localhost"}, Members: w, Controller: w, Forecasts: w, Machine: "machine", Log: slog.New(slog.DiscardHandler)}
		if err := wire.Serve(ctx, c); err != nil {
			t.Error(err)
		}
	}()
	w.end = func() { cancel(); <-over }
	t.Cleanup(w.end)
	return w
}

// change changes the cluster.
func (w *town) change(do func(*fleet.Snapshot)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	s := w.snap
	s.Hosts, s.Guests, s.Jobs = maps.Clone(s.Hosts), maps.Clone(s.Guests), maps.Clone(s.Jobs)
	do(&s)
	w.snap = s
	close(w.changed)
	w.changed = make(chan struct{})
}

func (w *town) now() (fleet.Snapshot, <-chan struct{}) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.snap, w.changed
}

func (w *town) Bearer(_ context.Context, token, _ string) (wire.Peer, error) {
	if token != "token" {
		return wire.Peer{}, &wire.Error{Status: http.StatusUnauthorized, Reason: "this cluster does not know the token"}
	}
	return wire.Peer{Token: "t1", Caller: fleet.Caller{UID: 1, User: "admin", Admin: true}}, nil
}

func (w *town) Ask(ctx context.Context, q fleet.Request) (fleet.Answer, error) {
	w.mu.Lock()
	w.asked = append(w.asked, q)
	answers := w.answers
	w.mu.Unlock()
	if answers != nil {
		return fleet.Answer{}, answers(ctx)
	}
	return fleet.Answer{}, nil
}

// requests are those that were made so far.
func (w *town) requests() []fleet.Request {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.asked)
}

func (w *town) Predict(ctx context.Context, _ fleet.Request) (fleet.Forecast, error) {
	w.mu.Lock()
	foresees := w.foresees
	w.mu.Unlock()
	if foresees != nil {
		foresees(ctx)
	}
	return fleet.Forecast{}, nil
}

func (w *town) Score(context.Context) (fleet.Calibration, error) { return fleet.Calibration{}, nil }

func (w *town) Explain(context.Context, wire.About) ([]string, error) {
	return []string{"because"}, nil
}

func (w *town) Snapshot(context.Context) (fleet.Snapshot, error) { s, _ := w.now(); return s, nil }

func (w *town) Watch(ctx context.Context) <-chan fleet.Snapshot {
	out := make(chan fleet.Snapshot)
	go func() {
		defer close(out)
		for {
			s, changed := w.now()
			select {
			case out <- s:
			case <-ctx.Done():
				return
			}
			select {
			case <-changed:
			case <-ctx.Done():
				return
			}
		}
	}()
	return out
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

package api

import (
	"bufio"
	"context"
	"crypto/x509"
	"encoding/json"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"pagurus/fleet"
	"pagurus/serve/identity"
	"pagurus/serve/wire"
)

// town is a scripted controller behind a real server. Callers show the tokens "admin", "ada" and "grace".
type town struct {
	t    *testing.T
	addr string
	stop func()

	mu      sync.Mutex
	snap    fleet.Snapshot
	changed chan struct{}
	asked   []fleet.Request
	removed map[string]bool // tokens
}

func newTown(t *testing.T) *town {
	t.Helper()
	w := &town{t: t, snap: fleet.NewSnapshot(), changed: make(chan struct{}), removed: map[string]bool{}}
	w.snap.At = time.Now()
	for _, id := range []fleet.HostID{"host1", "host2"} {
		w.snap.Hosts[id] = fleet.Host{ID: id, State: fleet.HostUp, Facts: fleet.Facts{SeenAt: w.snap.At, Connected: true}}
	}
	l, err := wire.ListenFace("127.0.0.1:0", nil, true)
	if err != nil {
		t.Fatal(err)
	}
	w.addr = l.Addr().String()
	ctx, cancel := context.WithCancel(context.Background())
	over := make(chan struct{})
	go func() {
		defer close(over)
		c := wire.ServeConfig{Faces: []net.Listener{l}, Face: New([]byte("the certificate")), Names: []string{"localhost"}, Members: w, Controller: w, Machine: "machine", Log: slog.New(slog.DiscardHandler)}
		if err := wire.Serve(ctx, c); err != nil {
			t.Error(err)
		}
	}()
	w.stop = func() { cancel(); <-over }
	t.Cleanup(w.stop)
	return w
}

// change changes the cluster.
func (w *town) change(do func(*fleet.Snapshot)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	s := w.snap
	s.Hosts, s.Jobs = maps.Clone(s.Hosts), maps.Clone(s.Jobs)
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

func (w *town) Ask(_ context.Context, q fleet.Request) (fleet.Answer, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.asked = append(w.asked, q)
	if q.Host == "host9" {
		return fleet.Answer{}, &wire.Error{Status: http.StatusUnprocessableEntity, Reason: "there is no host <b>host9</b>: `pagurus host ls` lists them"}
	}
	return fleet.Answer{Moves: []fleet.MoveID{"m1"}}, nil
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

func (w *town) Explain(context.Context, wire.About) ([]string, error) {
	return []string{"because"}, nil
}

func (w *town) Trace(context.Context, fleet.Caller, fleet.JobID) ([]fleet.Trace, error) {
	return nil, nil
}

func (w *town) Attach(context.Context, wire.Peer, wire.Hello, *wire.HostSession) error { return nil }

func (w *town) ImageFile(fleet.Digest, string) (string, error) { return "", nil }

func (w *town) Bearer(_ context.Context, token, _ string) (wire.Peer, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	ids := map[string]uint32{"admin": 1, "ada": 1000, "grace": 1001}
	if ids[token] == 0 || w.removed[token] {
		return wire.Peer{}, &wire.Error{Status: http.StatusUnauthorized, Reason: "this cluster does not know the token"}
	}
	return wire.Peer{Token: "t1", Caller: fleet.Caller{UID: ids[token], User: fleet.UserID(token), Admin: token == "admin"}}, nil
}

func (w *town) Identify(context.Context, *x509.Certificate, string) (wire.Peer, error) {
	return wire.Peer{}, &wire.Error{Status: http.StatusUnauthorized, Reason: "nobody has a certificate here"}
}

func (w *town) Local(p wire.Peer) wire.Peer { return p }

func (w *town) Join(context.Context, identity.Token, wire.Joining, bool) (wire.Joined, error) {
	return wire.Joined{}, nil
}

func (w *town) NotLetIn(context.Context, identity.Token, wire.Joining) error { return nil }

func (w *town) Renew(context.Context, wire.Peer, []byte) (wire.Renewed, error) {
	return wire.Renewed{}, nil
}

// asks makes a request with headers as "Name: value" and gives status, headers and body.
func (w *town) asks(method, path, body string, headers ...string) (int, http.Header, string) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, method, "http://"+w.addr+path, strings.NewReader(body))
	if err != nil {
		w.t.Fatal(err)
	}
	if body != "" {
		r.Header.Set("Content-Type", "application/json")
	}
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		if r.Header.Set(name, value); name == "Host" {
			r.Host = value
		}
	}
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		w.t.Fatal(err)
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		w.t.Fatal(err)
	}
	return answer.StatusCode, answer.Header, string(text)
}

// asAdmin is the header of an administrator.
const asAdmin = "Authorization: Bearer admin"

// event is one server-sent event.
type event struct{ id, name, data string }

// stream is what a client that watches reads.
type stream struct {
	t    *testing.T
	body io.ReadCloser
	in   *bufio.Reader
	stop func()
}

// watches begins to watch.
func (w *town) watches(query, token, last string) *stream {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+w.addr+Prefix+"/events"+query, nil)
	if err != nil {
		w.t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+token)
	if last != "" {
		r.Header.Set("Last-Event-ID", last)
	}
	answer, err := http.DefaultTransport.RoundTrip(r)
	if err != nil {
		w.t.Fatal(err)
	}
	if answer.StatusCode != http.StatusOK || answer.Header.Get("Content-Type") != "text/event-stream" {
		w.t.Fatalf("%s, %v", answer.Status, answer.Header)
	}
	s := &stream{w.t, answer.Body, bufio.NewReader(answer.Body), func() { cancel(); answer.Body.Close() }}
	w.t.Cleanup(s.stop)
	return s
}

// next reads an event with a name; false: the stream is over.
func (s *stream) next() (e event, more bool) {
	for {
		line, err := s.in.ReadString('\n')
		if err != nil {
			return e, false
		}
		switch name, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), ": "); name {
		case "id":
			e.id = value
		case "event":
			e.name = value
		case "data":
			e.data = value
		case "":
			if e.name != "" {
				return e, true
			}
			e = event{}
		}
	}
}

// until reads events up to one with a name, which is the last of them.
func (s *stream) until(name string) (out []event) {
	s.t.Helper()
	for {
		e, more := s.next()
		if !more {
			s.t.Fatalf("the stream ended before %q, after %v", name, out)
		}
		if out = append(out, e); e.name == name {
			return out
		}
	}
}

// idOf is the ID in an event about a thing.
func idOf(t *testing.T, e event) string {
	t.Helper()
	var row struct{ ID string }
	if err := json.Unmarshal([]byte(e.data), &row); err != nil {
		t.Fatalf("%v: %v", e, err)
	}
	return row.ID
}

func newStream(t *testing.T, body io.ReadCloser) *stream {
	return &stream{t, body, bufio.NewReader(body), func() { body.Close() }}
}

// find reads up to an event and gives its data; empty: the stream ended before.
func (s *stream) find(name string) string {
	for e, more := s.next(); more; e, more = s.next() {
		if e.name == name {
			return e.data
		}
	}
	return ""
}

// reaches reads on until a text comes.
func (s *stream) reaches(text string) bool {
	for e, more := s.next(); more; e, more = s.next() {
		if strings.Contains(e.data, text) {
			return true
		}
	}
	return false
}

package api

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"pagurus/fleet"
	"pagurus/serve/wire"
	"pagurus/show/scripted"
)

// town is a scripted controller behind a real server. Callers show the tokens "admin", "ada" and "grace".
type town struct {
	*scripted.Controller
	t       *testing.T
	addr    string
	members *scripted.Bearers
	face    *API
}

func newTown(t *testing.T) *town {
	t.Helper()
	snap := fleet.NewSnapshot()
	for _, id := range []fleet.HostID{"host1", "host2"} {
		snap.Hosts[id] = fleet.Host{ID: id, State: fleet.HostUp, Facts: fleet.Facts{SeenAt: time.Now(), Connected: true}}
	}
	l, err := wire.ListenFace("127.0.0.1:0", nil, true)
	if err != nil {
		t.Fatal(err)
	}
	face := New([]byte("the certificate"))
	w := &town{scripted.New(t, snap), t, l.Addr().String(), scripted.NewBearers(map[string]fleet.Caller{
		"admin": {UID: 1, User: "admin", Admin: true}, "ada": {UID: 1000, User: "ada"}, "grace": {UID: 1001, User: "grace"},
	}), face}
	w.Answers(func(_ context.Context, q fleet.Request) (fleet.Answer, error) {
		if q.Host == "host9" {
			return fleet.Answer{}, &wire.Error{Status: http.StatusUnprocessableEntity, Reason: "there is no host <b>host9</b>: `pagurus host ls` lists them"}
		}
		return fleet.Answer{Moves: []fleet.MoveID{"m1"}}, nil
	})
	t.Cleanup(w.Serve(wire.ServeConfig{Faces: []net.Listener{l}, Face: face, Members: w.members}))
	return w
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

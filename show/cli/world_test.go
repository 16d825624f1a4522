package cli

import (
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"pagurus/fleet"
	"pagurus/internal/testkit"
	"pagurus/serve/wire"
	"pagurus/show/api"
	"pagurus/show/scripted"
)

// world is a scripted controller on a socket, with jobs' streams. It refuses what a test does not answer.
type world struct {
	*scripted.Controller
	t      *testing.T
	socket string
	stop   func() // ends serving

	members *members // who may call over TLS; nil: nobody
	addr    string   // of TLS

	mu      sync.Mutex
	streams map[string][]byte
	ended   map[string]bool

	predicted []fleet.Request
}

var _ wire.Streams = (*world)(nil)

func newWorld(t *testing.T) *world {
	snap := fleet.NewSnapshot()
	for _, id := range []fleet.HostID{"host1", "host2"} {
		snap.Hosts[id] = fleet.Host{ID: id, State: fleet.HostUp, Facts: fleet.Facts{SeenAt: time.Now(), Connected: true,
			Capacity: fleet.Resources{CPUs: 2, MemoryBytes: 4 << 30}, Abilities: map[fleet.Kind]fleet.Abilities{fleet.VM: {Live: true}}}}
	}
	w := &world{Controller: scripted.New(t, snap), t: t, socket: filepath.Join(t.TempDir(), "c.sock"), streams: map[string][]byte{}, ended: map[string]bool{}}
	w.answers(nil)
	w.Foresees(w.foresee)
	w.serve()
	t.Cleanup(func() { w.stop() })
	return w
}

// answers has requests be answered by the test; nil: they are refused.
func (w *world) answers(by func(fleet.Request) (fleet.Answer, error)) {
	w.Answers(func(_ context.Context, q fleet.Request) (fleet.Answer, error) {
		if by == nil {
			return fleet.Answer{}, &wire.Error{Status: http.StatusUnprocessableEntity, Reason: "there is no room; try fewer guests"}
		}
		return by(q)
	})
}

// serve starts answering, also after stop.
func (w *world) serve() {
	l, err := wire.ListenUnix(w.socket)
	if err != nil {
		w.t.Fatal(err)
	}
	c := wire.ServeConfig{Listeners: []net.Listener{l}, Streams: w, Usage: used, Face: api.New(nil), Page: http.NotFoundHandler()}
	if w.members != nil {
		remote, err := wire.ListenTLS(orElse(w.addr, "127.0.0.1:0"), w.members.authority)
		if err != nil {
			w.t.Fatal(err)
		}
		w.addr = remote.Addr().String()
		c.Listeners, c.Members = append(c.Listeners, remote), w.members
	}
	w.stop = w.Serve(c)
}

// says adds to a job's stream, or ends it.
func (w *world) says(job fleet.JobID, stream, text string, end bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	key := string(job) + stream
	w.streams[key] = append(w.streams[key], text...)
	w.ended[key] = w.ended[key] || end
	w.Wake()
}

// heard waits until the job has all its input.
func (w *world) heard(job fleet.JobID) string {
	key := string(job) + fleet.Stdin
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		w.mu.Lock()
		text, over := string(w.streams[key]), w.ended[key]
		w.mu.Unlock()
		if over {
			return text
		}
	}
	w.t.Errorf("the input of %s did not end", job)
	return ""
}

// Read gives at most three bytes, so that offsets are used.
func (w *world) Read(ctx context.Context, _ fleet.Caller, at wire.Place) ([]byte, bool, error) {
	key := string(at.Job) + at.Stream
	for {
		_, changed := w.Now()
		w.mu.Lock()
		have, over := w.streams[key], w.ended[key]
		w.mu.Unlock()
		if rest := have[min(at.Offset, int64(len(have))):]; len(rest) > 0 {
			piece := rest[:min(3, len(rest))]
			return piece, over && len(piece) == len(rest), nil
		} else if over {
			return nil, true, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, false, nil
		}
	}
}

// Write takes at most five bytes at once.
func (w *world) Write(_ context.Context, _ fleet.Caller, at wire.Place, data []byte, eof bool) (int64, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	key := string(at.Job) + at.Stream
	have := int64(len(w.streams[key]))
	end := at.Offset + int64(len(data))
	if at.Offset <= have && have < end {
		more := data[have-at.Offset:]
		w.streams[key] = append(w.streams[key], more[:min(5, len(more))]...)
		have = int64(len(w.streams[key]))
	}
	if eof && have == end {
		w.ended[key] = true
	}
	w.Wake()
	return have, nil
}

// outcome is a command's output and exit code.
type outcome struct {
	out, err string
	code     int
}

// safe is a buffer that several goroutines may write to.
type safe struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *safe) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *safe) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

// full is a full disk.
type full struct{}

func (full) Write([]byte) (int, error) { return 0, unix.ENOSPC }

// pagurus runs a command line against the world.
func (w *world) pagurus(input string, args ...string) outcome {
	w.t.Helper()
	var out safe
	got := w.pagurusInto(&out, input, args...)
	got.out = out.String()
	return got
}

// pagurusInto is pagurus with the test's own standard output.
func (w *world) pagurusInto(out io.Writer, input string, args ...string) outcome {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	var err safe
	root := Root(Options{Version: "test", Machine: func() (string, error) { return "machine", nil },
		Args: append([]string{"--controller", "unix:" + w.socket}, args...),
		In:   strings.NewReader(input), Out: out, Err: &err})
	Finish(root)
	code := Say(&err, root.ExecuteContext(ctx))
	if ctx.Err() != nil {
		w.t.Errorf("%v did not come to an end", args)
	}
	return outcome{"", err.String(), code}
}

// begun is a command under way.
type begun struct {
	t        *testing.T
	out, err safe
	code     chan int
}

// beginCommand starts a command line against the world.
func (w *world) beginCommand(args ...string) *begun {
	return w.beginWith(strings.NewReader(""), args...)
}

// beginWith is beginCommand with the test's own standard input.
func (w *world) beginWith(in io.Reader, args ...string) *begun {
	b := &begun{t: w.t, code: make(chan int, 1)}
	root := Root(Options{Version: "test", Machine: func() (string, error) { return "machine", nil }, Args: append([]string{"--controller", "unix:" + w.socket}, args...),
		In: in, Out: &b.out, Err: &b.err})
	Finish(root)
	go func() { b.code <- Say(&b.err, root.ExecuteContext(w.t.Context())) }()
	return b
}

// shows waits until the command has written what to standard error.
func (b *begun) shows(what string) {
	b.t.Helper()
	testkit.Until(b.t, 20*time.Second, "it says "+what, func() bool { return strings.Contains(b.err.String(), what) })
}

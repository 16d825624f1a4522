// Package scripted is a controller for tests of what is shown: protocol, server and connections are real, and what it knows and answers
// is the test's. It must not know what is shown of that. The tests that use it are its own.
package scripted

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"sync"
	"testing"
	"time"

	"pagurus/fleet"
	"pagurus/serve/wire"
)

// Controller is a scripted one.
type Controller struct {
	t *testing.T

	mu       sync.Mutex
	snap     fleet.Snapshot
	changed  chan struct{} // closed and replaced on every change
	asked    []fleet.Request
	answer   func(context.Context, fleet.Request) (fleet.Answer, error)
	foresees func(context.Context, fleet.Request) (fleet.Forecast, error)
	ahead    time.Duration
}

var (
	_ wire.Controller = (*Controller)(nil)
	_ wire.Forecasts  = (*Controller)(nil)
)

// New makes one that knows this, and answers everything.
func New(t *testing.T, snap fleet.Snapshot) *Controller {
	return &Controller{t: t, snap: snap, changed: make(chan struct{})}
}

// Serve serves it until stop is called. What a configuration leaves out is the test's usual one.
func (c *Controller) Serve(with wire.ServeConfig) (stop func()) {
	if with.Controller == nil {
		with.Controller = c
	}
	if with.Forecasts == nil {
		with.Forecasts = c
	}
	with.Names, with.Machine, with.Log = []string{"localhost"}, "machine", slog.New(slog.DiscardHandler)
	ctx, cancel := context.WithCancel(context.Background())
	over := make(chan struct{})
	go func() {
		defer close(over)
		if err := wire.Serve(ctx, with); err != nil {
			c.t.Error(err)
		}
	}()
	return func() { cancel(); <-over }
}

// Answers has requests be answered by the test; nil: everything is done.
func (c *Controller) Answers(by func(context.Context, fleet.Request) (fleet.Answer, error)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.answer = by
}

// Foresees has predictions be made by the test.
func (c *Controller) Foresees(by func(context.Context, fleet.Request) (fleet.Forecast, error)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.foresees = by
}

// Change changes the cluster and informs watchers. Its maps may be changed.
func (c *Controller) Change(do func(*fleet.Snapshot)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.snap
	s.Hosts, s.Guests, s.Jobs, s.Moves, s.Migrations = maps.Clone(s.Hosts), maps.Clone(s.Guests), maps.Clone(s.Jobs), maps.Clone(s.Moves), maps.Clone(s.Migrations)
	do(&s)
	c.snap = s
	c.wake()
}

// Wake has those look again who wait for a change.
func (c *Controller) Wake() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.wake()
}

func (c *Controller) wake() {
	close(c.changed)
	c.changed = make(chan struct{})
}

// Ahead puts the controller's clock forward.
func (c *Controller) Ahead(by time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ahead += by
	c.wake()
}

// Clock is the controller's.
func (c *Controller) Clock() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return time.Now().Add(c.ahead)
}

// Now is the cluster, and what is closed by the next change.
func (c *Controller) Now() (fleet.Snapshot, <-chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.snap
	s.At = time.Now().Add(c.ahead)
	return s, c.changed
}

// Asked are the requests that were made so far, and the predictions that were asked for.
func (c *Controller) Asked() []fleet.Request {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.asked)
}

// Forget forgets them.
func (c *Controller) Forget() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.asked = nil
}

// Ask is answered by the test.
func (c *Controller) Ask(ctx context.Context, q fleet.Request) (fleet.Answer, error) {
	c.mu.Lock()
	c.asked = append(c.asked, q)
	answer := c.answer
	c.mu.Unlock()
	if answer == nil {
		return fleet.Answer{}, nil
	}
	return answer(ctx, q)
}

// Predict foresees nothing, or what the test does.
func (c *Controller) Predict(ctx context.Context, q fleet.Request) (fleet.Forecast, error) {
	c.mu.Lock()
	foresees := c.foresees
	c.mu.Unlock()
	if foresees == nil {
		return fleet.Forecast{}, nil
	}
	return foresees(ctx, q)
}

// Score is of twelve moves.
func (c *Controller) Score(context.Context) (fleet.Calibration, error) {
	return fleet.Calibration{Moves: 12, Verdicts: 13, Right: 12, Total: fleet.Fitness{MedianError: 0.081, Bias: 1.02, Coverage: 11.0 / 12}}, nil
}

// Snapshot is the cluster now.
func (c *Controller) Snapshot(context.Context) (fleet.Snapshot, error) {
	s, _ := c.Now()
	return s, nil
}

// Watch gives the newest cluster whenever it is read.
func (c *Controller) Watch(ctx context.Context) <-chan fleet.Snapshot {
	out := make(chan fleet.Snapshot)
	go func() {
		defer close(out)
		s, changed := c.Now()
		for told := false; ; {
			to := out
			if told {
				to = nil
			}
			select {
			case to <- s:
				told = true
			case <-changed:
				s, changed = c.Now()
				told = false
			case <-ctx.Done():
				return
			}
		}
	}()
	return out
}

// Explain names what it is asked about.
func (c *Controller) Explain(_ context.Context, a wire.About) ([]string, error) {
	return []string{"because of " + string(a.Guest) + string(a.Job) + string(a.Host)}, nil
}

// Trace is of one rank.
func (c *Controller) Trace(_ context.Context, _ fleet.Caller, id fleet.JobID) ([]fleet.Trace, error) {
	return []fleet.Trace{{Rank: 0, Ranks: 1, Guest: fleet.GuestID(id) + "g0"}}, nil
}

// Attach lets agents go at once.
func (c *Controller) Attach(context.Context, wire.Peer, wire.Hello, *wire.HostSession) error {
	return nil
}

// ImageFile has none.
func (c *Controller) ImageFile(fleet.Digest, string) (string, error) { return "", nil }

// Bearers are the members of a cluster in which tokens are names.
type Bearers struct {
	wire.Members // of nobody else anything is asked

	mu sync.Mutex
	by map[string]fleet.Caller
}

// NewBearers lets some callers in.
func NewBearers(by map[string]fleet.Caller) *Bearers { return &Bearers{by: by} }

// Remove removes a token.
func (b *Bearers) Remove(token string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.by, token)
}

// Bearer says whose a token is.
func (b *Bearers) Bearer(_ context.Context, token, _ string) (wire.Peer, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	who, known := b.by[token]
	if !known {
		return wire.Peer{}, &wire.Error{Status: http.StatusUnauthorized, Reason: "this cluster does not know the token"}
	}
	return wire.Peer{Token: "t1", Caller: who}, nil
}

// Crowd is a cluster of many hosts in sites of a hundred, with two guests on each.
func Crowd(hosts int) fleet.Snapshot {
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

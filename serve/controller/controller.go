// Package controller is the loop around planner.Step: take an event, think,
// commit, tell the hosts. It also keeps what is not worth storing, the facts
// that agents tell, and the output of programs in a spool on disk.
//
// It holds no decision of its own: which state follows which, and which host
// is chosen, is the planner's. Its tests run against the real planner, the real
// store and real sockets; only the agents are scripts.
package controller

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"pagurus/decide/planner"
	"pagurus/fleet"
	"pagurus/serve/identity"
	"pagurus/serve/wire"
)

// Store keeps the snapshot.
type Store interface {
	// Load reads it whole, without facts.
	Load(context.Context) (fleet.Snapshot, error)
	// Commit makes a change to revision from, whole or not at all, and says the
	// new revision. fleet.ErrConflict: the store is not at from. After any
	// other error nobody knows whether it was made.
	Commit(ctx context.Context, from int64, c fleet.Changeset) (int64, error)
	// Lead waits to be the only leader; the channel is closed when that is over.
	Lead(ctx context.Context, name string) (lost <-chan struct{}, err error)
}

// Images has the images that jobs may name.
type Images interface {
	Find(name string) (fleet.Image, error)
	List() ([]fleet.Image, error)
	// Folder holds the files of an image, if it is there.
	Folder(fleet.Digest) string
}

// Config is what a controller is made of.
type Config struct {
	Store     Store
	Images    Images
	Authority *identity.Authority // nil: nobody joins
	Planner   planner.Planner
	Spool     string // folder for the programs' input and output
	Reserve   int64  // bytes that those leave free on its disk: the store may be on the same
	Log       *slog.Logger
}

const (
	tickEvery = time.Second // watchers are told of facts alone no oftener than this
	// copiesEvery is how often they are told of facts while a guest is copied.
	copiesEvery = 200 * time.Millisecond
	tries       = 5   // of one event, when others keep changing the store
	queue       = 256 // of events; whoever has one more waits
)

// Controller is one cluster's brain and its memory. Run is the only goroutine
// that touches the fields below loop; all else asks it.
type Controller struct {
	Config
	spool   *spool
	events  chan func(context.Context)
	ready   chan struct{} // closed when it leads
	over    chan struct{} // closed when Run has returned
	current atomic.Pointer[fleet.Snapshot]

	watching struct {
		sync.Mutex
		by map[chan fleet.Snapshot]bool
	}
	asking struct {
		sync.Mutex
		last    uint64
		replies map[uint64]chan wire.Reply
	}

	// loop
	loop           *planner.Loop // nil until it leads
	hosts          map[fleet.HostID]*host
	heard          []fleet.Report // not committed yet: others are just coming, or the store failed
	failing        bool           // the store would not have them: each tick tries again
	told           time.Time      // when watchers were last told
	changed        bool           // facts have come since then
	trouble        string         // the store's last error, so that it is logged once
	stalls         stalls
	trafficQueries trafficQueries
}

// New makes a controller; it touches nothing yet.
func New(c Config) *Controller {
	out := &Controller{
		Config: c, spool: newSpool(c.Spool), events: make(chan func(context.Context), queue), ready: make(chan struct{}),
		over: make(chan struct{}), hosts: map[fleet.HostID]*host{},
	}
	out.spool.reserve = c.Reserve
	out.watching.by = map[chan fleet.Snapshot]bool{}
	out.stalls.tries, out.trafficQueries.asked = map[fleet.MigrationID]int{}, map[fleet.JobID]time.Duration{}
	out.asking.replies = map[uint64]chan wire.Reply{}
	return out
}

// Ready is closed when the controller leads and can be asked.
func (c *Controller) Ready() <-chan struct{} { return c.ready }

// Run waits to be the leader, then leads until ctx ends. An error means that
// it cannot lead, or no longer; a new Controller may try again.
func (c *Controller) Run(ctx context.Context) error {
	defer close(c.over)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	lost, err := c.Store.Lead(ctx, "controller")
	if err != nil {
		return fmt.Errorf("becoming the controller: %w", err)
	}
	snap, err := c.Store.Load(ctx)
	if err != nil {
		return fmt.Errorf("loading the cluster: %w", err)
	}
	snap.LedSince = now()
	if err := c.spool.open(snap.Jobs); err != nil {
		return err
	}
	c.loop = planner.NewLoop(&c.Planner, snap)
	c.publish()
	close(c.ready)
	c.Log.Info("leading", "cluster", snap.Cluster.ID, "revision", snap.Revision, "jobs", len(snap.Jobs))
	tick := time.NewTicker(tickEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-lost:
			if ctx.Err() != nil {
				return nil
			}
			return errors.New("another controller leads now")
		case do := <-c.events:
			do(ctx)
			for range len(c.events) { // what has come meanwhile
				(<-c.events)(ctx)
			}
			if !c.failing {
				c.hear(ctx)
			}
		case <-tick.C:
			c.tick(ctx)
		}
	}
}

// now is the time as it is stored: no location, no monotonic clock.
func now() time.Time { return time.Now().UTC().Round(0) }

// do has the loop do something, and waits for it.
func (c *Controller) do(ctx context.Context, what func(context.Context)) error {
	done := make(chan struct{})
	select {
	case c.events <- func(ctx context.Context) { defer close(done); what(ctx) }:
	case <-c.over:
		return errOver
	case <-ctx.Done():
		return ctx.Err()
	}
	select {
	case <-done:
		return nil
	case <-c.over:
		return errOver
	case <-ctx.Done():
		return ctx.Err()
	}
}

var errOver = errors.New("this controller no longer leads")

// tick is the passing of time: first what the store would not take, then what
// only time brings about, then what watchers have not been told.
func (c *Controller) tick(ctx context.Context) {
	if c.hear(ctx) {
		_, err := c.step(ctx, fleet.Tick{At: now()})
		c.noteStoreError(err)
	}
	c.measureStalls(ctx)
	c.measureTraffic(ctx)
	if c.changed {
		c.publish()
	}
}

// hear takes in what hosts have reported, in one change: of a gang many report at
// the same time, and a commit takes a while. false: the store would not have it.
func (c *Controller) hear(ctx context.Context) bool {
	if len(c.heard) == 0 {
		return true
	}
	_, err := c.handleEvent(ctx, fleet.Reports(c.heard))
	if c.failing = !c.noteStoreError(err); c.failing {
		return false
	}
	if err != nil { // at least one of them makes no sense
		return c.hearEach(ctx)
	}
	c.heard = nil
	return true
}

// hearEach is hear one by one. Those that make no sense are passed over.
func (c *Controller) hearEach(ctx context.Context) bool {
	for ; len(c.heard) > 0; c.heard = c.heard[1:] {
		_, err := c.handleEvent(ctx, c.heard[0])
		if c.failing = !c.noteStoreError(err); c.failing {
			return false
		}
		if err != nil {
			c.Log.Warn("passed over a report", "order", c.heard[0].Order, "cause", err)
		}
	}
	return true
}

// noteStoreError logs a failure of the store, once. It says whether err is none.
func (c *Controller) noteStoreError(err error) bool {
	failure := (*storeError)(nil)
	if !errors.As(err, &failure) {
		return true
	}
	if c.trouble != failure.Error() {
		c.trouble = failure.Error()
		c.Log.Error("the store takes no changes; jobs go on, nothing new is begun", "cause", failure)
	}
	return false
}

// storeError is an event that could not be committed. It may be tried again.
type storeError struct{ cause error }

func (e *storeError) Error() string { return e.cause.Error() }
func (e *storeError) Unwrap() error { return e.cause }

// step is one event, after what was heard before it.
func (c *Controller) step(ctx context.Context, ev fleet.Event) (fleet.Answer, error) {
	if !c.failing {
		c.hear(ctx)
	}
	return c.handleEvent(ctx, ev)
}

// handleEvent is one event: think, commit, tell. Nothing is told that was not
// committed. After an error nothing has changed, as far as anybody knows: if a
// commit did go through, the next one finds out by a conflict.
func (c *Controller) handleEvent(ctx context.Context, ev fleet.Event) (fleet.Answer, error) {
	for range tries {
		h := &hands{c: c, ctx: ctx}
		answer, err := c.think(ev, h)
		switch {
		case errors.Is(err, fleet.ErrConflict):
			if err := c.reload(ctx); err != nil {
				return fleet.Answer{}, &storeError{err}
			}
			continue
		case err == nil && h.committed:
			c.publish()
		}
		return answer, err
	}
	return fleet.Answer{}, &storeError{errors.New("another process keeps changing the store: check that no second controller runs")}
}

// think is one turn of the loop. A bug in the planner costs one event, not the
// controller.
func (c *Controller) think(ev fleet.Event, h *hands) (_ fleet.Answer, err error) {
	defer func() {
		if p := recover(); p != nil && !h.committed {
			c.Log.Error("the planner has a bug", "event", ev, "panic", p, "stack", string(debug.Stack()))
			err = fmt.Errorf("the controller has a bug, its log has the details: %v", p)
		} else if p != nil {
			panic(p)
		}
	}()
	return c.loop.HandleEvent(ev, now(), h)
}

// hands are those of the controller, for one event.
type hands struct {
	c         *Controller
	ctx       context.Context
	committed bool
}

// Commit puts the change into the store. Errors other than a conflict are a
// *storeError.
func (h *hands) Commit(from int64, change fleet.Changeset) (int64, error) {
	revision, err := h.c.Store.Commit(h.ctx, from, change)
	if err != nil && !errors.Is(err, fleet.ErrConflict) {
		return 0, &storeError{err}
	}
	return revision, err
}

// Committed brings in line with the change what is not in the store.
func (h *hands) Committed(change fleet.Changeset) {
	h.committed = true
	if h.c.trouble != "" {
		h.c.trouble = ""
		h.c.Log.Info("the store takes changes again")
	}
	h.c.committed(change)
	h.c.sendWanted()
}

// Send tells the hosts that are there.
func (h *hands) Send(orders []fleet.Order) { h.c.send(orders) }

// committed does what follows from a change outside of the snapshot.
func (c *Controller) committed(change fleet.Changeset) {
	for _, j := range change.Jobs {
		if j.State == fleet.JobEnded {
			c.spool.finish(j.ID)
		}
	}
	c.dismiss(change.GoneHosts)
	for _, id := range change.GoneJobs {
		if err := c.spool.forget(id); err != nil {
			c.Log.Warn("a forgotten job's output is left behind", "cause", err)
		}
	}
}

// reload takes what the store holds, and tells everybody everything again: a
// change may have been committed without our knowing.
func (c *Controller) reload(ctx context.Context) error {
	snap, err := c.Store.Load(ctx)
	if err != nil {
		return err
	}
	c.loop.Index.Reload(snap)
	c.sendWanted()
	for id := range c.hosts {
		c.sendPending(id)
	}
	c.publish()
	return nil
}

// whole is the snapshot with the facts in it, for reading at any time.
func (c *Controller) whole() fleet.Snapshot {
	c.loop.Index.At(now())
	return c.loop.Index.Share()
}

// snap is the same for reading until the next change.
func (c *Controller) snap() fleet.Snapshot { return c.loop.Index.Snapshot() }

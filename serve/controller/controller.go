// Package controller is the loop around planner.Step: take an event, think, commit, send
// orders to the hosts. It also keeps what is not stored: the agents' facts, and programs'
// output in a spool on disk.
//
// It makes no decision of its own: the planner chooses the next state and the hosts. Its
// tests run against the real planner, the real store and real sockets; only the agents are
// scripted.
package controller

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"

	"pagurus/decide/health"
	"pagurus/decide/planner"
	"pagurus/fleet"
	"pagurus/internal/fault"
	"pagurus/serve/identity"
	"pagurus/serve/wire"
)

// Store keeps the snapshot.
type Store interface {
	// Load reads the whole snapshot, without facts.
	Load(context.Context) (fleet.Snapshot, error)
	// Commit applies a change to revision from, completely or not at all, and returns the
	// new revision. fleet.ErrConflict: the store is not at from. After any other error the
	// change may have been made or not.
	Commit(ctx context.Context, from int64, c fleet.Changeset) (int64, error)
	// Lead waits to become the only leader. The channel is closed when leading ends.
	Lead(ctx context.Context, name string) (lost <-chan struct{}, err error)
}

// Images provides the images that jobs may name.
type Images interface {
	Find(name string) (fleet.Image, error)
	List() ([]fleet.Image, error)
	// Folder is the folder of an image's files, if the image is there.
	Folder(fleet.Digest) string
}

// Config configures a controller.
type Config struct {
	Store      Store
	Images     Images
	Authority  *identity.Authority // nil: no machine or user can join
	Planner    planner.Planner
	Spool      string           // folder for the programs' input and output
	Encryption fleet.Encryption // between hosts, from when no job is there; empty: as it was
	Reserve    int64            // bytes that those leave free on its disk: the store may be on the same
	Limits     fleet.OutputLimits

	ImageLimits fleet.ImageLimits // who builds images asks for them
	Changes     fleet.ChangeLimits

	Audit  wire.Audit // keeps what programs ask for; nil: nobody does
	Notify Notify
	Usages UsageStore // nil: what jobs use is not kept

	// These are of a controller among several; nil: it is the only one. Term is a higher number for each that
	// leads, Others are the other ones, SeekImage fetches an image from them: of a digest, or else a new one of a name.
	Term      func() int64
	Others    func() []Other
	SeekImage func(ctx context.Context, name string, digest fleet.Digest) error

	Alive func() // called by the main loop, first when it leads; may be nil
	Log   *slog.Logger
}

const (
	tickEvery   = time.Second            // the shortest interval between watchers' updates for facts alone
	copiesEvery = 200 * time.Millisecond // that interval while a guest is copied
	tries       = 5                      // of one event, while others keep changing the store
)

// Controller is one cluster's controller. Only Run's goroutine touches the fields from loop
// on; all others ask it through do.
type Controller struct {
	Config
	spool   *spool
	stash   *stash
	held    []heldBy // what others kept when this one began to lead
	turns   inTurn   // what others have the loop do
	changes *changes
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
		replies map[uint64]question
	}

	loop           *planner.Loop // nil until it leads
	hosts          map[fleet.HostID]*host
	rekeyed        rekeyed
	heard          []fleet.Report // not yet committed: more are coming, or the store failed
	failing        bool           // the store refused heard: each tick tries again
	unsure         bool           // the store may have made a change that it did not answer for
	read           time.Time      // when the store was last read again for that
	told           time.Time      // when watchers were last updated
	toldOf         fleet.Cluster  // as hosts were last told of it
	turned         time.Duration  // when the loop last turned, by bootTime
	offset         time.Duration  // of the clock from bootTime, when it was last noticed to have changed
	wentOnAt       time.Duration  // when the controller last went on after it was suspended, by bootTime; 0: it never was
	changed        bool           // facts have come since then
	stale          bool           // a host left that others may have needed to reach each other
	trouble        string         // the store's last error, so that it is logged once
	stalls         stalls
	trafficQueries trafficQueries
	accounts       accounts
	notifying      notifying
	meter          *meter
	wishes         wishes
	wishRefusals   *rate.Limiter // of what the audit keeps
	remarks        health.Book   // of programs, on their hosts
	parts          parts         // of checkpoints, on their way from and to users
}

// New makes a controller and starts nothing.
func New(c Config) *Controller {
	out := &Controller{
		Config: c, spool: newSpool(c.Spool), turns: inTurn{woken: make(chan struct{}, 1)}, changes: newChanges(c.Changes), ready: make(chan struct{}),
		over: make(chan struct{}), hosts: map[fleet.HostID]*host{}, remarks: health.Book{}, wishRefusals: rate.NewLimiter(refusedASecond, refusedASecond), rekeyed: rekeyed{}, meter: newMeter(),
	}
	out.stash = &stash{dir: c.Spool, reserve: c.Reserve}
	if c.Others != nil {
		out.spool.copies = &copies{term: c.Term, others: c.Others, log: c.Log, at: map[*stream]map[string]*copied{}, full: map[string]string{}}
	}
	if out.Alive == nil {
		out.Alive = func() {}
	}
	out.spool.room.reserve, out.spool.room.limits = c.Reserve, c.Limits
	out.watching.by = map[chan fleet.Snapshot]bool{}
	out.stalls.tries, out.trafficQueries.asked = map[fleet.MigrationID]int{}, map[fleet.JobID]time.Duration{}
	out.asking.replies = map[uint64]question{}
	out.parts = parts{hands: map[string]*hand{}, by: map[uint32]int{}, one: make(chan struct{}, 1)}
	return out
}

// Ready is closed when the controller leads and answers requests.
func (c *Controller) Ready() <-chan struct{} { return c.ready }

// Run waits to be the leader, then leads until ctx ends. An error means that it cannot lead,
// or no longer; a new Controller may try again.
func (c *Controller) Run(ctx context.Context) error {
	defer close(c.over)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	lost, err := c.Store.Lead(ctx, Election)
	if err != nil {
		return fmt.Errorf("becoming the controller: %w", err)
	}
	snap, err := c.Store.Load(ctx)
	if err != nil {
		return fmt.Errorf("loading the cluster: %w", err)
	}
	snap.LedSince = now()
	if err := c.gatherWhile(ctx, lost, snap.Jobs); err != nil {
		return err
	}
	if err := c.spool.open(snap.Jobs); err != nil {
		return err
	}
	c.noteCuts(slices.Collect(maps.Values(snap.Checkpoints)))
	if err := c.openAccounts(ctx); err != nil {
		return err
	}
	c.loop = planner.NewLoop(&c.Planner, snap)
	defer c.closeAccounts()
	if c.Others != nil {
		c.countCopies()
	}
	c.encrypt(ctx)
	c.publish()
	var telling sync.WaitGroup
	defer telling.Wait()
	lasting, stopTelling := context.WithCancel(ctx)
	defer stopTelling()
	c.notify(lasting, &telling)
	c.meter.leads.Set(1)
	defer c.meter.leads.Set(0)
	close(c.ready)
	if c.Others != nil {
		go c.tend(ctx)
	}
	c.Log.Info("leading", "cluster", snap.Cluster.ID, "revision", snap.Revision, "jobs", len(snap.Jobs))
	tick := time.NewTicker(tickEvery)
	defer tick.Stop()
	for {
		c.Alive()
		select {
		case <-ctx.Done():
			return nil
		case <-lost:
			if ctx.Err() != nil {
				return nil
			}
			return ErrLost
		case <-c.turns.woken:
			c.takeTurns(ctx)
		case <-tick.C:
			c.awake()
			c.tick(ctx)
		}
	}
}

// longestTurn is longer than any of the work of one turn of the loop. After more the process was
// stopped, its machine suspended, or its store or disk hung.
const longestTurn = 5 * time.Second

// clockStep is by how much the clock may be set before hosts get time to be heard again. A clock
// that is adjusted slowly takes hours for it.
const clockStep = 2 * time.Second

// awake notices that the controller was suspended, or its clock set. Hosts could not be heard in
// between, or were heard at other times than they seem to have been, so their silence, and the time
// that they have to answer, count from now on. Time goes on while a machine is suspended.
func (c *Controller) awake() {
	at, up := now(), bootTime()
	pause, offset := up-c.turned, time.Duration(at.UnixNano())-up
	switch {
	case c.turned == 0:
		c.offset = offset
	case pause > longestTurn:
		c.Log.Warn("the controller was suspended; hosts have time to be heard again", "for", pause.Round(time.Second))
		c.wentOnAt, c.offset = up, offset
		c.loop.Index.Led(at)
	case (offset - c.offset).Abs() > clockStep:
		c.Log.Warn("the controller's clock was set; hosts have time to be heard again", "by", (offset - c.offset).Round(time.Second))
		c.offset = offset
		c.loop.Index.Led(at)
	}
	c.turned = up
}

// now is the time as stored: no location, no monotonic clock. Tests set it in one controller of a machine.
func now() time.Time { return time.Now().UTC().Round(0).Add(fault.Ahead("controller.clock")) }

// ErrLost is Run's error when another controller leads.
var ErrLost = errors.New("another controller leads now")

var errOver = errors.New("this controller no longer leads")

// tick handles reports that the store refused before, then the passing of time, and then
// updates watchers.
func (c *Controller) tick(ctx context.Context) {
	c.reread(ctx)
	if c.hear(ctx) {
		_, err := c.step(ctx, fleet.Tick{At: now()})
		c.noteStoreError(err)
		c.encrypt(ctx)
	}
	c.makeRoom(ctx)
	c.changed = c.changed || !maps.Equal(c.current.Load().Crowded, c.spool.room.crowded(now()))
	if c.stale {
		c.stale = false
		c.sendWanted()
	}
	c.measureStalls(ctx)
	c.measureTraffic(ctx)
	c.keepUsage(ctx)
	c.offerNotices(ctx)
	if c.changed {
		c.publish()
	}
}

// rereadEvery is how soon again the store is read as a whole, which takes a large cluster's a second.
const rereadEvery = 10 * time.Second

// reread reads the store again when it may have made a change that it did not answer for. The next
// commit would find out by a conflict, but in a quiet cluster that may be long after.
func (c *Controller) reread(ctx context.Context) {
	if !c.unsure || time.Since(c.read) < rereadEvery {
		return
	}
	c.read = time.Now()
	if c.noteStoreError(c.reload(ctx)) {
		c.Log.Info("read the store again, since it did not answer for a change")
	}
}

// encrypt has the cluster protect its traffic as configured, as soon as it can.
func (c *Controller) encrypt(ctx context.Context) {
	was := c.snap().Cluster.Encryption
	if c.Encryption == "" || c.Encryption == was {
		return
	}
	_, err := c.step(ctx, fleet.Observation{At: now(), Encryption: c.Encryption})
	c.noteStoreError(err)
	if is := c.snap().Cluster.Encryption; is != was {
		c.Log.Info("traffic between hosts is protected as configured", "encryption", is, "was", cmp.Or(was, fleet.NoEncryption))
	}
}

// hear commits the hosts' reports in one change: a gang's hosts report at the same time, and
// a commit takes a while. false: the store failed.
func (c *Controller) hear(ctx context.Context) bool {
	if len(c.heard) == 0 {
		return true
	}
	_, err := c.handleEvent(ctx, fleet.Reports(c.heard))
	if c.failing = !c.noteStoreError(err); c.failing {
		return false
	}
	if err != nil { // at least one of them is invalid
		return c.hearEach(ctx)
	}
	c.heard = nil
	return true
}

// hearEach commits reports one by one and skips invalid ones.
func (c *Controller) hearEach(ctx context.Context) bool {
	for ; len(c.heard) > 0; c.heard = c.heard[1:] {
		_, err := c.handleEvent(ctx, c.heard[0])
		if c.failing = !c.noteStoreError(err); c.failing {
			return false
		}
		if err != nil {
			c.Log.Warn("ignored a report", "order", c.heard[0].Order, "cause", err)
		}
	}
	return true
}

// noteStoreError logs a failure of the store, once. It returns true if err is not one.
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

// storeError: an event could not be committed. It may be tried again.
type storeError struct{ cause error }

func (e *storeError) Error() string { return e.cause.Error() }
func (e *storeError) Unwrap() error { return e.cause }

// step handles one event, after the reports before it.
func (c *Controller) step(ctx context.Context, ev fleet.Event) (fleet.Answer, error) {
	if !c.failing {
		c.hear(ctx)
	}
	return c.handleEvent(ctx, ev)
}

// handleEvent handles one event: think, commit, send. Only committed changes are sent. After
// an error nothing has changed, as far as known: if the commit did go through, the next one
// gets a conflict.
func (c *Controller) handleEvent(ctx context.Context, ev fleet.Event) (fleet.Answer, error) {
	for range tries {
		h := &hands{c: c, ctx: ctx}
		answer, err := c.think(ev, h)
		switch {
		case errors.Is(err, fleet.ErrConflict):
			if err := c.reload(ctx); err != nil {
				return fleet.Answer{}, err
			}
			continue
		case err == nil && h.committed:
			c.publish()
		}
		return answer, err
	}
	return fleet.Answer{}, &storeError{errors.New("another process keeps changing the store: check that no second controller runs")}
}

// think is one turn of the loop. A bug in the planner costs one event, not the controller.
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

// hands are the planner loop's access to store and hosts, for one event.
type hands struct {
	c         *Controller
	ctx       context.Context
	committed bool
}

// Commit puts the change into the store. Errors other than a conflict are a *storeError.
func (h *hands) Commit(from int64, change fleet.Changeset) (int64, error) {
	begun := time.Now()
	revision, err := h.c.Store.Commit(h.ctx, from, change)
	h.c.meter.commits.Observe(time.Since(begun).Seconds())
	if err != nil && !errors.Is(err, fleet.ErrConflict) {
		h.c.unsure = true
		h.c.meter.refused.Inc()
		return 0, &storeError{err}
	}
	return revision, err
}

// Committed updates everything outside the store after a change.
func (h *hands) Committed(change fleet.Changeset) {
	h.committed, h.c.unsure = true, false
	if h.c.trouble != "" {
		h.c.trouble = ""
		h.c.Log.Info("the store takes changes again")
	}
	h.c.committed(change)
	h.c.touched(change)
	h.c.sendWanted()
}

// Send sends orders to connected hosts.
func (h *hands) Send(orders []fleet.Order) { h.c.send(orders) }

// reload takes the store's content and sends every host everything again: a change may have
// been committed unnoticed.
func (c *Controller) reload(ctx context.Context) error {
	snap, err := c.Store.Load(ctx)
	if err != nil {
		return &storeError{err}
	}
	c.unsure = false
	c.loop.Index.Reload(snap)
	if err := c.spool.followJobs(snap.Jobs); err != nil {
		c.Log.Warn("a forgotten job's output is left behind", "cause", err)
	}
	c.noteCuts(slices.Collect(maps.Values(snap.Checkpoints)))
	c.touchAll()
	c.sendWanted()
	for id := range c.hosts {
		c.sendPending(id)
	}
	c.publish()
	return nil
}

// whole is the snapshot with the facts. It may be read at any time.
func (c *Controller) whole() fleet.Snapshot {
	at := now()
	c.loop.Index.At(at)
	s := c.loop.Index.Share()
	s.Crowded = c.spool.room.crowded(at)
	return s
}

// snap is the same, valid until the next change.
func (c *Controller) snap() fleet.Snapshot { return c.loop.Index.Snapshot() }

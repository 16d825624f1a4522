// Package agent carries out orders on one host. It dials the controller, makes the host's
// networks and file shares, passes orders to drivers and answers with reports. It owns the
// interfaces of the drivers. It does not know phases, policies or how a driver works.
//
// An agent may be killed at any moment. Guests go on, and the next agent finds everything
// again through the drivers and its order journal. Tests run against an in-memory driver for
// the agent's own bookkeeping, and against the real QEMU driver with a real guest.
package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"pagurus/decide/timeslice"
	"pagurus/fleet"
	"pagurus/internal/pause"
	"pagurus/serve/monitor"
	"pagurus/serve/wire"
)

// Controller is the agent's connection to the controller. Remote makes one of wire's client.
type Controller interface {
	// Attach opens the session of this host. A later one ends an earlier one.
	Attach(context.Context, wire.Hello) (Session, error)
	// ReadStream gives the bytes of a job's stream from an offset, and waits some time for
	// new ones. ended: nothing follows data.
	ReadStream(ctx context.Context, at wire.Place) (data []byte, ended bool, err error)
	// WriteStream adds to a job's stream and returns the next offset. eof: nothing follows
	// data.
	WriteStream(ctx context.Context, at wire.Place, data []byte, eof bool) (next int64, err error)
	// Handed gets what a query about a part of a checkpoint puts.
	Handed(ctx context.Context, id string) ([]byte, error)
	// Hand gives what such a query asks for.
	Hand(ctx context.Context, id string, data []byte) error
	// Unknown says which checkpoints the cluster does not know.
	Unknown(context.Context, []fleet.CheckpointID) (fleet.VaultAnswer, error)
}

// Session is one connection. Send and Receive may run concurrently.
type Session interface {
	Send(context.Context, wire.Up) error
	Receive(context.Context) (wire.Down, error)
	io.Closer
}

// Remote makes a Controller of a client.
func Remote(c *wire.Client) Controller { return remote{c} }

type remote struct{ *wire.Client }

func (r remote) Attach(ctx context.Context, h wire.Hello) (Session, error) {
	s, err := r.Client.Attach(ctx, h)
	if err != nil {
		return nil, err // not s, which would be a non-nil interface
	}
	return s, nil
}

// Config configures an agent.
type Config struct {
	Host        fleet.HostID
	Run         string // folder for files that outlive the agent, but not a reboot
	Drivers     map[fleet.Kind]Driver
	GuestAgent  func(fleet.GuestID, Linker) GuestAgent // if it is also an io.Closer, it is closed when the guest leaves
	Encryption  Encryption                             // nil: this host cannot encrypt
	Overlay     Overlay
	Shares      Shares
	Gateways    Gateways // nil: this host leads no job to the Internet
	Clients     Clients  // nil: no guest needs any
	Images      Images
	Vaults      Vaults
	Owner       *monitor.Monitor // nil: the host has no owner
	OwnerSocket OwnerSocket
	Lease       Lease            // nil: none, and guests run on whatever happens
	Classes     Classes          // nil: no service classes
	Slicer      Slicer           // nil: every guest has the scheduler's own time slice
	Slices      timeslice.Policy // for Slicer
	Isolation   *Isolation       // nil: no isolated CPUs
	Health      *monitor.Health  // nil: nobody looks for signs of failing
	Notices     *monitor.Notices // nil: nobody looks for notices that the host goes away
	Controller  Controller
	Facts       func() fleet.Facts                   // facts that the agent does not change: version, machine, address, capacity, abilities
	Drops       func(fleet.Limits, fleet.Cache) bool // whether a guest drops its page cache before its copy; nil: never
	Scratch     fleet.ScratchLimits                  // of guests' own files on this host
	Limit       float64                              // CPUs that all guests together may use, told to the controller; 0 is no limit
	Alive       func()                               // called by the main loop, first when it begins to dial; may be nil
	Log         *slog.Logger
}

// Agent is one host's daemon.
type Agent struct {
	Config
	journal journal
	ctx     context.Context // of Run: everything the agent starts ends with it

	applying  sync.Mutex // held while the host is made to match wanted
	allotting sync.Mutex // held while guests' own files are bounded
	slicing   sync.Mutex // held while guests get time slices
	fares     timeslice.Tracker

	mu          sync.Mutex
	slots       map[fleet.GuestID]*guestSlot
	outbox      []fleet.Report // not yet sent, oldest first
	news        chan struct{}  // capacity 1: outbox is not empty
	wanted      *fleet.Wanted  // the last one accepted
	joined      *fleet.Wanted  // the one that the networks match
	served      *fleet.Wanted  // the one that the shares match
	serving     bool           // shares are being changed
	present     map[fleet.GuestID]presence
	sliced      map[fleet.GuestID]timeslice.Given // what guests have got
	layouts     Layouts
	cleared     int         // staging folders
	vaultNotes  vaultNotes  // about the vault; it has a lock of its own
	vaultShares vaultShares // likewise
	clones      keptClones  // likewise
	profiles    profiles
	urgent      bool // what guests' programs said is to be told soon
	examined    map[fleet.GuestID]examination
	examining   bool
	troubles    map[string]string      // by subject
	noted       map[fleet.GuestID]bool // of present, at the last look; whether the guest is more than on its way
	runs        sync.WaitGroup
	attached    atomic.Bool // a controller talks to it
}

// Told are the facts that the agent tells now, and whether a controller hears them.
func (a *Agent) Told() (f fleet.Facts, heard bool) { return a.facts(), a.attached.Load() }

// presence is a driver's last report on one guest.
type presence struct {
	kind  fleet.Kind
	facts fleet.GuestFacts
}

// The agent's intervals and time limits.
const (
	firstPause  = 50 * time.Millisecond // between two dials; doubled up to lastPause
	lastPause   = time.Second           // a restarted controller is found within this
	attachLimit = 10 * time.Second
	sendLimit   = 10 * time.Second // the controller always reads, so a slower message means a dead connection
	traceLimit  = 10 * time.Second
	factsEvery  = time.Second
	copiesEvery = 200 * time.Millisecond // facts during a copy, for progress bars
)

// New makes an agent and changes nothing on the host.
func New(c Config) *Agent {
	a := &Agent{
		Config: c, journal: journal{Dir: filepath.Join(c.Run, "ledger")},
		slots: map[fleet.GuestID]*guestSlot{}, news: make(chan struct{}, 1),
		present: map[fleet.GuestID]presence{}, troubles: map[string]string{}, profiles: newProfiles(), examined: map[fleet.GuestID]examination{},
	}
	if a.Alive == nil {
		a.Alive = func() {}
	}
	c.Owner.Leaving(a.sending)
	return a
}

// Run serves the controller until ctx ends. It returns when everything it started has ended;
// guests and their programs go on.
func (a *Agent) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	a.ctx = ctx
	a.askDrivers(ctx)
	a.findStaged()
	a.runs.Go(func() { a.serveVault(ctx) })
	a.runs.Go(func() { a.askAboutVault(ctx) })
	a.runs.Go(func() { a.watch(ctx) })
	a.runs.Go(func() { a.boundScratch(ctx) })
	a.runs.Go(func() { a.adaptSlices(ctx) })
	a.runs.Go(func() { a.Owner.Run(ctx) })
	a.runs.Go(func() { a.serveOwner(ctx) })
	a.runs.Go(func() { a.Isolation.Run(ctx) })
	a.runs.Go(func() { a.Health.Run(ctx) })
	a.runs.Go(func() { a.Notices.Run(ctx, a.Empty) })
	again, last := firstPause, ""
	for ctx.Err() == nil {
		a.Alive()
		attached, err := a.session(ctx)
		if attached {
			again = firstPause
		}
		if err != nil && ctx.Err() == nil && err.Error() != last {
			last = err.Error() // log a long absence once, not at every try
			a.Log.Warn("no controller; guests go on, trying again", "cause", err)
		}
		if attached {
			last = ""
		}
		_ = pause.For(ctx, again)
		again = min(2*again, lastPause)
	}
	cancel()
	a.runs.Wait()
	return nil
}

// session is one connection's life. attached: the controller accepted it.
func (a *Agent) session(ctx context.Context) (attached bool, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	cluster, err := a.cluster()
	if err != nil {
		return false, err
	}
	dialing, stop := context.WithTimeout(ctx, attachLimit)
	s, err := a.Controller.Attach(dialing, wire.Hello{Host: a.Host, Cluster: cluster, Facts: a.facts()})
	stop()
	if err != nil {
		return false, fmt.Errorf("calling the controller: %w", err)
	}
	ended := make(chan error, 2)
	go func() { ended <- a.speak(ctx, s) }()
	go func() { ended <- a.listen(ctx, s) }()
	err = <-ended
	a.attached.Store(false)
	cancel()
	_ = s.Close() // the session is over in any case
	<-ended
	return !errors.Is(err, errOtherCluster), err
}

// speak sends facts periodically and reports at once.
func (a *Agent) speak(ctx context.Context, s Session) error {
	send := func(up wire.Up) error {
		ctx, cancel := context.WithTimeout(ctx, sendLimit)
		defer cancel()
		return s.Send(ctx, up)
	}
	tick := time.NewTicker(copiesEvery)
	defer tick.Stop()
	told := time.Now()
	tell := func() error {
		f := a.facts()
		if err := send(wire.Up{Facts: &f}); err != nil {
			return fmt.Errorf("sending facts: %w", err)
		}
		return nil
	}
	for {
		a.Alive()
		for r, ok := a.nextReport(); ok; r, ok = a.nextReport() {
			if err := send(wire.Up{Report: &r}); err != nil {
				a.unsent(r)
				return fmt.Errorf("sending a report: %w", err)
			}
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-a.news:
		case now := <-tick.C:
			if now.Sub(told) < factsEvery && !a.copying() && !a.hasNews() {
				continue
			}
			told = now
			if err := tell(); err != nil {
				return err
			}
		case <-a.Owner.News():
			if err := tell(); err != nil {
				return err
			}
		case <-a.Notices.News():
			if err := tell(); err != nil {
				return err
			}
		}
	}
}

// listen handles the controller's messages in order. Messages before the session's first
// Wanted are ignored: it proves that this is the host's controller.
func (a *Agent) listen(ctx context.Context, s Session) error {
	ours := false
	for {
		down, err := s.Receive(ctx)
		if err != nil {
			return fmt.Errorf("listening to the controller: %w", err)
		}
		switch {
		case down.Wanted != nil:
			if err := a.want(*down.Wanted, !ours); err != nil {
				return err
			}
			if !ours {
				ours = true
				a.attached.Store(ours)
				a.Log.Info("attached to the controller")
			}
		case !ours:
			a.Log.Warn("ignored a message before the first Wanted")
		case down.Task != nil:
			a.acceptTask(*down.Task)
		case down.Lease != nil && a.Lease != nil:
			a.trouble("keeping the host's lease", a.Lease.Renew(*down.Lease))
		case down.Answers != nil:
			to := *down.Answers
			go a.answerPrograms(ctx, to)
		case down.Query != nil:
			q := *down.Query
			go a.answer(ctx, s, q)
		}
	}
}

// answer answers one query of the controller.
func (a *Agent) answer(ctx context.Context, s Session, q wire.Query) {
	limit := traceLimit
	if q.Part != nil {
		limit = partLimit
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	reply := wire.Reply{ID: q.ID}
	var err error
	switch {
	case q.Profile != "":
		reply.Profile, err = a.asked(ctx, q.Profile)
	case q.Part != nil:
		err = a.part(ctx, *q.Part, q.Handed)
	case q.Signal != nil:
		err = a.signal(ctx, q)
	case q.Trace == "":
		err = fmt.Errorf("the agent of %s does not know this question, so it is older than the controller: upgrade the agent", a.Host)
	default:
		reply.Traces, err = a.trace(ctx, q)
	}
	if err != nil {
		reply.Error = plain(err.Error())
	}
	// If the reply cannot be sent, the client asks again.
	if err := s.Send(ctx, wire.Up{Reply: &reply}); errors.Is(err, wire.ErrTooLong) {
		_ = s.Send(ctx, wire.Up{Reply: &wire.Reply{ID: q.ID, Error: err.Error()}})
	}
}

func (a *Agent) trace(ctx context.Context, q wire.Query) (traces []fleet.Trace, err error) {
	g := q.Trace
	defer func() {
		if p := recover(); p != nil {
			a.Log.Error("panic while asking for traces", "guest", g, "panic", p)
			err = fmt.Errorf("asking guest %s for its traces: %v", g, p)
		}
	}()
	in, err := a.reach(g)
	if err != nil {
		return nil, err
	}
	return in.Trace(ctx, q.About)
}

// reach gives the guest agent of a guest on this host.
func (a *Agent) reach(g fleet.GuestID) (GuestAgent, error) {
	a.mu.Lock()
	p, here := a.present[g]
	a.mu.Unlock()
	l, links := a.Drivers[p.kind].(Linker)
	if !here || !links {
		return nil, fmt.Errorf("guest %s: %w", g, ErrAbsent)
	}
	s, err := a.slotOf(g)
	if err != nil {
		return nil, err
	}
	return a.guestAgentOf(s, l), nil
}

// signal sends a signal to a job's ranks.
func (a *Agent) signal(ctx context.Context, q wire.Query) error {
	in, err := a.reach(q.To)
	if err != nil {
		return err
	}
	return in.Signal(ctx, string(q.Program), *q.Signal)
}

// post queues a report for the current or next session. It replaces an older report of the
// same verb, guest and checkpoint, for which the controller no longer waits.
func (a *Agent) post(r fleet.Report) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.postLocked(r)
}

func (a *Agent) postLocked(r fleet.Report) {
	a.outbox = slices.DeleteFunc(a.outbox, func(old fleet.Report) bool { return sameSubject(old, r) })
	a.outbox = append(a.outbox, r)
	select {
	case a.news <- struct{}{}:
	default:
	}
}

func sameSubject(a, b fleet.Report) bool {
	return a.Order.Verb == b.Order.Verb && a.Order.Guest == b.Order.Guest && a.Order.Job == b.Order.Job && a.Order.Checkpoint == b.Order.Checkpoint
}

// nextReport takes the oldest report. If it gets lost, the controller asks again and the
// order journal answers.
func (a *Agent) nextReport() (r fleet.Report, ok bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.outbox) == 0 {
		return r, false
	}
	r, a.outbox = a.outbox[0], a.outbox[1:]
	return r, true
}

// unsent puts a report back for the next session, unless there is a newer one.
func (a *Agent) unsent(r fleet.Report) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !slices.ContainsFunc(a.outbox, func(newer fleet.Report) bool { return sameSubject(newer, r) }) {
		a.outbox = append([]fleet.Report{r}, a.outbox...)
	}
}

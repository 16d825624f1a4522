// Package agent carries out orders on one host. It dials the controller, makes
// the host's networks and shares what is wanted, hands orders to the drivers
// and answers with reports. It owns the interfaces of the drivers it uses; it
// knows neither phases nor policies, and not how any driver works.
//
// An agent may be killed at any moment: guests go on, and the next one finds
// everything again through the drivers and its order journal. Its tests run against a
// driver that keeps its guests in memory, for the agent's own bookkeeping, and
// against the real QEMU driver with a real guest.
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
	"time"

	"pagurus/fleet"
	"pagurus/internal/pause"
	"pagurus/serve/monitor"
	"pagurus/serve/wire"
)

// Controller is the agent's way to the controller; Remote makes one of
// wire's client.
type Controller interface {
	// Attach opens the session of this host. A later one ends an earlier one.
	Attach(context.Context, wire.Hello) (Session, error)
	// ReadStream gives what there is of a job's stream from a place on, waiting
	// some time for it. ended: nothing will follow what was given.
	ReadStream(ctx context.Context, at wire.Place) (data []byte, ended bool, err error)
	// WriteStream adds to a job's stream and says where to go on. eof: nothing
	// follows data.
	WriteStream(ctx context.Context, at wire.Place, data []byte, eof bool) (next int64, err error)
}

// Session is one connection. Send and Receive may be called side by side.
type Session interface {
	Send(context.Context, wire.Up) error
	Receive(context.Context) (wire.Down, error)
	io.Closer
}

// Remote is the controller that a client talks to.
func Remote(c *wire.Client) Controller { return remote{c} }

type remote struct{ *wire.Client }

func (r remote) Attach(ctx context.Context, h wire.Hello) (Session, error) {
	s, err := r.Client.Attach(ctx, h)
	if err != nil {
		return nil, err // not s, which would be an interface that is not nil
	}
	return s, nil
}

// Config is what an agent is made of.
type Config struct {
	Host       fleet.HostID
	Run        string // folder for what must outlive the agent, not the machine
	Drivers    map[fleet.Kind]Driver
	GuestAgent func(fleet.GuestID, Linker) GuestAgent // if it is an io.Closer too, it is closed when the guest leaves
	Overlay    Overlay
	Shares     Shares
	Images     Images
	Owner      *monitor.Monitor // nil: the host is nobody's but ours
	Classes    Classes          // nil: guests get what they take
	Isolation  *Isolation       // nil: no CPUs are for guests alone
	Controller Controller
	Facts      func() fleet.Facts                   // what does not change by what the agent does: version, machine, address, capacity, abilities
	Drops      func(fleet.Limits, fleet.Cache) bool // whether a guest drops its page cache before it is copied; nil: none does
	Limit      float64                              // CPUs all guests together may use, told to the controller; 0 is none
	Log        *slog.Logger
}

// Agent is one host's daemon.
type Agent struct {
	Config
	journal journal
	ctx     context.Context // of Run: everything begun ends with it

	applying sync.Mutex // held while the host is made to match what is wanted

	mu        sync.Mutex
	slots     map[fleet.GuestID]*guestSlot
	outbox    []fleet.Report // not sent yet, oldest first
	news      chan struct{}  // capacity 1: outbox is not empty
	wanted    *fleet.Wanted  // the last accepted
	joined    *fleet.Wanted  // the one that the networks match
	served    *fleet.Wanted  // the one that the shares match
	serving   bool           // shares are being made to match
	present   map[fleet.GuestID]presence
	layouts   Layouts
	profiles  profiles
	examined  map[fleet.GuestID]examination
	examining bool
	troubles  map[string]string // by what is in trouble
	runs      sync.WaitGroup
}

// presence is what a driver last said of one guest.
type presence struct {
	kind  fleet.Kind
	facts fleet.GuestFacts
}

// How long the agent waits for what.
const (
	firstPause  = 50 * time.Millisecond // between two dials; doubled up to lastPause
	lastPause   = time.Second           // a controller that comes back is found within this
	attachLimit = 10 * time.Second
	sendLimit   = 10 * time.Second // the controller reads always; a message that takes longer means a dead connection
	traceLimit  = 10 * time.Second
	factsEvery  = time.Second
	copiesEvery = 200 * time.Millisecond // facts while a copy runs, for progress bars
)

// New makes an agent; it touches nothing yet.
func New(c Config) *Agent {
	a := &Agent{
		Config: c, journal: journal{Dir: filepath.Join(c.Run, "ledger")},
		slots: map[fleet.GuestID]*guestSlot{}, news: make(chan struct{}, 1),
		present: map[fleet.GuestID]presence{}, troubles: map[string]string{}, profiles: newProfiles(), examined: map[fleet.GuestID]examination{},
	}
	c.Owner.Leaving(a.sending)
	return a
}

// Run does what the controller says until ctx ends. Guests and what runs in
// them go on then. It returns when nothing it began is under way any more.
func (a *Agent) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	a.ctx = ctx
	a.askDrivers(ctx)
	a.runs.Go(func() { a.watch(ctx) })
	a.runs.Go(func() { a.Owner.Run(ctx) })
	a.runs.Go(func() { a.Isolation.Run(ctx) })
	again, last := firstPause, ""
	for ctx.Err() == nil {
		attached, err := a.session(ctx)
		if attached {
			again = firstPause
		}
		if err != nil && ctx.Err() == nil && err.Error() != last {
			last = err.Error() // a controller that is away for an hour is one line, not thousands
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

// session is one connection's life. attached tells whether there ever was one.
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
	cancel()
	_ = s.Close() // whatever it says, the session is over
	<-ended
	return !errors.Is(err, errOtherCluster), err
}

// speak sends facts as they change and reports as they come.
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
			if now.Sub(told) < factsEvery && !a.copying() {
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
		}
	}
}

// listen takes what the controller says, in order. Nothing counts before the
// session's first Wanted, which proves that this is our controller.
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
				a.Log.Info("attached to the controller")
			}
		case !ours:
			a.Log.Warn("passed over a message that came before what is wanted here")
		case down.Task != nil:
			a.acceptTask(*down.Task)
		case down.Query != nil:
			q := *down.Query
			go a.answer(ctx, s, q)
		}
	}
}

// answer answers a question of the controller.
func (a *Agent) answer(ctx context.Context, s Session, q wire.Query) {
	ctx, cancel := context.WithTimeout(ctx, traceLimit)
	defer cancel()
	reply := wire.Reply{ID: q.ID}
	var err error
	switch {
	case q.Profile != "":
		reply.Profile, err = a.asked(ctx, q.Profile)
	case q.Signal != nil:
		err = a.signal(ctx, q)
	default:
		reply.Traces, err = a.trace(ctx, q)
	}
	if err != nil {
		reply.Error = err.Error()
	}
	// A reply that cannot be sent is asked for again by whoever still waits.
	_ = s.Send(ctx, wire.Up{Reply: &reply})
}

func (a *Agent) trace(ctx context.Context, q wire.Query) (traces []fleet.Trace, err error) {
	g := q.Trace
	defer func() {
		if p := recover(); p != nil {
			a.Log.Error("panic while asking for traces", "guest", g, "panic", p)
			err = fmt.Errorf("asking guest %s what its ranks do: %v", g, p)
		}
	}()
	in, err := a.reach(g)
	if err != nil {
		return nil, err
	}
	return in.Trace(ctx, q.About)
}

// reach gives the guest agent of a guest that is here.
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

// signal passes a signal on to a job's ranks.
func (a *Agent) signal(ctx context.Context, q wire.Query) error {
	in, err := a.reach(q.To)
	if err != nil {
		return err
	}
	return in.Signal(ctx, string(q.Program), *q.Signal)
}

// post puts a report where the current session, or the next, finds it. A
// report replaces an older one of the same verb and guest: nobody waits for
// the older any more.
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
	return a.Order.Verb == b.Order.Verb && a.Order.Guest == b.Order.Guest && a.Order.Job == b.Order.Job
}

// nextReport takes the oldest report out. Should it be lost on the way, the
// controller asks again and the order journal answers.
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

package agent

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"pagurus/fleet"
	"pagurus/internal/pause"
	"pagurus/serve/wire"
)

// The agent's own bookkeeping is tested against this: guests are rows in a map, which
// outlive an agent, and the controller's sessions are channels. It shows nothing about
// migration.

// memoryDriver keeps its guests in memory.
type memoryDriver struct {
	mu        sync.Mutex
	guests    map[fleet.GuestID]*memoryGuest
	cache     int64                                        // of every guest: clean page cache in bytes
	words     string                                       // of every guest: last words
	remains   *fleet.Remains                               // of every guest
	obstacles []string                                     // of every guest
	layout    *fleet.Layout                                // of every guest
	folder    string                                       // of the last Arm
	calls     []string                                     // "start j1g0", in order
	hook      func(ctx context.Context, call string) error // runs at the beginning of each call but Inspect
}

// memoryGuest is a guest with its one program.
type memoryGuest struct {
	run      fleet.RunState
	ended    chan struct{}
	mu       sync.Mutex
	changed  chan struct{}
	launched int
	out      map[string]*memoryStream
	stdin    []byte
	stdinEOF bool
	exit     *fleet.Exit
	setups   []fleet.Setup
}

// memoryStream is an output stream that forgets bytes that were read.
type memoryStream struct {
	bytes  []byte
	forgot int64
	eof    bool
}

func newGuest(run fleet.RunState) *memoryGuest {
	return &memoryGuest{run: run, ended: make(chan struct{}), changed: make(chan struct{}),
		out: map[string]*memoryStream{fleet.Stdout: {}, fleet.Stderr: {}}}
}

func (d *memoryDriver) call(ctx context.Context, verb string, g fleet.GuestID) error {
	call := verb + " " + string(g)
	d.mu.Lock()
	d.calls = append(d.calls, call)
	hook := d.hook
	d.mu.Unlock()
	if hook != nil {
		return hook(ctx, call)
	}
	return nil
}

func (d *memoryDriver) count(call string) (n int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, c := range d.calls {
		if c == call {
			n++
		}
	}
	return n
}

func (d *memoryDriver) guest(g fleet.GuestID) *memoryGuest {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.guests[g]
}

func (d *memoryDriver) put(g fleet.GuestID, run fleet.RunState) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if old := d.guests[g]; old == nil {
		d.guests[g] = newGuest(run)
	} else {
		old.run = run
	}
}

// end makes a guest end by itself.
func (d *memoryDriver) end(g fleet.GuestID) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if m := d.guests[g]; m != nil {
		close(m.ended)
		delete(d.guests, g)
	}
}

func (d *memoryDriver) Start(ctx context.Context, t fleet.Task) error {
	if err := d.call(ctx, "start", t.Guest.ID); err != nil {
		return err
	}
	d.put(t.Guest.ID, fleet.Running)
	return nil
}

func (d *memoryDriver) Stop(ctx context.Context, g fleet.GuestID) error {
	if err := d.call(ctx, "stop", g); err != nil {
		return err
	}
	d.end(g)
	return nil
}

func (d *memoryDriver) Receive(ctx context.Context, t fleet.Task) (string, error) {
	if err := d.call(ctx, "receive", t.Guest.ID); err != nil {
		return "", err
	}
	d.put(t.Guest.ID, fleet.Incoming)
	return "198.51.100.1:4000", nil
}

func (d *memoryDriver) Copy(ctx context.Context, t fleet.Task, progress func(fleet.Progress)) error {
	progress(fleet.Progress{Rounds: 1, TotalBytes: 10, SentBytes: 5})
	if err := d.call(ctx, "copy", t.Guest.ID); err != nil {
		return err
	}
	progress(fleet.Progress{Rounds: 2, TotalBytes: 10, SentBytes: 10})
	return nil
}

func (d *memoryDriver) Switch(ctx context.Context, t fleet.Task, lead func(bool)) (fleet.Progress, error) {
	lead(true)
	if err := d.call(ctx, "switch", t.Guest.ID); err != nil {
		return fleet.Progress{}, err
	}
	d.put(t.Guest.ID, fleet.Suspended)
	return fleet.Progress{Rounds: 3, Downtime: time.Millisecond}, nil
}

func (d *memoryDriver) Resume(ctx context.Context, g fleet.GuestID) error {
	if err := d.call(ctx, "resume", g); err != nil {
		return err
	}
	if d.guest(g) == nil {
		return fmt.Errorf("resuming: %w", ErrAbsent)
	}
	d.put(g, fleet.Running)
	return nil
}

func (d *memoryDriver) Inspect(context.Context) (map[fleet.GuestID]fleet.GuestFacts, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	out := map[fleet.GuestID]fleet.GuestFacts{}
	for id, g := range d.guests {
		out[id] = fleet.GuestFacts{Run: g.run, ResidentBytes: 100, CPUs: 0.5, Layout: d.layout}
	}
	return out, nil
}

func (d *memoryDriver) Link(context.Context, fleet.GuestID) (io.ReadWriteCloser, error) {
	return nil, errors.New("guests in memory are reached without a link")
}

func (d *memoryDriver) LastWords(fleet.GuestID) string { return d.words }

func (d *memoryDriver) Ending(fleet.GuestID) *fleet.Remains { return d.remains }

func (d *memoryDriver) Ended(g fleet.GuestID) <-chan struct{} {
	d.mu.Lock()
	defer d.mu.Unlock()
	if m := d.guests[g]; m != nil {
		return m.ended
	}
	gone := make(chan struct{})
	close(gone)
	return gone
}

// memoryGuestAgent reaches a guest in memory.
type memoryGuestAgent struct {
	d *memoryDriver
	g fleet.GuestID
}

// on does something in the guest once it runs. do reports whether it is done; otherwise it
// waits for a change.
func (in memoryGuestAgent) on(ctx context.Context, do func(*memoryGuest) bool) error {
	for {
		in.d.mu.Lock()
		g := in.d.guests[in.g]
		runs := g != nil && g.run == fleet.Running
		in.d.mu.Unlock()
		if runs {
			g.mu.Lock()
			changed := g.changed
			done := do(g)
			g.mu.Unlock()
			if done {
				return nil
			}
			select {
			case <-changed:
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(50 * time.Millisecond):
			}
		} else if pause.For(ctx, 50*time.Millisecond) != nil {
			return ctx.Err()
		}
	}
}

func (g *memoryGuest) wakeLocked() { close(g.changed); g.changed = make(chan struct{}) }

// write lets the program write.
func (g *memoryGuest) write(stream string, b []byte) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.out[stream].bytes = append(g.out[stream].bytes, b...)
	g.wakeLocked()
}

// finish ends the program.
func (g *memoryGuest) finish(code int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.exit = &fleet.Exit{Code: code}
	for _, s := range g.out {
		s.eof = true
	}
	g.wakeLocked()
}

func (in memoryGuestAgent) Setup(ctx context.Context, s fleet.Setup) error {
	if err := in.d.call(ctx, "setup", in.g); err != nil {
		return err
	}
	return in.on(ctx, func(g *memoryGuest) bool { g.setups = append(g.setups, s); return true })
}

func (in memoryGuestAgent) Launch(ctx context.Context, p fleet.Program) error {
	if len(p.Args) > 0 && p.Args[0] == "missing" {
		return errors.New("no program named missing in the image")
	}
	return in.on(ctx, func(g *memoryGuest) bool { g.launched = 1; return true })
}

func (in memoryGuestAgent) Wait(ctx context.Context, _ string) (exit fleet.Exit, err error) {
	err = in.on(ctx, func(g *memoryGuest) bool {
		if g.exit != nil {
			exit = *g.exit
		}
		return g.exit != nil
	})
	return exit, err
}

func (in memoryGuestAgent) Read(ctx context.Context, _, stream string, offset int64) (data []byte, eof bool, err error) {
	refused := error(nil)
	err = in.on(ctx, func(g *memoryGuest) bool {
		s := g.out[stream]
		end := int64(len(s.bytes))
		switch {
		case offset < s.forgot:
			refused = fmt.Errorf("%s before %d is forgotten", stream, s.forgot)
		case offset < end:
			data = bytes.Clone(s.bytes[offset:min(end, offset+1+rand.Int64N(3000))])
			s.forgot = offset
		case s.eof:
			eof = true
		default:
			return false
		}
		return true
	})
	return data, eof, errors.Join(refused, err)
}

func (in memoryGuestAgent) Write(ctx context.Context, _ string, offset int64, data []byte, eof bool) (next int64, err error) {
	err = in.on(ctx, func(g *memoryGuest) bool {
		have := int64(len(g.stdin))
		if offset <= have && have < offset+int64(len(data)) {
			data = data[have-offset:]
			g.stdin = append(g.stdin, data[:rand.IntN(len(data)+1)]...) // takes a random part
		}
		next = int64(len(g.stdin))
		g.stdinEOF = g.stdinEOF || (eof && next == offset+int64(len(data)))
		return true
	})
	return next, err
}

func (in memoryGuestAgent) Cache(ctx context.Context, s fleet.Spare) (c fleet.Cache, err error) {
	if s.EmptyBytes > 0 {
		err = in.d.call(ctx, "empty", in.g)
	}
	if s.Drop {
		err = in.d.call(ctx, "drop", in.g)
	}
	in.d.mu.Lock()
	defer in.d.mu.Unlock()
	if s.Drop && err == nil {
		in.d.cache = 0
	}
	return fleet.Cache{CleanBytes: in.d.cache, Empties: true}, err
}

func (in memoryGuestAgent) Topology(context.Context) (fleet.Topology, error) {
	return fleet.Topology{Level: "x86-64-v3"}, nil
}

func (in memoryGuestAgent) Signal(ctx context.Context, program string, s fleet.Signal) error {
	if err := in.d.call(ctx, fmt.Sprintf("signal %s %d %s", program, s.Number, s.Grace), in.g); err != nil {
		return err
	}
	if s.Ends {
		in.d.guest(in.g).write(fleet.Stdout, []byte("saved"))
		in.d.guest(in.g).finish(128 + s.Number)
	}
	return nil
}

func (in memoryGuestAgent) Trace(_ context.Context, q fleet.TraceQuery) ([]fleet.Trace, error) {
	return []fleet.Trace{{Rank: 3, At: q.To}}, nil
}

func (in memoryGuestAgent) Shutdown(ctx context.Context) error {
	return in.d.call(ctx, "shutdown", in.g)
}

// memoryController is a controller with sessions and jobs' spools.
type memoryController struct {
	mu       sync.Mutex
	away     bool // cannot be reached
	flaky    bool // streams fail at random, before or after their effect
	session  *memorySession
	attached chan *memorySession
	reports  chan fleet.Report
	replies  chan wire.Reply
	facts    fleet.Facts
	spool    map[string][]byte
	ended    map[string]bool
}

func newController() *memoryController {
	return &memoryController{attached: make(chan *memorySession, 100), reports: make(chan fleet.Report, 1000),
		replies: make(chan wire.Reply, 10), spool: map[string][]byte{}, ended: map[string]bool{}}
}

var errCut = errors.New("the connection was cut")

type memorySession struct {
	c     *memoryController
	hello wire.Hello
	down  chan wire.Down
	cut   chan struct{}
	once  sync.Once
}

func (c *memoryController) Attach(_ context.Context, h wire.Hello) (Session, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.away {
		return nil, errors.New("connection refused")
	}
	c.session = &memorySession{c: c, hello: h, down: make(chan wire.Down, 100), cut: make(chan struct{})}
	c.attached <- c.session
	return c.session, nil
}

func (s *memorySession) Close() error { s.once.Do(func() { close(s.cut) }); return nil }

func (s *memorySession) Send(_ context.Context, up wire.Up) error {
	select {
	case <-s.cut:
		return errCut
	default:
	}
	switch {
	case up.Report != nil:
		s.c.reports <- *up.Report
	case up.Reply != nil:
		s.c.replies <- *up.Reply
	case up.Facts != nil:
		s.c.mu.Lock()
		s.c.facts = *up.Facts
		s.c.mu.Unlock()
	}
	return nil
}

func (s *memorySession) Receive(ctx context.Context) (wire.Down, error) {
	select {
	case d := <-s.down:
		return d, nil
	case <-s.cut:
		return wire.Down{}, errCut
	case <-ctx.Done():
		return wire.Down{}, ctx.Err()
	}
}

// reach makes the controller reachable, or unreachable, which also cuts the session.
func (c *memoryController) reach(yes bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.away = !yes; c.away && c.session != nil {
		c.session.Close()
	}
}

func (c *memoryController) fails() bool { return c.away || (c.flaky && rand.IntN(4) == 0) }

func (c *memoryController) ReadStream(ctx context.Context, at wire.Place) ([]byte, bool, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.fails() {
		return nil, false, errCut
	}
	key := string(at.Job) + at.Stream
	have := c.spool[key]
	if at.Offset > int64(len(have)) {
		return nil, false, fmt.Errorf("%s has no byte %d", at.Stream, at.Offset)
	}
	end := at.Offset
	if end < int64(len(have)) {
		end += 1 + rand.Int64N(int64(len(have))-end)
	}
	return bytes.Clone(have[at.Offset:end]), c.ended[key] && end == int64(len(have)), nil
}

func (c *memoryController) WriteStream(_ context.Context, at wire.Place, data []byte, eof bool) (int64, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.fails() {
		return 0, errCut
	}
	key := string(at.Job) + at.Stream
	have, end := int64(len(c.spool[key])), at.Offset+int64(len(data))
	if at.Offset <= have && have < end {
		c.spool[key] = append(c.spool[key], data[have-at.Offset:]...)
		have = end
	}
	if eof && have == end {
		c.ended[key] = true
	}
	if c.fails() {
		return 0, errCut // written, but the answer is lost
	}
	return have, nil
}

// memoryNetwork is an overlay and file shares that remember what was applied.
type memoryNetwork struct {
	mu      sync.Mutex
	applied [][]fleet.Network
	forward map[int]bool // guests whose frames go to their target
	err     error
	failure error // permanent failure of a job's file server
	slow    time.Duration
}

func (n *memoryNetwork) Forward(_ fleet.Subnet, index int) error { return n.lead(index, true) }
func (n *memoryNetwork) Deliver(_ fleet.Subnet, index int) error { return n.lead(index, false) }

func (n *memoryNetwork) lead(index int, away bool) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.forward == nil {
		n.forward = map[int]bool{}
	}
	n.forward[index] = away
	return n.err
}

func (n *memoryNetwork) forwards(index int) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.forward[index]
}

func (n *memoryNetwork) Apply(_ context.Context, w []fleet.Network) error {
	time.Sleep(n.slow)
	n.mu.Lock()
	defer n.mu.Unlock()
	n.applied = append(n.applied, w)
	return n.err
}

func (n *memoryNetwork) Failure(fleet.JobID) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.failure
}

func (n *memoryNetwork) fail(err error) { n.mu.Lock(); n.failure = err; n.mu.Unlock() }

func (n *memoryNetwork) set(err error) { n.mu.Lock(); n.err = err; n.mu.Unlock() }

func (n *memoryNetwork) count() int { n.mu.Lock(); defer n.mu.Unlock(); return len(n.applied) }

type memoryImages struct{ err error }

func (i memoryImages) Ensure(context.Context, fleet.Digest) (string, error) {
	return "/images/x", i.err
}

// rig is one host with its agent.
type rig struct {
	t       *testing.T
	dir     string
	d       *memoryDriver
	c       *memoryController
	overlay *memoryNetwork
	shares  *memoryNetwork
	lease   *granted
	vault   *memoryVault
	a       *Agent
	s       *memorySession
	stop    func()
}

func newRig(t *testing.T) *rig {
	r := &rig{t: t, dir: filepath.Join(t.TempDir(), "run"), c: newController(), overlay: &memoryNetwork{}, shares: &memoryNetwork{}, lease: &granted{}, vault: newMemoryVault(),
		d: &memoryDriver{guests: map[fleet.GuestID]*memoryGuest{}}}
	r.start()
	return r
}

// start starts an agent, as after a restart: driver and folder remain.
func (r *rig) start() {
	r.a = New(Config{
		Host: "host1", Run: r.dir, Drivers: map[fleet.Kind]Driver{fleet.VM: r.d},
		GuestAgent: func(g fleet.GuestID, _ Linker) GuestAgent { return memoryGuestAgent{r.d, g} },
		Overlay:    r.overlay, Shares: r.shares, Images: memoryImages{}, Lease: r.lease, Controller: r.c,
		Vaults: Vaults{Staging: filepath.Join(r.dir, "staging"), Own: r.vault},
		Facts:  func() fleet.Facts { return fleet.Facts{Machine: "m1"} },
		Drops: func(l fleet.Limits, c fleet.Cache) bool {
			return c.Empties && c.CleanBytes > 50 || l.PageCache == fleet.DropCache
		}, Log: slog.New(slog.NewTextHandler(r.t.Output(), nil)),
	})
	ctx, cancel := context.WithCancel(r.t.Context())
	over := make(chan struct{})
	go func() { defer close(over); _ = r.a.Run(ctx) }()
	r.stop = func() { cancel(); <-over }
	r.t.Cleanup(func() { r.stop() })
	r.attach()
}

// attach waits for the agent's next session and sends what is wanted.
func (r *rig) attach() {
	r.t.Helper()
	select {
	case r.s = <-r.c.attached:
	case <-time.After(time.Minute):
		r.t.Fatal("the agent does not call")
	}
	r.want("c1", 10, "j1g0", "j1g1")
}

func (r *rig) want(cluster string, revision int64, guests ...fleet.GuestID) {
	r.s.down <- wire.Down{Wanted: &fleet.Wanted{Cluster: cluster, Revision: revision, Guests: guests}}
}

func (r *rig) send(t fleet.Task) { r.s.down <- wire.Down{Task: &t} }

// report waits for the next report.
func (r *rig) report() fleet.Report {
	r.t.Helper()
	select {
	case rep := <-r.c.reports:
		return rep
	case <-time.After(10 * time.Minute):
		r.t.Fatal("no report")
		return fleet.Report{}
	}
}

// expect waits for the next report and checks it.
func (r *rig) expect(o fleet.Order, want fleet.Outcome) fleet.Report {
	r.t.Helper()
	rep := r.report()
	if rep.Order != o || rep.Outcome != want {
		r.t.Fatalf("report %+v, want %s of %+v", rep, want, o)
	}
	return rep
}

// facts are the agent's latest.
func (r *rig) facts() fleet.Facts { r.c.mu.Lock(); defer r.c.mu.Unlock(); return r.c.facts }

func (r *rig) silence() {
	r.t.Helper()
	select {
	case rep := <-r.c.reports:
		r.t.Fatalf("unexpected report %+v", rep)
	case <-time.After(10 * time.Second):
	}
}

func task(verb fleet.Verb, gen uint64) fleet.Task {
	t := fleet.Task{
		Order: fleet.Order{Verb: verb, Host: "host1", Job: "j1", Guest: "j1g0", Gen: gen},
		Guest: fleet.Guest{ID: "j1g0", Job: "j1", Kind: fleet.VM, Gen: gen},
		Job:   fleet.Job{ID: "j1", Subnet: 3, Spec: fleet.JobSpec{Args: []string{"./a.out"}, Ranks: 4, Guests: 2, Export: "/home/x"}},
	}
	switch verb {
	case fleet.Arm, fleet.Cut, fleet.Continue, fleet.Save, fleet.Drop, fleet.Restore:
		t.Order.Checkpoint, t.Order.Peer, t.Deposit = "j1c1", "host1", &fleet.Deposit{Vault: "host1", Manifest: "m1"}
	case fleet.Receive, fleet.Copy, fleet.Switch, fleet.Activate, fleet.Retire, fleet.Revert, fleet.Discard:
		t.Order.Migration, t.Order.Peer = "m1.j1g0", "host2"
	}
	return t
}

// do sends a task and waits until it is done.
func (r *rig) do(t fleet.Task) fleet.Report {
	r.t.Helper()
	r.send(t)
	return r.expect(t.Order, fleet.Done)
}

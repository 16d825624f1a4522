package agent

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"pagurus/decide/planner"
	"pagurus/fleet"
	"pagurus/serve/controller"
	"pagurus/serve/identity"
	"pagurus/serve/wire"
)

// These tests run the real agents, the real protocol with real certificates, and the real controller, in
// one process on synctest's clock. In memory are only the store, the guests and the lines. Everything that
// goes wrong follows from a seed: lines are cut between any two writes, stay silent, or bring what was sent
// long after the agent has called again; the store is late, refuses, or makes a change and does not answer
// for it; the controller is replaced.

// flakyStore is a store in memory.
type flakyStore struct {
	*weather
	mu    sync.Mutex
	snap  fleet.Snapshot
	tries map[string]int // of each change
	lost  []string       // what no store may do
}

func (s *flakyStore) Load(context.Context) (fleet.Snapshot, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := s.snap
	out.Hosts, out.Guests, out.Jobs = maps.Clone(out.Hosts), maps.Clone(out.Guests), maps.Clone(out.Jobs)
	out.Moves, out.Migrations = maps.Clone(out.Moves), maps.Clone(out.Migrations)
	return out, nil
}

// Lead hands the cluster to one controller after the other.
func (s *flakyStore) Lead(ctx context.Context, _ string) (<-chan struct{}, error) {
	lost := make(chan struct{})
	context.AfterFunc(ctx, func() { close(lost) })
	return lost, nil
}

var errNoStore = errors.New("the store did not answer")

func (s *flakyStore) Commit(ctx context.Context, from int64, c fleet.Changeset) (int64, error) {
	s.mu.Lock()
	what := fmt.Sprint(from, changed(c))
	s.tries[what]++
	r := s.chance("store", what, s.tries[what])
	s.mu.Unlock()
	fate := 100
	if time.Now().Before(s.until) {
		fate = r.IntN(20)
	}
	late := time.Millisecond + time.Duration(r.IntN(int(5*time.Millisecond)))
	if fate == 0 { // as if its disk hung
		late += time.Duration(r.IntN(int(8 * time.Second)))
	}
	time.Sleep(late)
	s.mu.Lock()
	defer s.mu.Unlock()
	if fate == 1 {
		return 0, errNoStore
	}
	if from != s.snap.Revision {
		return 0, fleet.ErrConflict
	}
	for i := range c.Hosts {
		c.Hosts[i].Facts = fleet.Facts{}
	}
	s.saw("commit %d: %s", from+1, changed(c))
	s.lost = append(s.lost, older(s.snap, c)...)
	s.snap = s.snap.Apply(c, from+1)
	if fate == 2 {
		return 0, errNoStore
	}
	return from + 1, nil
}

// changed is a change in one line.
func changed(c fleet.Changeset) string {
	var out []string
	for _, j := range c.Jobs {
		out = append(out, fmt.Sprintf("%s %s", j.ID, j.State))
	}
	for _, g := range c.Guests {
		out = append(out, fmt.Sprintf("%s %s on %s, generation %d, try %d", g.ID, g.State, g.Home, g.Gen, g.Attempt))
	}
	for _, m := range c.Migrations {
		out = append(out, fmt.Sprintf("%s %s", m.ID, m.Phase))
	}
	slices.Sort(out)
	return strings.Join(out, "; ")
}

// older is what of a change goes back behind what was stored.
func older(was fleet.Snapshot, c fleet.Changeset) (out []string) {
	for _, g := range c.Guests {
		if before, known := was.Guests[g.ID]; known && (g.Gen < before.Gen || before.State.Ended() && !g.State.Ended()) {
			out = append(out, fmt.Sprintf("%s was %s of generation %d and becomes %s of %d", g.ID, before.State, before.Gen, g.State, g.Gen))
		}
	}
	for _, m := range c.Migrations {
		if before, known := was.Migrations[m.ID]; known && before.Phase.Ended() && before.Phase != m.Phase {
			out = append(out, fmt.Sprintf("%s was %s and becomes %s", m.ID, before.Phase, m.Phase))
		}
	}
	for _, j := range c.Jobs {
		if before, known := was.Jobs[j.ID]; known && before.State == fleet.JobEnded && j.State != before.State {
			out = append(out, fmt.Sprintf("%s had ended and is %s", j.ID, j.State))
		}
	}
	return out
}

// roamer is the driver of one host of several, between which guests move.
type roamer struct {
	*memoryDriver
	sea  *sea
	host fleet.HostID
}

// once counts an order that reaches a driver.
func (d roamer) once(t fleet.Task) {
	d.sea.mu.Lock()
	defer d.sea.mu.Unlock()
	d.sea.saw("%s: %s %s, generation %d, try %d", d.host, t.Order.Verb, t.Guest.ID, t.Order.Gen, t.Order.Attempt)
	if d.sea.orders[t.Order]++; d.sea.orders[t.Order] > 1 {
		d.sea.wrong = append(d.sea.wrong, fmt.Sprintf("carried out %d times: %+v", d.sea.orders[t.Order], t.Order))
	}
}

// runs notes that a guest is let run here, and that it runs nowhere else.
func (d roamer) runs(g fleet.GuestID) {
	d.sea.mu.Lock()
	defer d.sea.mu.Unlock()
	for id, other := range d.sea.drivers {
		if id != d.host && other.runOf(g) == fleet.Running {
			d.sea.wrong = append(d.sea.wrong, fmt.Sprintf("%s runs on %s and on %s", g, id, d.host))
		}
	}
}

// runOf is the state of a guest; Absent: it is not here.
func (d *memoryDriver) runOf(g fleet.GuestID) fleet.RunState {
	d.mu.Lock()
	defer d.mu.Unlock()
	if m := d.guests[g]; m != nil {
		return m.run
	}
	return fleet.Absent
}

func (d roamer) Start(ctx context.Context, t fleet.Task) error {
	d.once(t)
	d.runs(t.Guest.ID)
	time.Sleep(d.sea.takes(t))
	return d.memoryDriver.Start(ctx, t)
}

func (d roamer) Receive(ctx context.Context, t fleet.Task) (string, error) {
	d.once(t)
	if d.guest(t.Guest.ID) != nil {
		return "", errors.New("it is here already")
	}
	time.Sleep(d.sea.takes(t))
	return d.memoryDriver.Receive(ctx, t)
}

func (d roamer) Copy(ctx context.Context, t fleet.Task, progress func(fleet.Progress)) error {
	d.once(t)
	if d.runOf(t.Guest.ID) != fleet.Running {
		return fmt.Errorf("copy: %w", ErrAbsent)
	}
	time.Sleep(d.sea.takes(t))
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return d.memoryDriver.Copy(ctx, t, progress)
}

// Switch takes the guest to the target, which has it then without running.
func (d roamer) Switch(ctx context.Context, t fleet.Task, lead func(bool)) (fleet.Progress, error) {
	d.once(t)
	d.sea.mu.Lock()
	target := d.sea.drivers[t.Order.Peer]
	d.sea.mu.Unlock()
	from, to := d.guest(t.Guest.ID), target.guest(t.Guest.ID)
	if from == nil {
		return fleet.Progress{}, fmt.Errorf("switch: %w; %w", ErrAbsent, ErrUnsure)
	}
	if to == nil || target.runOf(t.Guest.ID) != fleet.Incoming {
		return fleet.Progress{}, errors.New("the target does not wait for it")
	}
	lead(true)
	d.put(t.Guest.ID, fleet.Suspended)
	time.Sleep(d.sea.takes(t))
	from.mu.Lock()
	to.mu.Lock()
	to.launched, to.out, to.stdin, to.stdinEOF, to.exit, to.setups = from.launched, from.out, from.stdin, from.stdinEOF, from.exit, from.setups
	to.mu.Unlock()
	from.mu.Unlock()
	target.put(t.Guest.ID, fleet.Suspended)
	return fleet.Progress{Rounds: 3, Downtime: time.Millisecond}, nil
}

func (d roamer) Resume(ctx context.Context, g fleet.GuestID) error {
	if run := d.runOf(g); run == fleet.Absent || run == fleet.Incoming {
		return fmt.Errorf("resuming: %w", ErrAbsent)
	}
	d.runs(g)
	return d.memoryDriver.Resume(ctx, g)
}

// steady is the guest agent of memoryGuestAgent, without its random parts.
type steady struct{ memoryGuestAgent }

func (in steady) Read(ctx context.Context, _, stream string, offset int64) (data []byte, eof bool, err error) {
	err = in.on(ctx, func(g *memoryGuest) bool {
		s := g.out[stream]
		data = bytes.Clone(s.bytes[min(offset, int64(len(s.bytes))):])
		eof = s.eof && len(data) == 0
		return eof || len(data) > 0
	})
	return data, eof, err
}

func (in steady) Write(ctx context.Context, _ string, offset int64, data []byte, eof bool) (next int64, err error) {
	err = in.on(ctx, func(g *memoryGuest) bool {
		if have := int64(len(g.stdin)); offset <= have && have < offset+int64(len(data)) {
			g.stdin = append(g.stdin, data[have-offset:]...)
		}
		next = int64(len(g.stdin))
		return true
	})
	return next, err
}

// sea is a cluster in trouble.
type sea struct {
	*weather
	t         *testing.T
	dir       string
	began     time.Time
	authority *identity.Authority
	store     *flakyStore
	quay      *quay // of the present controller
	ctl       *controller.Controller
	stop      func()

	mu      sync.Mutex
	events  []event
	orders  map[fleet.Order]int
	wrong   []string
	drivers map[fleet.HostID]*memoryDriver
}

// event is something that happened.
type event struct {
	at   time.Duration
	what string
}

// told is what happened, in order; of what happened at one time the order is none.
func (s *sea) told() string {
	slices.SortFunc(s.events, func(a, b event) int { return cmp.Or(cmp.Compare(a.at, b.at), strings.Compare(a.what, b.what)) })
	var out strings.Builder
	for _, e := range s.events {
		fmt.Fprintf(&out, "%12s %s\n", e.at, e.what)
	}
	return out.String()
}

const (
	seaHosts  = 3
	seaLines  = 40               // that each job writes
	seaRough  = 90 * time.Second // how long there is trouble
	seaWithin = 15 * time.Minute // by when everything is over
)

// inMemory is a folder where what is made durable costs nothing.
func inMemory(t *testing.T) string {
	dir, err := os.MkdirTemp("/dev/shm", "pagurus-test-")
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

var seaHead = &net.TCPAddr{IP: net.IPv4(192, 0, 2, 100), Port: 7461}

// takes is how long a driver works on an order.
func (s *sea) takes(t fleet.Task) time.Duration {
	return time.Duration(s.chance("takes", t.Order).IntN(int(500 * time.Millisecond)))
}

func newSea(t *testing.T, seed uint64) *sea {
	s := &sea{t: t, dir: inMemory(t), began: time.Now(), orders: map[fleet.Order]int{}, drivers: map[fleet.HostID]*memoryDriver{}}
	var events sync.Mutex
	s.weather = &weather{seed: seed, until: s.began.Add(seaRough), saw: func(format string, args ...any) {
		events.Lock()
		defer events.Unlock()
		s.events = append(s.events, event{time.Since(s.began), fmt.Sprintf(format, args...)})
	}}
	var err error
	if s.authority, err = identity.OpenAuthority(filepath.Join(s.dir, "authority")); err != nil {
		t.Fatal(err)
	}
	for i := range seaHosts {
		s.drivers[fleet.HostID(fmt.Sprintf("host%d", i+1))] = &memoryDriver{guests: map[fleet.GuestID]*memoryGuest{}}
	}
	s.quay = newQuay(seaHead)
	s.quay.Close() // nobody is there yet
	s.store = &flakyStore{weather: s.weather, snap: fleet.NewSnapshot(), tries: map[string]int{}}
	s.store.snap.Cluster, s.store.snap.Revision = fleet.Cluster{ID: "c1", NextJob: 1, NextMove: 1}, 1
	return s
}

// reign starts a controller on what is stored.
func (s *sea) reign() {
	q := newQuay(seaHead)
	ctl := controller.New(controller.Config{
		Store: s.store, Images: seaImages{}, Authority: s.authority, Spool: filepath.Join(s.dir, "spool"), Log: slog.New(slog.DiscardHandler),
	})
	ctx, cancel := context.WithCancel(s.t.Context())
	var both sync.WaitGroup
	both.Go(func() {
		if err := ctl.Run(ctx); err != nil {
			s.t.Errorf("the controller: %v", err)
		}
	})
	both.Go(func() {
		c := wire.ServeConfig{Listeners: []net.Listener{wire.OverTLS(q, s.authority)}, Members: ctl.Members(), Controller: ctl, Streams: ctl.Streams(), Log: slog.New(slog.DiscardHandler)}
		if err := wire.Serve(ctx, c); err != nil && !errors.Is(err, net.ErrClosed) {
			s.t.Errorf("the server: %v", err)
		}
	})
	s.mu.Lock()
	s.quay, s.ctl = q, ctl
	s.mu.Unlock()
	s.stop = func() { cancel(); both.Wait() }
	<-ctl.Ready()
	s.saw("a controller leads")
}

// seaImages has one image.
type seaImages struct{}

func (seaImages) Find(name string) (fleet.Image, error) {
	return fleet.Image{Name: name, Digest: "sha256-0", MPI: "openmpi"}, nil
}
func (seaImages) List() ([]fleet.Image, error) { return nil, nil }
func (seaImages) Folder(fleet.Digest) string   { return "/nowhere" }

// caller is a client with the certificate of a host.
func (s *sea) caller(id fleet.HostID, purpose, dir string) *wire.Client {
	c, err := wire.Dial(wire.Config{Address: "head:7461", Credentials: dir})
	if err != nil {
		s.t.Fatal(err)
	}
	from := &net.TCPAddr{IP: net.ParseIP(seaAddress(id)), Port: 1}
	c.Through(func(ctx context.Context) (net.Conn, error) {
		s.mu.Lock()
		q := s.quay
		s.mu.Unlock()
		return s.call(ctx, q, fmt.Sprintf("%s %s at %s", id, purpose, time.Since(s.began)), from)
	})
	return c
}

func seaAddress(id fleet.HostID) string { return "192.0.2." + strings.TrimPrefix(string(id), "host") }

// enlist makes a certificate for a host, and has the cluster know it.
func (s *sea) enlist(id fleet.HostID) (dir string) {
	dir = filepath.Join(s.dir, "credentials", string(id))
	request, err := identity.Request(dir)
	if err != nil {
		s.t.Fatal(err)
	}
	key, err := identity.RequestKey(request)
	if err != nil {
		s.t.Fatal(err)
	}
	c, err := s.authority.Sign(request, identity.Subject{Role: identity.Host, Name: string(id)}, time.Now())
	if err == nil {
		err = identity.Save(dir, c, s.authority.Certificate(), identity.Login{Controller: "head:7461", Host: id})
	}
	if err != nil {
		s.t.Fatal(err)
	}
	n, _ := strconv.Atoi(strings.TrimPrefix(string(id), "host"))
	s.store.snap.Hosts[id] = fleet.Host{ID: id, State: fleet.HostUp, Number: uint32(n), Credential: fleet.Credential{Key: key, Machine: string(id), Address: seaAddress(id), Joined: time.Now()}}
	return dir
}

// split sends sessions, and each stream, over lines of their own: which of several requests at one time gets a line
// that is free does not follow from the seed.
type split struct {
	Controller               // of the sessions
	calls      *atomic.Int64 // sessions so far, which the host's facts tell
	open       func(string) *wire.Client

	mu      sync.Mutex
	streams map[string]*wire.Client
}

func (c *split) stream(at wire.Place) *wire.Client {
	c.mu.Lock()
	defer c.mu.Unlock()
	name := at.Stream + " of " + string(at.Job)
	if c.streams[name] == nil {
		c.streams[name] = c.open(name)
	}
	return c.streams[name]
}

func (c *split) ReadStream(ctx context.Context, at wire.Place) ([]byte, bool, error) {
	return c.stream(at).ReadStream(ctx, at)
}

func (c *split) WriteStream(ctx context.Context, at wire.Place, data []byte, eof bool) (int64, error) {
	return c.stream(at).WriteStream(ctx, at, data, eof)
}

func (c *split) Close() {
	for _, stream := range c.streams {
		_ = stream.Close()
	}
}

func (c *split) Attach(ctx context.Context, h wire.Hello) (Session, error) {
	h.Facts.Version = strconv.FormatInt(c.calls.Add(1), 10)
	return c.Controller.Attach(ctx, h)
}

// serve runs a host's agent until the context ends.
func (s *sea) serve(ctx context.Context, id fleet.HostID, dir string) (over <-chan struct{}) {
	d := s.drivers[id]
	sessions, calls := s.caller(id, "session", dir), &atomic.Int64{}
	to := &split{Controller: Remote(sessions), calls: calls, open: func(name string) *wire.Client { return s.caller(id, name, dir) }, streams: map[string]*wire.Client{}}
	network := &memoryNetwork{}
	a := New(Config{
		Host: id, Run: filepath.Join(s.dir, string(id)), Drivers: map[fleet.Kind]Driver{fleet.VM: roamer{d, s, id}},
		GuestAgent: func(g fleet.GuestID, _ Linker) GuestAgent { return steady{memoryGuestAgent{d, g}} },
		Overlay:    network, Shares: network, Images: memoryImages{}, Controller: to,
		Facts: func() fleet.Facts {
			return fleet.Facts{
				Version: strconv.FormatInt(calls.Load(), 10), Protocol: fleet.Protocol(), Machine: string(id), Address: seaAddress(id),
				Capacity: fleet.Resources{CPUs: 8, MemoryBytes: 8 << 30}, Abilities: map[fleet.Kind]fleet.Abilities{fleet.VM: {Live: true}},
			}
		},
		Log: slog.New(slog.DiscardHandler),
	})
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = a.Run(ctx)
		_ = sessions.Close()
		to.Close()
	}()
	return done
}

// compute lets the jobs' programs write a line a second each, where they run.
func (s *sea) compute(ctx context.Context) {
	written := map[*memoryStream]int{}
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(time.Second):
		}
		for _, id := range slices.Sorted(maps.Keys(s.drivers)) {
			s.drivers[id].mu.Lock()
			guests := maps.Clone(s.drivers[id].guests)
			s.drivers[id].mu.Unlock()
			for _, g := range slices.Sorted(maps.Keys(guests)) {
				m := guests[g]
				if strings.HasSuffix(string(g), "g0") && s.drivers[id].runOf(g) == fleet.Running && m.computes() {
					out := m.out[fleet.Stdout]
					if written[out]++; written[out] <= seaLines {
						m.write(fleet.Stdout, fmt.Appendf(nil, "line %d\n", written[out]))
					} else {
						m.finish(0)
					}
				}
			}
		}
	}
}

// computes reports whether the program was launched and has not ended.
func (g *memoryGuest) computes() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.launched > 0 && g.exit == nil
}

// observe sees that nothing that is shown goes back: not the revision, and not the connection from which
// a host's facts came.
func (s *sea) observe(ctx context.Context, ctl *controller.Controller) {
	last, from := int64(0), map[fleet.HostID]int{}
	for snap := range ctl.Watch(ctx) {
		if snap.Revision < last {
			s.wrongly("revision %d is shown after %d", snap.Revision, last)
		}
		last = snap.Revision
		for id, h := range snap.Hosts {
			n, _ := strconv.Atoi(cmp.Or(h.Facts.Version, "0"))
			if n < from[id] {
				s.wrongly("%s: facts of connection %d are shown after those of %d", id, n, from[id])
			}
			from[id] = n
		}
	}
}

func (s *sea) wrongly(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.wrong = append(s.wrong, fmt.Sprintf(format, args...))
}

// ask makes a request for root, again until it is answered.
func (s *sea) ask(q fleet.Request) fleet.Answer {
	q.By = fleet.Caller{Admin: true}
	time.Sleep(1777 * time.Microsecond) // not at the time of what it waited for
	for {
		a, err := s.ctl.Ask(s.t.Context(), q)
		if e := (*wire.Error)(nil); err == nil || errors.As(err, &e) && e.Status == http.StatusUnprocessableEntity {
			if err != nil {
				s.saw("%s is refused: %v", q.ID, err)
			}
			return a
		}
		time.Sleep(1013 * time.Millisecond)
	}
}

// voyage runs two jobs while their guests move about, and everything goes wrong.
func voyage(t *testing.T, seed uint64) *sea {
	s := newSea(t, seed)
	ctx, cancel := context.WithCancel(t.Context())
	var over []<-chan struct{}
	for _, id := range slices.Sorted(maps.Keys(s.drivers)) {
		over = append(over, s.serve(ctx, id, s.enlist(id)))
		time.Sleep(11317 * time.Microsecond)
	}
	s.reign()
	time.Sleep(3371 * time.Microsecond)
	go s.compute(ctx)
	go s.observe(ctx, s.ctl)
	jobs := []fleet.JobID{s.submit("first"), s.submit("second")}
	for turn := 0; ; turn++ {
		time.Sleep(5*time.Second + 7309*time.Microsecond) // no two things happen at one time, or either may be the first
		if time.Since(s.began) > seaRough && s.ended(jobs) || time.Since(s.began) > seaWithin {
			break
		}
		if turn == 6 { // it goes, and another one comes
			s.saw("no controller leads")
			again := time.Now().Add(5 * time.Second)
			s.stop() // which takes as long as chance has it
			time.Sleep(time.Until(again))
			s.reign()
			go s.observe(ctx, s.ctl)
		}
		r := s.chance("move", turn)
		g := fleet.GuestID(fmt.Sprintf("%sg%d", jobs[r.IntN(2)], r.IntN(2)))
		s.ask(fleet.Request{ID: fleet.RequestID(fmt.Sprintf("move %d", turn)), Verb: fleet.Migrate, Guest: g, To: fleet.HostID(fmt.Sprintf("host%d", 1+r.IntN(seaHosts)))})
	}
	s.judge(jobs)
	cancel()
	s.stop()
	for _, done := range over {
		<-done
	}
	return s
}

// submit submits a job once there is room for it.
func (s *sea) submit(id fleet.RequestID) fleet.JobID {
	q := fleet.Request{ID: id, Verb: fleet.Submit, Spec: &fleet.JobSpec{
		Args: []string{"./a.out"}, Dir: "/home/u", Ranks: 2, Guests: 2, Image: "openmpi", Machine: "host1", Kind: fleet.VM,
		Need: fleet.Resources{CPUs: 1, MemoryBytes: 256 << 20},
	}}
	for {
		if a := s.ask(q); a.Job != "" {
			return a.Job
		}
		if time.Sleep(1049 * time.Millisecond); time.Since(s.began) > seaWithin {
			s.t.Fatalf("it is never taken:\n%s", s.told())
		}
	}
}

func (s *sea) ended(jobs []fleet.JobID) bool {
	snap, err := s.ctl.Snapshot(s.t.Context())
	return err == nil && !slices.ContainsFunc(jobs, func(id fleet.JobID) bool { return snap.Jobs[id].State != fleet.JobEnded })
}

// judge sees that everything came to its end, and that nobody did anything twice.
func (s *sea) judge(jobs []fleet.JobID) {
	time.Sleep(20 * time.Second) // whatever was not answered for is read again
	shown, err := s.ctl.Snapshot(s.t.Context())
	if err != nil {
		s.t.Error(err)
	}
	s.store.mu.Lock()
	stored := s.store.snap
	s.wrong = append(s.wrong, s.store.lost...)
	s.store.mu.Unlock()
	if shown.Revision != stored.Revision {
		s.wrongly("revision %d is shown and %d is stored", shown.Revision, stored.Revision)
	}
	for _, id := range jobs {
		if j := stored.Jobs[id]; j.State != fleet.JobEnded || j.Exit == nil || j.Exit.Code != 0 {
			s.wrongly("job %s is %s: %s %+v", id, j.State, j.Cause, j.Exit)
		}
		want := ""
		for i := range seaLines {
			want += fmt.Sprintf("line %d\n", i+1)
		}
		got, ended, err := s.ctl.Streams().Read(s.t.Context(), fleet.Caller{Admin: true}, wire.Place{Job: id, Stream: fleet.Stdout})
		if string(got) != want || err != nil {
			s.wrongly("the output of %s is %q, ended %t: %v", id, got, ended, err)
		}
	}
	for id, m := range stored.Migrations {
		if !m.Phase.Ended() || m.Phase == fleet.Lost {
			s.wrongly("migration %s is %s", id, m.Phase)
		}
	}
	if left := planner.Pending(shown); len(left) > 0 {
		s.wrongly("orders are left: %+v", left)
	}
	for id, d := range s.drivers {
		if len(d.guests) > 0 {
			s.wrongly("%s still has %v", id, slices.Sorted(maps.Keys(d.guests)))
		}
	}
}

// Whatever goes wrong between agents, controller and store, no order is lost or carried out twice, no guest
// runs twice, no output is lost or doubled, and nothing that was once shown or stored goes back.
func TestTrouble(t *testing.T) {
	for _, seed := range seeds() {
		synctest.Test(t, func(t *testing.T) {
			s := voyage(t, seed)
			t.Logf("seed %d: %d things happened", seed, len(s.events))
			if len(s.wrong) > 0 {
				t.Errorf("seed %d (again: PAGURUS_SEED=%d go test -run TestTrouble ./serve/agent):\n%s\nwhat happened:\n%s", seed, seed, strings.Join(s.wrong, "\n"), s.told())
			}
		})
	}
}

// seeds are those that are always tried, or the one or as many as are asked for.
func seeds() []uint64 {
	if seed, err := strconv.ParseUint(os.Getenv("PAGURUS_SEED"), 10, 64); err == nil {
		return []uint64{seed}
	}
	many, err := strconv.ParseUint(os.Getenv("PAGURUS_SEEDS"), 10, 64)
	if err != nil {
		many = 6
	}
	var all []uint64
	for seed := range many {
		all = append(all, seed+1)
	}
	return all
}

// A seed is the same trouble each time.
func TestTroubleIsReplayed(t *testing.T) {
	var told [2]string
	for i := range told {
		synctest.Test(t, func(t *testing.T) { told[i] = voyage(t, 4).told() })
	}
	if told[0] != told[1] {
		t.Errorf("first\n%s\nand then\n%s", told[0], told[1])
	}
}

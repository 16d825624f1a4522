package controller

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"pagurus/act/etcd"
	"pagurus/fleet"
	"pagurus/serve/identity"
	"pagurus/serve/notices"
	"pagurus/serve/wire"
)

// rig is a controller with a real store behind a real socket.
type rig struct {
	owners sync.Map // of HostID, OwnerState: reported by agents

	t          *testing.T
	ctx        context.Context
	dir        string
	socket     string
	addr       string // for those who join
	store      *shaky
	ctl        *Controller
	client     *wire.Client
	stop       func()
	encryption fleet.Encryption
	limits     fleet.OutputLimits
	receivers  []notices.Receiver
	factsEvery time.Duration // the agents' interval for facts, shorter in tests
}

func newRig(t *testing.T) *rig {
	t.Helper()
	if testing.Short() {
		t.Skip("contract ring: make test")
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	t.Cleanup(cancel)
	dir := t.TempDir()
	r := &rig{t: t, ctx: ctx, dir: dir, socket: filepath.Join(dir, "c.sock"), factsEvery: 300 * time.Millisecond}
	r.start()
	client, err := wire.Dial(wire.Config{Address: "unix:" + r.socket})
	if err != nil {
		t.Fatal(err)
	}
	r.client = client
	return r
}

// start starts a controller on an earlier one's data.
func (r *rig) start() {
	r.t.Helper()
	store, err := etcd.Embed(r.ctx, etcd.EmbedConfig{Dir: filepath.Join(r.dir, "etcd")})
	if err != nil {
		r.t.Fatal(err)
	}
	r.store = &shaky{Store: store}
	r.ctl = New(Config{Store: r.store, Images: images{"openmpi": {Name: "openmpi", Digest: digest, MPI: "openmpi"}}, Encryption: r.encryption, Limits: r.limits, Usages: store, Notify: Notify{Receivers: r.receivers, Kinds: fleet.NoticeKinds, Store: store}, Spool: filepath.Join(r.dir, "spool"), Log: slog.New(slog.DiscardHandler)})
	authority, err := identity.OpenAuthority(r.dir)
	if err != nil {
		r.t.Fatal(err)
	}
	r.ctl.Authority = authority
	remote, err := wire.ListenTLS("127.0.0.1:0", authority)
	if err != nil {
		r.t.Fatal(err)
	}
	r.addr = remote.Addr().String()
	listener, err := wire.ListenUnix(r.socket)
	if err != nil {
		r.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(r.ctx)
	var both sync.WaitGroup
	both.Go(func() {
		if err := r.ctl.Run(ctx); err != nil {
			r.t.Errorf("the controller: %v", err)
		}
	})
	both.Go(func() {
		c := wire.ServeConfig{Listeners: []net.Listener{listener, remote}, Members: r.ctl.Members(), Machine: "machine", Controller: r.ctl, Streams: r.ctl.Streams(), Forecasts: r.ctl, Output: r.ctl.Output, Usage: r.ctl.Usage, Copies: r.ctl, Version: "build", Refused: r.ctl.Refused, Log: slog.New(slog.DiscardHandler)}
		if err := wire.Serve(ctx, c); err != nil {
			r.t.Errorf("the server: %v", err)
		}
	})
	var once sync.Once
	r.stop = func() {
		once.Do(func() {
			cancel()
			both.Wait()
			if err := store.Close(); err != nil {
				r.t.Error(err)
			}
		})
	}
	r.t.Cleanup(r.stop)
	<-r.ctl.Ready()
}

const digest = "sha256-0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

// shaky is the real store, which fails on demand.
type shaky struct {
	Store
	mu      sync.Mutex // holding it delays commits
	fail    error
	commits int
	gate    chan struct{} // each commit takes one from here; nil: it is open
	asked   atomic.Int32  // for commits
	silent  atomic.Bool   // the next commit is made, and not answered
}

func (s *shaky) set(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fail = err
}

func (s *shaky) Commit(ctx context.Context, from int64, c fleet.Changeset) (int64, error) {
	s.asked.Add(1)
	s.mu.Lock()
	if gate := s.gate; gate != nil {
		s.mu.Unlock()
		<-gate
		s.mu.Lock()
	}
	defer s.mu.Unlock()
	if s.fail != nil {
		return 0, s.fail
	}
	s.commits++
	revision, err := s.Store.Commit(ctx, from, c)
	if s.silent.CompareAndSwap(true, false) {
		return 0, errors.New("no answer")
	}
	return revision, err
}

type images map[string]fleet.Image

func (i images) Find(name string) (fleet.Image, error) {
	if img, ok := i[name]; ok {
		return img, nil
	}
	return fleet.Image{}, errors.New("no such image")
}

func (i images) List() (all []fleet.Image, err error) {
	for _, img := range i {
		all = append(all, img)
	}
	return all, nil
}

func (i images) Folder(d fleet.Digest) string { return "/nowhere/" + string(d) }

// agent is scripted: it carries out every order at once and well, except that it only
// remembers verbs in silent.
type agent struct {
	r       *rig
	id      fleet.HostID
	session *wire.AgentSession
	silent  map[fleet.Verb]bool

	mu     sync.Mutex
	heard  []wire.Down
	over   error
	told   chan struct{} // a message came
	closed chan struct{}
}

func (r *rig) facts(id fleet.HostID) fleet.Facts {
	n := int(id[len(id)-1] - '0')
	var owner *fleet.Owner
	if state, has := r.owners.Load(id); has {
		// By the host's own clock, which is an hour fast.
		said := time.Now().Add(time.Hour)
		is := state.(fleet.OwnerState)
		owner = &fleet.Owner{State: is, Present: is.There(), Since: said.Add(-time.Minute), SaidAt: said}
	}
	return fleet.Facts{
		Owner:   owner,
		Version: "test", Protocol: fleet.Protocol(), Machine: "machine", Address: fmt.Sprintf("192.0.2.%d", n),
		Capacity:  fleet.Resources{CPUs: 4, MemoryBytes: 8 << 30},
		Abilities: map[fleet.Kind]fleet.Abilities{fleet.VM: {Live: true, Accelerator: "tcg"}},
		Topology:  &fleet.Topology{Nodes: []fleet.Node{{Cores: []fleet.Core{{CPUs: []int{0}}, {CPUs: []int{1}}, {CPUs: []int{2}}}}}},
		Isolation: &fleet.Isolation{},
		WireGuard: &fleet.WireGuardFacts{WireGuardEnd: fleet.WireGuardEnd{Key: keyOf(id), Port: 7462}},
	}
}

func (r *rig) attach(id fleet.HostID, silent ...fleet.Verb) *agent {
	r.t.Helper()
	a, err := r.tryAttach(wire.Hello{Host: id, Facts: r.facts(id)}, silent...)
	if err != nil {
		r.t.Fatal(err)
	}
	return a
}

func (r *rig) tryAttach(hello wire.Hello, silent ...fleet.Verb) (*agent, error) {
	return r.attachBy(r.client, hello, silent...)
}

// attachBy attaches as whom a client is known.
func (r *rig) attachBy(by *wire.Client, hello wire.Hello, silent ...fleet.Verb) (*agent, error) {
	s, err := by.Attach(r.ctx, hello)
	if err != nil {
		return nil, err
	}
	a := &agent{r: r, id: hello.Host, session: s, silent: map[fleet.Verb]bool{fleet.Watch: true, fleet.Run: true}, told: make(chan struct{}, 1), closed: make(chan struct{})}
	for _, v := range silent {
		a.silent[v] = true
	}
	r.t.Cleanup(func() { s.Close() })
	go a.listen()
	go a.tellFacts()
	return a, nil
}

func (a *agent) tellFacts() {
	for {
		select {
		case <-a.closed:
			return
		case <-time.After(a.r.factsEvery):
			f := a.r.facts(a.id)
			a.session.Send(a.r.ctx, wire.Up{Facts: &f})
		}
	}
}

func (a *agent) listen() {
	defer close(a.closed)
	for {
		d, err := a.session.Receive(a.r.ctx)
		a.mu.Lock()
		if err != nil {
			a.over = err
			a.mu.Unlock()
			return
		}
		a.heard = append(a.heard, d)
		a.mu.Unlock()
		select {
		case a.told <- struct{}{}:
		default:
		}
		if d.Task != nil && !a.silent[d.Task.Order.Verb] {
			r := fleet.Report{Order: d.Task.Order, Outcome: fleet.Done, Listen: "192.0.2.9:1"}
			if r.Order.Verb == fleet.Stop {
				r.Traces = a.traces(wire.Query{Trace: r.Order.Guest})
			}
			a.report(r)
		}
		if d.Query != nil && d.Query.Profile != "" {
			a.looked(*d.Query)
		} else if d.Query != nil {
			a.session.Send(a.r.ctx, wire.Up{Reply: &wire.Reply{ID: d.Query.ID, Traces: a.traces(*d.Query)}})
		}
	}
}

// traces are short traces that tell which guest was asked.
func (a *agent) traces(q wire.Query) []fleet.Trace {
	return []fleet.Trace{{Rank: int(q.Trace[len(q.Trace)-1] - '0'), At: q.About.To, Sent: []fleet.Sent{{Rank: 0, Messages: 2, Bytes: 2000}}, Gaps: []fleet.Gap{{At: q.About.From.Add(time.Second), Took: 90 * time.Millisecond}}}}
}

func (a *agent) report(r fleet.Report) { a.session.Send(a.r.ctx, wire.Up{Report: &r}) }

// hears waits until the agent gets a message, and returns the first such.
func (a *agent) hears(what string, is func(wire.Down) bool) wire.Down {
	a.r.t.Helper()
	for {
		a.mu.Lock()
		for _, d := range a.heard {
			if is(d) {
				a.mu.Unlock()
				return d
			}
		}
		a.mu.Unlock()
		select {
		case <-a.told:
		case <-a.closed:
			a.r.t.Fatalf("%s never heard %s: %v", a.id, what, a.over)
		case <-a.r.ctx.Done():
			a.r.t.Fatalf("%s never heard %s", a.id, what)
		}
	}
}

func (a *agent) task(v fleet.Verb) fleet.Task {
	a.r.t.Helper()
	return *a.hears("an order to "+string(v), func(d wire.Down) bool { return d.Task != nil && d.Task.Order.Verb == v }).Task
}

func (a *agent) count(is func(wire.Down) bool) (n int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, d := range a.heard {
		if is(d) {
			n++
		}
	}
	return n
}

// until waits for a cluster state.
func (r *rig) until(what string, is func(fleet.Snapshot) bool) fleet.Snapshot {
	r.t.Helper()
	ctx, cancel := context.WithCancel(r.ctx)
	defer cancel()
	var last fleet.Snapshot
	for last = range r.ctl.Watch(ctx) {
		if is(last) {
			return last
		}
	}
	r.t.Fatalf("waited in vain for %s: %+v %+v %+v", what, last.Jobs, last.Guests, last.Migrations)
	return last
}

func (r *rig) submit(guests int) fleet.JobID {
	r.t.Helper()
	a, err := r.client.Ask(r.ctx, fleet.Request{Verb: fleet.Submit, Spec: &fleet.JobSpec{
		Args: []string{"./a.out"}, Dir: "/home/u", Ranks: guests, Guests: guests, Image: "openmpi", Machine: "machine",
		Need: fleet.Resources{CPUs: 1, MemoryBytes: 256 << 20}, Trace: true,
	}})
	if err != nil {
		r.t.Fatal(err)
	}
	return a.Job
}

func running(id fleet.JobID) func(fleet.Snapshot) bool {
	return func(s fleet.Snapshot) bool { return s.Jobs[id].State == fleet.JobRunning }
}

func jobEnded(id fleet.JobID) func(fleet.Snapshot) bool {
	return func(s fleet.Snapshot) bool { return s.Jobs[id].State == fleet.JobEnded }
}

func (r *rig) refused(err error, status int, words ...string) {
	r.t.Helper()
	e := (*wire.Error)(nil)
	if !errors.As(err, &e) || e.Status != status {
		r.t.Errorf("want status %d, got %v", status, err)
		return
	}
	for _, w := range words {
		if !strings.Contains(e.Reason, w) {
			r.t.Errorf("%q does not say %q", e.Reason, w)
		}
	}
}

func (r *rig) now() fleet.Snapshot {
	r.t.Helper()
	s, err := r.ctl.Snapshot(r.ctx)
	if err != nil {
		r.t.Fatal(err)
	}
	return s
}

// keyOf is a host's WireGuard key.
func keyOf(id fleet.HostID) string {
	key := sha256.Sum256([]byte(id))
	return base64.StdEncoding.EncodeToString(key[:])
}

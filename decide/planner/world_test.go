package planner

import (
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"testing"
	"time"

	"pagurus/decide/desired"
	"pagurus/decide/lifecycle"
	"pagurus/decide/state"
	"pagurus/fleet"
)

var t0 = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// checker is the common part of *testing.T and *rapid.T.
type checker interface {
	Helper()
	Fatalf(format string, args ...any)
}

// world is a simulated cluster: hosts with guests that answer orders, a network that can
// lose orders, and the controller's loop.
type world struct {
	t       checker
	p       *Planner
	s       fleet.Snapshot
	now     time.Time
	silent  map[fleet.HostID]bool
	cutAt   map[fleet.HostID]time.Time // since when a host is silent, and renews its lease no more
	guests  map[fleet.HostID]map[fleet.GuestID]fleet.RunState
	whole   map[fleet.HostID]map[fleet.GuestID]bool   // suspended there, but complete
	missing map[fleet.GuestID]fleet.HostID            // the host that has some of its memory alone
	exited  map[fleet.JobID]bool                      // its program has ended
	refused map[fleet.Order]bool                      // promised never to be carried out
	saw     map[fleet.HostID]map[fleet.GuestID]uint64 // newest generation
	wire    []fleet.Order                             // sent, not answered
	log     []fleet.Order

	points points // what hosts and vaults have of checkpoints

	restored int // how often an older state was put in place
}

func newWorld(t checker, hosts ...fleet.HostID) *world {
	w := &world{
		t: t, p: &Planner{}, s: fleet.NewSnapshot(), now: t0, silent: map[fleet.HostID]bool{}, cutAt: map[fleet.HostID]time.Time{},
		guests: map[fleet.HostID]map[fleet.GuestID]fleet.RunState{}, whole: map[fleet.HostID]map[fleet.GuestID]bool{},
		missing: map[fleet.GuestID]fleet.HostID{}, exited: map[fleet.JobID]bool{}, refused: map[fleet.Order]bool{},
		saw: map[fleet.HostID]map[fleet.GuestID]uint64{}, points: points{guests: map[fleet.GuestID]string{}, vaults: map[string]fleet.HostID{}, dropped: map[string]bool{}, done: map[fleet.Order]fleet.Report{}},
	}
	w.s.At, w.s.LedSince = t0, t0
	for _, id := range hosts {
		w.guests[id], w.whole[id] = map[fleet.GuestID]fleet.RunState{}, map[fleet.GuestID]bool{}
		w.saw[id] = map[fleet.GuestID]uint64{}
		w.observe(fleet.Observation{Called: id})
		h := w.s.Hosts[id]
		h.Facts = fleet.Facts{
			Machine: "machine", Address: "192.0.2." + string(id[len(id)-1:]), Capacity: fleet.Resources{CPUs: 4, MemoryBytes: 2 << 30},
			Abilities: map[fleet.Kind]fleet.Abilities{fleet.VM: {Live: true, PostCopy: true, Preempt: true, Checkpoint: true, Accelerator: "tcg"}},
			Vault:     &fleet.VaultFacts{Listen: "192.0.2." + string(id[len(id)-1:]) + ":7462", FreeBytes: 100 << 30},
		}
		w.s.Hosts[id] = h
		w.lease(id, aLease)
	}
	w.hear()
	return w
}

// aLease is the lease of all hosts at first.
const aLease = time.Minute

// lease gives a host another lease; 0: none.
func (w *world) lease(id fleet.HostID, length time.Duration) {
	w.t.Helper()
	w.observe(fleet.Observation{Leased: id, Lease: length})
}

// fence stops the guests of silent hosts whose leases are over, as these do by themselves.
func (w *world) fence() {
	for id, since := range w.cutAt {
		if lease := w.s.Hosts[id].Lease; w.silent[id] && lease > 0 && w.now.Sub(since) >= lease {
			clear(w.guests[id])
			clear(w.whole[id])
		}
	}
}

// hear makes every connected host report.
func (w *world) hear() {
	w.s.At = w.now
	for id, h := range w.s.Hosts {
		h.Facts.Connected = !w.silent[id]
		if h.Facts.Connected {
			h.Facts.SeenAt = w.now
			said := h.Facts.Guests
			h.Facts.Guests = map[fleet.GuestID]fleet.GuestFacts{}
			for g, run := range w.guests[id] {
				f := said[g]
				f.Run, f.Gen = run, w.saw[id][g]
				h.Facts.Guests[g] = f
			}
		}
		w.s.Hosts[id] = h
	}
}

// step decides twice, compares, commits, checks and sends.
func (w *world) step(ev fleet.Event) (Decision, error) {
	w.t.Helper()
	w.hear()
	before := w.s
	d, err := w.p.Step(w.s, ev)
	if _, ticks := ev.(fleet.Tick); ticks && testing.Short() && err == nil && d.Change.Empty() && len(d.Orders) == 0 {
		return d, nil // nothing has come of it; the whole run checks this, too
	}
	again, err2 := w.p.Step(w.s, ev)
	if !reflect.DeepEqual(d, again) || fmt.Sprint(err) != fmt.Sprint(err2) {
		w.t.Fatalf("the same question got two answers:\n%+v %v\n%+v %v", d, err, again, err2)
	}
	if err != nil {
		var no *Refusal
		if !errors.As(err, &no) {
			w.t.Fatalf("step: %v", err)
		}
		if _, asked := ev.(fleet.Request); !asked {
			w.t.Fatalf("%T was refused: %v", ev, err)
		}
		return d, err
	}
	if !reflect.DeepEqual(before, w.s) {
		w.t.Fatalf("step changed its snapshot")
	}
	kept := state.NewIndex(before, nil)
	kept.Commit(d.Change, w.s.Revision+1)
	w.s = w.s.Apply(d.Change, w.s.Revision+1)
	if wrong := kept.Check(); wrong != "" || !reflect.DeepEqual(kept.Snapshot(), w.s) {
		w.t.Fatalf("the state index is not what it would be if it was made again: %s", wrong)
	}
	w.hear()
	waiting := Pending(w.s)
	for _, o := range d.Orders {
		if !slices.Contains(waiting, o) {
			w.t.Fatalf("sent what nothing waits for: %+v", o)
		}
		w.send(o)
	}
	w.sound()
	return d, nil
}

func (w *world) send(o fleet.Order) {
	w.log = append(w.log, o)
	if !slices.Contains(w.wire, o) && !w.silent[o.Host] {
		w.wire = append(w.wire, o)
	}
}

func (w *world) ask(r fleet.Request) (fleet.Answer, error) {
	w.t.Helper()
	r.At, r.By = w.now, fleet.Caller{Admin: true}
	d, err := w.step(r)
	return d.Answer, err
}

func (w *world) must(r fleet.Request) fleet.Answer {
	w.t.Helper()
	a, err := w.ask(r)
	if err != nil {
		w.t.Fatalf("%s: %v", r.Verb, err)
	}
	return a
}

func (w *world) observe(o fleet.Observation) {
	w.t.Helper()
	o.At = w.now
	if _, err := w.step(o); err != nil {
		w.t.Fatalf("%+v: %v", o, err)
	}
}

func submission(guests int) fleet.Request {
	return fleet.Request{
		Verb: fleet.Submit, Image: &fleet.Image{Name: "openmpi", Digest: "sha256-1", MPI: "openmpi"},
		Spec: &fleet.JobSpec{
			Args: []string{"./a.out"}, Dir: "/home/me/work", Export: "/home/me", Ranks: guests, Guests: guests,
			Need: fleet.Resources{CPUs: 1, MemoryBytes: 512 << 20}, Image: "openmpi", Machine: "machine",
		},
	}
}

// apply makes a host destroy what is not in Wanted, and call off what would bring it, as
// agents do.
func (w *world) apply() {
	all := desired.New(w.s)
	for id, here := range w.guests {
		if w.silent[id] {
			continue
		}
		wanted := all.Wanted(id)
		for g := range here {
			if !slices.Contains(wanted.Guests, g) {
				delete(here, g)
				delete(w.whole[id], g)
			}
		}
		w.wire = slices.DeleteFunc(w.wire, func(o fleet.Order) bool {
			brings := o.Verb == fleet.Start || o.Verb == fleet.Receive || o.Verb == fleet.Restore
			return o.Host == id && brings && !slices.Contains(wanted.Guests, o.Guest)
		})
	}
}

// carry carries an order out on its host. It returns the answer, and false if there is
// none yet.
func (w *world) carry(o fleet.Order) (fleet.Report, bool) {
	here, peer := w.guests[o.Host], w.guests[o.Peer]
	r := fleet.Report{Order: o, Outcome: fleet.Done}
	no := func(cause string) (fleet.Report, bool) {
		w.refused[o] = true
		r.Outcome, r.Cause = fleet.Failed, cause
		return r, true
	}
	if w.refused[o] {
		if seen := w.saw[o.Host][o.Guest]; o.Gen < seen {
			r.Seen = seen
		}
		return no("refused before")
	}
	if o.Checkpoint != "" {
		return w.carryCheckpoint(o)
	}
	if w.standsCut(o) {
		return r, false
	}
	if o.Gen < w.saw[o.Host][o.Guest] {
		r.Seen = w.saw[o.Host][o.Guest]
		return no("too old")
	}
	w.saw[o.Host][o.Guest] = o.Gen
	switch o.Verb {
	case fleet.Start:
		here[o.Guest] = fleet.Running
	case fleet.Watch:
		if here[o.Guest] == fleet.Suspended {
			here[o.Guest] = fleet.Running
		}
		if here[o.Guest] == fleet.Running {
			return r, false
		}
		return no("it is not here")
	case fleet.Run:
		if here[o.Guest] != fleet.Running {
			r.AtFault = true
			return no("guest 0 is not here")
		}
		if !w.exited[o.Job] {
			return r, false
		}
		r.Exit = &fleet.Exit{Code: 7}
	case fleet.End:
		if here[o.Guest] != fleet.Running {
			return no("guest 0 is not here")
		}
		w.exited[o.Job] = true
		r.Exit = &fleet.Exit{Code: 143}
	case fleet.Fetch:
		from, missing := w.missing[o.Guest]
		if here[o.Guest] != fleet.Running || missing && w.guests[from][o.Guest] != fleet.Suspended {
			return no("it can never be whole here")
		}
		delete(w.missing, o.Guest)
	case fleet.Stop, fleet.Retire, fleet.Discard:
		if from, missing := w.missing[o.Guest]; missing && from == o.Host && o.Verb == fleet.Retire {
			w.t.Fatalf("%s was told to destroy what %s still needs", o.Host, o.Guest)
		}
		delete(here, o.Guest)
		delete(w.whole[o.Host], o.Guest)
	case fleet.Receive:
		if here[o.Guest] == "" {
			here[o.Guest] = fleet.Incoming
		}
		r.Listen = string(o.Host) + ":1"
	case fleet.Copy:
		if here[o.Guest] != fleet.Running || peer[o.Guest] != fleet.Incoming {
			return no("it is not here, or no target takes it")
		}
	case fleet.Switch:
		if here[o.Guest] == "" {
			r.Outcome, r.Cause = fleet.Gone, "it is not here any more"
			return r, true
		}
		if w.whole[o.Peer][o.Guest] {
			break
		}
		if here[o.Guest] != fleet.Running || peer[o.Guest] != fleet.Incoming {
			return no("it is not here, or no target takes it")
		}
		here[o.Guest], w.whole[o.Peer][o.Guest] = fleet.Suspended, true
		if Task(w.s, o).Limits.Mode == fleet.PostCopy {
			w.missing[o.Guest] = o.Host
		}
	case fleet.Activate:
		if !w.whole[o.Host][o.Guest] {
			return no("it is not whole here")
		}
		here[o.Guest] = fleet.Running
	case fleet.Revert:
		if here[o.Guest] == "" {
			return no("it is not here")
		}
		here[o.Guest] = fleet.Running
	}
	return r, true
}

// answer carries out the i-th order on the wire and reports it.
func (w *world) answer(i int) bool {
	o := w.wire[i]
	r, ready := w.carry(o)
	if !ready {
		return false
	}
	w.wire = slices.Delete(w.wire, i, i+1)
	r.At = w.now
	_, _ = w.step(r)
	w.apply()
	return true
}

// together answers some orders in one step. Orders without an answer stay.
func (w *world) together(orders []fleet.Order) {
	w.t.Helper()
	var all fleet.Reports
	for _, o := range orders {
		if r, ready := w.carry(o); ready {
			w.wire = slices.DeleteFunc(w.wire, func(on fleet.Order) bool { return on == o })
			r.At = w.now
			all = append(all, r)
		}
	}
	_, _ = w.step(all)
	w.apply()
}

// answerAll answers everything on the wire until only standing orders are left.
func (w *world) answerAll() {
	w.t.Helper()
	for range 10000 {
		i := w.next()
		if i < 0 {
			return
		}
		w.answer(i)
	}
	w.t.Fatalf("never comes to rest: %v", w.wire)
}

// next is the first order on the wire that has an answer; -1: only standing orders are left.
func (w *world) next() int {
	return slices.IndexFunc(w.wire, func(o fleet.Order) bool {
		if w.standsCut(o) {
			return false
		}
		if o.Verb == fleet.Watch && w.guests[o.Host][o.Guest] == fleet.Running {
			return false
		}
		return o.Verb != fleet.Run || w.exited[o.Job] || w.guests[o.Host][o.Guest] != fleet.Running
	})
}

// tick advances time with a Tick every second; with -short after two minutes every ten.
func (w *world) tick(d time.Duration) {
	w.t.Helper()
	start, end := w.now, w.now.Add(d)
	for w.now.Before(end) {
		every := time.Second
		if testing.Short() && w.now.Sub(start) >= 2*time.Minute {
			every = min(10*time.Second, end.Sub(w.now))
		}
		w.leap(every)
	}
}

// leap advances time at once.
func (w *world) leap(d time.Duration) {
	w.t.Helper()
	w.now = w.now.Add(d)
	w.fence()
	_, _ = w.step(fleet.Tick{At: w.now})
	w.apply()
}

// sleep advances time without Ticks, followed by one.
func (w *world) sleep(d time.Duration) {
	w.t.Helper()
	w.now = w.now.Add(d)
	w.fence()
	w.tick(time.Second)
}

// reconnect sends a host all outstanding orders, as the controller does when its agent
// connects.
func (w *world) reconnect(id fleet.HostID) {
	w.silent[id] = false
	w.wire = slices.DeleteFunc(w.wire, func(o fleet.Order) bool { return o.Host == id })
	w.hear()
	if w.s.Cluster.Restored != nil {
		w.observe(fleet.Observation{Attached: id})
	}
	w.apply()
	for _, o := range Pending(w.s) {
		if o.Host == id {
			w.send(o)
		}
	}
}

// cut disconnects a host; its orders are lost or carried out without an answer.
func (w *world) cut(id fleet.HostID) {
	w.silence(id)
	w.wire = slices.DeleteFunc(w.wire, func(o fleet.Order) bool { return o.Host == id })
}

// silence makes a host unable to hear the controller, and to renew its lease.
func (w *world) silence(id fleet.HostID) {
	if !w.silent[id] {
		w.silent[id], w.cutAt[id] = true, w.now
	}
}

// sound checks the invariants that hold after every step.
func (w *world) sound() {
	w.t.Helper()
	w.soundOrders()
	w.soundHosts()
	for _, j := range w.s.Jobs {
		for _, id := range desired.GuestIDs(j) {
			g, ok := w.s.Guests[id]
			if never := j.State == fleet.JobPending || j.State == fleet.JobSuspended || j.State == fleet.JobEnded && j.ShareHost == ""; !ok && never {
				continue
			}
			if !ok {
				w.t.Fatalf("%s has lost its guest %s", j.ID, id)
			}
			if (j.State == fleet.JobEnded || j.State == fleet.JobPending || j.State == fleet.JobSuspended) && !g.State.Ended() {
				w.t.Fatalf("%s has ended and %s is %s", j.ID, id, g.State)
			}
			if j.State != fleet.JobEnded && j.State != fleet.JobStopping && j.State != fleet.JobPending && j.State != fleet.JobSuspended && g.State.Ended() && j.Joined(g.Index) {
				w.t.Fatalf("%s is %s and %s is %s", j.ID, j.State, id, g.State)
			}
		}
	}
	for _, m := range w.s.Migrations {
		if g, ok := w.s.Guests[m.Guest]; !m.Phase.Ended() && (!ok || g.Migration != m.ID || g.State != fleet.GuestMoving) {
			w.t.Fatalf("%s is %s and %s does not know it: %+v", m.ID, m.Phase, m.Guest, g)
		}
		if _, ok := w.s.Moves[m.Move]; !ok && (m.Move != "" || !m.Phase.Ended()) {
			w.t.Fatalf("%s has lost its move", m.ID)
		}
	}
	for _, v := range w.s.Moves {
		over := true
		for _, id := range v.Migrations {
			m, known := w.s.Migrations[id]
			over = over && (!known || m.Phase.Ended())
		}
		if over == v.Ended.IsZero() {
			w.t.Fatalf("%s is over: %t, ended %s", v.ID, over, v.Ended)
		}
	}
}

// soundOrders: everything alive waits for exactly one order.
func (w *world) soundOrders() {
	w.t.Helper()
	own, run := map[fleet.GuestID]int{}, map[fleet.JobID]int{}
	for _, o := range Pending(w.s) {
		if o.Verb == fleet.Run || o.Verb == fleet.End {
			run[o.Job]++
			continue
		}
		if o.Checkpoint == "" || o.Verb == fleet.Restore {
			own[o.Guest]++
		}
	}
	for _, g := range w.s.Guests {
		want := 1
		if phase := w.s.Migrations[g.Migration].Phase; g.State.Ended() || g.State == fleet.GuestSought || g.State == fleet.GuestRestored || phase == fleet.Ready || phase == fleet.Waiting {
			want = 0
		}
		if own[g.ID] != want {
			w.t.Fatalf("%s is %s and waits for %d orders", g.ID, g.State, own[g.ID])
		}
	}
	for _, j := range w.s.Jobs {
		if run[j.ID] > 1 || (run[j.ID] == 1) != (j.State == fleet.JobRunning) && j.State != fleet.JobRunning {
			w.t.Fatalf("%s is %s and waits for %d programs", j.ID, j.State, run[j.ID])
		}
	}
}

// soundHosts: no host has promised more memory than it has, no guest runs twice, and
// frames for every guest are sent where it is.
func (w *world) soundHosts() {
	w.t.Helper()
	used, running := map[fleet.HostID]int64{}, map[fleet.GuestID]int{}
	for _, g := range w.s.Guests {
		for _, id := range lifecycle.Places(g, w.s.Migrations[g.Migration]) {
			used[id] += g.Need.MemoryBytes
		}
	}
	for id, bytes := range used {
		// After a restore guests are where they are, and others are thought to be elsewhere.
		if w.s.Cluster.Restored == nil && w.s.Hosts[id].Facts.Capacity.MemoryBytes > 0 && bytes > w.s.Hosts[id].Facts.Capacity.MemoryBytes {
			w.t.Fatalf("%s has promised %d bytes", id, bytes)
		}
	}
	for _, here := range w.guests {
		for g, state := range here {
			if state == fleet.Running {
				running[g]++
			}
		}
	}
	for g, n := range running {
		if n > 1 && !w.s.Guests[g].State.Ended() {
			w.t.Fatalf("%s runs %d times", g, n)
		}
	}
	w.soundEnds()
	all := desired.New(w.s)
	for _, id := range slices.Sorted(maps.Keys(w.s.Hosts)) {
		for _, n := range all.Wanted(id).Networks {
			if !slices.IsSortedFunc(n.Endpoints, func(a, b fleet.Endpoint) int { return a.Addr.Compare(b.Addr) }) {
				w.t.Fatalf("endpoints of %s are not in order", n.Job)
			}
		}
		own := fleet.Snapshot{Cluster: w.s.Cluster, Revision: w.s.Revision, Hosts: map[fleet.HostID]fleet.Host{id: w.s.Hosts[id]}}
		if all.Apart(id) && !reflect.DeepEqual(all.Wanted(id), desired.Wanted(own, id)) {
			w.t.Fatalf("what is wanted on %s, which is apart, follows from others: %+v", id, all.Wanted(id))
		}
	}
}

// soundEnds: no guest of an ended job runs where nobody can stop it, but on a host without a lease.
func (w *world) soundEnds() {
	w.t.Helper()
	for id := range w.silent {
		for g, state := range w.guests[id] {
			if w.silent[id] && w.s.Hosts[id].Lease > 0 && state == fleet.Running && w.s.Jobs[w.s.Guests[g].Job].State == fleet.JobEnded {
				w.t.Fatalf("%s has ended, and %s runs on, on %s", w.s.Guests[g].Job, g, id)
			}
		}
	}
}

func (w *world) verbs(g fleet.GuestID) []fleet.Verb {
	var out []fleet.Verb
	for _, o := range w.log {
		if o.Migration != "" && o.Guest == g {
			out = append(out, o.Verb)
		}
	}
	return out
}

var _ checker = (*testing.T)(nil)

// Package sim runs the live controller's loop over modelled machines: the same planner,
// index, loop and policies. Hosts, links, memory and owners are models that answer after
// modelled times. The same configuration gives the same run.
//
// It must not know how the planner predicts a move's cost: a simulator that shares the
// predictor proves nothing. Its tests run golden scenarios, and hundreds of seeds that
// must keep invariants: no guest runs twice, no host promises more memory than it has.
package sim

import (
	"fmt"
	"math/rand/v2"
	"time"

	"pagurus/decide/owners"
	"pagurus/decide/placement"
	"pagurus/decide/planner"
	"pagurus/fleet"
)

// Config is the configuration of a run.
type Config struct {
	Seed      uint64
	Hosts     int
	Machine   Machine // properties of each host
	Owners    Comings // when owners come and go; nil: only as in Script
	Work      Work
	Policy    owners.Policy    // for guests when an owner returns; nil: stay
	Placement placement.Policy // nil: the policy's own
	For       time.Duration
	Script    []Cue

	Submissions []Submission
	Calls       []Call        // of programs for more guests
	Checkpoint  time.Duration // every submission has checkpoints so often; 0: none, and hosts cannot

	Log    func(string) // gets a line for every event; nil: no log
	Strict bool         // check the invariants after every event, for tests
}

// Machine describes a host. Zero fields have the values of Desktop.
type Machine struct {
	CPUs           int
	MemoryBytes    int64
	BytesPerSecond float64       // of its link
	Boot           time.Duration // of a guest
	Sense          time.Duration // until the host notices that the owner has come or gone
	Grace          time.Duration // from then until the owner counts as staying; meanwhile guests are in the lowest class
	IdleAfter      time.Duration // from noticing that the owner has gone until they count as away
	Lease          time.Duration // after it a host that is cut off ends its guests; 0: none
}

// Desktop is a typical desktop: four cores, a gigabit link. Its owners count as staying,
// and as away, as soon as that is noticed.
var Desktop = Machine{CPUs: 4, MemoryBytes: 8 << 30, BytesPerSecond: 117 << 20, Boot: 3 * time.Second, Sense: time.Second}

// Work is the jobs to run. When one ends the next is submitted, so that there are always
// Jobs of them.
type Work struct {
	Jobs        int
	Ranks       int // of each job, one guest for each
	Time        time.Duration
	CPUs        int // of each guest
	MemoryBytes int64
	Dirty       float64 // bytes a second that a running guest changes
}

// usual fills in w's defaults: sixteen ranks of a gibibyte, two hours.
func (w Work) usual() Work {
	if w.Ranks == 0 {
		w.Ranks = 16
	}
	if w.Time == 0 {
		w.Time = 2 * time.Hour
	}
	if w.CPUs == 0 {
		w.CPUs = 4
	}
	if w.MemoryBytes == 0 {
		w.MemoryBytes = 1 << 30
	}
	if w.Dirty == 0 {
		w.Dirty = 10 << 20
	}
	return w
}

func (m Machine) usual() Machine {
	d := Desktop
	for _, f := range []struct{ of, usual *time.Duration }{{&m.Boot, &d.Boot}, {&m.Sense, &d.Sense}} {
		if *f.of == 0 {
			*f.of = *f.usual
		}
	}
	if m.CPUs == 0 {
		m.CPUs = d.CPUs
	}
	if m.MemoryBytes == 0 {
		m.MemoryBytes = d.MemoryBytes
	}
	if m.BytesPerSecond == 0 {
		m.BytesPerSecond = d.BytesPerSecond
	}
	return m
}

// epoch is the start of every run: a Monday, at midnight.
var epoch = time.Date(2026, 1, 5, 0, 0, 0, 0, time.UTC)

// files is a host without guests that serves all jobs' files.
const files = "files"

// world is a run in progress.
type world struct {
	Config
	now     time.Duration // since epoch
	queue   heap
	loop    *planner.Loop
	hosts   []*machine
	byID    map[fleet.HostID]*machine
	guests  map[fleet.GuestID]*guest
	jobs    map[fleet.JobID]*job
	copies  map[fleet.MigrationID]*copying
	waiting []*job // to be submitted
	serial  int    // of jobs
	asked   int    // calls for more guests
	ticking bool
	busy    bool // submit is already scheduled
	tight   bool // a job found no room before
	out     Result
	wrong   string // the first broken invariant
	changed []*machine

	heard fleet.Reports // simultaneous reports

	submitting *job // at this moment
}

// Run runs a configuration. An error names what is invalid in it, or the broken
// invariant.
func Run(c Config) (Result, error) {
	w, err := newWorld(c)
	if err != nil {
		return Result{}, err
	}
	begun := time.Now() // for measuring speed; it does not affect the run
	for len(w.queue.events) > 0 && w.wrong == "" {
		ev := w.queue.pop()
		if ev.at > w.For {
			break
		}
		w.now = ev.at
		w.out.Events++
		w.handle(ev)
		if w.Strict {
			w.check()
		}
	}
	w.now = w.For
	w.close()
	w.out.Took = time.Since(begun)
	if w.wrong != "" {
		return w.out, fmt.Errorf("seed %d, policy %s, after %s: %s", c.Seed, w.out.Policy, w.now, w.wrong)
	}
	return w.out, nil
}

func newWorld(c Config) (*world, error) {
	c.Machine, c.Work = c.Machine.usual(), c.Work.usual()
	switch {
	case c.Hosts < 1 || c.Hosts > 1<<20:
		return nil, fmt.Errorf("%d hosts cannot be simulated: ask for 1 to %d", c.Hosts, 1<<20)
	case c.For <= 0:
		return nil, fmt.Errorf("a run of %s shows nothing: ask for some hours", c.For)
	case c.Machine.Grace < 0 || c.Machine.IdleAfter < 0:
		return nil, fmt.Errorf("no host waits for %s, or %s: give times of 0 or more", c.Machine.Grace, c.Machine.IdleAfter)
	case c.Work.Jobs < 0 || c.Work.Ranks > fleet.MaxGuestsPerJob || c.Work.Ranks < 1:
		return nil, fmt.Errorf("%d jobs of %d ranks cannot be simulated: a job has 1 to %d", c.Work.Jobs, c.Work.Ranks, fleet.MaxGuestsPerJob)
	}
	if c.Policy == nil {
		c.Policy, _ = owners.Named("stay")
	}
	if c.Placement == nil {
		c.Placement = c.Policy.Placement()
	}
	w := &world{Config: c, byID: make(map[fleet.HostID]*machine, c.Hosts), guests: map[fleet.GuestID]*guest{},
		jobs: map[fleet.JobID]*job{}, copies: map[fleet.MigrationID]*copying{}}
	w.out = Result{Policy: c.Policy.Name(), Placement: c.Placement.Name(), Seed: c.Seed, For: c.For, Hosts: c.Hosts, Ranks: c.Work.Ranks,
		Grace: c.Machine.Grace, IdleAfter: c.Machine.IdleAfter}
	s := fleet.NewSnapshot()
	s.At, s.LedSince, s.Cluster = epoch, epoch, fleet.Cluster{ID: "simulated", NextJob: 1, NextMove: 1, Rules: fleet.Rules{Vacate: fleet.Vacate(c.Policy.Name())}}
	for i := range c.Hosts {
		m := w.machine(i)
		// The policy under test decides about guests, not the owners.
		s.Hosts[m.id] = fleet.Host{ID: m.id, State: fleet.HostUp, Since: epoch, Facts: w.facts(m), Lease: m.Lease, Policy: fleet.OwnerPolicy{Owned: true, Vacate: fleet.Stay}}
	}
	s.Hosts[files] = fleet.Host{ID: files, State: fleet.HostUp, Since: epoch, Facts: fleet.Facts{SeenAt: epoch.Add(c.For), Connected: true, Machine: files}}
	w.loop = planner.NewLoop(&planner.Planner{Policy: c.Placement}, s)
	for _, m := range w.hosts {
		if m.next > 0 {
			w.push(event{at: m.next, kind: comes, machine: m})
		}
	}
	for i := range c.Script {
		w.push(event{at: c.Script[i].At, kind: cues, cue: &c.Script[i]})
	}
	for i := range c.Submissions {
		w.push(event{at: c.Submissions[i].At, kind: arrivals, arrival: &c.Submissions[i]})
	}
	for i := range c.Calls {
		w.push(event{at: c.Calls[i].At, kind: asks, call: &c.Calls[i]})
	}
	for range c.Work.Jobs {
		w.enqueue(c.Work)
	}
	w.push(event{kind: minutes})
	w.push(event{kind: submits})
	return w, nil
}

// machine makes a host, with its owner's state at the beginning.
func (w *world) machine(i int) *machine {
	m := &machine{id: fleet.HostID(fmt.Sprintf("host%d", i+1)), Machine: w.Machine, state: fleet.OwnerAbsent, chance: rand.New(rand.NewPCG(w.Seed, uint64(i)))}
	if w.Owners != nil {
		m.visits = w.Owners.Of(i, m.chance)
		w.upcoming(m)
		for m.next <= 0 && m.next > -never { // events before the beginning
			m.present, m.since, m.load = !m.present, m.next, m.will
			w.upcoming(m)
		}
		if m.said = m.since; m.present {
			m.state = fleet.OwnerPresent
		}
	}
	w.hosts = append(w.hosts, m)
	w.byID[m.id] = m
	return m
}

// at is the controller's time.
func (w *world) at() time.Time { return epoch.Add(w.now) }

func (w *world) push(ev event) { w.queue.push(ev) }

func (w *world) after(d time.Duration, ev event) {
	ev.at = w.now + d
	w.queue.push(ev)
}

func (w *world) say(format string, args ...any) {
	if w.Log != nil {
		w.Log(fmt.Sprintf("%10.3f  ", w.now.Seconds()) + fmt.Sprintf(format, args...))
	}
}

func (w *world) breach(format string, args ...any) {
	if w.wrong == "" {
		w.wrong = fmt.Sprintf(format, args...)
	}
}

// handle handles an event.
func (w *world) handle(ev event) {
	switch ev.kind {
	case comes:
		w.visit(ev.machine)
	case senses:
		w.sense(ev.machine, ev.version)
	case evaluates:
		if ev.version == ev.machine.asked {
			w.evaluateHost(ev.machine)
		}
	case answers:
		w.answer(ev.task)
	case rounds:
		w.round(ev.copying)
	case ends:
		w.end(ev.job, ev.version)
	case submits:
		w.busy = false
		w.submit()
	case ticks:
		w.tick(true)
	case minutes:
		w.tick(false)
	case cues:
		w.play(*ev.cue)
	case fences:
		if m := ev.machine; m.cut && !m.ruined && m.cuts == ev.version {
			w.say("the lease of %s is over", m.id)
			w.ruin(m)
		}
	case arrivals:
		w.submitted(ev.arrival)
	case asks:
		w.calls(ev.call)
	}
	for len(w.changed) > 0 { // guests that have arrived where an owner is present
		m := w.changed[0]
		w.changed = w.changed[1:]
		w.evaluateHost(m)
	}
}

// handleEvent passes one event to the controller and returns its answer or refusal.
func (w *world) handleEvent(ev fleet.Event) (fleet.Answer, error) {
	w.out.Steps++
	answer, err := w.loop.HandleEvent(ev, w.at(), w)
	if err == nil && !w.ticking && w.loop.Index.Unsettled() {
		w.ticking = true
		w.after(time.Second, event{kind: ticks})
	}
	return answer, err
}

// tick gives the controller the time: every second, as in reality, while that can matter;
// otherwise every minute, so that it forgets old records.
func (w *world) tick(each bool) {
	if !each && w.ticking { // the frequent ticks suffice
		w.after(time.Minute, event{kind: minutes})
		return
	}
	w.ticking = w.ticking || each
	if _, err := w.handleEvent(fleet.Tick{At: w.at()}); err != nil {
		w.breach("tick: %v", err)
	}
	if !each {
		w.after(time.Minute, event{kind: minutes})
		return
	}
	if w.ticking = w.loop.Index.Unsettled(); w.ticking {
		w.after(time.Second, event{kind: ticks})
	}
}

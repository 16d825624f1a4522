package sim

import (
	"maps"
	"math/rand/v2"
	"time"

	"pagurus/decide/owners"
	"pagurus/fleet"
)

// machine is a modelled host.
type machine struct {
	Machine
	id     fleet.HostID
	chance *rand.Rand
	visits Visits
	next   time.Duration // when its owner next comes or goes
	will   float64       // CPUs that the owner uses then

	present bool          // the owner is present
	since   time.Duration // when that last changed
	load    float64       // CPUs that the owner uses
	state   fleet.OwnerState
	said    time.Duration // when guests last had to start or stop yielding
	version int32         // of the sensors' state
	asked   int32         // number of policy evaluations
	notice  time.Duration // when it goes away, as it says; 0: it stays
	cut     bool          // disconnected
	cuts    int32         // number of times that it came back
	ruined  bool          // nothing of its guests is left, and what it was ordered has no effect

	running    int      // running guests, not suspended
	images     int      // guests with memory here
	streams    int      // copies to and from it
	cpus       int      // of running guests
	guests     []*guest // guests here, running or not
	marked     time.Duration
	cleared    bool                               // since the owner came, no guest was left
	guestFacts map[fleet.GuestID]fleet.GuestFacts // its agent's facts about guests
}

// never is later than the end of any run.
const never = time.Duration(1) << 60

// upcoming finds when the owner comes or goes next.
func (w *world) upcoming(m *machine) {
	if m.visits == nil {
		m.next = never
		return
	}
	at, load, ok := m.visits.Next()
	if !ok {
		m.next = never
		return
	}
	m.next, m.will = at, load*float64(m.CPUs)
}

// facts is an agent's report. A connected host stays connected: a report every second
// would be most of the events, and change nothing.
func (w *world) facts(m *machine) fleet.Facts {
	f := fleet.Facts{
		SeenAt: epoch.Add(w.For), Connected: !m.cut, Machine: string(m.id),
		Capacity:  fleet.Resources{CPUs: m.CPUs, MemoryBytes: m.MemoryBytes},
		Abilities: abilities, Guests: m.guestFacts,
	}
	if m.cut {
		f.SeenAt = w.at()
	}
	w.vault(&f)
	f.Notices = &fleet.EndNotices{}
	if m.notice > 0 {
		f.Notices.Pending = []fleet.EndNotice{{Kind: fleet.AWSNotice, ID: m.notice.String(), Says: "Amazon takes the instance back", At: epoch.Add(m.notice)}}
	}
	for _, g := range m.guests {
		if c := g.copying; c != nil {
			if f.Copies == nil {
				f.Copies = map[fleet.MigrationID]fleet.Progress{}
			}
			f.Copies[c.order.Migration] = c.progress(w.now)
		}
	}
	since := epoch.Add(m.said)
	if f.Owner = (&fleet.Owner{State: m.state, Since: since}); m.state.There() {
		f.Owner.Present, f.Owner.LoadCPUs = true, m.load
	}
	return f
}

var abilities = map[fleet.Kind]fleet.Abilities{fleet.VM: {Live: true, Checkpoint: true, Accelerator: fleet.KVM, Version: "modelled", CPU: "modelled"}}

// learn gives the controller a host's facts.
func (w *world) learn(m *machine) {
	if !m.cut {
		w.loop.Index.Learn(m.id, w.facts(m))
	}
}

// mark adds up the owner's disturbance until now. It is called before any relevant
// change.
func (w *world) mark(m *machine) {
	if m.present && m.marked < w.now {
		took := w.now - m.marked
		if m.running+m.streams > 0 {
			w.out.Disturbed += took.Seconds()
			w.out.Slowed += took.Seconds() * m.slowed()
		}
		if m.images > 0 {
			w.out.Held += took.Seconds()
		}
	}
	m.marked = w.now
}

// leaving is the CPU that departing guests may use against an owner who wants all of it:
// their weight in act/cgroup against the owner's.
const leaving = 0.2

// slowed is the share of the owner's wanted CPU time that guests take: how many seconds a
// second of it delays the owner's programs. Until the host has noticed the owner, the two
// share equally. Afterwards guests get what is left over, the little of the lowest class,
// and what sending takes.
func (m *machine) slowed() float64 {
	if !m.present || m.load <= 0 {
		return 0
	}
	short := max(m.load+float64(m.cpus)-float64(m.CPUs), 0) // CPUs that are missing for all
	taken := min(m.load/2, short)
	if m.state.There() {
		taken = min(starved*float64(m.cpus), short)
		if m.streams > 0 {
			taken = max(taken, min(leaving, max(m.load+leaving-float64(m.CPUs), 0)))
		}
	}
	return min(taken/m.load, 1)
}

// occupy adds a guest's memory; by -1 removes it.
func (w *world) occupy(m *machine, by int) {
	w.mark(m)
	m.images += by
	if m.images < 0 || int64(m.images)*w.Work.MemoryBytes > m.MemoryBytes {
		w.breach("%s holds %d guests", m.id, m.images)
	}
	if m.images == 0 && m.present && !m.cleared {
		m.cleared = true
		w.out.vacated = append(w.out.vacated, w.now-m.since)
	}
}

// stream records that a copy begins to use a host's link; by -1, that it ends.
func (w *world) stream(c *copying, by int) {
	w.mark(c.from)
	w.mark(c.to)
	c.from.streams += by
	c.to.streams += by
}

// visit makes an owner come or go as planned.
func (w *world) visit(m *machine) {
	w.arrive(m, !m.present, m.will)
	w.upcoming(m)
	if m.next < never {
		w.push(event{at: m.next, kind: comes, machine: m})
	}
}

// arrive makes an owner come or go. The host notices later, unless that changes first.
func (w *world) arrive(m *machine, present bool, load float64) {
	if present == m.present {
		return
	}
	w.mark(m)
	m.present, m.since, m.load, m.cleared = present, w.now, 0, m.images == 0
	if present {
		m.load = load
		if m.images > 0 {
			w.out.Visits++
			w.say("the owner of %s comes and uses %.1f CPUs", m.id, load)
		}
	} else if m.images > 0 {
		w.say("the owner of %s goes", m.id)
	}
	w.repaceAll(m)
	m.version++
	w.after(m.Sense, event{kind: senses, machine: m, version: m.version})
}

// sense makes a host notice that its owner has come or gone, and later that this lasts.
func (w *world) sense(m *machine, version int32) {
	if version != m.version {
		return
	}
	state, rest := m.takes(w.now)
	if rest > 0 {
		w.after(rest, event{kind: senses, machine: m, version: version})
	}
	if state == m.state {
		return
	}
	w.mark(m)
	if state.There() != m.state.There() {
		m.said = w.now
	}
	if m.state == fleet.OwnerLeaving && state == fleet.OwnerAbsent {
		m.said -= m.IdleAfter // they have been away all that time
	}
	m.state = state
	w.repaceAll(m)
	w.learn(m)
	switch state {
	case fleet.OwnerPresent:
		w.evaluateHost(m)
	case fleet.OwnerAbsent:
		for _, g := range m.guests {
			w.suspend(g, false)
		}
	}
}

// takes returns the owner's state according to the host, and how long it lasts at most
// without a change; 0: always. As in a real host, an owner who goes before they count
// as staying has only looked in.
func (m *machine) takes(now time.Duration) (fleet.OwnerState, time.Duration) {
	stayed := m.state == fleet.OwnerPresent || m.state == fleet.OwnerLeaving
	switch {
	case m.present && !stayed:
		came := now
		if m.state == fleet.OwnerReturning {
			came = m.said
		}
		if rest := came + m.Grace - now; rest > 0 {
			return fleet.OwnerReturning, rest
		}
		return fleet.OwnerPresent, 0
	case m.present:
		return fleet.OwnerPresent, 0
	case stayed:
		if rest := m.since + m.Sense + m.IdleAfter - now; rest > 0 {
			return fleet.OwnerLeaving, rest
		}
	}
	return fleet.OwnerAbsent, 0
}

// evaluateHost applies the policy to a host's guests. Nothing changes until an owner
// counts as staying, or while they may be leaving.
func (w *world) evaluateHost(m *machine) {
	if m.state != fleet.OwnerPresent || m.cut {
		return
	}
	l := w.loop.Index
	m.asked++ // whatever was to be asked later is asked now
	cases := owners.Cases(l, m.id, w.at())
	said := make([]owners.CaseVerdict, len(cases))
	for i, s := range cases {
		said[i] = w.Policy.Evaluate(s)
	}
	for i, s := range cases {
		w.obey(m, s, said[i])
	}
	if !w.Policy.Moves() {
		return
	}
	for _, v := range owners.Arriving(l, m.id) {
		if _, err := w.handleEvent(fleet.Request{At: w.at(), By: admin, Verb: fleet.CancelMove, Move: v}); err != nil {
			w.breach("cancel: %v", err)
		}
	}
}

// obey carries out the policy's verdict for a job's guests on a host.
func (w *world) obey(m *machine, s owners.Case, j owners.CaseVerdict) {
	if j.Do == owners.Leave {
		_, err := w.handleEvent(fleet.Request{At: w.at(), By: admin, Verb: fleet.Migrate, Guests: s.Guests, Host: m.id})
		if err != nil {
			w.say("%s cannot leave %s: %v", s.Job, m.id, err)
			j = owners.CaseVerdict{Do: owners.Suspend, Again: time.Minute, Why: "it cannot leave"}
		}
	}
	for _, id := range s.Guests {
		if g := w.guests[id]; g != nil {
			w.suspend(g, j.Do == owners.Suspend)
		}
	}
	if j.Do == owners.Requeue {
		w.say("%s begins again: %s", s.Job, j.Why)
		if _, err := w.handleEvent(fleet.Request{At: w.at(), By: admin, Verb: fleet.Cancel, Job: s.Job}); err != nil {
			w.breach("cancel: %v", err)
		}
	}
	if j.Again > 0 {
		w.after(j.Again, event{kind: evaluates, machine: m, version: m.asked})
	}
}

var admin = fleet.Caller{Admin: true}

// seeGuest adds or removes a guest in an agent's facts. The controller learns it at once,
// unless the host is disconnected.
func (w *world) seeGuest(m *machine, g *guest, there bool) {
	if m.cut {
		m.guestFacts = maps.Clone(m.guestFacts) // earlier reports must not change
	}
	if m.guestFacts == nil {
		m.guestFacts = map[fleet.GuestID]fleet.GuestFacts{}
		w.learn(m)
	}
	if !there {
		delete(m.guestFacts, g.id)
		return
	}
	memory, cpus := g.job.MemoryBytes, float64(g.job.CPUs)
	if g.suspended {
		cpus = 0
	}
	p := &fleet.Profile{At: w.at(), MemoryBytes: memory, FilledBytes: memory, Changed: g.job.changes()}
	m.guestFacts[g.id] = fleet.GuestFacts{Run: fleet.Running, ResidentBytes: memory, CPUs: cpus, Profile: p}
}

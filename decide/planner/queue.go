// This file lets waiting jobs start, in their order, and says why the others wait. There is one
// queue for all: new jobs, those that an owner's return put back, those that lost a host.
//
// It must not know how the order and the times of reservations are found, which is package
// queue's. Its tests are scenarios, and a property over random queues.

package planner

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"pagurus/decide/desired"
	"pagurus/decide/lifecycle"
	"pagurus/decide/placement"
	"pagurus/decide/queue"
	"pagurus/decide/state"
	"pagurus/decide/topology"
	"pagurus/fleet"
)

// One Step does not look at all of a long queue.
const (
	// mostReserved is how many jobs have a reservation, which is what takes time. Those after
	// them do not pass them on a host that they could use.
	mostReserved = 16
	// mostTried is for how many jobs room is looked for.
	mostTried = 64
	// mostHosts is how many hosts are looked at for a reservation. More could only make it earlier.
	mostHosts = 256
)

const (
	// closedBytes is more than any host has.
	closedBytes = math.MaxInt64 / 4
	// around is how long a job's guests are there before its program runs, and after its limit.
	around = time.Minute + fleet.UsualGrace
	// avoids is for how long a job that begins again waits for other hosts than those that failed to start it.
	avoids = time.Minute
	// soon is when what is over its limit counts as gone.
	soon = 10 * time.Second
)

// queueing is the queue's turn in one Step.
type queueing struct {
	plan     queue.Plan
	reserved map[fleet.JobID]queue.Reservation
	closed   map[fleet.HostID]bool // hosts that jobs without a reservation may need
	hopeless []hopeless            // jobs as these do not fit on the hosts that are there now
	full     []fleet.JobSpec       // no host has room for one guest of jobs as these
	unserved map[string]string     // by the machine that has jobs' files: why no host serves these; empty: one does
	tried    int
	over     bool // nobody after may start
}

// hopeless is a job that does not fit on the hosts that are there now.
type hopeless struct {
	fleet.JobSpec
	made   restoring
	guests int // with those by which it had grown
}

// restoring is what hosts must be like to make the guests of a job from its checkpoint; the zero value: it begins at its beginning.
type restoring struct {
	from  bool
	kind  fleet.Kind
	needs fleet.Abilities
	mixed bool // its guests need hosts of several sorts, of which kind and needs are the first guest's
}

// restoring is what a waiting job needs beside what it asked for, and how many guests it begins with.
func (d *draft) restoring(j fleet.Job) (r restoring, guests int) {
	if j.From == "" {
		return r, j.Spec.Guests
	}
	from, _ := d.origin(j)
	for i, a := range asksFrom(placement.Ask{}, from, len(from.Guests)) {
		if i == 0 {
			r = restoring{from: true, kind: a.Kind, needs: a.Restores.Needs}
		}
		r.mixed = r.mixed || a.Kind != r.kind || a.Restores.Needs != r.needs
	}
	return r, sizeFrom(j, from)
}

// dequeue starts the waiting jobs that fit and take nothing that is reserved.
func (d *draft) dequeue() *queueing {
	q := &queueing{reserved: map[fleet.JobID]queue.Reservation{}, closed: map[fleet.HostID]bool{}, unserved: map[string]string{}}
	fresh, n := d.enqueued(), d.l.Waiting()
	for i := 0; !q.over && (i < n || len(fresh) > 0); {
		var j fleet.Job
		if i < n {
			j = d.Jobs.At(d.l.WaitingAt(i))
		}
		if i == n || len(fresh) > 0 && inQueue(fresh[0], j) < 0 {
			j, fresh = fresh[0], fresh[1:]
		} else {
			i++
		}
		if j.State == fleet.JobPending {
			d.consider(q, j)
		}
	}
	d.placeGrowths(q)
	return q
}

// enqueued returns the jobs that wait since this Step, in their order.
func (d *draft) enqueued() (out []fleet.Job) {
	for i := range d.Jobs.Changes() {
		c := &d.Jobs.Changes()[i]
		if !c.Gone && c.Is.State == fleet.JobPending && d.base.Jobs[c.ID].State != fleet.JobPending {
			out = append(out, c.Is)
		}
	}
	slices.SortFunc(out, inQueue)
	return out
}

// inQueue orders jobs as they were submitted: one that begins again has waited before.
func inQueue(a, b fleet.Job) int {
	return cmp.Or(a.Submitted.Compare(b.Submitted), cmp.Compare(a.ID.Number(), b.ID.Number()))
}

// consider starts a job, or keeps others from its room.
func (d *draft) consider(q *queueing, j fleet.Job) {
	made, guests := d.restoring(j)
	if d.shut(q, j, made, guests) {
		return
	}
	if q.tried++; q.tried > mostTried {
		q.over = true
		return
	}
	from, _ := d.origin(j)
	a := asksFrom(d.wanting(j), from, guests)[0]
	ids := d.candidates(a)
	if len(d.avoided(j)) > 0 && !d.holds(ids, a, guests) {
		a.Except = d.uncleared(j) // better on those that failed than nowhere
		ids = d.candidates(a)
	}
	if !q.isFull(j.Spec) {
		stuck := 0 // as would be found, if no host has memory for one guest
		if !d.room().Full(a) {
			var chosen []placement.Choice
			if chosen, stuck = d.find(q, j, a); stuck < 0 && d.beginJob(q, j, chosen) {
				return
			}
		}
		if stuck == 0 && len(a.Only)+len(a.Except) == 0 && a.Restores == nil {
			q.full = append(q.full, j.Spec)
		}
	}
	if len(q.reserved) >= mostReserved {
		q.close(a, ids)
		return
	}
	for _, id := range ids {
		d.plan(q, id)
	}
	r, fits := q.plan.Reserve(reservationOf(j.Spec, guests, wholeTime(j.Spec), ids))
	switch {
	case !fits && len(a.Except) == 0 && !made.mixed: // else that is true of this job only
		q.hopeless = append(q.hopeless, hopeless{j.Spec, made, guests})
		return
	case !fits:
		return
	}
	q.reserved[j.ID] = r
}

// shut reports whether a job cannot start for a reason that is known already.
func (d *draft) shut(q *queueing, j fleet.Job, made restoring, guests int) bool {
	s := j.Spec
	why, asked := q.unserved[s.Machine]
	if s.Need.Device == fleet.NetFunction { // what serves files to such a job needs a card
		_, why = d.shareHost(s, "", nil)
		why = cmp.Or(why, d.noVLAN(s))
	} else if !asked {
		_, why = d.shareHost(s, "", nil)
		q.unserved[s.Machine] = why
	}
	if why != "" {
		return true // and what it would need is free for others
	}
	if len(s.On) > 0 && len(q.closed) > 0 && !slices.ContainsFunc(s.On, func(id fleet.HostID) bool { return !q.closed[id] }) {
		return true
	}
	return slices.ContainsFunc(q.hopeless, func(b hopeless) bool {
		return b.guests <= guests && noEasier(s.Need, b.Need) && b.Kind == s.Kind && b.Machine == s.Machine && b.made == made &&
			slices.Equal(b.On, s.On) && slices.Equal(b.Files, s.Files) && b.Export == s.Export && len(j.Avoid) == 0
	})
}

// isFull reports whether room was looked for in vain for one guest that needed no more, for no longer. In
// one turn there is ever less of it.
func (q *queueing) isFull(s fleet.JobSpec) bool {
	return slices.ContainsFunc(q.full, func(b fleet.JobSpec) bool {
		return noEasier(s.Need, b.Need) && wholeTime(b) <= wholeTime(s) && b.Kind == s.Kind && b.Machine == s.Machine &&
			b.Export == s.Export && slices.Equal(b.Files, s.Files)
	})
}

// close keeps later jobs from all hosts that a job without a reservation may need.
func (q *queueing) close(a placement.Ask, ids []fleet.HostID) {
	if len(a.Only) == 0 {
		q.over = true
		return
	}
	for _, id := range ids {
		q.closed[id] = true
	}
}

// wanting is the placement question for each guest of a waiting job.
func (d *draft) wanting(j fleet.Job) placement.Ask {
	s := j.Spec
	return placement.Ask{Need: s.Need, Kind: s.Kind, Site: d.siteOf(s), Only: s.On, Except: slices.Concat(d.avoided(j), d.uncleared(j)), Files: s.Machine, Directories: s.Directories()}
}

// avoided are hosts that failed to start a job: it waits a while for others.
func (d *draft) avoided(j fleet.Job) []fleet.HostID {
	if d.listened(j.Since) >= avoids { // also if the clock was set back since
		return nil
	}
	return j.Avoid
}

// uncleared are hosts that still have a guest of an earlier incarnation of a job. Another of that name
// starts there once they have destroyed it.
func (d *draft) uncleared(j fleet.Job) (out []fleet.HostID) {
	if j.Incarnation == 0 {
		return nil
	}
	for i := range j.Spec.MostGuests() {
		id := desired.GuestID(j.ID, i)
		home := d.Guests.At(id).Home
		if _, has := d.Hosts.At(home).Facts.Guests[id]; has {
			out = append(out, home)
		}
	}
	return out
}

// find chooses a host for every guest of a job beside what is reserved. The second result is the
// guest that found none; -1: all have one.
func (d *draft) find(q *queueing, j fleet.Job, a placement.Ask) ([]placement.Choice, int) {
	room := d.room().Clone()
	q.keepFrom(room, wholeTime(j.Spec))
	from, _ := d.origin(j)
	j.Grown = sizeFrom(j, from) - j.Spec.Guests
	asks, all := asksFrom(a, from, j.Size()), make([]fleet.Guest, j.Size())
	for i := range all {
		all[i].Index = i
	}
	placement.MarkAffinity(room, placement.AffinityView{Job: func(fleet.JobID) fleet.Job { return j }}, all, asks)
	return room.PlaceAll(asks)
}

// reservationOf is the question for the earliest room of guests as a job has them.
func reservationOf(s fleet.JobSpec, guests int, lasts time.Duration, hosts []fleet.HostID) queue.Ask {
	return queue.Ask{Guests: guests, Bytes: s.Need.MemoryBytes, Device: s.Need.Device, Lasts: lasts, Hosts: hosts}
}

// keepFrom takes out of a survey what a job that lasts so long must leave to others.
func (q *queueing) keepFrom(room *placement.Survey, lasts time.Duration) {
	for id, held := range q.plan.Held(lasts) {
		room.Reserve(id, fleet.Resources{MemoryBytes: held.Bytes})
		for _, d := range held.Devices {
			room.Reserve(id, fleet.Resources{Device: d})
		}
	}
	for id := range q.closed {
		room.Reserve(id, fleet.Resources{MemoryBytes: closedBytes})
	}
}

// beginJob starts a waiting job where there is room. false: it lacks something else.
func (d *draft) beginJob(q *queueing, j fleet.Job, chosen []placement.Choice) bool {
	from, waits := d.origin(j)
	share, reason := d.shareHost(j.Spec, from.Share, chosen)
	net, free := d.networkFor(from)
	gateway, leads := d.gatewayFor(j.Spec, chosen, "")
	if waits != "" {
		return false
	}
	vlan, given := d.vlan(j.Spec, net)
	if reason != "" || !free || !leads || !given {
		return false
	}
	for _, c := range chosen {
		d.plan(q, c.Host)
		q.plan.TakeRoom(c.Host, reservationOf(j.Spec, 1, wholeTime(j.Spec), nil))
		d.room().Reserve(c.Host, j.Spec.Need)
	}
	if from.ID == "" {
		d.counters().NextSubnet = (net + 1) % (fleet.MaxSubnet + 1)
	}
	j.From = from.ID
	j = lifecycle.BeginJob(j, len(chosen), net, share, d.at)
	j.Gateway, j.FewCPUs = gateway, d.fewCPUs(j.Spec, chosen)
	j.MTU = d.base.Cluster.Encryption.GuestMTU(gateway != "" && desired.By6(d.base.Hosts[gateway]) || slices.ContainsFunc(chosen, func(c placement.Choice) bool { return desired.By6(d.base.Hosts[c.Host]) }))
	if j.VLAN = vlan; vlan != 0 {
		j.MTU = cardMTU
	}
	d.Jobs.Put(j.ID, j)
	for i, id := range desired.GuestIDs(j) {
		d.Guests.Put(id, begun(d.guestFor(j, i, chosen[i]), from, i))
	}
	return true
}

// guestFor is a new guest of a job, at its place.
func (d *draft) guestFor(j fleet.Job, index int, at placement.Choice) fleet.Guest {
	id := desired.GuestID(j.ID, index)
	gen := d.Guests.At(id).Gen + 1 // of an earlier one of that name: hosts refuse what it was ordered
	can, ruled := d.Hosts.At(at.Host).Facts.Abilities[at.Kind], d.base.Cluster.Rules.CPU
	cpu := can.Model
	if ruled != "" && can.Accelerator == fleet.KVM {
		cpu = ruled
	}
	if cpu == fleet.HostCPU {
		cpu = ""
	}
	return fleet.Guest{
		ID: id, Job: j.ID, Index: index, Kind: at.Kind, Home: at.Host, Gen: gen, Born: j.Born,
		Since: d.at, Need: j.Spec.Need, Image: j.Digest, Reason: at.Reason,
		Shape: topology.For(d.base.Hosts, at.Host, at.Kind, j.Spec, ruled), CPU: cpu,
	}
}

// candidates are hosts that could take a guest if they were free.
func (d *draft) candidates(a placement.Ask) (out []fleet.HostID) {
	from := d.l.AllHosts()
	if len(a.Only) > 0 {
		from = a.Only
	}
	least := a.Need.MemoryBytes
	a = a.IfFree()
	for _, id := range from {
		h, known := d.Hosts.Find(id)
		if known && h.Facts.Capacity.MemoryBytes >= least && placement.Unfit(d.room(), &h, a) == "" {
			if out = append(out, id); len(out) == mostHosts {
				break
			}
		}
	}
	return out
}

// holds reports whether hosts could take all guests of a job if they were free.
func (d *draft) holds(ids []fleet.HostID, a placement.Ask, guests int) bool {
	room := 0
	for _, id := range ids {
		room += mostOn(d.base.Hosts[id], a.Need)
	}
	return room >= guests
}

// plan adds a host to the plan, with what its guests will give back.
func (d *draft) plan(q *queueing, id fleet.HostID) {
	if q.plan.Knows(id) {
		return
	}
	h := d.Hosts.At(id)
	out := queue.Host{ID: id, Free: d.room().FreeBytes(&h), Devices: d.room().FreeDevices(&h)}
	for _, g := range d.l.GuestsAt(id) {
		if g, there := d.Guests.Find(g); there && !g.State.Ended() && g.Home == id {
			device := g.Need.Device
			if h.Facts.OnVirtio(g.ID) {
				device = ""
			}
			out.Returns = append(out.Returns, queue.Return{After: d.stays(g.Job), Bytes: g.Need.MemoryBytes, Device: device})
		}
	}
	q.plan.Add(out)
}

// stays is how long a job's guests may still be there.
func (d *draft) stays(id fleet.JobID) time.Duration {
	j := d.Jobs.At(id)
	if j.State == fleet.JobStopping {
		return soon
	}
	return max(wholeTime(j.Spec)-max(d.at.Sub(j.Since), 0), soon)
}

// wholeTime is how long a job's guests may be there, from the first to the last moment.
func wholeTime(s fleet.JobSpec) time.Duration {
	if s.Time <= 0 {
		return queue.Forever
	}
	return s.Time + around
}

// waiting is why a job waits.
type waiting struct {
	reason string
	hosts  []placement.Why
	at     *queue.Reservation // nil: none yet
}

// why says why a job waits, for people.
func (q *queueing) why(d *draft, j fleet.Job) waiting {
	var w waiting
	if r, has := q.reserved[j.ID]; has {
		w.at = &r
	}
	from, waits := d.origin(j)
	if waits != "" {
		w.reason, w.at = waits, nil
		return w
	}
	if _, reason := d.shareHost(j.Spec, "", nil); reason != "" {
		w.reason = reason
		return w
	}
	guests := sizeFrom(j, from)
	asks := asksFrom(d.wanting(j), from, guests)
	a := asks[0]
	_, stuck := d.room().Clone().PlaceAll(asks)
	if reason := d.noVLAN(j.Spec); stuck < 0 && reason != "" {
		w.reason = reason
		return w
	}
	if reason, hosts := d.noGateway(j.Spec); stuck < 0 && reason != "" {
		w.reason, w.hosts = reason, hosts
		return w
	}
	if stuck < 0 {
		w.reason = "there is room, but jobs before it need it"
		return w
	}
	w.hosts = placement.Explain(d.room(), a)
	w.reason = fmt.Sprintf("there is no room for guest %d of %d (%d MiB each)", stuck+1, guests, j.Spec.Need.MemoryBytes>>20)
	return w
}

// queued says what a waiting job waits for, and when it would start.
func (e *explainer) queued(j fleet.Job) []string {
	d := newDraft(e.p, state.NewIndex(e.s, e.p.Policy))
	d.at = e.s.At
	q := d.dequeue()
	before := 0
	for i := range d.l.Waiting() {
		if d.l.WaitingAt(i) == j.ID {
			break
		}
		before++
	}
	out := []string{"It waits for room, and no job waits before it."}
	if before > 0 {
		out[0] = fmt.Sprintf("It waits for room behind %s.", counted(before, "waiting job"))
	}
	if d.Jobs.At(j.ID).State != fleet.JobPending {
		return append(out, "There is room for it, and it starts within a second.")
	}
	w := q.why(d, j)
	out = append(out, strings.ToUpper(w.reason[:1])+w.reason[1:]+".")
	if words := placement.Words(w.hosts); words != "" {
		out = append(out, "Hosts that cannot take a guest now: "+words+".")
	}
	switch {
	case w.at == nil:
		out = append(out, "When it starts is not known: that needs jobs before it to start, or hosts to take guests again.")
	case w.at.After >= queue.Forever/2:
		out = append(out, fmt.Sprintf("When it starts is not known, because jobs that it waits for have no limit (run --%s).", fleet.TimeFlag))
	default:
		out = append(out, fmt.Sprintf("It starts in %s at the latest, if all jobs keep to their limits.", fleet.ShortDuration(w.at.After.Round(time.Second))))
	}
	if avoided := d.avoided(j); len(avoided) > 0 {
		out = append(out, fmt.Sprintf("Hosts that failed to start it are avoided for %s: %s.", fleet.ShortDuration(avoids), fleet.Enumerate(hostNames(avoided), "and")))
	}
	return out
}

func hostNames(ids []fleet.HostID) (out []string) {
	for _, id := range ids {
		out = append(out, string(id))
	}
	return out
}

// times says how often.
func times(n int) string {
	if n == 1 {
		return "once"
	}
	return fmt.Sprintf("%d times", n)
}

// Package usage adds up what jobs use: processor time, memory, moves, time in which guests stood
// still, and energy. It has a record for each job and day; old records become one for each user,
// host and month.
//
// It must not know the clock, the store or connections: who calls it says what time it is, and
// keeps the records that have changed. Its tests give it facts as hosts tell them, and a
// controller that dies in between.
package usage

import (
	"cmp"
	"path"
	"slices"
	"time"

	"pagurus/fleet"
)

const (
	// Every is how often a host's facts are counted while its guests stay.
	Every = 10 * time.Second
	// longestGap is the longest time between two facts of a host that counts as time in which
	// guests occupied memory. In a longer one nothing is known of them.
	longestGap = time.Minute
	// slack is what a counter of processor time may be ahead of the clock: it is read by ticks, at
	// other moments than the controller hears of it.
	slack = 2 * time.Second
	// mostWatts is more than a host's processors take.
	mostWatts = 20_000
)

// Book is the usage of a cluster. Records are absolute: writing one twice does no harm.
type Book struct {
	limits  Limits
	records map[fleet.UsageID]fleet.UsageRecord
	byJob   map[jobKey][]fleet.UsageID // its days, oldest first
	counted map[fleet.MigrationID]bool // in a record's Moved
	hosts   map[fleet.HostID]heard     // as last counted
	dirty   map[fleet.UsageID]bool     // to be written
	gone    map[fleet.UsageID]bool     // to be removed
	open    map[jobKey]bool            // jobs that go on, or ended just now
	parts   int                        // of all records: one for each host
}

type jobKey struct {
	job  fleet.JobID
	born int64
}

// heard is what was last counted of a host.
type heard struct {
	at     time.Time
	joules float64
	worked time.Duration
}

// New makes a book of the records that were kept.
func New(l Limits, records []fleet.UsageRecord) *Book {
	b := &Book{
		limits: l, records: map[fleet.UsageID]fleet.UsageRecord{}, byJob: map[jobKey][]fleet.UsageID{}, counted: map[fleet.MigrationID]bool{},
		hosts: map[fleet.HostID]heard{}, dirty: map[fleet.UsageID]bool{}, gone: map[fleet.UsageID]bool{}, open: map[jobKey]bool{},
	}
	slices.SortFunc(records, compare)
	for _, r := range records {
		b.insert(r)
		for _, m := range r.Moved {
			b.counted[m] = true
		}
	}
	return b
}

// compare sorts records by period, then by job and user.
func compare(a, b fleet.UsageRecord) int {
	return cmp.Or(cmp.Compare(a.Period, b.Period), cmp.Compare(a.Job.Number(), b.Job.Number()), cmp.Compare(a.UID, b.UID), cmp.Compare(a.ID(), b.ID()))
}

// insert puts a record into the book.
func (b *Book) insert(r fleet.UsageRecord) {
	id := r.ID()
	if was, there := b.records[id]; there {
		b.parts -= len(was.Hosts)
	} else if r.Daily() {
		k := jobKey{r.Job, r.Born}
		b.byJob[k] = append(b.byJob[k], id)
	}
	b.records[id] = r
	b.parts += len(r.Hosts)
	if r.Daily() {
		k := jobKey{r.Job, r.Born}
		if r.About != nil && (r.About.Ended.IsZero() || len(r.Read) > 0) {
			b.open[k] = true
		} else {
			delete(b.open, k)
		}
	}
}

// change puts a record into the book and notes that it has to be written.
func (b *Book) change(r fleet.UsageRecord) {
	b.insert(r)
	b.dirty[r.ID()] = true
	delete(b.gone, r.ID())
}

// remove takes a record out.
func (b *Book) remove(id fleet.UsageID) {
	r, there := b.records[id]
	if !there {
		return
	}
	b.parts -= len(r.Hosts)
	delete(b.records, id)
	delete(b.dirty, id)
	b.gone[id] = true
	k := jobKey{r.Job, r.Born}
	if of := slices.DeleteFunc(b.byJob[k], func(other fleet.UsageID) bool { return other == id }); len(of) > 0 {
		b.byJob[k] = of
	} else {
		delete(b.byJob, k)
		delete(b.open, k)
	}
}

// today is a job's record of the day of a time, a copy that may be changed.
func (b *Book) today(j fleet.Job, at time.Time) fleet.UsageRecord {
	r := fleet.UsageRecord{Period: at.UTC().Format(fleet.UsageDay), UID: j.Spec.UID, Job: j.ID, Born: j.Born}
	if was, there := b.records[r.ID()]; there {
		r = was
	} else if of := b.byJob[jobKey{j.ID, j.Born}]; len(of) > 0 { // the counters go on where the day before ended
		before := b.records[of[len(of)-1]]
		r.Read, before.Read = before.Read, nil
		b.change(before)
	}
	hosts := make(map[fleet.HostID]fleet.Usage, len(r.Hosts)+1)
	for id, u := range r.Hosts {
		hosts[id] = u
	}
	r.Hosts, r.Read, r.About = hosts, slices.Clone(r.Read), about(j)
	return r
}

// about is what is kept of a job.
func about(j fleet.Job) *fleet.UsedBy {
	s := j.Spec
	name := ""
	if len(s.Args) > 0 {
		name = path.Base(s.Args[0])
	}
	if len(name) > mostName {
		name = name[:mostName]
	}
	return &fleet.UsedBy{
		Name: name, GID: s.GID, Guests: j.Size(), Ranks: s.Ranks, Need: s.Need, Time: s.Time, Kind: s.Kind, Submitted: j.Submitted, Started: j.Started,
		Ended: j.Ended, Result: j.Result, Exit: j.Exit, LostWith: j.LostWith, Overran: s.Time > 0 && j.Result == fleet.JobCancelled && !j.Started.IsZero() && j.Ended.Sub(j.Started) >= s.Time,
	}
}

const mostName = 64 // bytes of a program's name

// Due reports whether a host's facts are to be counted: some time has passed, or a guest came or
// went.
func (b *Book) Due(id fleet.HostID, before, now fleet.Facts, at time.Time) bool {
	last := b.hosts[id]
	if last.at.IsZero() || at.Sub(last.at) >= Every || at.Before(last.at) || len(before.Guests) != len(now.Guests) {
		return true
	}
	for g := range before.Guests {
		if _, still := now.Guests[g]; !still {
			return true
		}
	}
	return false
}

// Count counts what a host's guests have used since it was last counted, by facts that were told at a
// time. Guests that the cluster does not know count for nobody.
func (b *Book) Count(s fleet.Snapshot, id fleet.HostID, f fleet.Facts, at time.Time) {
	last := b.hosts[id]
	if !last.at.IsZero() && at.Before(last.at) { // the clock was set back, or the facts were counted
		last.at = at
	}
	passed := at.Sub(last.at)
	if last.at.IsZero() || passed > longestGap {
		passed = 0
	}
	joules, worked := powerSince(last, f.Power, passed)
	is := heard{at: at}
	if f.Power != nil && f.Power.Trouble == "" {
		is.joules, is.worked = f.Power.Joules, f.Power.Worked
	}
	b.hosts[id] = is
	ids := make([]fleet.GuestID, 0, len(f.Guests))
	for g := range f.Guests {
		ids = append(ids, g)
	}
	slices.Sort(ids)
	for _, g := range ids {
		guest, known := s.Guests[g]
		j, there := s.Jobs[guest.Job]
		if !known || !there {
			continue
		}
		b.countGuest(j, guest, sight{host: id, facts: f.Guests[g], cpus: max(f.Capacity.CPUs, 1), at: at, passed: passed, joules: joules, worked: worked})
	}
}

// powerSince is what a host's processors used since it was last counted; 0: unknown.
func powerSince(last heard, p *fleet.Power, passed time.Duration) (joules float64, worked time.Duration) {
	if p == nil || p.Trouble != "" || last.joules == 0 || p.Joules < last.joules || p.Worked <= last.worked || passed <= 0 {
		return 0, 0
	}
	return min(p.Joules-last.joules, mostWatts*passed.Seconds()), p.Worked - last.worked
}

// sight is a guest as its host told of it.
type sight struct {
	host   fleet.HostID
	facts  fleet.GuestFacts
	cpus   int
	at     time.Time
	passed time.Duration // since the host was last counted
	joules float64       // of the whole host in that time
	worked time.Duration // likewise, of its CPUs
}

// countGuest counts one guest on one host.
func (b *Book) countGuest(j fleet.Job, g fleet.Guest, w sight) {
	r := b.today(j, w.at)
	used := readCounter(&r, j, g.ID, w)
	u, held := fleet.Usage{CPUSeconds: used.Seconds()}, w.passed.Seconds()
	u.MemoryByteSeconds = float64(w.facts.ResidentBytes) * held
	if g.Home == w.host { // while it moves it is promised to one host only
		u.HeldCPUSeconds, u.HeldByteSeconds = float64(g.Need.CPUs)*held, float64(g.Need.MemoryBytes)*held
		if w.facts.Suspended {
			u.SuspendedSeconds = held
		}
	}
	if w.joules > 0 {
		u.Joules, u.MeteredCPUSeconds = w.joules*min(1, used.Seconds()/w.worked.Seconds()), u.CPUSeconds
	}
	r.Hosts[w.host] = r.Hosts[w.host].Plus(u)
	b.change(r)
}

// readCounter is how much processor time a guest has used since the last reading, and notes the new one. No
// host can tell of more than its CPUs had time for.
func readCounter(r *fleet.UsageRecord, j fleet.Job, g fleet.GuestID, w sight) time.Duration {
	now := fleet.UsageReading{Guest: g, Host: w.host, Started: w.facts.StartedAt, CPU: w.facts.CPUTime, At: w.at}
	i := slices.IndexFunc(r.Read, func(o fleet.UsageReading) bool { return o.Guest == g && o.Host == w.host })
	from := fleet.UsageReading{At: j.Submitted} // it came since, or is counted for the first time
	if i >= 0 && r.Read[i].Started.Equal(now.Started) {
		from = r.Read[i]
	}
	if i >= 0 {
		r.Read[i] = now
	} else {
		r.Read = append(r.Read, now)
	}
	return max(0, min(now.CPU-from.CPU, time.Duration(w.cpus)*(max(0, w.at.Sub(from.At))+slack)))
}

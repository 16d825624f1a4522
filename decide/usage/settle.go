package usage

import (
	"maps"
	"slices"
	"time"

	"pagurus/decide/lifecycle"
	"pagurus/fleet"
)

// FollowCluster counts the moves that have finished, and notes which jobs have ended. It forgets the readings of
// guests that are gone.
func (b *Book) FollowCluster(s fleet.Snapshot, at time.Time) {
	for _, id := range slices.Sorted(maps.Keys(s.Migrations)) {
		m := s.Migrations[id]
		j, known := s.Jobs[m.Job]
		if m.Phase != fleet.Finished || b.counted[id] || !known || j.Alone || m.Born != j.Born {
			continue
		}
		r := b.today(j, at)
		r.Hosts[m.From] = r.Hosts[m.From].Plus(fleet.Usage{Moves: 1, MovedBytes: m.Cost.SentBytes + m.Cost.PostCopyBytes, BlackoutSeconds: m.BlackoutTime().Seconds()})
		r.Moved = append(slices.Clone(r.Moved), id)
		b.counted[id] = true
		b.change(r)
	}
	for id := range b.counted {
		if _, known := s.Migrations[id]; !known {
			delete(b.counted, id)
		}
	}
	open := slices.SortedFunc(maps.Keys(b.open), func(a, c jobKey) int { return int(a.job.Number()) - int(c.job.Number()) })
	for _, k := range open {
		b.followJob(s, k, at)
	}
}

// NoteEnd notes that a job has ended. Its user may remove it at once.
func (b *Book) NoteEnd(j fleet.Job) {
	of := b.byJob[jobKey{j.ID, j.Born}]
	if len(of) == 0 || j.Requeue {
		return
	}
	r := b.records[of[len(of)-1]]
	r.About = about(j)
	b.change(r)
}

// lateFacts is how long after its end a host may still tell of a guest. Its reading is kept until then: without
// it, the whole counter would count again.
const lateFacts = 2 * time.Minute

// followJob notes a job's end, and forgets readings of its guests that are gone.
func (b *Book) followJob(s fleet.Snapshot, k jobKey, at time.Time) {
	of := b.byJob[k]
	r := b.records[of[len(of)-1]]
	j, known := s.Jobs[k.job]
	if !known || j.Born != k.born { // it was forgotten before its end was noted
		r.About = clone(r.About)
		r.About.Ended = orElse(r.About.Ended, lastRead(r))
		r.Read, r.Moved = nil, nil
		b.change(r)
		return
	}
	keep := slices.DeleteFunc(slices.Clone(r.Read), func(o fleet.UsageReading) bool {
		g, there := s.Guests[o.Guest]
		return !there || at.Sub(o.At) > lateFacts && !slices.Contains(lifecycle.Places(g, s.Migrations[g.Migration]), o.Host)
	})
	ended := j.State == fleet.JobEnded && !j.Requeue && r.About.Ended.IsZero()
	if len(keep) == len(r.Read) && !ended {
		return
	}
	if ended {
		r.About = about(j)
	}
	r.Read = keep
	b.change(r)
}

func clone(a *fleet.UsedBy) *fleet.UsedBy {
	c := *a
	return &c
}

func orElse(t, otherwise time.Time) time.Time {
	if t.IsZero() {
		return otherwise
	}
	return t
}

// lastRead is when anything was last read of a record's guests; without any, the end of its day.
func lastRead(r fleet.UsageRecord) (at time.Time) {
	for _, o := range r.Read {
		if o.At.After(at) {
			at = o.At
		}
	}
	return orElse(at, r.Begins().Add(24*time.Hour))
}

// Limits bound what is kept.
type Limits struct {
	Days   time.Duration // how long each job has a record of its own
	Months time.Duration // how long records of months are kept
	Parts  int           // of all records: one for each host of each
}

// Usual are the limits of a cluster. A part takes about 250 bytes of the store.
var Usual = Limits{Days: 62 * 24 * time.Hour, Months: 3 * 366 * 24 * time.Hour, Parts: 100_000}

// Fold makes months of the days that are too old or too many, and drops the oldest months. A job that has not
// ended keeps its newest day.
func (b *Book) Fold(at time.Time) {
	old := slices.SortedFunc(maps.Values(b.records), compare)
	for _, r := range old {
		young := at.Sub(r.Begins()) <= b.limits.Days
		if !r.Daily() || young && b.parts <= b.limits.Parts || b.newestOfOpen(r) {
			continue
		}
		b.fold(r)
	}
	if b.parts <= b.limits.Parts && !b.anyOlder(at) {
		return
	}
	for _, r := range slices.SortedFunc(maps.Values(b.records), compare) {
		if !r.Daily() && (at.Sub(r.Begins()) > b.limits.Months || b.parts > b.limits.Parts) {
			b.remove(r.ID())
		}
	}
}

// anyOlder reports whether a month is too old.
func (b *Book) anyOlder(at time.Time) bool {
	for _, r := range b.records {
		if !r.Daily() && at.Sub(r.Begins()) > b.limits.Months {
			return true
		}
	}
	return false
}

// newestOfOpen reports whether counting goes on in a record.
func (b *Book) newestOfOpen(r fleet.UsageRecord) bool {
	k := jobKey{r.Job, r.Born}
	of := b.byJob[k]
	return r.Daily() && b.open[k] && of[len(of)-1] == r.ID()
}

// fold adds a day to its month.
func (b *Book) fold(r fleet.UsageRecord) {
	for _, host := range slices.Sorted(maps.Keys(r.Hosts)) {
		m := fleet.UsageRecord{Period: r.Begins().Format(fleet.UsageMonth), UID: r.UID, Hosts: map[fleet.HostID]fleet.Usage{host: r.Hosts[host]}}
		if was, there := b.records[m.ID()]; there {
			m.Hosts[host] = m.Hosts[host].Plus(was.Hosts[host])
		}
		b.change(m)
	}
	b.remove(r.ID())
}

// Changes are the records that have to be written, and then those to be removed: a day goes after the months that have it are written.
type Changes struct {
	Put  []fleet.UsageRecord
	Gone []fleet.UsageID
}

// TakeChanges gives the changes since the last time, and forgets them: who cannot write them gives them back by Again.
func (b *Book) TakeChanges() (c Changes) {
	for _, id := range slices.Sorted(maps.Keys(b.dirty)) {
		r := b.records[id]
		r.Moved = slices.DeleteFunc(slices.Clone(r.Moved), func(m fleet.MigrationID) bool { return !b.counted[m] })
		b.records[id] = r
		c.Put = append(c.Put, r)
	}
	c.Gone = slices.Sorted(maps.Keys(b.gone))
	clear(b.dirty)
	clear(b.gone)
	return c
}

// Again takes changes back that could not be written.
func (b *Book) Again(c Changes) {
	for _, r := range c.Put {
		if _, there := b.records[r.ID()]; there {
			b.dirty[r.ID()] = true
		}
	}
	for _, id := range c.Gone {
		if _, there := b.records[id]; !there {
			b.gone[id] = true
		}
	}
}

// Since gives the records of periods that end after a time, oldest first, without what only the book needs.
// A month counts where it does not lie before the time as a whole.
func (b *Book) Since(at time.Time) (out []fleet.UsageRecord) {
	for _, r := range b.records {
		ends := r.Begins().AddDate(0, 0, 1)
		if !r.Daily() {
			ends = r.Begins().AddDate(0, 1, 0)
		}
		if ends.After(at) {
			r.Read, r.Moved = nil, nil
			out = append(out, r)
		}
	}
	slices.SortFunc(out, compare)
	return out
}

// Full reports whether there are more records than may be kept.
func (b *Book) Full() bool { return b.parts > b.limits.Parts }

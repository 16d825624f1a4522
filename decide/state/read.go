package state

import (
	"cmp"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"time"

	"pagurus/decide/cost"
	"pagurus/decide/lifecycle"
	"pagurus/decide/placement"
	"pagurus/decide/quota"
	"pagurus/fleet"
)

// names returns a set's elements, sorted. Most sets are empty.
func names[K cmp.Ordered](set map[K]bool) []K {
	out := collect(nil, set)
	slices.Sort(out)
	return out
}

// collect appends a set's elements, unordered.
func collect[K comparable](to []K, set map[K]bool) []K {
	to = slices.Grow(to, len(set))
	for k := range set {
		to = append(to, k)
	}
	return to
}

// Room is the hosts' promised and free resources.
func (l *Index) Room() *placement.Index { return l.room }

// GuestsAt names the guests that a host may run, sorted by ID.
func (l *Index) GuestsAt(id fleet.HostID) []fleet.GuestID {
	out := slices.Clone(l.homes[id])
	slices.Sort(out)
	return out
}

// Draining returns the draining hosts, sorted by ID.
func (l *Index) Draining() []fleet.HostID { return names(l.draining) }

// Readdressed returns the hosts whose reported address, WireGuard key or boot is not the stored one.
func (l *Index) Readdressed() []fleet.HostID { return names(l.readdressed) }

// Attended returns the hosts with guests whose owner is present and has not agreed that
// guests stay, sorted by ID.
func (l *Index) Attended() []fleet.HostID { return names(l.attended) }

// Failing returns the hosts that are to be emptied for their health, or no longer, sorted by ID.
func (l *Index) Failing() []fleet.HostID { return names(l.failing) }

// Suspended returns the guests to be suspended for an owner, sorted by ID.
func (l *Index) Suspended() []fleet.GuestID { return names(l.suspended) }

// Waiting is how many jobs wait for room.
func (l *Index) Waiting() int { return len(l.queue) }

// WaitingAt returns a job that waits for room by its place in the queue.
func (l *Index) WaitingAt(i int) fleet.JobID {
	return fleet.JobID("j" + strconv.FormatUint(l.queue[i].id, 10))
}

// Queued counts the jobs that wait for room, of a user and of all.
func (l *Index) Queued(uid uint32) quota.Live {
	return quota.Live{Mine: int64(l.queued[uid]), All: int64(len(l.queue)), Users: len(l.queued)}
}

// Expired returns the running jobs whose limit was over before a time.
func (l *Index) Expired(at time.Time) (out []fleet.JobID) {
	for _, j := range l.limited {
		if j.at.After(at) {
			break
		}
		out = append(out, j.id)
	}
	return out
}

// Growing names the running jobs whose programs wait for more guests.
func (l *Index) Growing() []fleet.JobID { return names(l.growing) }

// Outward names the jobs with guests that reach the Internet.
func (l *Index) Outward() []fleet.JobID { return names(l.outward) }

// AllHosts returns all hosts, sorted by ID, for reading.
func (l *Index) AllHosts() []fleet.HostID { return l.hosts }

// setBack is how far in the future something has begun that began before the clock was set back.
const setBack = 5 * time.Minute

// Restless returns the jobs whose run order did not succeed or whose program was told to
// end. It also returns the guests that wait for an order except a standing one, or whose
// order did not succeed. Both are unordered. Guests that wait for the first answer to
// their own order only since after the given time are excluded, but for those of before the clock was set back.
func (l *Index) Restless(since time.Time) ([]fleet.JobID, []fleet.GuestID) {
	guests := collect(nil, l.restless)
	for at, of := range l.waiting {
		if at <= since.UnixNano() || at > since.Add(setBack).UnixNano() {
			guests = collect(guests, of)
		}
	}
	return collect(nil, l.refused), guests
}

// Tally counts a job's guests.
func (l *Index) Tally(id fleet.JobID) lifecycle.Tally { return l.tallies[id] }

// OpenMoves returns the moves in progress.
func (l *Index) OpenMoves() []fleet.MoveID { return names(l.open) }

// MovingBy returns the migrations in progress in a mode.
func (l *Index) MovingBy(mode fleet.Mode) (out []fleet.MigrationID) {
	for v := range l.open {
		for _, id := range l.snap.Moves[v].Migrations {
			if m := l.snap.Migrations[id]; m.Mode == mode && !m.Phase.Ended() {
				out = append(out, id)
			}
		}
	}
	slices.Sort(out)
	return out
}

// OldMoves returns the moves that ended before a time, and those beyond the newest that have, with their migrations, most entries.
func (l *Index) OldMoves(before time.Time, most int) []fleet.MoveID {
	var out []fleet.MoveID
	kept, from := 0, 0
	if len(l.over)+len(l.snap.Migrations) > most {
		for from = len(l.over); from > 0; from-- {
			if kept += 1 + len(l.snap.Moves[l.over[from-1].id].Migrations); kept > most {
				break
			}
		}
	}
	for i, v := range l.over {
		if i >= from && !v.at.Before(before) {
			break
		}
		out = append(out, v.id)
	}
	return out
}

// Accompanied returns the jobs that ended before a time and have guests and moves still, and
// those beyond the newest most, oldest first.
func (l *Index) Accompanied(before time.Time, most int) []fleet.JobID {
	return l.done.old(before, most)
}

// Live is what the descriptions take of a user's jobs and of all that have not ended, or are to start again.
func (l *Index) Live(uid uint32) quota.Live {
	return quota.Live{Mine: l.live[uid], All: l.liveAll, Users: len(l.live)}
}

// OldJobs returns the jobs that ended before a time, and of each user those beyond the newest that may be kept,
// user by user and oldest first.
func (l *Index) OldJobs(before time.Time) (out []fleet.JobID) {
	counts := make([]int, 0, len(l.ended))
	for _, of := range l.ended {
		counts = append(counts, len(of))
	}
	most := quota.MostEnded(counts)
	for _, uid := range slices.Sorted(maps.Keys(l.ended)) {
		out = append(out, l.ended[uid].old(before, most)...)
	}
	return out
}

// old returns the elements before a time, and those beyond the newest most.
func (l line[K]) old(before time.Time, most int) (out []K) {
	for i, e := range l {
		if len(l)-i <= most && !e.at.Before(before) {
			break
		}
		out = append(out, e.id)
	}
	return out
}

// Submitted returns the job that a request created.
func (l *Index) Submitted(r fleet.RequestID) (fleet.JobID, bool) {
	id, ok := l.submitted[r]
	return id, ok && r != ""
}

// Asked returns the moves that a request created, sorted by ID.
func (l *Index) Asked(r fleet.RequestID) []fleet.MoveID {
	return slices.Sorted(slices.Values(l.asked[r]))
}

// Taken reports whether an unfinished job has a network.
func (l *Index) Taken(s fleet.Subnet) bool { return l.subnets[s] > 0 }

// OnVLAN reports whether an unfinished job has its network on a VLAN.
func (l *Index) OnVLAN(number uint16) bool { return l.vlans[number] > 0 }

// MigrationsOf returns the migrations of a job's guests.
func (l *Index) MigrationsOf(id fleet.JobID) []fleet.MigrationID { return l.byJob[id] }

// History is learnt from the latest migrations that arrived. With many of them one more
// adds little, so it is updated only when a tenth is new. It is cached here; calling this
// does not visibly change the index.
func (l *Index) History() *cost.History {
	last := l.finished.last(cost.Remembered)
	if l.history != nil && l.learnt <= len(last)/10 {
		return l.history
	}
	past := make([]fleet.MigrationID, len(last))
	for i, m := range last {
		past[i] = m.id
	}
	l.history, l.learnt = l.history.Next(past, func(id fleet.MigrationID) fleet.Migration { return l.snap.Migrations[id] }), 0
	return l.history
}

// Lesson returns what is kept for learning of a migration when its move is forgotten;
// false: it is too old.
func (l *Index) Lesson(id fleet.MigrationID) (fleet.Migration, bool) {
	m := l.snap.Migrations[id]
	last := l.finished.last(cost.Remembered)
	at, over := ended(m)
	m.Move, m.Stall = "", nil
	return m, over && cost.Teaches(m) && (len(last) < cost.Remembered || !at.Before(last[0].at))
}

// Faded returns the migrations that were kept only for learning and have been replaced by
// enough newer ones.
func (l *Index) Faded() []fleet.MigrationID {
	var out []fleet.MigrationID
	for _, of := range []line[fleet.MigrationID]{l.alone, l.missed} {
		for _, m := range of[:len(of)-len(of.last(cost.Remembered))] {
			out = append(out, m.id)
		}
	}
	return out
}

// ProfileOf returns a guest's latest profile from before it began to move; nil: none.
func (l *Index) ProfileOf(id fleet.GuestID) *fleet.Profile {
	m, known := l.profiledBy[id]
	if !known {
		return nil
	}
	return l.snap.Migrations[m].Predicted.Profile
}

// Check returns the differences between the index and a newly made one; empty: none. It
// is for tests.
func (l *Index) Check() string {
	anew := NewIndex(l.snap, l.policy)
	if wrong := l.room.Check(l.snap); wrong != "" {
		return "room: " + wrong
	}
	for _, m := range []*Index{l, anew} { // lists are unordered, and empty is nil
		for _, of := range m.homes {
			slices.Sort(of)
		}
		for _, of := range m.byJob {
			slices.Sort(of)
		}
		for _, of := range m.asked {
			slices.Sort(of)
		}
		for _, of := range m.checkpoints {
			slices.Sort(of)
		}
	}
	for _, c := range []struct {
		what      string
		have, all any
	}{
		{"homes", l.homes, anew.homes}, {"draining", l.draining, anew.draining}, {"readdressed", l.readdressed, anew.readdressed}, {"attended", l.attended, anew.attended}, {"failing", l.failing, anew.failing}, {"still", l.suspended, anew.suspended}, {"queued", l.queued, anew.queued}, {"hosts", l.hosts, anew.hosts},
		{"waiting", l.waiting, anew.waiting}, {"restless", l.restless, anew.restless}, {"refused", l.refused, anew.refused}, {"outward", l.outward, anew.outward}, {"growing", l.growing, anew.growing}, {"tallies", l.tallies, anew.tallies}, {"open moves", l.open, anew.open}, {"submitted", l.submitted, anew.submitted},
		{"asked", l.asked, anew.asked}, {"checkpoints", l.checkpoints, anew.checkpoints}, {"working", l.working, anew.working}, {"ended", l.ended, anew.ended}, {"live", l.live, anew.live}, {"all live", l.liveAll, anew.liveAll}, {"subnets", l.subnets, anew.subnets}, {"VLANs", l.vlans, anew.vlans}, {"migrations by job", l.byJob, anew.byJob},
	} {
		if !reflect.DeepEqual(c.have, c.all) {
			return fmt.Sprintf("%s: %v, should be %v", c.what, c.have, c.all)
		}
	}
	if !slices.Equal(l.queue, anew.queue) || !slices.Equal(l.limited, anew.limited) || !slices.Equal(l.planned, anew.planned) || !slices.Equal(l.over, anew.over) || !slices.Equal(l.done, anew.done) || !slices.Equal(l.finished, anew.finished) ||
		!slices.Equal(l.alone, anew.alone) || !slices.Equal(l.missed, anew.missed) {
		return "what has ended is not in order"
	}
	for id := range anew.profiledBy {
		if a, b := anew.ProfileOf(id), l.ProfileOf(id); b == nil || !a.At.Equal(b.At) {
			return fmt.Sprintf("profile of %s: %+v, should be %+v", id, b, a)
		}
	}
	return ""
}

// Unsettled reports whether time alone may soon cause a change: an answer is outstanding,
// a move is in progress, or a host drains.
func (l *Index) Unsettled() bool {
	return len(l.waiting)+len(l.restless)+len(l.refused)+len(l.queue)+len(l.limited)+len(l.planned)+len(l.growing)+len(l.working)+len(l.open)+len(l.draining)+len(l.readdressed)+len(l.failing) > 0
}

package state

import (
	"maps"
	"time"

	"pagurus/decide/cost"
	"pagurus/decide/lifecycle"
	"pagurus/decide/placement"
	"pagurus/decide/quota"
	"pagurus/decide/vacating"
	"pagurus/fleet"
)

// Index is a changing cluster. Commit, Learn and Reload change it; all else only reads.
// It must not be read while it changes.
type Index struct {
	snap   fleet.Snapshot
	shared shared
	room   *placement.Index
	policy placement.Policy // nil: the cluster's rules decide

	homes       map[fleet.HostID][]fleet.GuestID // guests that have not ended, by Home
	draining    map[fleet.HostID]bool
	readdressed map[fleet.HostID]bool            // hosts whose reported address or boot is not the stored one
	failing     map[fleet.HostID]bool            // hosts to be emptied for their health or a notice, or no longer
	attended    map[fleet.HostID]bool            // hosts with guests that must yield to a present owner, unless they may just stay
	suspended   map[fleet.GuestID]bool           // guests to be suspended for an owner
	queue       line[uint64]                     // the numbers of the jobs that wait for room, in order of submission
	queued      map[uint32]int                   // how many of them are whose
	outward     map[fleet.JobID]bool             // jobs with guests, which reach the Internet
	limited     line[fleet.JobID]                // running jobs with a limit, by its end
	hosts       []fleet.HostID                   // all, sorted
	waiting     map[int64]map[fleet.GuestID]bool // guests that wait for the first answer to their start or stop order, by time in nanoseconds: starts of one job share a time
	restless    map[fleet.GuestID]bool           // guests that wait for any other order except a standing one, or whose order did not succeed
	refused     map[fleet.JobID]bool             // jobs whose run order did not succeed
	tallies     map[fleet.JobID]lifecycle.Tally
	open        map[fleet.MoveID]bool
	over        line[fleet.MoveID]           // ended moves
	done        line[fleet.JobID]            // ended jobs whose guests are not forgotten
	ended       map[uint32]line[fleet.JobID] // all ended jobs, by user
	live        map[uint32]int64             // how much descriptions of jobs take that have not ended, or are to start again, by user
	liveAll     int64                        // of all users
	submitted   map[fleet.RequestID]fleet.JobID
	asked       map[fleet.RequestID][]fleet.MoveID
	checkpoints map[fleet.JobID][]fleet.CheckpointID // all of a job
	working     map[fleet.CheckpointID]bool          // checkpoints that are due, or that hosts or vaults work on
	growing     map[fleet.JobID]bool                 // running jobs whose program waits for more guests
	planned     line[fleet.JobID]                    // running jobs by when their plan has the next checkpoint made
	subnets     map[fleet.Subnet]int                 // of unfinished jobs
	vlans       map[uint16]int                       // likewise
	byJob       map[fleet.JobID][]fleet.MigrationID
	finished    line[fleet.MigrationID]
	alone       line[fleet.MigrationID]             // finished ones whose move is forgotten
	missed      line[fleet.MigrationID]             // aborted or lost ones whose move is forgotten
	history     *cost.History                       // of finished, as of learnt; nil: not needed yet
	learnt      int                                 // how many have been added since
	scratch     scratch                             // for Commit
	spare       []*View                             // see View
	profiledBy  map[fleet.GuestID]fleet.MigrationID // the migration whose prediction has the guest's latest profile
}

// shared says which maps of the snapshot may have other readers.
type shared struct{ hosts, guests, jobs, moves, migrations, checkpoints bool }

// sharedAll says that all may have.
var sharedAll = shared{true, true, true, true, true, true}

// NewIndex makes the index of a snapshot, whose hosts may have facts. The snapshot must
// not change any more, and the index does not change it.
func NewIndex(s fleet.Snapshot, p placement.Policy) *Index {
	l := &Index{
		snap: s, shared: sharedAll, policy: p, room: placement.NewIndex(s, placement.InForce(p, s.Cluster.Rules)),
		suspended: map[fleet.GuestID]bool{}, queued: map[uint32]int{}, hosts: []fleet.HostID{},
		homes: map[fleet.HostID][]fleet.GuestID{}, draining: map[fleet.HostID]bool{}, readdressed: map[fleet.HostID]bool{}, attended: map[fleet.HostID]bool{}, failing: map[fleet.HostID]bool{},
		waiting: map[int64]map[fleet.GuestID]bool{}, restless: map[fleet.GuestID]bool{}, refused: map[fleet.JobID]bool{}, outward: map[fleet.JobID]bool{}, tallies: map[fleet.JobID]lifecycle.Tally{}, open: map[fleet.MoveID]bool{}, submitted: map[fleet.RequestID]fleet.JobID{},
		live: map[uint32]int64{}, ended: map[uint32]line[fleet.JobID]{}, asked: map[fleet.RequestID][]fleet.MoveID{}, subnets: map[fleet.Subnet]int{}, vlans: map[uint16]int{}, byJob: map[fleet.JobID][]fleet.MigrationID{},
		checkpoints: map[fleet.JobID][]fleet.CheckpointID{}, working: map[fleet.CheckpointID]bool{}, growing: map[fleet.JobID]bool{},
		profiledBy: map[fleet.GuestID]fleet.MigrationID{},
	}
	for _, h := range s.Hosts {
		l.host(&h)
	}
	for _, g := range s.Guests {
		l.guest(nil, &g)
	}
	for _, j := range s.Jobs {
		l.job(j, 1)
	}
	for _, v := range s.Moves {
		l.move(v, 1)
	}
	for _, m := range s.Migrations {
		l.migration(m, 1)
	}
	for _, c := range s.Checkpoints {
		l.checkpoint(c, 1)
	}
	return l
}

// Snapshot returns the cluster for reading until the next change.
func (l *Index) Snapshot() fleet.Snapshot { return l.snap }

// Share returns the cluster for reading at any time. The next change copies the maps that
// it changes.
func (l *Index) Share() fleet.Snapshot {
	l.shared = sharedAll
	return l.snap
}

// At sets the time.
func (l *Index) At(at time.Time) { l.snap.At = at }

// Led sets the time since which hosts can be heard. Those that were heard later were heard
// before the clock was set back.
func (l *Index) Led(since time.Time) {
	l.snap.LedSince = since
	for id, h := range l.snap.Hosts {
		if h.Facts.SeenAt.After(since) {
			h.Facts.SeenAt = since
			l.Learn(id, h.Facts)
		}
	}
}

// Reload replaces the cluster by the stored snapshot. Facts of remaining hosts stay.
func (l *Index) Reload(s fleet.Snapshot) {
	s.At, s.LedSince = l.snap.At, l.snap.LedSince
	hosts := make(map[fleet.HostID]fleet.Host, len(s.Hosts))
	for id, h := range s.Hosts {
		h.Facts = l.snap.Hosts[id].Facts
		hosts[id] = h
	}
	s.Hosts = hosts
	*l = *NewIndex(s, l.policy)
}

// Learn stores an agent's facts. It ignores unknown hosts.
func (l *Index) Learn(id fleet.HostID, f fleet.Facts) {
	h, known := l.snap.Hosts[id]
	if !known {
		return
	}
	h.Facts = f
	l.snap.Hosts = own(l.snap.Hosts, &l.shared.hosts)
	l.snap.Hosts[id] = h
	l.host(&h)
	l.room.Host(&h)
}

// Commit applies a change that was stored as revision. Facts stay.
func (l *Index) Commit(c fleet.Changeset, revision int64) {
	l.snap.Revision = revision
	ruled := false
	if c.Cluster != nil {
		ruled = c.Cluster.Rules != l.snap.Cluster.Rules
		l.snap.Cluster = *c.Cluster
	}
	l.touch(c)
	w := &l.scratch
	w.was, w.from = l.stays(w.was, w.guests), l.traffic(w.from, w.migrations)
	l.commitHosts(c)
	if len(c.Guests)+len(c.GoneGuests) > 0 {
		l.snap.Guests = own(l.snap.Guests, &l.shared.guests)
		l.commitGuests(c)
	}
	if len(c.Jobs)+len(c.GoneJobs) > 0 {
		l.snap.Jobs = own(l.snap.Jobs, &l.shared.jobs)
		apply(l.snap.Jobs, c.Jobs, c.GoneJobs, func(j fleet.Job) fleet.JobID { return j.ID }, l.job)
	}
	if len(c.Moves)+len(c.GoneMoves) > 0 {
		l.snap.Moves = own(l.snap.Moves, &l.shared.moves)
		apply(l.snap.Moves, c.Moves, c.GoneMoves, func(v fleet.Move) fleet.MoveID { return v.ID }, l.move)
	}
	if len(c.Migrations)+len(c.GoneMigrations) > 0 {
		l.snap.Migrations = own(l.snap.Migrations, &l.shared.migrations)
		apply(l.snap.Migrations, c.Migrations, c.GoneMigrations, func(m fleet.Migration) fleet.MigrationID { return m.ID }, l.migration)
	}
	l.commitCheckpoints(c)
	if len(c.Users)+len(c.GoneUsers)+len(c.Tokens)+len(c.GoneTokens) > 0 { // few and seldom: copied
		members := l.snap.Apply(fleet.Changeset{Users: c.Users, GoneUsers: c.GoneUsers, Tokens: c.Tokens, GoneTokens: c.GoneTokens}, revision)
		l.snap.Users, l.snap.Tokens = members.Users, members.Tokens
	}
	w.is, w.to = l.stays(w.is, w.guests), l.traffic(w.to, w.migrations)
	for i := range w.was {
		l.shift(w.was[i], w.is[i])
	}
	l.reroute(w.from, w.to)
	for _, id := range c.GoneHosts { // last: no guest is there any more
		l.room.Forget(id)
	}
	if ruled {
		l.room = placement.NewIndex(l.snap, placement.InForce(l.policy, l.snap.Cluster.Rules))
	}
}

func (l *Index) commitHosts(c fleet.Changeset) {
	if len(c.Hosts)+len(c.GoneHosts) == 0 {
		return
	}
	l.snap.Hosts = own(l.snap.Hosts, &l.shared.hosts)
	for _, h := range c.Hosts {
		h.Facts = l.snap.Hosts[h.ID].Facts
		l.snap.Hosts[h.ID] = h
		l.host(&h)
		l.room.Host(&h)
	}
	for _, id := range c.GoneHosts {
		delete(l.snap.Hosts, id)
		l.known(id, false)
		delete(l.draining, id)
		delete(l.readdressed, id)
		delete(l.attended, id)
		delete(l.failing, id)
	}
}

func (l *Index) commitGuests(c fleet.Changeset) {
	for i := range c.Guests {
		is := &c.Guests[i]
		was, known := l.snap.Guests[is.ID]
		if known {
			l.guest(&was, is)
		} else {
			l.guest(nil, is)
		}
		if !l.touched(is.ID) {
			l.shift(l.stay(&was), l.stay(is))
		}
		l.snap.Guests[is.ID] = *is
	}
	for _, id := range c.GoneGuests {
		if was, known := l.snap.Guests[id]; known {
			l.guest(&was, nil)
			if !l.touched(id) {
				l.shift(l.stay(&was), stay{})
			}
			delete(l.snap.Guests, id)
		}
	}
}

// own returns a map without other readers.
func own[K comparable, V any](m map[K]V, shared *bool) map[K]V {
	if *shared || m == nil {
		m, *shared = maps.Clone(m), false
		if m == nil {
			m = map[K]V{}
		}
	}
	return m
}

// apply changes a map and tells count what is removed, by -1, and what is added.
func apply[K comparable, V any](m map[K]V, put []V, gone []K, id func(V) K, count func(V, int)) {
	for _, v := range put {
		k := id(v)
		if old, was := m[k]; was {
			count(old, -1)
		}
		m[k] = v
		count(v, 1)
	}
	for _, k := range gone {
		if old, was := m[k]; was {
			count(old, -1)
			delete(m, k)
		}
	}
}

func set[K comparable](m map[K]bool, k K, in bool) {
	if in {
		m[k] = true
	} else if len(m) > 0 {
		delete(m, k)
	}
}

// add counts in a map without zeros.
func add[K comparable](m map[K]int, k K, by int) {
	if n := m[k] + by; n != 0 {
		m[k] = n
	} else {
		delete(m, k)
	}
}

func (l *Index) host(h *fleet.Host) {
	l.known(h.ID, true)
	set(l.draining, h.ID, h.State == fleet.HostDraining)
	w := h.Facts.WireGuard
	set(l.readdressed, h.ID, h.Facts.Address != "" && h.Facts.Address != h.Address || h.Facts.Boot != "" && h.Facts.Boot != h.Boot ||
		w != nil && w.Key != "" && w.WireGuardEnd != h.WireGuard || wishes(h))
	set(l.attended, h.ID, attended(h) && len(l.homes[h.ID]) > 0)
	set(l.failing, h.ID, h.Facts.Health.Grave(h.SignsSeen) != h.ForHealth || vacating.Differs(h))
}

// wishes reports whether a host's owner has chosen a policy at the machine that is not stored yet.
func wishes(h *fleet.Host) bool {
	o := h.Facts.Owner
	return o != nil && o.Wish != nil && o.Wish.ID != h.Wished
}

// attended reports whether a host's owner is present, and has not agreed that guests
// stay.
func attended(h *fleet.Host) bool {
	return h.Facts.Owner != nil && h.Facts.Owner.Present && h.Policy.Vacate != fleet.Stay
}

// noteOccupied records whether a host has guests.
func (l *Index) noteOccupied(id fleet.HostID) {
	if len(l.homes[id]) == 0 {
		delete(l.attended, id)
		return
	}
	h := l.snap.Hosts[id]
	set(l.attended, id, attended(&h))
}

// guest records a guest's change; nil: it does not exist. Usually most of it is
// unchanged.
func (l *Index) guest(was, is *fleet.Guest) {
	switch {
	case was == nil:
		was = &fleet.Guest{ID: is.ID, State: fleet.GuestEnded}
		l.tally(*is, 1)
	case is == nil:
		is = &fleet.Guest{ID: was.ID, State: fleet.GuestEnded}
		l.tally(*was, -1)
	case was.State != is.State || was.Job != is.Job:
		l.tally(*was, -1)
		l.tally(*is, 1)
	}
	if was.Suspended != is.Suspended {
		set(l.suspended, is.ID, is.Suspended)
	}
	if before, now := restless(was), restless(is); before != now {
		set(l.restless, is.ID, now)
	}
	if before, now := waits(was), waits(is); before != now || !was.Since.Equal(is.Since) {
		if before {
			l.wait(was, false)
		}
		if now {
			l.wait(is, true)
		}
	}
	if before, now := !was.State.Ended(), !is.State.Ended(); before != now || was.Home != is.Home {
		if before {
			if list(l.homes, was.Home, was.ID, -1); len(l.homes[was.Home]) == 0 {
				l.noteOccupied(was.Home)
			}
		}
		if now {
			if list(l.homes, is.Home, is.ID, 1); len(l.homes[is.Home]) == 1 {
				l.noteOccupied(is.Home)
			}
		}
	}
}

// wait records whether a guest waits.
func (l *Index) wait(g *fleet.Guest, waits bool) {
	since := g.Since.UnixNano()
	of := l.waiting[since]
	if of == nil {
		of = map[fleet.GuestID]bool{}
		l.waiting[since] = of
	}
	if set(of, g.ID, waits); len(of) == 0 {
		delete(l.waiting, since)
	}
}

// waits reports whether a guest waits for the first answer to its own order; restless,
// whether it waits for any other except a standing one.
func waits(g *fleet.Guest) bool {
	switch g.State {
	case fleet.GuestStarting, fleet.GuestRestoring, fleet.GuestResuming, fleet.GuestStopping:
		return g.Attempt == 0
	}
	return false
}

func restless(g *fleet.Guest) bool {
	return !g.State.Ended() && !waits(g) && (g.State != fleet.GuestRunning || g.Attempt > 0)
}

// tally counts a guest for its job.
func (l *Index) tally(g fleet.Guest, by int) {
	t := l.tallies[g.Job]
	if t.Count(g.State, by); t == (lifecycle.Tally{}) {
		delete(l.tallies, g.Job)
	} else {
		l.tallies[g.Job] = t
	}
}

func (l *Index) job(j fleet.Job, by int) {
	if j.State == fleet.JobPending {
		l.queue.add(j.Submitted, j.ID.Number(), by)
		add(l.queued, j.Spec.UID, by)
	}
	if j.Computes() && j.Spec.Time > 0 {
		l.limited.add(j.Started.Add(j.Spec.Time), j.ID, by)
	}
	if j.State == fleet.JobRunning && !j.NextCheckpoint.IsZero() {
		l.planned.add(j.NextCheckpoint, j.ID, by)
	}
	_, grows := j.Growing()
	set(l.growing, j.ID, by > 0 && grows && j.State == fleet.JobRunning)
	set(l.outward, j.ID, by > 0 && j.Spec.Outward() && j.State != fleet.JobPending && j.State != fleet.JobSuspended && j.State != fleet.JobEnded)
	set(l.refused, j.ID, by > 0 && j.State == fleet.JobRunning && (j.Attempt > 0 || !j.Computes()))
	if j.Request != "" && by > 0 {
		l.submitted[j.Request] = j.ID
	} else if j.Request != "" {
		delete(l.submitted, j.Request)
	}
	if j.State != fleet.JobEnded {
		weight := int64(by) * quota.Weight(j.Spec)
		l.liveAll += weight
		if l.live[j.Spec.UID] += weight; l.live[j.Spec.UID] == 0 {
			delete(l.live, j.Spec.UID)
		}
	}
	if j.State == fleet.JobEnded {
		if !j.Alone {
			l.done.add(j.Ended, j.ID, by)
		}
		of := l.ended[j.Spec.UID]
		of.add(j.Ended, j.ID, by)
		if l.ended[j.Spec.UID] = of; len(of) == 0 {
			delete(l.ended, j.Spec.UID)
		}
		return
	}
	if j.State != fleet.JobPending && j.State != fleet.JobSuspended {
		add(l.subnets, j.Subnet, by)
		if j.VLAN != 0 {
			add(l.vlans, j.VLAN, by)
		}
	}
}

func (l *Index) move(v fleet.Move, by int) {
	if v.Request != "" {
		list(l.asked, v.Request, v.ID, by)
	}
	if v.Ended.IsZero() {
		set(l.open, v.ID, by > 0)
	} else {
		l.over.add(v.Ended, v.ID, by)
	}
}

func (l *Index) migration(m fleet.Migration, by int) {
	list(l.byJob, m.Job, m.ID, by)
	l.noteProfile(m, by)
	at, over := ended(m)
	switch {
	case !over:
		return
	case m.Phase == fleet.Finished:
		l.finished.add(at, m.ID, by)
		l.learnt += max(by, 0)
		if m.Move == "" {
			l.alone.add(at, m.ID, by)
		}
	case m.Move == "":
		l.missed.add(at, m.ID, by)
	}
}

// ended returns when a migration ended; false: not yet, or unknown.
func ended(m fleet.Migration) (time.Time, bool) {
	if !m.Phase.Ended() || len(m.Entered) == 0 {
		return time.Time{}, false
	}
	return m.Entered[len(m.Entered)-1].At, true
}

// noteProfile records which migration has a guest's latest profile, of those that are not
// forgotten.
func (l *Index) noteProfile(m fleet.Migration, by int) {
	if m.Move == "" || m.Predicted == nil || m.Predicted.Profile == nil {
		return
	}
	last, known := l.profiledBy[m.Guest]
	switch {
	case by < 0 && last == m.ID:
		delete(l.profiledBy, m.Guest) // it is added again at once, or was old
	case by > 0:
		if p := l.snap.Migrations[last].Predicted; !known || p == nil || p.Profile == nil || !m.Predicted.Profile.At.Before(p.Profile.At) {
			l.profiledBy[m.Guest] = m.ID
		}
	}
}

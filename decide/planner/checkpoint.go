// This file makes checkpoints: on request, by jobs' plans, and removes those that newer ones replace. It chooses the
// vaults.
//
// It must not know in which order hosts are told what, which is package lifecycle's. Its tests are scenarios.

package planner

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"pagurus/decide/lifecycle"
	"pagurus/decide/placement"
	"pagurus/fleet"
)

const (
	// mostPinned is how many checkpoints of a job a person may have made. They stay until they are removed.
	mostPinned = 8
	// mostListed is how many of a job's checkpoints are listed that have failed or were removed.
	mostListed = 10
	// The interval that a job's plan leaves to the planner is within these.
	shortestInterval = 2 * time.Minute
	longestInterval  = 12 * time.Hour
	// savingSlows is the part of the time of saving that a job loses: its host copies, compresses and sends meanwhile.
	savingSlows = 0.1
)

// makeCheckpoint makes a checkpoint of a running job, or one by which it is suspended.
func (d *draft) makeCheckpoint(r fleet.Request) (fleet.Answer, error) {
	j, ok := d.Jobs.Find(r.Job)
	if !ok {
		return refuse(r, "there is no job %s; `pagurus job ls` lists them", orNone(r.Job))
	}
	pinned, first := 0, j.Spec.Checkpoint == nil // of a plan `pagurus run` has told
	for _, c := range d.checkpointsOf(j.ID) {
		first = false
		switch {
		case r.ID != "" && c.Request == r.ID:
			return fleet.Answer{Job: j.ID, Checkpoint: c.ID}, nil
		case beingMade(c):
			return refuse(r, "checkpoint %s of %s is being made (%s); wait for it, or remove it with `pagurus checkpoint rm %s`", c.ID, j.ID, c.Phase, c.ID)
		case c.Pinned && c.Phase == fleet.Kept:
			pinned++
		}
	}
	switch {
	case !j.Computes():
		return refuse(r, "job %s is %s, and only a running program has a state to keep", j.ID, stateWord(j))
	case pinned >= mostPinned && r.Verb == fleet.MakeCheckpoint:
		return refuse(r, "%d checkpoints of %s that were asked for are kept; `pagurus checkpoint rm` removes one", pinned, j.ID)
	}
	guests := d.guestsOf(j)
	one := fleet.Checkpoint{Job: j.ID, Pinned: r.Verb == fleet.MakeCheckpoint}
	if _, reason := d.vaults(j, guests, one); reason != "" {
		return refuse(r, "%s", reason)
	}
	if reason := d.overQuota(j, one, 0); reason != "" {
		return refuse(r, "%s", reason)
	}
	c := d.beginCheckpoint(j, "asked for by "+whoAsked(r.By))
	c.Request, c.Asks, c.Pinned, c.Suspends = r.ID, r.Asks, r.Verb == fleet.MakeCheckpoint, r.Verb == fleet.SuspendJob
	d.Checkpoints.Put(c.ID, c)
	d.attendCheckpoint(c.ID)
	answer := fleet.Answer{Job: j.ID, Checkpoint: c.ID}
	if d.Checkpoints.At(c.ID).Phase == fleet.Due {
		answer.Notes = []string{"it waits until all guests run and none is moving or suspended"}
	}
	if first {
		answer.Notes = append(answer.Notes, aboutFiles(j.Spec, d.base.Hosts)...)
	}
	if j.Spec.Outward() {
		answer.Notes = append(answer.Notes, outwardLost)
	}
	return answer, nil
}

func stateWord(j fleet.Job) string {
	if j.State == fleet.JobRunning && !j.Computes() {
		return "ending"
	}
	return string(j.State)
}

// beginCheckpoint records a checkpoint of a job, which is due.
func (d *draft) beginCheckpoint(j fleet.Job, why string) fleet.Checkpoint {
	j, c := lifecycle.BeginCheckpoint(j, why, d.at)
	d.Jobs.Put(j.ID, lifecycle.CheckpointBegun(j, d.often(j), d.at))
	return c
}

// removeCheckpoint removes a checkpoint, or gives up one that is under way.
func (d *draft) removeCheckpoint(r fleet.Request) (fleet.Answer, error) {
	c, ok := d.Checkpoints.Find(r.Checkpoint)
	if !ok {
		return refuse(r, "there is no checkpoint %s; `pagurus checkpoint ls` lists them", orNone(r.Checkpoint))
	}
	if j := d.Jobs.At(c.Job); c.Phase == fleet.Kept && goesOnFrom(j, c.ID) {
		return refuse(r, "job %s is to go on from %s; `pagurus restart %s --from` another one, or `pagurus cancel %s`, comes first", j.ID, c.ID, j.ID, j.ID)
	}
	if next, changed := lifecycle.RemoveCheckpoint(c, fmt.Sprintf("removed by uid %d", r.By.UID), d.at); changed {
		d.recordCheckpoint(next)
	}
	return fleet.Answer{Job: c.Job, Checkpoint: c.ID}, nil
}

// goesOnFrom reports whether a job is about to begin at a checkpoint.
func goesOnFrom(j fleet.Job, c fleet.CheckpointID) bool {
	switch j.State {
	case fleet.JobStarting, fleet.JobPending, fleet.JobSuspended:
		return j.From == c
	case fleet.JobStopping:
		return (j.Requeue || j.Suspending) && !j.FromBeginning && cmp.Or(j.RestartFrom, j.Newest) == c
	}
	return false
}

// restartJob begins a job again, from a checkpoint or its beginning.
func (d *draft) restartJob(r fleet.Request) (fleet.Answer, error) {
	j, ok := d.Jobs.Find(r.Job)
	if !ok {
		return refuse(r, "there is no job %s; `pagurus job ls` lists them", orNone(r.Job))
	}
	if r.Checkpoint != "" {
		switch c, known := d.Checkpoints.Find(r.Checkpoint); {
		case !known || c.Job != j.ID:
			return refuse(r, "job %s has no checkpoint %s; `pagurus checkpoint ls %s` lists those that it has", j.ID, r.Checkpoint, j.ID)
		case c.Phase != fleet.Kept:
			return refuse(r, "checkpoint %s is %s; `pagurus checkpoint ls %s` lists those that are kept", c.ID, c.Phase, j.ID)
		case r.Beginning:
			return refuse(r, "a job begins at a checkpoint or at its beginning; name one of the two")
		}
	}
	next, changed := lifecycle.Restart(j, r.Checkpoint, r.Beginning, d.at)
	switch {
	case changed:
	case j.State == fleet.JobEnded:
		return refuse(r, "job %s ended too long ago, and what it was is not kept; submit it again with `pagurus run`", j.ID)
	default:
		return refuse(r, "job %s is %s, and begins by itself or ends; `pagurus explain %s` says what it waits for", j.ID, j.State, j.ID)
	}
	d.Jobs.Put(j.ID, next)
	d.settleJob(j.ID)
	return d.begunAgain(j.ID, d.dequeue()), nil
}

// resumeJob lets a suspended job wait for room, on other hosts than before if these are named.
func (d *draft) resumeJob(r fleet.Request) (fleet.Answer, error) {
	j, ok := d.Jobs.Find(r.Job)
	if !ok {
		return refuse(r, "there is no job %s; `pagurus job ls` lists them", orNone(r.Job))
	}
	next, changed := lifecycle.ResumeJob(j, d.at)
	if !changed {
		return refuse(r, "job %s is %s, and only a suspended job can be resumed; `pagurus suspend %s` suspends one that runs", j.ID, j.State, j.ID)
	}
	if len(r.On) > 0 {
		next.Spec.On = slices.Clone(r.On)
		if reason := d.invalidHosts(next.Spec); reason != "" {
			return refuse(r, "%s", reason)
		}
		if reason, hosts := d.neverFits(next.Spec); reason != "" {
			return fleet.Answer{}, &Refusal{Request: r, Reason: reason, Hosts: hosts}
		}
	}
	d.Jobs.Put(j.ID, next)
	return d.begunAgain(j.ID, d.dequeue()), nil
}

// begunAgain is the answer about a job that is to begin again, once the queue has had its turn: it may have to wait.
func (d *draft) begunAgain(id fleet.JobID, q *queueing) fleet.Answer {
	out := fleet.Answer{Job: id}
	if j := d.Jobs.At(id); j.State == fleet.JobPending {
		out.Notes = []string{waitsSince(id, q.why(d, j).reason)}
	}
	return out
}

// reportCheckpoint applies a report on one guest's part of a checkpoint.
func (d *draft) reportCheckpoint(r fleet.Report) error {
	c, ok := d.Checkpoints.Find(r.Order.Checkpoint)
	if !ok {
		return nil
	}
	if next, over := d.savedTooMuch(c, r); over {
		d.recordCheckpoint(next)
		return nil
	}
	next, changed, err := lifecycle.Checkpoint(c, r)
	if err != nil || !changed {
		return err
	}
	d.recordCheckpoint(next)
	return nil
}

// recordCheckpoint records a checkpoint's new state, and what follows for its job.
func (d *draft) recordCheckpoint(c fleet.Checkpoint) {
	was := d.Checkpoints.At(c.ID)
	d.Checkpoints.Put(c.ID, c)
	if c.Phase.Ended() {
		defer d.forgetCheckpoints(c.Job)
	}
	j, known := d.Jobs.Find(c.Job)
	if was.Phase == c.Phase || !known {
		return
	}
	if c.Phase == fleet.Kept || c.Phase == fleet.Dropping || c.Phase == fleet.Releasing || c.Phase.Ended() {
		j = lifecycle.CheckpointOver(j, c, d.newest(j), d.often(j), d.at)
		d.Jobs.Put(j.ID, j)
	}
	if c.Phase != fleet.Kept {
		return
	}
	if j, suspended := lifecycle.SuspendJob(j, c.ID, d.at); c.Suspends && suspended {
		d.Jobs.Put(j.ID, j)
		d.settleJob(j.ID)
	}
	for _, old := range lifecycle.Retained(d.checkpointsOf(j.ID), keeps(j)) {
		if goesOnFrom(d.Jobs.At(j.ID), old.ID) { // as a suspended job from the only state that it has, while copies come back
			continue
		}
		if gone, changed := lifecycle.RemoveCheckpoint(old, "newer ones took its place", d.at); changed {
			d.recordCheckpoint(gone)
		}
	}
}

// newest is the newest kept checkpoint of a job that no restore has failed with; empty: none.
func (d *draft) newest(j fleet.Job) fleet.CheckpointID {
	var best fleet.CheckpointID
	for _, c := range d.checkpointsOf(j.ID) {
		if c.Phase == fleet.Kept && !slices.Contains(j.Unrestorable, c.ID) {
			best = c.ID
		}
	}
	return best
}

// checkpointsOf returns a job's checkpoints, with the changes so far, in order.
func (d *draft) checkpointsOf(id fleet.JobID) (out []fleet.Checkpoint) {
	ids := slices.Clone(d.l.CheckpointsOf(id))
	for i := range d.Checkpoints.Changes() {
		if c := &d.Checkpoints.Changes()[i]; !c.Gone && c.Is.Job == id && !slices.Contains(ids, c.ID) {
			ids = append(ids, c.ID)
		}
	}
	for _, id := range ids {
		if c, there := d.Checkpoints.Find(id); there {
			out = append(out, c)
		}
	}
	slices.SortFunc(out, func(a, b fleet.Checkpoint) int {
		return cmp.Compare(a.ID.Number(), b.ID.Number())
	})
	return out
}

// holdsMoves reports whether hosts work on a checkpoint of a job, so that its guests' copies wait.
func (d *draft) holdsMoves(id fleet.JobID) bool {
	return slices.ContainsFunc(d.checkpointsOf(id), func(c fleet.Checkpoint) bool { return c.Phase.Traits().Holds })
}

// startCopies lets copies of a gang begin whose turn it is, unless a checkpoint is being made of one of its guests, or they
// wait for a mark of a program.
func (d *draft) startCopies(members []fleet.Migration) ([]fleet.Migration, bool) {
	for _, m := range members {
		if m.Phase == fleet.Waiting && d.holdsMoves(m.Job) {
			return members, false
		}
	}
	if len(members) == 0 {
		return members, false
	}
	w := waitForMark(d.base, d.Moves.At(members[0].Move), members, d.at)
	if w.Holds {
		return members, false
	}
	out, began := lifecycle.Start(members, d.left, d.at)
	noteMark(members, out, w, d.at)
	if began {
		d.awaitMark(members, out)
	}
	return out, began
}

// checkpoints does for checkpoints what depends on time, and on jobs and hosts.
func (d *draft) checkpoints() {
	for _, id := range d.l.Planned(d.at) {
		j := d.Jobs.At(id)
		if !j.Computes() || j.Spec.Checkpoint == nil {
			continue
		}
		if slices.ContainsFunc(d.checkpointsOf(id), beingMade) {
			continue
		}
		why := fmt.Sprintf("planned, after %s", fleet.ShortDuration(d.often(j).Round(time.Second)))
		c := d.beginCheckpoint(j, why)
		d.Checkpoints.Put(c.ID, c)
		d.attendCheckpoint(c.ID)
	}
	for _, id := range d.l.Working() {
		d.attendCheckpoint(id)
	}
}

// attendCheckpoint takes a checkpoint on where no report does.
func (d *draft) attendCheckpoint(id fleet.CheckpointID) {
	c, there := d.Checkpoints.Find(id)
	if !there {
		return
	}
	j, known := d.Jobs.Find(c.Job)
	alive := known && j.Born == c.Born && j.Computes() && j.Incarnation == c.Incarnation
	changed := false
	switch guests := d.guestsOf(j); {
	case c.Phase.Traits().Forward && !alive:
		c, changed = lifecycle.RemoveCheckpoint(c, fmt.Sprintf("job %s did not run any more", c.Job), d.at)
	case c.Phase.Traits().Holds && c.Phase.Traits().Forward && d.wanted(c):
		c, changed = lifecycle.RemoveCheckpoint(c, "a host with a guest of it is needed by its owner, or shows signs of failing", d.at)
	case c.Phase == fleet.Due && lifecycle.Cuttable(j, guests) && !slices.ContainsFunc(guests, d.silentHome):
		parts, reason := d.vaults(j, guests, c)
		reason = cmp.Or(reason, d.overQuota(j, c, 0))
		if reason != "" {
			c, changed = lifecycle.RemoveCheckpoint(c, reason, d.at)
		} else {
			c, changed = lifecycle.ArmCheckpoint(c, parts, d.at), true
			c.Needs = d.needs(c)
		}
	case c.Phase == fleet.Due, c.Phase == fleet.Taking:
		c, changed = lifecycle.Overdue(c, d.at)
	}
	for _, host := range hostsOf(c) {
		_, there := d.Hosts.Find(host)
		if there && !(d.base.Hosts[host].Lease > 0 && d.base.Gone(host, d.at)) {
			continue
		}
		if next, did := lifecycle.CheckpointWithout(c, host, !there, d.at); did {
			c, changed = next, true
		}
	}
	if changed {
		d.recordCheckpoint(c)
	}
}

// wanted reports whether guests of a checkpoint have to leave a host at once. Their copies would wait until all is saved.
func (d *draft) wanted(c fleet.Checkpoint) bool {
	return slices.ContainsFunc(c.Guests, func(p fleet.CheckpointPart) bool {
		h := d.Hosts.At(p.Host)
		return h.ForOwner || h.ForHealth
	})
}

// hostsOf are the hosts that have to do with a checkpoint, sorted.
func hostsOf(c fleet.Checkpoint) (out []fleet.HostID) {
	for _, p := range c.Guests {
		out = append(out, p.Host)
		if p.Vault != "" {
			out = append(out, p.Vault)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// vaults chooses where the state of each guest of a job is kept: not on the guest's own host where another has a vault, and better
// where no guest of the job runs, since a host that is lost takes both with it. A vault that has an earlier
// checkpoint of the guest needs only what has changed. One in which the job's user has all that each may have takes none. The
// second result says why a checkpoint cannot be made.
func (d *draft) vaults(j fleet.Job, guests []fleet.Guest, c fleet.Checkpoint) ([]fleet.CheckpointPart, string) {
	homes, before := map[fleet.HostID]bool{}, map[fleet.GuestID]fleet.CheckpointPart{}
	for _, g := range guests {
		homes[g.Home] = true
		if why := d.unsavable(g); why != "" {
			return nil, fmt.Sprintf("guest %s cannot be written to a checkpoint on %s: %s", g.ID, g.Home, why)
		}
	}
	for _, c := range d.checkpointsOf(j.ID) {
		for _, p := range c.Guests {
			if c.Phase == fleet.Kept {
				before[p.Guest] = p
			}
		}
	}
	room := d.vaultRoom(j, c)
	parts := make([]fleet.CheckpointPart, 0, len(guests))
	for _, g := range guests {
		best, rank := fleet.HostID(""), vaultRank{}
		for _, id := range room.hosts {
			h := d.Hosts.At(id)
			if id != g.Home && (h.Facts.Vault.Listen == "" || alone(d.Hosts.At(g.Home))) { // others do not reach it
				continue
			}
			is := vaultRank{ends: !h.EmptyBy.IsZero(), own: id == g.Home, beside: homes[id], leaves: h.State != fleet.HostUp || h.ForOwner || h.ForHealth, fresh: before[g.ID].Vault != id, free: room.more(id)}
			left, limited := room.left[id]
			is.tight = limited && left < before[g.ID].Bytes
			if room.free[id] >= g.Need.MemoryBytes && is.free > 0 && (best == "" || is.compare(rank) < 0) {
				best, rank = id, is
			}
		}
		if best == "" {
			return nil, cmp.Or(room.full, fmt.Sprintf("no host that is heard has a vault with %d MiB free for guest %s; `pagurus host ls` shows hosts", g.Need.MemoryBytes>>20, g.ID))
		}
		room.free[best] -= g.Need.MemoryBytes // of the user's share nobody knows how much it takes
		parts = append(parts, fleet.CheckpointPart{Guest: g.ID, Kind: g.Kind, Gen: g.Gen, Host: g.Home, Vault: best, Shape: g.Shape})
	}
	return parts, ""
}

// needs notes, once for each kind and processor, what hosts must be like to make guests of a checkpoint: those where it is
// made may not be there then.
func (d *draft) needs(c fleet.Checkpoint) (all []fleet.Abilities) {
	for i := range c.Guests {
		p := &c.Guests[i]
		is := d.base.Hosts[p.Host].Facts.Abilities[p.Kind]
		is = fleet.Abilities{Live: is.Live, Checkpoint: is.Checkpoint, Accelerator: is.Accelerator, CPU: is.CPU, Processor: is.Processor, Model: d.Guests.At(p.Guest).CPU, Lacks: is.Lacks}
		if p.Needs = 1 + slices.Index(all, is); p.Needs == 0 {
			all = append(all, is)
			p.Needs = len(all)
		}
	}
	return all
}

// silentHome reports whether a guest's home is not heard. What it can do is not known then, as when another controller has
// just begun to lead, and a checkpoint waits.
func (d *draft) silentHome(g fleet.Guest) bool {
	return !placement.Heard(d.Hosts.At(g.Home), d.base.At)
}

// vaultRank orders vaults for a guest, the best first.
type vaultRank struct {
	ends, own, tight, beside, leaves, fresh bool
	free                                    int64
}

func (a vaultRank) compare(b vaultRank) int {
	worse := func(a, b bool) int {
		switch {
		case a == b:
			return 0
		case a:
			return 1
		}
		return -1
	}
	return cmp.Or(worse(a.ends, b.ends), worse(a.own, b.own), worse(a.tight, b.tight), worse(a.beside, b.beside), worse(a.leaves, b.leaves), worse(a.fresh, b.fresh), cmp.Compare(b.free, a.free))
}

// endCheckpoints removes the checkpoints of a job that has finished, except those that a person asked for; all of a forgotten one.
func (d *draft) endCheckpoints(id fleet.JobID, all bool, cause string) {
	for _, c := range d.checkpointsOf(id) {
		if c.Pinned && !all {
			continue
		}
		if next, changed := lifecycle.RemoveCheckpoint(c, cause, d.at); changed {
			d.recordCheckpoint(next)
		}
	}
}

// forgetCheckpoints removes the records of checkpoints that have nothing left: those of forgotten jobs, and more than fit a
// listing.
func (d *draft) forgetCheckpoints(id fleet.JobID) {
	_, known := d.Jobs.Find(id)
	var over []fleet.CheckpointID
	for _, c := range d.checkpointsOf(id) {
		if c.Phase.Ended() {
			over = append(over, c.ID)
		}
	}
	if known {
		over = over[:max(len(over)-mostListed, 0)]
	}
	for _, c := range over {
		d.Checkpoints.Drop(c)
	}
}

// checkpointOrders appends the outstanding orders of a checkpoint. A guest that is being stopped is left alone until it is gone.
func checkpointOrders(to []pending, c *fleet.Checkpoint, guest func(fleet.GuestID) fleet.Guest) []pending {
	if !c.Phase.Open() {
		return to
	}
	for i := range c.Guests {
		p := &c.Guests[i]
		if c.Phase == fleet.Releasing && guest(p.Guest).State == fleet.GuestStopping {
			continue
		}
		if o, waits := lifecycle.CheckpointOrder(*c, i); waits {
			to = append(to, pending{o, p.Since})
		}
	}
	return to
}

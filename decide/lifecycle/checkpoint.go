package lifecycle

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"time"

	"pagurus/fleet"
)

// saveTries allows for an agent that was restarted while it saved: the next one may find all of it.
const saveTries = 2

// dueLimit is how long a checkpoint waits for its job's guests to run, none moving. It is longer
// than most moves take.
const dueLimit = 15 * time.Minute

// takeLimit is how long a checkpoint that is taken back waits for its next part, which may be many GiB on a slow line.
const takeLimit = time.Hour

// mendPause is the longest time to the next periodic checkpoint after one that failed.
const mendPause = 5 * time.Minute

// checkpointStages says which orders each phase waits for; all guests get one at a time.
var checkpointStages = func() (all []stage[fleet.CheckpointPhase]) {
	for _, t := range fleet.CheckpointPhases {
		at := "home"
		if t.AtVault {
			at = "vault"
		}
		all = append(all, stage[fleet.CheckpointPhase]{in: t.Phase, verb: t.Verb, at: at, says: t.Label})
	}
	return all
}()

// checkpointArrows is the whole protocol of a checkpoint. Each is about one guest's answer; one by Done is
// followed when the last guest has answered so. Until Kept the guests must run again whatever happens:
// anything but Done leads to Releasing, whose order lets a guest run and voids what it had. So no guest
// runs on by Continue before all are suspended, and nothing is kept of a cut if one was not.
var checkpointArrows = []arrow[fleet.CheckpointPhase]{
	{from: fleet.Arming, on: fleet.Done, to: fleet.Cutting},
	{from: fleet.Arming, on: fleet.Failed, to: fleet.Releasing},
	{from: fleet.Arming, on: fleet.Unknown, to: fleet.Releasing},

	{from: fleet.Cutting, on: fleet.Done, to: fleet.Continuing},
	{from: fleet.Cutting, on: fleet.Failed, to: fleet.Releasing},
	{from: fleet.Cutting, on: fleet.Unknown, to: fleet.Releasing},

	{from: fleet.Continuing, on: fleet.Done, to: fleet.Saving},
	{from: fleet.Continuing, on: fleet.Failed, to: fleet.Releasing},
	{from: fleet.Continuing, on: fleet.Unknown, to: fleet.Releasing}, // it may be suspended still

	{from: fleet.Saving, on: fleet.Done, to: fleet.Kept},
	{from: fleet.Saving, on: fleet.Failed, to: fleet.Releasing},
	{from: fleet.Saving, on: fleet.Unknown, to: fleet.Saving, tries: saveTries, last: fleet.Releasing},

	// A host that does not answer lets its guest run by itself, when CutHold is over.
	{from: fleet.Releasing, on: fleet.Done, to: fleet.Dropping},
	{from: fleet.Releasing, on: fleet.Failed, to: fleet.Releasing, tries: moreTries, last: fleet.Dropping},
	{from: fleet.Releasing, on: fleet.Unknown, to: fleet.Releasing, tries: moreTries, last: fleet.Dropping},

	// A vault that is away has it still when it is back.
	{from: fleet.Dropping, on: fleet.Done, to: fleet.Void},
	{from: fleet.Dropping, on: fleet.Failed, to: fleet.Dropping},
	{from: fleet.Dropping, on: fleet.Unknown, to: fleet.Dropping},
}

// checkpointRules are the transitions without a report, for the printed protocol.
var checkpointRules = [][3]string{
	{"due", "all guests of the job run, and none is moving or suspended", "arming"},
	{"due", fmt.Sprintf("not within %s, or the job does not run any more", fleet.ShortDuration(dueLimit)), "failed"},
	{"arming, cutting, continuing or saving", "the job does not run any more, a home is gone, or it is removed", "releasing"},
	{"releasing", "a home is gone", "counts as done there"},
	{"kept", "it is removed, newer ones take its place, its job has finished, or a vault is forgotten", "dropping"},
	{"taking", "all parts have come back", "kept"},
	{"taking", fmt.Sprintf("no part has come for %s, or it is removed, or a vault is forgotten", fleet.ShortDuration(takeLimit)), "dropping"},
	{"dropping", "a vault is forgotten", "counts as done there"},
	{"dropping", "done everywhere, and it was kept", "removed"},
}

// BeginCheckpoint makes a checkpoint of a job, which waits for its guests.
func BeginCheckpoint(j fleet.Job, why string, at time.Time) (fleet.Job, fleet.Checkpoint) {
	j.Checkpoints++
	c := fleet.Checkpoint{
		ID: fleet.CheckpointName(j.ID, j.Checkpoints), Job: j.ID, Born: j.Born, Incarnation: j.Incarnation,
		Why: why, Phase: fleet.Due, Begun: at, Since: at, Subnet: j.Subnet, Share: j.ShareHost,
	}
	return j, c
}

// ArmCheckpoint lets hosts begin a checkpoint that is due. parts says where each guest's state is to be kept.
func ArmCheckpoint(c fleet.Checkpoint, parts []fleet.CheckpointPart, at time.Time) fleet.Checkpoint {
	c.Guests = slices.Clone(parts)
	return enterCheckpoint(c, fleet.Arming, at)
}

// TakeCheckpoint makes a checkpoint of a job out of the description of an earlier one, whose parts come back to vaults.
func TakeCheckpoint(j fleet.Job, of fleet.CheckpointCopy, vaults []fleet.HostID, at time.Time) (fleet.Job, fleet.Checkpoint) {
	j.Checkpoints++
	c, was := of.Checkpoint, of.Checkpoint.ID
	c.ID, c.Why, c.Begun, c.Saved = fleet.CheckpointName(j.ID, j.Checkpoints), fmt.Sprintf("a copy of %s that was given back", was), at, at
	c.Request, c.Pinned, c.Suspends, c.WasKept, c.Cause, c.Ended = "", false, false, false, "", time.Time{}
	c.Written = &of.Output
	c = enterCheckpoint(c, fleet.Taking, at)
	for i := range c.Guests {
		c.Guests[i].Vault = vaults[i]
	}
	return j, c
}

// TakePart notes that a part has come back to its vault. The second result is false if nothing changed.
func TakePart(c fleet.Checkpoint, g fleet.GuestID, at time.Time) (fleet.Checkpoint, bool) {
	i := slices.IndexFunc(c.Guests, func(p fleet.CheckpointPart) bool { return p.Guest == g })
	if c.Phase != fleet.Taking || i < 0 || c.Guests[i].Answered {
		return c, false
	}
	c.Guests = slices.Clone(c.Guests)
	c.Guests[i].Answered = true
	c.Since = at // it goes on
	return advance(c, fleet.Kept, at), true
}

// Cuttable reports whether a checkpoint of a job could begin now: all of its guests run, and none is moving or
// suspended.
func Cuttable(j fleet.Job, guests []fleet.Guest) bool {
	return j.Computes() && len(guests) == j.Size() && !slices.ContainsFunc(guests, func(g fleet.Guest) bool {
		return g.State != fleet.GuestRunning || g.Suspended
	})
}

// Checkpoint applies a report on one guest. The second result is false if nothing changed.
func Checkpoint(c fleet.Checkpoint, r fleet.Report) (fleet.Checkpoint, bool, error) {
	i := slices.IndexFunc(c.Guests, func(p fleet.CheckpointPart) bool { return p.Guest == r.Order.Guest })
	if i < 0 {
		return c, false, nil
	}
	order, waits := CheckpointOrder(c, i)
	if !waits || r.Order != order {
		return c, false, nil
	}
	to, attempt, err := followOutcome(checkpointArrows, c.Phase, c.Guests[i].Attempt, r.Outcome)
	if err != nil {
		return c, false, fmt.Errorf("checkpoint %s: %w", c.ID, err)
	}
	c.Guests = slices.Clone(c.Guests) // snapshots share the old slice
	p := &c.Guests[i]
	if p.Attempt, p.Since = attempt, r.At; to == c.Phase {
		return c, true, nil
	}
	if c.Phase == fleet.Saving && r.Outcome == fleet.Done {
		if wrong := r.Kept.Refused(); wrong != "" {
			return release(c, fmt.Sprintf("%s %s", r.Order.Host, wrong), r.At), true, nil
		}
		p.Manifest, p.Bytes, p.NewBytes, p.Stop = r.Kept.Manifest, r.Kept.Bytes, r.Kept.NewBytes, r.Kept.Stop
	}
	if to == fleet.Releasing {
		return release(c, because(r, fmt.Sprintf("%s could not %s %s", r.Order.Host, r.Order.Verb, p.Guest)), r.At), true, nil
	}
	p.Answered = true
	return advance(c, to, r.At), true, nil
}

// advance takes a checkpoint on when its last guest has answered.
func advance(c fleet.Checkpoint, to fleet.CheckpointPhase, at time.Time) fleet.Checkpoint {
	if slices.ContainsFunc(c.Guests, func(p fleet.CheckpointPart) bool { return !p.Answered }) {
		return c
	}
	switch {
	case to == fleet.Dropping && c.Saved.IsZero(): // no vault has anything of it
		to = fleet.Void
	case to == fleet.Void && c.WasKept:
		to = fleet.Removed
	}
	return enterCheckpoint(c, to, at)
}

// enterCheckpoint is the only function that changes a checkpoint's phase.
func enterCheckpoint(c fleet.Checkpoint, p fleet.CheckpointPhase, at time.Time) fleet.Checkpoint {
	c.Phase, c.Since = p, at
	c.Guests = slices.Clone(c.Guests)
	for i := range c.Guests {
		g := &c.Guests[i]
		g.Answered, g.Attempt, g.Since = false, 0, at
	}
	switch p {
	case fleet.Continuing:
		c.Cut = at
	case fleet.Saving:
		c.Saved = at
	case fleet.Kept:
		c.Ended, c.WasKept = at, true
	case fleet.Void, fleet.Removed:
		c.Ended = at
	}
	return c
}

// release ends a checkpoint that is not kept: all its guests run on.
func release(c fleet.Checkpoint, cause string, at time.Time) fleet.Checkpoint {
	c.Cause = cause
	return enterCheckpoint(c, fleet.Releasing, at)
}

// CheckpointOrder returns the order that a checkpoint waits for about its i-th guest, if any.
func CheckpointOrder(c fleet.Checkpoint, i int) (fleet.Order, bool) {
	t, p := c.Phase.Traits(), c.Guests[i]
	if t.Verb == "" || p.Answered {
		return fleet.Order{}, false
	}
	o := fleet.Order{Verb: t.Verb, Host: p.Host, Peer: p.Vault, Job: c.Job, Guest: p.Guest, Checkpoint: c.ID, Born: c.Born, Gen: p.Gen, Attempt: p.Attempt}
	if t.AtVault {
		o.Host, o.Peer, o.Gen = p.Vault, "", 0
	}
	return o, true
}

// RemoveCheckpoint ends a checkpoint: what is under way is given up, what is kept goes. The second result is false if
// nothing changed.
func RemoveCheckpoint(c fleet.Checkpoint, cause string, at time.Time) (fleet.Checkpoint, bool) {
	switch c.Phase {
	case fleet.Due:
		c.Cause = cause
		return enterCheckpoint(c, fleet.Void, at), true
	case fleet.Kept, fleet.Taking:
		c.Cause = cause
		return enterCheckpoint(c, fleet.Dropping, at), true
	case fleet.Arming, fleet.Cutting, fleet.Continuing, fleet.Saving:
		return release(c, cause, at), true
	}
	return c, false
}

// Overdue gives up a checkpoint that has been due for too long, or whose copy does not come. The second result is false before that.
func Overdue(c fleet.Checkpoint, at time.Time) (fleet.Checkpoint, bool) {
	if c.Phase == fleet.Taking && at.Sub(c.Since) >= takeLimit {
		return RemoveCheckpoint(c, fmt.Sprintf("no part of the copy came for %s", takeLimit), at)
	}
	if c.Phase != fleet.Due || at.Sub(c.Since) < dueLimit {
		return c, false
	}
	return RemoveCheckpoint(c, fmt.Sprintf("not all guests of %s ran, or one was moving or suspended, for %s", c.Job, dueLimit), at)
}

// CheckpointWithout applies that a host is gone or forgotten: as a home it keeps nothing, and as a vault only if it
// may come back. The second result is false if nothing changed.
func CheckpointWithout(c fleet.Checkpoint, host fleet.HostID, forgotten bool, at time.Time) (fleet.Checkpoint, bool) {
	changed := false
	cause := fmt.Sprintf("%s is gone", host)
	for i := range c.Guests {
		p := c.Guests[i]
		home, vault := p.Host == host, p.Vault == host && forgotten
		switch {
		case home && (c.Phase == fleet.Arming || c.Phase == fleet.Cutting || c.Phase == fleet.Continuing || c.Phase == fleet.Saving):
			c, changed = release(c, cause, at), true
		case vault && c.Phase != fleet.Dropping:
			if next, did := RemoveCheckpoint(c, cause+", and had a part of it", at); did {
				c, changed = next, true
			}
		}
		if p = c.Guests[i]; !p.Answered && (home && c.Phase == fleet.Releasing || vault && c.Phase == fleet.Dropping) {
			c.Guests = slices.Clone(c.Guests)
			c.Guests[i].Answered, changed = true, true
		}
	}
	if changed && c.Phase == fleet.Releasing {
		c = advance(c, fleet.Dropping, at)
	} else if changed && c.Phase == fleet.Dropping {
		c = advance(c, fleet.Void, at)
	}
	return c, changed
}

// Retained returns those of a job's checkpoints that newer ones replace: of the kept ones that nobody asked for, all
// but the newest keep.
func Retained(all []fleet.Checkpoint, keep int) (old []fleet.Checkpoint) {
	var own []fleet.Checkpoint
	for _, c := range all {
		if c.Phase == fleet.Kept && !c.Pinned {
			own = append(own, c)
		}
	}
	slices.SortFunc(own, func(a, b fleet.Checkpoint) int { return cmp.Compare(a.ID.Number(), b.ID.Number()) })
	return own[:max(len(own)-cmp.Or(keep, fleet.UsualKeep), 0)]
}

// RetainedWith are those that a job's checkpoint will replace once it is kept.
func RetainedWith(c fleet.Checkpoint, all []fleet.Checkpoint, keep int) []fleet.Checkpoint {
	if c.Pinned {
		return nil
	}
	all = slices.DeleteFunc(slices.Clone(all), func(o fleet.Checkpoint) bool { return o.ID == c.ID })
	c.Phase = fleet.Kept
	if c.ID == "" { // it has no number yet
		c.ID = fleet.CheckpointName(c.Job, math.MaxInt32)
	}
	return Retained(append(all, c), keep)
}

// This file decides whether a move under way is cancelled because of an
// owner: of the host that it goes to, who has come, or of the host that it
// leaves, who has gone.
//
// It must not know how a move is begun or carried out, and a person's drain or
// wish is none of its business. Its tests weigh moves at every point of their
// copies and let owners come and go in the ways that hurt.

package owners

import (
	"fmt"
	"time"

	"pagurus/decide/lifecycle"
	"pagurus/decide/placement"
	"pagurus/fleet"
)

const (
	// recallAhead is how far an owner's return is looked for: nobody knows for how much
	// longer a job goes on.
	recallAhead = time.Hour
	// freely is what a second of being copied costs a guest that nobody else wants
	// the CPUs of: half of what it costs beside an owner.
	freely = 0.25
	// settled is how long after the pause that follows a move which came to nothing
	// the guest is not called back again. An owner who comes and goes would have
	// it copied for ever and never gone.
	settled = 5 * time.Minute
)

// RecallView is the cluster as far as it matters here.
type RecallView struct {
	At    time.Time
	Host  func(fleet.HostID) fleet.Host
	Guest func(fleet.GuestID) fleet.Guest
}

// SignMove marks a move with the host that it leaves to its owner; with none if the
// owner is not there, or if it is a person who has the host drain.
func SignMove(v fleet.Move, h fleet.Host) fleet.Move {
	if o := h.Facts.Owner; o != nil && o.Present && (v.Drains == "" || h.ForOwner) {
		v.ForOwner = h.ID
	}
	return v
}

// CancelForOwner calls a move off that goes to a host whose owner has come meanwhile,
// or that leaves one which need not be left any more, unless it has begun to
// switch: that takes a moment, and then the guest leaves as any other. Where the
// owner of the host that is left has gone it is cancelled if that costs less
// than to go on; this is weighed when they have just gone, again until it is known
// how fast the copy goes, and then noted on the move if it goes on. The last result
// is false when nothing changed.
func CancelForOwner(v fleet.Move, members []fleet.Migration, c RecallView) (fleet.Move, []fleet.Migration, bool) {
	off := func(format string, args ...any) (fleet.Move, []fleet.Migration, bool) {
		members, changed := lifecycle.CancelGang(members, c.At, fmt.Sprintf(format, args...))
		return v, members, changed
	}
	for _, m := range members {
		if o := c.Host(m.To).Facts.Owner; o != nil && o.Present && !m.Phase.Ended() {
			return off("the owner of %s has come", m.To)
		}
		if lifecycle.Committed(m) {
			return v, members, false
		}
	}
	switch h := c.Host(v.ForOwner); {
	case v.Weighed != "":
	case gone(h, c.At):
		dear, known, why := c.weigh(v, members)
		if dear {
			v.Weighed = fmt.Sprintf("cancelled: the owner of %s is gone, and %s", h.ID, why)
			return off("%s", v.Weighed)
		}
		if !known {
			break
		}
		v.Weighed = fmt.Sprintf("goes on: the owner of %s is gone, but %s", h.ID, why)
		return v, members, true
	case v.Drains != "" && c.Host(v.Drains).State == fleet.HostUp:
		return off("%s no longer drains", v.Drains)
	}
	return v, members, false
}

// gone reports whether it is known that a host's owner is away, and nobody else
// wants it empty.
func gone(h fleet.Host, at time.Time) bool {
	o := h.Facts.Owner
	return h.State == fleet.HostUp && placement.Heard(h, at) && o != nil && !o.Present
}

// weigh says whether to go on is dearer for the job than to stay, whether it is known
// of every member that has something left how fast it gets away today, and why, for
// people. To go on takes what is left to send of the whole gang, since its
// members share a line and switch together. To stay wastes what was sent: the
// owner may come back, most likely soon, and then all of it has to be paid
// beside them; as it has at the targets, if one of their owners comes.
func (c RecallView) weigh(v fleet.Move, members []fleet.Migration) (dear, known bool, why string) {
	var all, left int64
	var rate float64 // bytes a second, as measured
	known = true
	var price Price
	for _, m := range members {
		if g := c.Guest(m.Guest); g.Aborts > 0 && c.At.Before(g.RetryAt.Add(settled)) {
			return false, true, fmt.Sprintf("it is not long ago that %s was about to leave and did not", m.Guest)
		}
		from := c.Host(m.From)
		size, more := BytesLeft(from, c.Guest(m.Guest), m)
		its := from.Facts.Copies[m.ID].BytesPerSecond
		all, left, rate, known = all+size, left+more, rate+its, known && (its > 0 || more == 0)
		if p := m.Predicted; p != nil {
			price.Total, price.Downtime = max(price.Total, p.Total.Value), max(price.Downtime, p.Downtime.Value)
		}
	}
	if rate > 0 { // better than what was foretold
		price.Total = price.Downtime + time.Duration(float64(all)/rate*float64(time.Second))
	}
	rest := price.Total - price.Downtime
	if all > 0 {
		rest = time.Duration(float64(rest) * float64(left) / float64(all))
	}
	goOn := price.Downtime + time.Duration(freely*float64(rest))
	stay := time.Duration(c.again(v.ForOwner, members) * float64(price.Cost()))
	were := "were"
	if goOn <= stay {
		were = "are"
	}
	round := func(d time.Duration) time.Duration { return d.Round(10 * time.Millisecond) }
	return goOn > stay, known, fmt.Sprintf("%d MiB of %d MiB %s still to be sent: that costs its job %s, to stay %s",
		left>>20, all>>20, were, round(goOn), round(stay))
}

// again is how much likelier it is that the guests have to leave again if they
// stay than if they go.
func (c RecallView) again(from fleet.HostID, members []fleet.Migration) float64 {
	spared := 1.0 // nobody comes to any target
	seen := map[fleet.HostID]bool{}
	for _, m := range members {
		if !seen[m.To] {
			seen[m.To] = true
			spared *= 1 - c.returns(m.To)
		}
	}
	return max(0, c.returns(from)-(1-spared))
}

// returns is how likely a host's owner comes back before long. A host that is
// nobody's has none.
func (c RecallView) returns(id fleet.HostID) float64 {
	o := c.Host(id).Facts.Owner
	if o == nil || o.State == "" {
		return 0
	}
	return UsualAway.Within(o.IdleFor(c.At), recallAhead)
}

// BytesLeft gives how many bytes of a guest there are to send, and how many of them
// its first pass has still to send, as far as its host has said.
func BytesLeft(from fleet.Host, g fleet.Guest, m fleet.Migration) (all, left int64) {
	size := from.Facts.Guests[m.Guest].ResidentBytes
	if size <= 0 {
		size = g.Need.MemoryBytes
	}
	p, known := from.Facts.Copies[m.ID]
	switch {
	case m.Phase == fleet.Ready:
		return size, 0
	case m.Phase != fleet.Copying || !known || p.TotalBytes <= 0:
		return size, size
	case p.Rounds > 1:
		return size, 0
	case g.Kind.Traits().ResidentOnly:
		// Only what it occupies is looked at, and what it has taken since the pass
		// began is not in that.
		return size, min(size, max(p.RemainingBytes, size-p.SentBytes))
	}
	// Of all memory, the part never used is passed over in no time: what counts
	// is the share of it, taken of what the guest occupies.
	return size, int64(float64(size) * float64(p.RemainingBytes) / float64(p.TotalBytes))
}

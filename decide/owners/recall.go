// This file decides whether a move is cancelled because of an owner: the target's owner
// has come, or the source's owner has gone.
//
// It must not know how a move is started or carried out, and ignores requested drains and
// moves. Its tests judge moves at every point of their copies, with owners who come and
// go at bad times.

package owners

import (
	"fmt"
	"time"

	"pagurus/decide/lifecycle"
	"pagurus/decide/placement"
	"pagurus/fleet"
)

const (
	// recallAhead is how far ahead an owner's return counts, because the job's remaining
	// time is unknown.
	recallAhead = time.Hour
	// freely is the cost of a second of copying for a guest whose CPUs are not wanted by
	// an owner: half of copyCost.
	freely = 0.25
	// settled is how long, after the pause that follows a failed move, a guest's next
	// move is not cancelled. Otherwise an owner who comes and goes would have it copied
	// repeatedly without ever leaving.
	settled = 5 * time.Minute
)

// RecallView is the relevant part of the cluster.
type RecallView struct {
	At    time.Time
	Host  func(fleet.HostID) fleet.Host
	Guest func(fleet.GuestID) fleet.Guest
}

// SignMove stores in a move the host that it empties for its owner; none if the owner is
// not present, or if a person drains the host.
func SignMove(v fleet.Move, h fleet.Host) fleet.Move {
	if o := h.Facts.Owner; o != nil && o.Present && (v.Drains == "" || h.ForOwner) {
		v.ForOwner = h.ID
	}
	return v
}

// CancelForOwner cancels a move to a host whose owner has come, or from a host that need
// no longer be left, unless it has begun to switch: then the guest soon leaves like any
// other. If the source's owner has gone, it cancels the move if that costs less than
// going on. It decides this when they have just gone, again until the copy's speed is
// known, and notes on the move that it goes on. The last result is false if nothing
// changed.
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

// gone reports whether a host's owner is certainly away, and no drain was requested.
func gone(h fleet.Host, at time.Time) bool {
	o := h.Facts.Owner
	return h.State == fleet.HostUp && placement.Heard(h, at) && o != nil && !o.Present
}

// weigh says whether going on costs the job more than staying, whether the present speed
// of every unfinished member is known, and why, for people. Going on means sending the
// rest of the whole gang, since its members share a link and switch together. Staying
// wastes what was sent: the owner may come back, most likely soon, and then the whole
// copy must be paid beside them. The same holds if an owner of a target comes.
func (c RecallView) weigh(v fleet.Move, members []fleet.Migration) (dear, known bool, why string) {
	var all, left int64
	var rate float64 // bytes a second, measured
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
	if rate > 0 { // better than the prediction
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

// again is how much likelier the guests must leave again if they stay than if they go.
func (c RecallView) again(from fleet.HostID, members []fleet.Migration) float64 {
	spared := 1.0 // no owner comes to any target
	seen := map[fleet.HostID]bool{}
	for _, m := range members {
		if !seen[m.To] {
			seen[m.To] = true
			spared *= 1 - c.returns(m.To)
		}
	}
	return max(0, c.returns(from)-(1-spared))
}

// returns is the probability that a host's owner comes back soon; 0 without an owner.
func (c RecallView) returns(id fleet.HostID) float64 {
	o := c.Host(id).Facts.Owner
	if o == nil || o.State == "" {
		return 0
	}
	return UsualAway.Within(o.IdleFor(c.At), recallAhead)
}

// BytesLeft returns how many bytes of a guest a copy sends, and how many its first round
// still has to send, from its host's last report.
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
		// Only occupied memory is sampled, which excludes memory taken since the round
		// began.
		return size, min(size, max(p.RemainingBytes, size-p.SentBytes))
	}
	// Unused memory is skipped quickly, so the remaining share is taken of the occupied
	// memory.
	return size, int64(float64(size) * float64(p.RemainingBytes) / float64(p.TotalBytes))
}

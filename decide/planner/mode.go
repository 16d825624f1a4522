package planner

import (
	"fmt"
	"slices"

	"pagurus/decide/lifecycle"
	"pagurus/decide/placement"
	"pagurus/fleet"
)

// choice is how the guests of a move go, and where.
type choice struct {
	mode fleet.Mode
	to   map[fleet.GuestID]placement.Choice
	why  string // for people; empty: it was asked for
	no   string // why no mode fits what is asked, and what would help; mode then tries all the same
}

// choose settles the mode in which the guests of a move go, one for all of
// them. Left to itself it takes pre-copy if that is expected to be ready within
// the limits, since nothing is at risk then; else post-copy if every target
// can, since it always comes to its end; else stop-and-copy if the guests may
// setSuspended still for that long. late looks for hosts that take in guests by
// post-copy where those chosen do not; nil: these it is.
func (d *draft) choose(guests []fleet.Guest, to map[fleet.GuestID]placement.Choice, v fleet.Move,
	late func() (map[fleet.GuestID]placement.Choice, bool)) choice {
	if v.Limits.Mode != "" {
		return choice{mode: v.Limits.Mode, to: to}
	}
	c := choice{mode: fleet.PreCopy, to: to}
	pre := d.expect(guests, to, v, fleet.PreCopy)
	if i := slices.IndexFunc(pre, func(p fleet.Prediction) bool { return p.Profile == nil }); i >= 0 {
		c.why = fmt.Sprintf("the memory of %s has not been sampled yet, and pre-copy risks nothing", guests[i].ID)
		return c
	}
	amiss, who := shortfall(pre, v.Limits)
	if amiss == "" {
		c.why = fmt.Sprintf("it is expected to be ready in %s, with a downtime of %s", aboutDuration(latestReady(pre)), downtimeText(pre, v.Limits))
		return c
	}
	c.why = fmt.Sprintf("by pre-copy guest %s %s", guests[who].ID, amiss)
	there, can := to, d.allTakePostCopy(guests, to)
	if !can && late != nil && !anyHuge(d.base.Jobs, guests) {
		there, can = late()
	}
	if can {
		post := d.expect(guests, there, v, fleet.PostCopy)
		if more, _ := shortfall(post, v.Limits); more == "" {
			c.mode, c.to = fleet.PostCopy, there
			c.why += fmt.Sprintf("; by post-copy it is expected to run at its target in %s", aboutDuration(latestReady(post)))
			return c
		}
	}
	stop := d.expect(guests, to, v, fleet.StopAndCopy)
	still := longestDowntime(stop)
	if more, _ := shortfall(stop, v.Limits); more == "" && still <= v.Limits.Downtime {
		c.mode = fleet.StopAndCopy
		c.why += fmt.Sprintf("; stopped for it, its expected downtime is %s", aboutDuration(still))
		return c
	}
	c.no = c.why + helpToBeReady(pre[who], still, can)
	c.why += ", and nothing else is allowed or possible; it is tried all the same"
	return c
}

// allTakePostCopy reports whether all hosts take in guests by post-copy.
func (d *draft) allTakePostCopy(guests []fleet.Guest, to map[fleet.GuestID]placement.Choice) bool {
	return !anyHuge(d.base.Jobs, guests) && !slices.ContainsFunc(guests, func(g fleet.Guest) bool {
		return !d.base.Hosts[to[g.ID].Host].Facts.Abilities[g.Kind].PostCopy
	})
}

// expect says what the move would cost each guest in one mode.
func (d *draft) expect(guests []fleet.Guest, to map[fleet.GuestID]placement.Choice, v fleet.Move, mode fleet.Mode) []fleet.Prediction {
	v.ID = "imagined"
	imagined := newDraft(d.p, d.l)
	defer imagined.free()
	for _, g := range guests {
		_, m := lifecycle.Depart(g, to[g.ID].Host, v.ID, d.at)
		imagined.Migrations.Put(m.ID, m)
		v.Migrations = append(v.Migrations, m.ID)
	}
	imagined.Moves.Put(v.ID, v)
	s, past := imagined.View, history{d.l}
	out := make([]fleet.Prediction, len(guests))
	for i, id := range v.Migrations {
		m := s.Migrations.At(id)
		m.Mode = mode
		m.Packed = packs(s, past, m)
		out[i] = predict(s, past, m, mode)
	}
	return out
}

// bereave gives up guests that went by post-copy and can never be whole: their
// source, which is heard from, has lost them, and their target does not answer.
// A QEMU that waits for memory may answer nothing at all.
func (d *draft) bereave() {
	for _, id := range d.l.MovingBy(fleet.PostCopy) {
		m := d.base.Migrations[id]
		h := d.base.Hosts[m.From]
		if !h.Facts.SeenAt.After(m.Since) || placement.Silence(d.base, m.From, d.at) > 0 {
			continue
		}
		if g, has := h.Facts.Guests[m.Guest]; has && g.Run != fleet.Absent {
			continue
		}
		now, live := d.Migrations.Find(m.ID)
		if !live {
			continue
		}
		cause := fmt.Sprintf("%s has lost the guest's remaining memory, and %s does not answer for it", m.From, m.To)
		if given, gave := lifecycle.Abandon(now, d.at, cause); gave {
			d.recordGang(m.Move, []fleet.Migration{given})
		}
	}
}

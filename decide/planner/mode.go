package planner

import (
	"fmt"
	"slices"

	"pagurus/decide/lifecycle"
	"pagurus/decide/placement"
	"pagurus/fleet"
)

// choice is the mode and hosts of a move's guests.
type choice struct {
	mode fleet.Mode
	to   map[fleet.GuestID]placement.Choice
	why  string // for people; empty: it was requested
	no   string // why no mode meets the limits, and what would help; mode is the one to try anyway
}

// choose settles one mode for all guests of a move. Without a request it takes pre-copy
// if that is expected to be ready within the limits, since that risks nothing. Otherwise
// it takes post-copy if every target can, since that always finishes. Otherwise it takes
// stop-and-copy if the guests may be suspended that long. Where rounds would send nothing it is
// stop-and-copy. late looks for hosts that support post-copy if the chosen ones do not; nil: do
// not look.
func (d *draft) choose(guests []fleet.Guest, to map[fleet.GuestID]placement.Choice, v fleet.Move,
	late func() (map[fleet.GuestID]placement.Choice, bool)) choice {
	all := d.withoutRounds(guests)
	switch {
	case v.Limits.Mode == fleet.PreCopy && all != "":
		return choice{mode: v.Limits.Mode, to: to, no: all + ": use --" + fleet.ModeFlag + " " + string(fleet.StopAndCopy)}
	case v.Limits.Mode != "":
		return choice{mode: v.Limits.Mode, to: to}
	case all != "":
		return d.allAtOnce(guests, to, v, all)
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

// withoutRounds says why memory of one of the guests cannot be sent while it runs; empty: that of
// all can.
func (d *draft) withoutRounds(guests []fleet.Guest) string {
	for _, g := range guests {
		if why := d.base.Hosts[g.Home].Facts.Abilities[g.Kind].NoRounds; why != "" {
			return fmt.Sprintf("all memory of %s goes while it is suspended, since on %s %s", g.ID, g.Home, why)
		}
	}
	return ""
}

// allAtOnce is stop-and-copy for guests of whose memory nothing can go before.
func (d *draft) allAtOnce(guests []fleet.Guest, to map[fleet.GuestID]placement.Choice, v fleet.Move, why string) choice {
	stop := d.expect(guests, to, v, fleet.StopAndCopy)
	c := choice{mode: fleet.StopAndCopy, to: to, why: fmt.Sprintf("%s; its expected downtime is %s", why, aboutDuration(longestDowntime(stop)))}
	if most := v.Limits.Downtime; most > 0 && longestDowntime(stop) > most {
		c.no = fmt.Sprintf("%s, more than the %s allowed: give --%s more, or leave it out", c.why, most, fleet.MaxDowntimeFlag)
	}
	return c
}

// allTakePostCopy reports whether all hosts support post-copy.
func (d *draft) allTakePostCopy(guests []fleet.Guest, to map[fleet.GuestID]placement.Choice) bool {
	return !anyHuge(d.base.Jobs, guests) && !slices.ContainsFunc(guests, func(g fleet.Guest) bool {
		return !d.base.Hosts[to[g.ID].Host].Facts.Abilities[g.Kind].PostCopy
	})
}

// expect predicts the move's cost for each guest in one mode.
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

// bereave gives up post-copy guests that can never be complete: their connected source
// has lost them, and their target does not answer. A QEMU that waits for memory may
// answer nothing at all.
func (d *draft) bereave() {
	for _, id := range d.l.MovingBy(fleet.PostCopy) {
		m := d.base.Migrations[id]
		h := d.base.Hosts[m.From]
		if !h.Facts.SeenAt.After(m.Since) || placement.Unheard(d.base, m.From, d.at) > 0 {
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
		if given, gave := lifecycle.Abandon(now, d.at, cause); gave && !d.mayRunOn(m.To) {
			d.recordGang(m.Move, []fleet.Migration{given})
		}
	}
}

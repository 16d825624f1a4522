package planner

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"pagurus/decide/desired"
	"pagurus/decide/lifecycle"
	"pagurus/decide/owners"
	"pagurus/decide/placement"
	"pagurus/fleet"
)

// migrate begins the move of one or more guests that switch together. Either all move or
// none.
func (d *draft) migrate(r fleet.Request) (fleet.Answer, error) {
	if before, asked := d.asked(r); asked {
		return before, nil
	}
	if reason := r.Limits.Refused(); reason != "" {
		return refuse(r, "%s", reason)
	}
	guests, err := d.named(r)
	if err != nil {
		return fleet.Answer{}, err
	}
	var answer fleet.Answer
	if r.To != "" || r.ToSite != "" {
		var there []fleet.Guest
		if guests, there, err = d.bound(r, guests); err != nil {
			return answer, err
		}
		for _, g := range there {
			answer.Notes = append(answer.Notes, fmt.Sprintf("guest %s is already on %s and stays there", g.ID, g.Home))
		}
	}
	for _, g := range guests {
		if reason := d.unmovable(g); reason != "" {
			return refuse(r, "guest %s cannot move: %s", g.ID, reason)
		}
	}
	to, err := d.together(r, guests)
	if err != nil {
		return fleet.Answer{}, err
	}
	if reason := d.unpackable(r.Limits, guests, func(g fleet.GuestID) fleet.HostID { return to[g].Host }); reason != "" {
		return refuse(r, "%s", reason)
	}
	limits := r.Limits
	limits.AwaitGang, limits.Preempt = false, false // these are per task
	v := fleet.Move{Request: r.ID, Asks: r.Asks, Why: "asked for by " + whoAsked(r.By), Limits: limits}
	v = owners.SignMove(v, d.Hosts.At(r.Host))
	c := d.choose(guests, to, v, func() (map[fleet.GuestID]placement.Choice, bool) {
		late := r
		late.Limits.Mode = fleet.PostCopy
		to, err := d.together(late, guests)
		return to, err == nil
	})
	if c.no != "" && r.Host == "" {
		return refuse(r, "%s", c.no)
	}
	answer.Notes = append(answer.Notes, d.onVirtio(guests, c.to)...)
	answer.Moves = []fleet.MoveID{d.depart(guests, v, c)}
	return answer, nil
}

// named returns the guests named in a request to migrate, without duplicates, if the
// caller may move them.
func (d *draft) named(r fleet.Request) ([]fleet.Guest, error) {
	no := func(format string, args ...any) ([]fleet.Guest, error) {
		_, err := refuse(r, format, args...)
		return nil, err
	}
	ids := slices.Clone(r.Guests)
	if r.Guest != "" {
		ids = append(ids, r.Guest)
	}
	if r.Job != "" {
		if len(ids) > 0 {
			return no("both guests and job %s are named; name guests, or a job to move all of its guests", r.Job)
		}
		j, ok := d.Jobs.Find(r.Job)
		if !ok {
			return no("there is no job %s; `pagurus job ls` lists them", r.Job)
		}
		if j.State != fleet.JobRunning {
			return no("job %s is %s; a job is moved while it runs", j.ID, j.State)
		}
		ids = desired.GuestIDs(j)
	}
	if len(ids) == 0 {
		return no("no guest is named to move; `pagurus guest ls` lists them")
	}
	var out []fleet.Guest
	seen := map[fleet.GuestID]bool{}
	for _, id := range ids {
		g, ok := d.Guests.Find(id)
		switch {
		case !ok:
			return no("there is no guest %s; `pagurus guest ls` lists them", orNone(id))
		case !seen[id]:
			seen[id] = true
			out = append(out, g)
		}
	}
	return out, nil
}

// bound separates the guests that must move to the requested host or site from those
// already there.
func (d *draft) bound(r fleet.Request, guests []fleet.Guest) (rest, there []fleet.Guest, err error) {
	to, place, err := d.goal(r)
	if err != nil {
		return nil, nil, err
	}
	for _, g := range guests {
		if slices.Contains(to, g.Home) && g.State != fleet.GuestMoving {
			there = append(there, g)
		} else {
			rest = append(rest, g)
		}
	}
	switch {
	case len(rest) > 0:
		return rest, there, nil
	case len(there) == 1:
		_, err = refuse(r, "guest %s is on %s already; name another %s, or none to let Pagurus choose", there[0].ID, there[0].Home, place)
	default:
		_, err = refuse(r, "all %d guests are on %s already; name another %s, or none to let Pagurus choose", len(there), listed(homesOf(there)), place)
	}
	return nil, nil, err
}

// goal returns the hosts that a request names, directly or by site, and the name of that
// place; none: any host.
func (d *draft) goal(r fleet.Request) (hosts []fleet.HostID, place string, err error) {
	if r.To != "" {
		if _, ok := d.Hosts.Find(r.To); !ok {
			_, err = refuse(r, "there is no host %s; `pagurus host ls` lists them", r.To)
		} else if r.ToSite != "" {
			_, err = refuse(r, "both host %s and site %s are named; name one of them", r.To, r.ToSite)
		}
		return []fleet.HostID{r.To}, "host", err
	}
	if r.ToSite == "" {
		return nil, "", nil
	}
	sites := map[string]bool{}
	for id := range d.base.Hosts {
		if h := d.Hosts.At(id); h.Facts.Site != "" {
			if sites[h.Facts.Site] = true; h.Facts.Site == r.ToSite {
				hosts = append(hosts, id)
			}
		}
	}
	if len(hosts) == 0 {
		_, err = refuse(r, "no host is in site %s; there is %s", r.ToSite, listed(slices.Sorted(maps.Keys(sites))))
	}
	slices.Sort(hosts)
	return hosts, "site", err
}

// homesOf returns the hosts of guests, without duplicates.
func homesOf(guests []fleet.Guest) (homes []string) {
	for _, g := range guests {
		homes = append(homes, string(g.Home))
	}
	slices.Sort(homes)
	return slices.Compact(homes)
}

// listed joins names for people.
func listed(names []string) string {
	if len(names) == 0 {
		return "none at all: give agents --" + fleet.SiteFlag
	}
	return strings.Join(names, ", ")
}

// mostTurns limits the search for room for a gang. Each turn begins with the guest that
// found no room in the last one. Guests of a job are mostly alike, so a few turns are
// enough.
const mostTurns = 8

// together chooses a host for every guest, considering earlier choices. The largest guest
// is first; one that finds no room is placed first in the next turn. The error is a
// *Refusal.
func (d *draft) together(r fleet.Request, guests []fleet.Guest) (map[fleet.GuestID]placement.Choice, error) {
	order := slices.Clone(guests)
	slices.SortStableFunc(order, func(a, b fleet.Guest) int { return cmp.Compare(b.Need.MemoryBytes, a.Need.MemoryBytes) })
	var no error
	for turn := range mostTurns {
		var asks []placement.Ask
		for _, g := range order {
			asks = append(asks, d.askFor(g, r))
		}
		if turn == 0 { // no guest is refused because of a site
			affinityIn(d.View, d.room(), order, asks)
		}
		seats, stuck := d.room().Clone().PlaceAll(asks)
		if stuck < 0 {
			chosen := map[fleet.GuestID]placement.Choice{}
			for i, g := range order {
				chosen[g.ID] = seats[i]
			}
			return chosen, nil
		}
		no = d.crowded(r, order[stuck], len(guests))
		if stuck == 0 {
			break
		}
		order = slices.Concat(order[stuck:stuck+1], order[:stuck], order[stuck+1:])
	}
	return nil, no
}

// askFor is the placement question for a running guest that should move where a request
// says, in the request's mode.
func (d *draft) askFor(g fleet.Guest, r fleet.Request) placement.Ask {
	a := placement.Leaving(d.base, g)
	a.Alive.PostCopy = r.Limits.Mode == fleet.PostCopy
	a.Only, _, _ = d.goal(r) // an invalid name was refused before
	return a
}

// crowded is the refusal to move guests because one found no room.
func (d *draft) crowded(r fleet.Request, g fleet.Guest, guests int) error {
	a := d.askFor(g, r)
	if to, ok := d.Hosts.Find(r.To); ok {
		if reason := placement.Unfit(d.room(), &to, a); reason != "" {
			_, err := refuse(r, "guest %s cannot move to %s, which %s; name another host, or none to let Pagurus choose", g.ID, to.ID, reason)
			return err
		}
		_, err := refuse(r, "%s has no room for all %d guests: guest %s does not fit; move fewer of them, or name no host to let Pagurus choose", to.ID, guests, g.ID)
		return err
	}
	if _, found := d.room().Best(a); found {
		_, err := refuse(r, "there is room for guest %s, but not for all %d guests at once; move fewer of them, free a host or add one", g.ID, guests)
		return err
	}
	return &Refusal{Request: r, Hosts: placement.Explain(d.room(), a),
		Reason: fmt.Sprintf("no host can take guest %s now; free a host or add one, then ask again", g.ID)}
}

// depart begins a move of guests in the chosen way.
func (d *draft) depart(guests []fleet.Guest, v fleet.Move, how choice) fleet.MoveID {
	c := d.counters()
	v.ID, v.Begun, v.Choice = fleet.MoveID(fmt.Sprintf("m%d", c.NextMove)), d.at, how.why
	c.NextMove++
	for _, g := range guests {
		host := how.to[g.ID].Host
		d.room().Depart(g.Home, host, g.Need)
		g, m := lifecycle.Depart(g, host, v.ID, d.at)
		m.Mode = how.mode
		d.Guests.Put(g.ID, g)
		d.Migrations.Put(m.ID, m)
		v.Migrations = append(v.Migrations, m.ID)
	}
	d.Moves.Put(v.ID, v)
	return v.ID
}

// cancelMove cancels a move before its switch. Cancelling it again is not an error.
func (d *draft) cancelMove(r fleet.Request) (fleet.Answer, error) {
	v, ok := d.Moves.Find(r.Move)
	if !ok {
		return refuse(r, "there is no move %s; `pagurus move ls` lists them", orNone(r.Move))
	}
	members := d.membersOf(v)
	answer := fleet.Answer{Moves: []fleet.MoveID{v.ID}}
	next, changed := lifecycle.CancelGang(members, d.at, fmt.Sprintf("cancelled by uid %d", r.By.UID))
	switch {
	case changed:
		d.recordGang(v.ID, next)
		if h := d.Hosts.At(v.Drains); h.State == fleet.HostDraining {
			answer.Notes = append(answer.Notes, fmt.Sprintf("%s goes on draining and tries again later; pagurus undrain %s stops that", h.ID, h.ID))
		}
	case slices.ContainsFunc(members, lifecycle.Committed) && !v.Ended.IsZero():
		return refuse(r, "move %s has ended and can no longer be cancelled; `pagurus migrate` moves its guests back", v.ID)
	case slices.ContainsFunc(members, lifecycle.Committed):
		if slices.ContainsFunc(members, func(m fleet.Migration) bool { return m.Phase.Traits().PostCopies() }) {
			return refuse(r, "move %s can no longer be cancelled: by post-copy its guests run at their targets already, and the rest of their memory is being sent; see `pagurus move show %s`", v.ID, v.ID)
		}
		return refuse(r, "move %s has begun to switch and can no longer be cancelled; it ends when the rest of the memory has been sent, see `pagurus move show %s`", v.ID, v.ID)
	}
	return answer, nil
}

// cancelDrainMoves cancels the moves of a host's drain that can still be cancelled, and
// describes the result of each for people.
func (d *draft) cancelDrainMoves(id fleet.HostID) []string {
	var notes []string
	for _, v := range d.underWay() {
		if v.Drains != id {
			continue
		}
		members := d.membersOf(v)
		next, changed := lifecycle.CancelGang(members, d.at, fmt.Sprintf("%s no longer drains", id))
		if changed {
			d.recordGang(v.ID, next)
			notes = append(notes, fmt.Sprintf("move %s is cancelled", v.ID))
		} else if slices.ContainsFunc(members, lifecycle.Committed) {
			notes = append(notes, fmt.Sprintf("move %s has begun to switch and goes on", v.ID))
		}
	}
	return notes
}

// underWay returns the unfinished moves in order of their beginning.
func (d *draft) underWay() []fleet.Move {
	open := d.l.OpenMoves()
	out := make([]fleet.Move, 0, len(open))
	for _, id := range open {
		if v := d.Moves.At(id); v.ID != "" && v.Ended.IsZero() {
			out = append(out, v)
		}
	}
	slices.SortFunc(out, func(a, b fleet.Move) int {
		return cmp.Or(cmp.Compare(len(a.ID), len(b.ID)), cmp.Compare(a.ID, b.ID))
	})
	return out
}

// conduct advances moves: it starts copies whose turn has come, applies deadlines, and
// cancels moves that owners have made pointless.
func (d *draft) conduct() {
	for _, v := range d.underWay() {
		v, members, turned := owners.CancelForOwner(v, d.membersOf(v), owners.RecallView{At: d.at, Host: d.Hosts.At, Guest: d.Guests.At})
		if turned {
			d.Moves.Put(v.ID, v)
		}
		members, expired := lifecycle.Expire(v, members, d.at)
		members, began := d.goOn(members)
		if turned || expired || began {
			d.recordGang(v.ID, members)
		}
	}
}

// left is how many bytes a guest's first round still has to send.
func (d *draft) left(m fleet.Migration) int64 {
	_, left := owners.BytesLeft(d.base.Hosts[m.From], d.Guests.At(m.Guest), m)
	return left
}

// aloneAfter is the number of consecutive failed moves after which a guest leaves a
// draining host alone: its gang may have been the cause.
const aloneAfter = 2

// drain begins the next moves off draining hosts. Each draining host sends one gang at a
// time, and each target receives one at a time, because moves that share a link slow each
// other until none converges. A job's guests move together: one suspended guest makes all
// of them wait, and one wait is better than several.
func (d *draft) drain() {
	hosts := d.l.Draining()
	for i := range d.Hosts.Changes() {
		hosts = append(hosts, d.Hosts.Changes()[i].ID)
	}
	slices.Sort(hosts)
	for _, id := range slices.Compact(hosts) {
		if d.Hosts.At(id).State != fleet.HostDraining || placement.Unheard(d.base, id, d.at) > 0 {
			continue
		}
		if out, _ := d.room().Busy(id); out == 0 {
			if h := d.Hosts.At(id); h.EmptyBy.IsZero() {
				d.drainOne(id, d.leaving(id))
			} else {
				d.drainOne(id, d.urgent(h))
			}
		}
	}
}

// leaving returns the guests that should leave a host and can now, by job and index.
func (d *draft) leaving(id fleet.HostID) []fleet.Guest {
	var out []fleet.Guest
	for _, id := range d.l.GuestsAt(id) {
		if g := d.Guests.At(id); g.State == fleet.GuestRunning && !owners.Waits(d.Hosts.At(g.Home), g) && !g.RetryAt.After(d.at) && placement.Hindered(d.base, g) == "" {
			out = append(out, g)
		}
	}
	slices.SortFunc(out, func(a, b fleet.Guest) int {
		return cmp.Or(cmp.Compare(a.Job, b.Job), cmp.Compare(a.Index, b.Index))
	})
	return out
}

// drainOne begins the move of the first gang that has room elsewhere: of one job all
// guests that find room.
func (d *draft) drainOne(id fleet.HostID, guests []fleet.Guest) {
	nowhere := map[want]bool{} // already asked in this Step; a host's guests are mostly alike
	for len(guests) > 0 {
		n := 1
		for n < len(guests) && guests[n].Job == guests[0].Job && guests[0].Aborts < aloneAfter && guests[n].Aborts < aloneAfter {
			n++
		}
		if gang, to := d.fitting(guests[:n], nowhere); len(gang) > 0 {
			h := d.Hosts.At(id)
			v := owners.SignMove(fleet.Move{Why: whyDraining(h), Drains: id, Limits: d.noticeLimits(h)}, h)
			d.depart(gang, v, d.choose(gang, to, v, nil))
			return
		}
		guests = guests[n:]
	}
}

// want distinguishes the guests of a host when searching for room.
type want struct {
	need fleet.Resources
	kind fleet.Kind
}

// fitting returns the guests that find room on hosts that receive no other move, with
// their hosts. It adds those without room to nowhere.
func (d *draft) fitting(guests []fleet.Guest, nowhere map[want]bool) ([]fleet.Guest, map[fleet.GuestID]placement.Choice) {
	room, to := d.room().Clone(), map[fleet.GuestID]placement.Choice{}
	guests = slices.DeleteFunc(slices.Clone(guests), func(g fleet.Guest) bool { return nowhere[want{g.Need, g.Kind}] })
	var asks []placement.Ask
	for _, g := range guests {
		a := placement.Leaving(d.base, g)
		a.NoArrivals = true
		asks = append(asks, a)
	}
	affinityIn(d.View, room, guests, asks)
	var gang []fleet.Guest
	for i, g := range guests {
		w := want{g.Need, g.Kind}
		if nowhere[w] {
			continue
		}
		best, found := room.Best(asks[i])
		if !found {
			nowhere[w] = true // room only shrinks while a gang is placed, and a gang that fits ends the search
			continue
		}
		to[g.ID] = best
		room.Reserve(best.Host, g.Need)
		gang = append(gang, g)
	}
	return gang, to
}

// deadlineOf is when a move is cancelled at the latest, for people; zero: never.
func deadlineOf(v fleet.Move) time.Time {
	if v.Limits.Deadline <= 0 {
		return time.Time{}
	}
	return v.Begun.Add(v.Limits.Deadline)
}

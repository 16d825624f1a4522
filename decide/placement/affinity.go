// This file says in which sites the guests of a job had better be: in as few
// as possible, and where they have to be in several, those together that talk
// much to each other.
//
// It must not know hosts, but for how many guests find room in a site, nor what
// moves a guest. Its tests hold it against all ways to share out a few guests, and
// random ones.

package placement

import (
	"cmp"
	"fmt"
	"slices"

	"pagurus/decide/desired"
	"pagurus/fleet"
)

// AffinityView is what is asked of the guests that stay.
type AffinityView struct {
	Job  func(fleet.JobID) fleet.Job
	Site func(fleet.GuestID) string // where it is or is going to be; empty: not known
}

// MarkAffinity has the asks, one for each of some guests that look for a host together,
// prefer a site, but for those that would be alone there. It costs nothing where
// sites do not matter.
func MarkAffinity(v *Survey, c AffinityView, guests []fleet.Guest, asks []Ask) {
	if !v.Sites() {
		return
	}
	order := make([]int, len(guests))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int {
		return cmp.Or(cmp.Compare(guests[a].Job, guests[b].Job), cmp.Compare(guests[a].Index, guests[b].Index))
	})
	for len(order) > 0 {
		n := 1
		for n < len(order) && guests[order[n]].Job == guests[order[0]].Job {
			n++
		}
		gang, own := make([]int, n), make([]Ask, n)
		for i, at := range order[:n] {
			gang[i], own[i] = guests[at].Index, asks[at]
		}
		markJob(v, c, c.Job(guests[order[0]].Job), gang, own)
		for i, at := range order[:n] {
			asks[at] = own[i]
		}
		order = order[n:]
	}
}

// markJob does so for guests of one job, by index.
func markJob(v *Survey, c AffinityView, j fleet.Job, gang []int, asks []Ask) {
	if j.Spec.Guests < 2 {
		return
	}
	rooms, bar := v.Rooms(asks)
	p := parting{guests: gang, room: make([]int, len(rooms)), at: make([]int, j.Spec.Guests), traffic: j.Traffic}
	for k, r := range rooms {
		p.room[k] = r.Guests
	}
	for i := range p.at {
		p.at[i] = nowhere
		if _, goes := slices.BinarySearch(gang, i); !goes {
			site := c.Site(desired.GuestID(j.ID, i))
			p.at[i] = slices.IndexFunc(rooms, func(r Room) bool { return r.Site == site })
		}
	}
	at := p.part()
	for n, i := range gang {
		if at[i] == nowhere {
			continue
		}
		if why := p.why(at, i); why != "" {
			asks[n].Affinity = &Affinity{Site: rooms[at[i]].Site, Why: why, Bar: bar}
		}
	}
}

const nowhere = -1

// parting is guests to be shared out among sites, which go by their number here.
type parting struct {
	guests  []int           // by index, in order
	room    []int           // of each site: for how many of them
	at      []int           // of each guest of the job: the site where it stays
	traffic []fleet.Traffic // between guests of the job; nil: not known
}

// part gives every guest of the job a site. Those of the gang all go to one if
// one has room for them, to that with which they have most to do; else to as
// few as possible, together with those they talk to.
func (p parting) part() []int {
	all, whole := make([]int, len(p.room)), []int{}
	for k, room := range p.room {
		if all[k] = k; room >= len(p.guests) {
			whole = append(whole, k)
		}
	}
	if len(whole) > 0 {
		return p.fill([][]int{p.guests}, whole)
	}
	sites := p.few(all)
	byIndex := p.fill([][]int{p.guests}, sites)
	if len(p.traffic) > 0 {
		if byTalk := p.fill(p.groups(), sites); p.crossing(byTalk) < p.crossing(byIndex) {
			return byTalk
		}
	}
	return byIndex
}

// few gives the sites that guests go to which none of all has room for: those
// where the rest of their job is, and of the others those with most room.
func (p parting) few(all []int) []int {
	rest := func(k int) int { return min(count(p.at, k), 1) }
	slices.SortStableFunc(all, func(a, b int) int {
		return cmp.Or(cmp.Compare(rest(b), rest(a)), cmp.Compare(p.room[b], p.room[a]))
	})
	var out []int
	for left := len(p.guests); len(all) > 0 && left > 0; all = all[1:] {
		if room := p.room[all[0]]; room > 0 {
			out, left = append(out, all[0]), left-room
		}
	}
	return out
}

// fill sends groups of guests to sites, each to that with which it has most to
// do of those that have room for all of it. One for which none has is parted in
// order of index, so that neighbours stay together.
func (p parting) fill(groups [][]int, sites []int) []int {
	out, room := slices.Clone(p.at), slices.Clone(p.room)
	for groups = slices.Clone(groups); len(groups) > 0; {
		group, most := groups[0], 0
		for _, k := range sites {
			most = max(most, min(room[k], len(group)))
		}
		if most == 0 {
			break
		}
		pull := p.pull(out, group[:most])
		roomy := slices.DeleteFunc(slices.Clone(sites), func(k int) bool { return room[k] < most })
		k := slices.MaxFunc(roomy, func(a, b int) int { // the first of equal ones
			return cmp.Or(cmp.Compare(pull[a], pull[b]), cmp.Compare(count(out, a), count(out, b)))
		})
		for _, i := range group[:most] {
			out[i] = k
		}
		room[k] -= most
		if groups[0] = group[most:]; len(groups[0]) == 0 {
			groups = groups[1:]
		}
	}
	return out
}

// count is how many guests are in a site.
func count(at []int, k int) int {
	n := 0
	for _, is := range at {
		if is == k {
			n++
		}
	}
	return n
}

// why says, for people, whom a guest is with that goes to its site; empty:
// nobody.
func (p parting) why(at []int, i int) string {
	k, rest := at[i], len(at)-len(p.guests)
	here, others := count(p.at, k), count(at, k)-1
	switch {
	case others <= 0:
		return ""
	case rest > 0 && here == rest:
		return "where the rest of its job is"
	case others == len(at)-1:
		return "with all of its job"
	}
	out := fmt.Sprintf("with %d of the %d others of its job", others, len(at)-1)
	if pull := p.pull(at, []int{i}); pull[k] > 0 && pull[k] == slices.Max(pull) {
		out += ", those it has most traffic with"
	}
	return out
}

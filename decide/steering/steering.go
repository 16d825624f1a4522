// Package steering decides what becomes of what a program asks for its own job, and of the moments that it marks as
// cheap for a move: which request a wish is, what a program is told of its place, how often programs may ask, and how
// long a move waits for a mark.
//
// It must not know how wishes come, or how moves are made. Its tests are tables.
package steering

import (
	"fmt"
	"strconv"
	"time"

	"pagurus/decide/desired"
	"pagurus/fleet"
)

// Request is the request that a wish of a guest's program is, in the job's own authority, or why there is none. It
// does not say where a move goes that is to a better host: Better does.
func Request(s fleet.Snapshot, g fleet.Guest, w fleet.Wish) (r fleet.Request, no string) {
	j := s.Jobs[g.Job]
	r = fleet.Request{
		ID: fleet.WishRequest(g.ID, w), At: s.At,
		By: fleet.Caller{UID: j.Spec.UID, GID: j.Spec.GID, Guest: g.ID},
	}
	if w.Verb == fleet.WishCheckpoint {
		r.Verb, r.Job = fleet.MakeCheckpoint, j.ID
		return r, ""
	}
	if w.Verb == fleet.WishGrow {
		r.Verb, r.Job, r.Within, r.Count = fleet.Grow, j.ID, w.Within, w.Count
		if slots := max(j.Spec.GrownSlots(), 1); w.Ranks > 0 {
			r.Count = (w.Ranks + slots - 1) / slots
		}
		return r, ""
	}
	r.Verb = fleet.Migrate
	if w.Whole {
		r.Job = j.ID
	} else {
		r.Guests = []fleet.GuestID{g.ID}
	}
	if w.Aim == fleet.AimRank {
		of, known := guestOf(j, w.Rank)
		if !known {
			return r, fmt.Sprintf("the job has no rank %d; it has %d, from 0 on", w.Rank, j.Spec.Ranks)
		}
		r.To = s.Guests[of].Home
	}
	return r, ""
}

// guestOf is the guest that runs a rank.
func guestOf(j fleet.Job, rank int) (fleet.GuestID, bool) {
	for i := range j.Spec.Guests {
		if slots := j.Spec.Slots(i); rank < slots {
			return desired.GuestID(j.ID, i), true
		} else {
			rank -= slots
		}
	}
	return "", false
}

// leastGain is how much less of its CPUs a host must have busy to be better.
const leastGain = 0.15

// Better says why the hosts that guests would move to are not better than where they are; empty: they are. A host is
// better if less of its CPUs would be busy with the guest than are now where it is.
func Better(s fleet.Snapshot, moves []fleet.Foreseen) string {
	busy := func(h fleet.Host, more float64) float64 {
		return (h.Facts.LoadCPUs + more) / float64(max(1, h.Facts.Capacity.CPUs))
	}
	gain := 0.0
	for _, m := range moves {
		from, to := s.Hosts[m.From], s.Hosts[m.To]
		gain += busy(from, 0) - busy(to, from.Facts.Guests[m.Guest].CPUs)
	}
	if n := len(moves); n > 0 && gain/float64(n) >= leastGain {
		return ""
	}
	return "no host that has room is less busy than where it is"
}

// Place is what a program is told of where its guest is, and the job's others.
func Place(s fleet.Snapshot, g fleet.Guest) []string {
	j, h := s.Jobs[g.Job], s.Hosts[g.Home]
	rows := []string{
		"job " + string(g.Job), "guest " + string(g.ID), "host " + string(g.Home), "site " + h.Facts.Site,
		"guests " + strconv.Itoa(j.Size()),
		"cpus " + strconv.Itoa(h.Facts.Capacity.CPUs), fmt.Sprintf("load %.2f", h.Facts.LoadCPUs),
	}
	here := 0
	var peers []string
	for _, id := range desired.GuestIDs(j) {
		other, known := s.Guests[id]
		if !known {
			continue
		}
		if other.Home == g.Home {
			here++
		}
		if id != g.ID {
			peers = append(peers, fmt.Sprintf("peer %s %s %s", id, other.Home, s.Hosts[other.Home].Facts.Site))
		}
	}
	return append(append(rows, "here "+strconv.Itoa(here)), peers...)
}

// Price is what a program is told of what a move would cost: at any moment, and from a marked one on.
func Price(f fleet.Forecast) []string {
	atMark := fleet.Price{Total: f.Total, Downtime: f.Downtime, Bytes: f.Bytes, Converges: f.Converges}
	rows := price("", atMark)
	if f.Unmarked != nil {
		rows = append(price("", *f.Unmarked), price("mark-", atMark)...)
	}
	if len(f.Migrations) > 0 {
		rows = append(rows, "to "+string(f.Migrations[0].To))
	}
	return rows
}

func price(what string, p fleet.Price) []string {
	seconds := func(key string, d time.Duration) string { return fmt.Sprintf("%s%s %.3f", what, key, d.Seconds()) }
	rows := []string{
		seconds("seconds", p.Total.Value), seconds("seconds-low", p.Total.Low), seconds("seconds-high", p.Total.High),
		seconds("downtime", p.Downtime.Value), fmt.Sprintf("%sbytes %d", what, p.Bytes.Value),
	}
	if p.Converges {
		rows = append(rows, what+"converges 1")
	}
	return rows
}

// Rate bounds how often the programs of a guest ask. The zero Rate has asked for nothing.
type Rate struct {
	tokens float64
	at     time.Time
}

// atOnce is how many wishes of a guest are taken at once; then it is one a second.
const atOnce = 8

// TakeWish says why a wish is not considered now; empty: it is, and counts.
func (r *Rate) TakeWish(at time.Time) string {
	if r.at.IsZero() {
		r.tokens, r.at = atOnce, at
	}
	r.tokens = min(atOnce, r.tokens+max(0, at.Sub(r.at).Seconds()))
	r.at = at
	if r.tokens < 1 {
		return "programs of this guest ask too often: once a second, and a few times at once"
	}
	r.tokens--
	return ""
}

// Pauses is when the programs of a job last asked for what costs others something.
type Pauses map[fleet.WishVerb]time.Time

// pauses are between two of these. A job grows one step at a time.
var pauses = map[fleet.WishVerb]time.Duration{fleet.WishMove: 5 * time.Second, fleet.WishCheckpoint: 20 * time.Second, fleet.WishGrow: time.Second}

var sought = map[fleet.WishVerb]string{fleet.WishMove: "a move", fleet.WishCheckpoint: "a checkpoint", fleet.WishGrow: "more guests"}

// BeginPause says why a wish is not considered now; empty: it is, and the pause begins.
func (p Pauses) BeginPause(verb fleet.WishVerb, at time.Time) string {
	pause := pauses[verb]
	if pause == 0 {
		return ""
	}
	if since := at.Sub(p[verb]); since >= 0 && since < pause {
		return fmt.Sprintf("a program of this job asked for %s %s ago; ask again in %s", sought[verb], since.Round(time.Second), (pause - since).Round(time.Second))
	}
	p[verb] = at
	return ""
}

// EndPause ends the pause that a wish began, which was refused: only granted ones have to be apart.
func (p Pauses) EndPause(verb fleet.WishVerb, at time.Time) {
	if p[verb].Equal(at) {
		delete(p, verb)
	}
}

const (
	// MostWait is how long a move waits for a mark of a program before its copy begins.
	MostWait = 30 * time.Second
	// MostSwitchWait is how long its switch does, while memory that changes is still sent.
	MostSwitchWait = 5 * time.Second
	// fresh is how long a cheap moment is one for a copy. The planner looks once a second, and at once when one is marked.
	fresh = 1200 * time.Millisecond
	// freshSwitch is the same for a switch, which is over in less than a second: it should fall into the moment itself.
	freshSwitch = 500 * time.Millisecond
	// habit is how long after a program's last cheap moment another one is waited for.
	habit = 2 * time.Minute
)

// Wait is whether a move waits for a mark.
type Wait struct {
	Holds bool
	Until time.Time // at the latest
	Why   string    // for people: what it waits for, or why it does not any more; empty: no program marks
}

// ForMark says whether the copies of a move of guests whose programs marked so wait. They could begin since then; end is when
// they must begin; zero: no earlier than MostWait.
func ForMark(all []fleet.Marks, since, end, at time.Time) Wait {
	return patience{MostWait, fresh, "moves should not begin now", "it had to begin"}.wait(all, since, end, at)
}

// ForSwitch is ForMark of the switch of guests whose copies are good enough since then.
func ForSwitch(all []fleet.Marks, since, end, at time.Time) Wait {
	return patience{MostSwitchWait, freshSwitch, "moves should wait now", "it had to switch"}.wait(all, since, end, at)
}

// Marks reports whether programs that marked so are waited for at all.
func Marks(all []fleet.Marks, at time.Time) bool {
	return ForSwitch(all, at, time.Time{}, at).Why != ""
}

// patience is how long a part of a move waits, and what it says.
type patience struct {
	most, fresh time.Duration
	not, had    string
}

func (p patience) wait(all []fleet.Marks, since, end, at time.Time) Wait {
	if most := since.Add(p.most); end.IsZero() || end.After(most) {
		end = most
	}
	var disturbed time.Time
	cheap, awaited, spared := false, false, int64(0)
	for _, m := range all {
		if until := m.At.Add(m.NotFor); m.NotFor > 0 && until.After(disturbed) {
			disturbed = until
		}
		if age := at.Sub(m.At.Add(-m.CheapAgo)); m.Cheaps > 0 && age < habit {
			cheap, awaited = true, awaited || age > p.fresh && !m.Cheap || m.Held > 0
			spared += m.Scratch
		}
	}
	switch {
	case !disturbed.After(at) && !cheap:
		return Wait{}
	case !at.Before(end):
		return Wait{Why: "no cheap moment was marked until " + p.had}
	case disturbed.After(at):
		if disturbed.Before(end) {
			end = disturbed
		}
		return Wait{Holds: true, Until: end, Why: "its program said that " + p.not}
	case awaited:
		return Wait{Holds: true, Until: end, Why: "its program marks cheap moments, and the next is awaited"}
	}
	why := "at a moment that its program marked as cheap"
	if spared > 0 {
		why += fmt.Sprintf(", without %d MiB of scratch memory", spared>>20)
	}
	return Wait{Why: why}
}

// This file finds moves that pay since they let a whole job go faster: a
// job goes at the pace of its slowest guest, so a few whose hosts have too
// little CPU for them, because of other guests or of an owner beside whom they
// may stay, hold back all the others.
//
// It looks now and then, at a few hosts that the index knows to be short, and
// at none while no host has CPUs to spare: it must cost next to nothing in a
// pool that is full. What becomes of guests whose owner wants them gone is for
// package owners. Its tests run against small clusters made by hand.

package owners

import (
	"fmt"
	"slices"
	"time"

	"pagurus/decide/desired"
	"pagurus/decide/placement"
	"pagurus/decide/state"
	"pagurus/fleet"
)

const (
	// every is how often somebody looks; what is found lasts for minutes.
	every, tick = time.Minute, time.Second
	// mostHosts are looked at at once, and mostJobs, the next ones the next time.
	mostHosts, mostJobs = 12, 12
	// mostMoves begin at once, each of a job, and mostTogether guests at most go
	// with one: who is slow on most of its hosts is so elsewhere.
	mostMoves, mostTogether = 4, 4
	// rest is how long a job is left alone after a move of any of its guests.
	rest = 5 * time.Minute
	// reliefAhead bounds for how long a job is expected to go on: as long as it has, but
	// nobody knows what is so in an hour.
	reliefAhead = time.Hour
	// worth is how many times what a move costs it has to bring in, and least by
	// how much of its full pace a job has to gain.
	worth, least = 2.0, 0.1
	// busy is the part of a host's CPUs that has to be in use before anybody counts
	// as held back: guests may have more than they use.
	busy = 0.9
)

// ReliefView is the cluster as far as it matters here, with what was decided just now.
type ReliefView struct {
	At    time.Time
	Index *state.Index
	Room  *placement.Survey
	Guest func(fleet.GuestID) fleet.Guest
	Job   func(fleet.JobID) fleet.Job
}

// ReliefPlan is a move that pays.
type ReliefPlan struct {
	Guests []fleet.Guest
	To     map[fleet.GuestID]placement.Choice
	Why    string // for people
}

// ReliefDue reports whether it is time to look and there may be something to find. It
// costs nothing to speak of.
func ReliefDue(l *state.Index, at time.Time) bool {
	return at.Sub(at.Truncate(every)) < tick && l.Snapshot().Cluster.Rules.Chosen().Name == fleet.Predictive && l.Room().Relievable()
}

// PlanRelief gives the moves that pay, of a few jobs on some of the hosts that are
// short.
func PlanRelief(c ReliefView) []ReliefPlan {
	s := &search{ReliefView: c, left: map[fleet.HostID]int{}}
	tight := c.Index.Room().Tight()
	seen := map[fleet.JobID]bool{}
	var out []ReliefPlan
	for i := range min(len(tight), mostHosts) {
		host := tight[(int(c.At.Unix()/int64(every/time.Second))*mostHosts+i)%len(tight)]
		for _, id := range c.Index.GuestsAt(host) {
			if job := c.Guest(id).Job; !seen[job] {
				seen[job] = true
				if p, pays := s.plan(c.Job(job)); pays {
					out = append(out, p)
				}
			}
			if s.full || len(out) == mostMoves || len(seen) == mostJobs {
				return out
			}
		}
	}
	return out
}

// search is one look.
type search struct {
	ReliefView
	left map[fleet.HostID]int // CPUs of guests that are going to leave
	full bool                 // no host has clearly more to give
}

// plan gives the move of the guests that hold a job back, if it pays.
func (s *search) plan(j fleet.Job) (ReliefPlan, bool) {
	guests := s.guests(j)
	if len(guests) == 0 || s.hopeless(guests) {
		return ReliefPlan{}, false
	}
	trial := *s
	trial.Room, trial.left = s.Room.Clone(), map[fleet.HostID]int{}
	for id, cpus := range s.left {
		trial.left[id] = cpus
	}
	out, was, now := trial.pickGuests(guests)
	s.full = trial.full
	if now-was < least {
		return ReliefPlan{}, false
	}
	ids, to := make([]fleet.GuestID, len(out.Guests)), make([]fleet.HostID, len(out.Guests))
	lasts := min(s.At.Sub(j.Since), reliefAhead)
	for i, g := range out.Guests {
		ids[i], to[i] = g.ID, out.To[g.ID].Host
		if o := s.owner(g.Home); o.Present {
			lasts = min(lasts, Usual.Left(o.ThereFor(s.At)))
		}
	}
	gain := time.Duration((now - was) * float64(lasts))
	cost := PriceOf(s.Index, ids, to).Cost()
	if float64(gain) < worth*float64(cost) {
		return ReliefPlan{}, false
	}
	*s = trial
	out.Why = fmt.Sprintf("job %s is held back by %s: %.0f %% of its pace, and %.0f %% elsewhere: worth %s, for %s",
		j.ID, out.Guests[0].Home, 100*was, 100*now, gain.Round(time.Second), cost.Round(100*time.Millisecond))
	return out, true
}

// guests gives those of a job that could move, unless it has moved lately, or is
// not all running: then none.
func (s *search) guests(j fleet.Job) []fleet.Guest {
	if t := s.Index.Tally(j.ID); j.State != fleet.JobRunning || t.Moving > 0 || t.Up < j.Spec.Guests {
		return nil
	}
	known := s.Index.Snapshot()
	for _, id := range s.Index.MigrationsOf(j.ID) {
		if m := known.Migrations[id]; !m.Phase.Ended() || s.At.Sub(m.Since) < rest {
			return nil
		}
	}
	out := make([]fleet.Guest, 0, j.Spec.Guests)
	for _, id := range desired.GuestIDs(j) {
		g := s.Guest(id)
		home := known.Hosts[g.Home]
		away, comes := s.Room.Busy(g.Home)
		// A guest that uses no CPU at all waits for something.
		if g.State != fleet.GuestRunning || g.Suspended || home.Facts.Guests[id].CPUs <= 0 || away+comes > 0 || home.State != fleet.HostUp || !placement.Heard(home, s.At) {
			return nil
		}
		if home.Facts.Owner != nil && home.Facts.Owner.Present && InForce(home, known.Cluster.Rules).Moves() {
			return nil
		}
		out = append(out, g)
	}
	return out
}

// hopeless reports whether no move can help: nobody is held back, or by more
// hosts than can be left at once.
func (s *search) hopeless(guests []fleet.Guest) bool {
	slowest, paces := 1.0, make([]float64, len(guests))
	for i, g := range guests {
		paces[i] = s.pace(g.Home, 0)
		slowest = min(slowest, paces[i])
	}
	hosts := make([]fleet.HostID, 0, mostTogether)
	for i, g := range guests {
		switch {
		case paces[i] >= slowest+least || slices.Contains(hosts, g.Home):
		case len(hosts) == mostTogether:
			return true
		default:
			hosts = append(hosts, g.Home)
		}
	}
	return slowest > 1-least
}

// pickGuests picks the slowest guest after the other as long as somebody has clearly
// more for it, and gives those that help, and the job's pace before and after.
func (s *search) pickGuests(guests []fleet.Guest) (out ReliefPlan, was, now float64) {
	paces := make([]float64, len(guests))
	slowest := func() int {
		at := 0
		for i, g := range guests {
			if _, goes := out.To[g.ID]; !goes {
				paces[i] = s.pace(g.Home, 0)
			}
			if paces[i] < paces[at] {
				at = i
			}
		}
		return at
	}
	out.To = map[fleet.GuestID]placement.Choice{}
	at := slowest()
	was, now = paces[at], paces[at]
	helpful := 0
	for len(out.Guests) < mostTogether && paces[at] <= 1-least {
		g := guests[at]
		if _, goes := out.To[g.ID]; goes || placement.Hindered(s.Index.Snapshot(), g) != "" {
			break
		}
		a := placement.Leaving(s.Index.Snapshot(), g)
		a.NoArrivals = true
		to, found := s.Room.Best(a)
		there := s.pace(to.Host, g.Need.CPUs)
		if !found || there < paces[at]+least {
			s.full = true
			break
		}
		s.Room.Reserve(to.Host, g.Need)
		s.left[g.Home] += g.Need.CPUs
		out.Guests, out.To[g.ID] = append(out.Guests, g), to
		paces[at] = there
		if at = slowest(); paces[at] > now {
			now, helpful = paces[at], len(out.Guests)
		}
	}
	for _, g := range out.Guests[helpful:] {
		delete(out.To, g.ID)
	}
	out.Guests = out.Guests[:helpful]
	return out, was, now
}

// pace is how fast guests go on a host if one more with so many CPUs comes: the
// CPUs that others leave, for those that guests are promised; 1 at most.
func (s *search) pace(id fleet.HostID, more int) float64 {
	h := s.Index.Snapshot().Hosts[id]
	free := float64(h.Facts.Capacity.CPUs) - s.owner(id).LoadCPUs
	promised := float64(s.Room.CPUs(id) - s.left[id] + more)
	if promised <= free {
		return 1
	}
	if more == 0 {
		used := s.owner(id).LoadCPUs
		for _, g := range h.Facts.Guests {
			used += g.CPUs
		}
		if used < busy*float64(h.Facts.Capacity.CPUs) {
			return 1
		}
	}
	return max(free/promised, 0)
}

func (s *search) owner(id fleet.HostID) fleet.Owner {
	if o := s.Index.Snapshot().Hosts[id].Facts.Owner; o != nil {
		return *o
	}
	return fleet.Owner{}
}

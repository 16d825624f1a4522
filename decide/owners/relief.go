// This file finds moves that speed up a whole job. A job runs at the pace of its slowest
// guest. So a few guests can slow all others, if other guests, or an owner beside whom
// they may stay, take their CPU time.
//
// It checks a few tight hosts from the index at intervals, and none while no host has
// spare CPUs: it must cost almost nothing in a full pool. owners.go decides about guests
// that an owner wants gone. Its tests use small clusters made by hand.

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
	// every is the interval of checks; conditions last for minutes.
	every, tick = time.Minute, time.Second
	// mostHosts and mostJobs are checked at once, the next ones the next time.
	mostHosts, mostJobs = 12, 12
	// mostMoves begin at once, each of one job, with at most mostTogether guests: a job
	// that is slow on most of its hosts is slow elsewhere, too.
	mostMoves, mostTogether = 4, 4
	// rest is how long a job is left alone after a move of any of its guests.
	rest = 5 * time.Minute
	// reliefAhead limits a job's expected remaining time: as long as it has run, but
	// conditions in an hour are unknown.
	reliefAhead = time.Hour
	// worth is the required ratio of a move's gain to its cost, least the required gain
	// as a share of a job's full pace.
	worth, least = 2.0, 0.1
	// busy is the share of a host's CPUs that must be in use before its guests count as
	// slowed: guests may have more CPUs than they use.
	busy = 0.9
)

// ReliefView is the relevant part of the cluster, with the changes so far.
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

// ReliefDue reports whether a check is due and could find something. It costs almost
// nothing.
func ReliefDue(l *state.Index, at time.Time) bool {
	return at.Sub(at.Truncate(every)) < tick && l.Snapshot().Cluster.Rules.Chosen().Name == fleet.Predictive && l.Room().Relievable()
}

// PlanRelief returns moves that pay, for a few jobs on some of the tight hosts.
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

// search is one check.
type search struct {
	ReliefView
	left map[fleet.HostID]int // CPUs of guests that will leave
	full bool                 // no host has clearly more to give
}

// plan returns the move of the guests that slow a job, if it pays.
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

// guests returns a job's movable guests; none if the job has moved lately or some guest
// does not run.
func (s *search) guests(j fleet.Job) []fleet.Guest {
	if t := s.Index.Tally(j.ID); j.State != fleet.JobRunning || t.Moving > 0 || t.Up < j.Size() {
		return nil
	}
	known := s.Index.Snapshot()
	for _, id := range s.Index.MigrationsOf(j.ID) {
		if m := known.Migrations[id]; !m.Phase.Ended() || s.At.Sub(m.Since) < rest {
			return nil
		}
	}
	out := make([]fleet.Guest, 0, j.Size())
	for _, id := range desired.GuestIDs(j) {
		g := s.Guest(id)
		home := known.Hosts[g.Home]
		away, comes := s.Room.Busy(g.Home)
		// A guest that uses no CPU waits for something.
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

// hopeless reports whether no move can help: no guest is slowed, or on more hosts than
// can be left at once.
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

// pickGuests picks the slowest guests one by one while a clearly better host is found. It
// returns those that help, and the job's pace before and after.
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

// pace is how fast guests run on a host with more additional CPUs: the CPUs that others
// leave, divided by those promised; at most 1.
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

// Package owners decides what becomes of guests on a host whose owner is present. Its
// policies are pure, and the live controller and the simulator use the same ones.
//
// A policy judges one case: the guests of one job on one host. It must not know who
// carries out its verdict: the planner makes the moves, and the host suspends guests. Its
// tests use cases computed by hand and the published fits.
package owners

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"pagurus/decide/placement"
	"pagurus/fleet"
)

// Action is what becomes of guests.
type Action string

// The actions.
const (
	Stay    Action = "stay"    // they run on in the lowest class
	Suspend Action = "suspend" // they are suspended, and so their job stops
	Leave   Action = "leave"   // they move to other hosts while they run
	Requeue Action = "requeue" // their whole job ends and starts again from the beginning
)

// Case is the guests of one job on a host whose owner is present.
type Case struct {
	At     time.Time
	Host   fleet.HostID
	Owner  fleet.Owner
	Cores  int
	Job    fleet.JobID
	Guests []fleet.GuestID // guests that could start to move now
	Stuck  Action          // what they do if they cannot leave, Stay or Suspend; empty: Suspend
	Held   bool            // a move of some of them has just failed, and is retried later
	Room   func() bool     // whether hosts can take them; computed on demand
	Price  func() Price    // expected cost of leaving, if there is room; computed on demand
}

// Price is the expected cost of leaving.
type Price struct {
	Total    time.Duration // from now until they are gone
	Downtime time.Duration // of that, suspended
}

// Cost is the cost to the job while the owner is present: the downtime, and part of the
// rest.
func (p Price) Cost() time.Duration {
	return p.Downtime + time.Duration(copyCost*float64(max(p.Total-p.Downtime, 0)))
}

// CaseVerdict is a policy's decision.
type CaseVerdict struct {
	Do    Action
	Again time.Duration // evaluate again after this time; 0: when something changes
	Why   string        // for people
}

// Policy decides what becomes of guests.
type Policy interface {
	Name() string
	// Evaluate judges a case. It must not depend on anything else.
	Evaluate(Case) CaseVerdict
	// Moves reports whether guests ever leave because of an owner. If so, they should not
	// arrive where an owner is present, either.
	Moves() bool
	// Placement is the policy that chooses the hosts for the guests.
	Placement() placement.Policy
}

// All returns every policy.
func All() []Policy {
	return []Policy{stay{}, suspend{}, requeue{}, evacuate{}, Predictive{Down: Usual}}
}

// Named returns the policy of a name, and false if there is none.
func Named(name string) (Policy, bool) {
	all := All()
	i := slices.IndexFunc(all, func(p Policy) bool { return p.Name() == name })
	if i < 0 {
		return nil, false
	}
	return all[i], true
}

// Names are the names of all policies.
func Names() []string {
	var out []string
	for _, p := range All() {
		out = append(out, p.Name())
	}
	return out
}

// retryEvery is how soon leaving is retried when there is no room.
const retryEvery = 30 * time.Second

// stay lets guests run on, slowed by the owner.
type stay struct{}

func (stay) Name() string                { return "stay" }
func (stay) Moves() bool                 { return false }
func (stay) Placement() placement.Policy { return placement.Spread{} }
func (stay) Evaluate(Case) CaseVerdict {
	return CaseVerdict{Do: Stay, Why: "guests run on beside their owner"}
}

// suspend suspends guests until the owner goes.
type suspend struct{}

func (suspend) Name() string                { return "suspend" }
func (suspend) Moves() bool                 { return false }
func (suspend) Placement() placement.Policy { return placement.Spread{} }
func (suspend) Evaluate(Case) CaseVerdict {
	return CaseVerdict{Do: Suspend, Why: "guests are suspended until the owner goes"}
}

// requeue does what HTCondor does with MPI jobs.
type requeue struct{}

func (requeue) Name() string                { return "requeue" }
func (requeue) Moves() bool                 { return false }
func (requeue) Placement() placement.Policy { return placement.Spread{} }
func (requeue) Evaluate(Case) CaseVerdict {
	return CaseVerdict{Do: Requeue, Why: "the whole job begins again elsewhere"}
}

// evacuate leaves as soon as the owner is back.
type evacuate struct{}

func (evacuate) Name() string                { return "evacuate" }
func (evacuate) Moves() bool                 { return true }
func (evacuate) Placement() placement.Policy { return placement.Spread{} }
func (evacuate) Evaluate(s Case) CaseVerdict {
	if j, stuck := nowhere(s); stuck {
		return j
	}
	return CaseVerdict{Do: Leave, Why: "guests leave as soon as an owner is back"}
}

// nowhere judges guests that cannot leave.
func nowhere(s Case) (CaseVerdict, bool) {
	do := cmp.Or(s.Stuck, Suspend)
	switch {
	case s.Held:
		return CaseVerdict{do, retryEvery, fmt.Sprintf("they could not leave just now and %s until that is tried again", words[do])}, true
	case !s.Room():
		return CaseVerdict{do, retryEvery, "no other host has room, so they " + words[do]}, true
	}
	return CaseVerdict{}, false
}

// Usual is how long owners are present by default, and UsualAway how long they stay away:
// the fits to nd07cpu, desktops of a university.
var (
	Usual     = Fit{Shape: 0.51, Hours: 0.74}
	UsualAway = Fit{Shape: 0.45, Hours: 4.16}
)

// Predictive compares the expected cost of leaving with waiting for the owner to go, and
// moves to hosts whose owners have been away long.
//
// A second of suspension costs the job a second; leaving costs it Cost. In each second
// the owner goes with the probability of the hazard, which saves that cost. So waiting
// pays while hazard × cost exceeds one second a second. The hazard only falls while an
// owner is present, so waiting never pays again once it has not. Waiting guests are
// suspended: running on would be better for the job, at the owner's expense.
type Predictive struct {
	Down Fit // how long owners are present
}

// Name is "predictive".
func (Predictive) Name() string { return "predictive" }

// Moves is true.
func (Predictive) Moves() bool { return true }

// Placement is LongestIdle: the hazard of an owner's return falls with idle time.
func (Predictive) Placement() placement.Policy { return placement.LongestIdle{} }

const (
	// copyCost is the cost of a second of copying for a guest that runs beside its owner.
	copyCost = 0.5
	// patience limits the wait before the next evaluation. A tenth of the time that the
	// owner has been present is short enough to notice any change.
	leastPatience, mostPatience = time.Second, time.Minute
)

// Evaluate waits while the hazard of the owner's going is worth more than the time it
// costs.
func (p Predictive) Evaluate(s Case) CaseVerdict {
	if j, stuck := nowhere(s); stuck {
		return j
	}
	there := s.Owner.ThereFor(s.At)
	cost := s.Price().Cost()
	if gain := p.Down.Hazard(there) * cost.Hours(); gain > 1 {
		again := min(max(there/10, leastPatience), mostPatience)
		return CaseVerdict{Suspend, again, fmt.Sprintf("leaving is expected to cost %s, and the owner has come so lately that they may go sooner", cost.Round(time.Second))}
	}
	return CaseVerdict{Do: Leave, Why: fmt.Sprintf("leaving is expected to cost %s, and the owner to stay for %s", cost.Round(100*time.Millisecond), p.Down.Left(there).Round(time.Minute))}
}

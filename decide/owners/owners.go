// Package owners decides what becomes of guests on a host whose owner is there:
// policies, pure, the same ones for the live controller and the simulator.
//
// A policy judges one case, the guests of one job on one host. It must not
// know who carries its verdict out: moves are asked of the planner as
// anybody's are, being suspended is the host's business. Its tests run against
// cases worked out by hand and against the published fits.
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
	Stay    Action = "stay"    // they run on, in the lowest class of CPU
	Suspend Action = "suspend" // they are suspended, and their job with them
	Leave   Action = "leave"   // they move to other hosts while they run
	Requeue Action = "requeue" // their whole job is ended and begins again from nothing
)

// Case is the guests of one job on a host whose owner is there.
type Case struct {
	At     time.Time
	Host   fleet.HostID
	Owner  fleet.Owner
	Cores  int
	Job    fleet.JobID
	Guests []fleet.GuestID // that could begin to move now
	Stuck  Action          // what they do where they cannot leave, Stay or Suspend; empty: Suspend
	Held   bool            // a move of some of them has failed just now, and is tried later
	Room   func() bool     // there are hosts that can take them; not looked up unless asked for
	Price  func() Price    // what leaving is expected to cost, where there is room; not looked up either
}

// Price is what it is expected to cost to leave.
type Price struct {
	Total    time.Duration // from now until they are gone
	Downtime time.Duration // of that, they are suspended
}

// Cost is what that costs the job while the owner is there: all the time that it
// is suspended, and part of the rest.
func (p Price) Cost() time.Duration {
	return p.Downtime + time.Duration(copyCost*float64(max(p.Total-p.Downtime, 0)))
}

// CaseVerdict is what a policy says.
type CaseVerdict struct {
	Do    Action
	Again time.Duration // evaluate again after so long; 0: when something changes
	Why   string        // for people
}

// Policy says what becomes of guests.
type Policy interface {
	Name() string
	// Evaluate looks at a case. It must not depend on anything else.
	Evaluate(Case) CaseVerdict
	// Moves reports whether guests ever leave because of an owner. Then they had
	// better not arrive where one is, either.
	Moves() bool
	// Placement is by what the hosts are chosen to which guests go.
	Placement() placement.Policy
}

// All gives every policy there is.
func All() []Policy {
	return []Policy{stay{}, suspend{}, requeue{}, evacuate{}, Predictive{Down: Usual}}
}

// Named gives the policy of a name, and false if there is none.
func Named(name string) (Policy, bool) {
	all := All()
	i := slices.IndexFunc(all, func(p Policy) bool { return p.Name() == name })
	if i < 0 {
		return nil, false
	}
	return all[i], true
}

// Names are those of all policies.
func Names() []string {
	var out []string
	for _, p := range All() {
		out = append(out, p.Name())
	}
	return out
}

// retryEvery is how soon it is tried again to leave where that is not possible.
const retryEvery = 30 * time.Second

// stay is to run on, slowed down by the owner.
type stay struct{}

func (stay) Name() string                { return "stay" }
func (stay) Moves() bool                 { return false }
func (stay) Placement() placement.Policy { return placement.Spread{} }
func (stay) Evaluate(Case) CaseVerdict {
	return CaseVerdict{Do: Stay, Why: "guests run on beside their owner"}
}

// suspend is to be suspended until the owner goes.
type suspend struct{}

func (suspend) Name() string                { return "suspend" }
func (suspend) Moves() bool                 { return false }
func (suspend) Placement() placement.Policy { return placement.Spread{} }
func (suspend) Evaluate(Case) CaseVerdict {
	return CaseVerdict{Do: Suspend, Why: "guests are suspended until the owner goes"}
}

// requeue is what HTCondor does with MPI jobs.
type requeue struct{}

func (requeue) Name() string                { return "requeue" }
func (requeue) Moves() bool                 { return false }
func (requeue) Placement() placement.Policy { return placement.Spread{} }
func (requeue) Evaluate(Case) CaseVerdict {
	return CaseVerdict{Do: Requeue, Why: "the whole job begins again elsewhere"}
}

// evacuate is to leave as soon as the owner is back.
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

// nowhere is the verdict on guests that cannot leave.
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

// Usual is how long owners are there where nobody knows better, and UsualAway
// how long they stay away: the fits to nd07cpu, desktops of a university.
var (
	Usual     = Fit{Shape: 0.51, Hours: 0.74}
	UsualAway = Fit{Shape: 0.45, Hours: 4.16}
)

// Predictive weighs what leaving is expected to cost against waiting for the
// owner to go, and goes where owners have been away for long.
//
// A second of being suspended costs the job a second. Leaving costs it Cost.
// With each second the owner goes with the probability that the hazard says,
// and saves that cost. So it is worth waiting as long as hazard × cost is more
// than one second a second; and since the hazard only falls while an owner is
// there, it is never worth waiting once it has not been. Guests that wait stand
// still: running on would be worth more to the job, at the owner's expense.
type Predictive struct {
	Down Fit // how long owners are there
}

// Name is "predictive".
func (Predictive) Name() string { return "predictive" }

// Moves is true.
func (Predictive) Moves() bool { return true }

// Placement is LongestIdle: the hazard of an owner's return falls with idle age.
func (Predictive) Placement() placement.Policy { return placement.LongestIdle{} }

const (
	// copyCost is what a second of being copied costs a guest that runs on
	// beside its owner.
	copyCost = 0.5
	// patience bounds how long is waited before it is judged again; a tenth of
	// the time that the owner has been there is as soon as anything changes.
	leastPatience, mostPatience = time.Second, time.Minute
)

// Evaluate waits while the hazard of the owner's going is worth more than the
// time it costs.
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

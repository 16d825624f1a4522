package fleet

import "time"

// OwnerState is whether the owner of a host is present. Package
// presence owns it.
type OwnerState string

// The states of an owner. In all but OwnerAbsent guests yield CPU and memory.
const (
	OwnerAbsent    OwnerState = "absent"
	OwnerReturning OwnerState = "returning" // somebody is seen; whether they stay is not known yet
	OwnerPresent   OwnerState = "present"   // they stay: Vacate says what becomes of guests
	OwnerLeaving   OwnerState = "leaving"   // not seen any more, but not for long enough
)

// There reports whether guests must yield to the owner.
func (s OwnerState) There() bool { return s != OwnerAbsent && s != "" }

// Owner is what a host's sensors say of the person whose machine it is. Of a
// host without an owner they give the load alone: State is empty.
type Owner struct {
	Present  bool       `json:"present"`            // uses the machine now, or has so lately that they count as there: State.There
	Since    time.Time  `json:"since,omitzero"`     // when Present last changed
	LoadCPUs float64    `json:"load_cpus"`          // CPUs in use by anything but guests
	Why      string     `json:"why,omitempty"`      // what shows it, for people: "keyboard", "claimed by hand"
	State    OwnerState `json:"state,omitempty"`    // how sure it is
	Entered  time.Time  `json:"entered,omitzero"`   // when State was entered
	LastSign time.Time  `json:"last_sign,omitzero"` // of the owner; zero: none yet
	Deaf     []string   `json:"deaf,omitempty"`     // sensors that do not count and why, for people
	SaidAt   time.Time  `json:"said_at,omitzero"`   // when all this was said, by the clock that the times are of: the controller's once it has them
}

// IdleFor is how long the owner has been away; 0 while they are there.
func (o Owner) IdleFor(at time.Time) time.Duration {
	if o.Present {
		return 0
	}
	return max(at.Sub(o.Since), 0)
}

// ThereFor is how long the owner has been there; 0 while they are away.
func (o Owner) ThereFor(at time.Time) time.Duration {
	if !o.Present {
		return 0
	}
	return max(at.Sub(o.Since), 0)
}

// By gives what an agent said with its times by another clock, which shows at
// when the agent's shows SaidAt: hosts' clocks may be wrong, and jump.
func (o Owner) By(at time.Time) Owner {
	if o.SaidAt.IsZero() {
		return o
	}
	ahead := at.Sub(o.SaidAt)
	for _, t := range []*time.Time{&o.Since, &o.Entered, &o.LastSign, &o.SaidAt} {
		if !t.IsZero() {
			*t = t.Add(ahead)
		}
	}
	return o
}

// Vacate is what becomes of guests when the owner stays.
type Vacate string

// The choices. A host's owner may agree to one of the first three; where they
// did not the cluster's counts, and without one Predictive.
const (
	Evacuate   Vacate = "evacuate"   // they leave as from a draining host, and may stay away until the owner goes
	Suspend    Vacate = "suspend"    // they are suspended until the owner goes
	Stay       Vacate = "stay"       // they go on at the lowest class
	Requeue    Vacate = "requeue"    // their whole job begins again from nothing
	Predictive Vacate = "predictive" // they leave when that is expected to cost less than waiting
)

// VacatePolicy is a choice in words.
type VacatePolicy struct {
	Name      Vacate `json:"name"`
	Placement string `json:"placement"` // by what hosts are chosen unless somebody says otherwise
	Says      string `json:"says"`
}

// VacatePolicies are all choices, as package owners carries them out.
var VacatePolicies = []VacatePolicy{
	{Stay, "spread", "guests go on in the lowest class of CPU, for what the owner leaves"},
	{Suspend, "spread", "guests are suspended until the owner goes, and their jobs with them"},
	{Requeue, "spread", "jobs with a guest there end, and begin again from nothing where there is room, as HTCondor does with MPI"},
	{Evacuate, "spread", "guests leave while they run as soon as the owner stays; where they cannot they are suspended, unless the host's owner has them go on"},
	{Predictive, "longest-idle", "guests leave as soon as that is expected to cost their job less than to wait for the owner to go, for hosts whose owners have been away longest"},
}

// Rules are what holds in a cluster for all hosts about which nothing else was
// said.
type Rules struct {
	Vacate    Vacate `json:"vacate,omitempty"`    // what becomes of guests when an owner stays; empty: Predictive
	Placement string `json:"placement,omitempty"` // how hosts are chosen; empty: as the policy of vacating does
}

// Chosen is the policy of vacating that r names.
func (r Rules) Chosen() VacatePolicy {
	for _, p := range VacatePolicies {
		if p.Name == r.Vacate {
			return p
		}
	}
	return VacatePolicies[len(VacatePolicies)-1]
}

// Places is the name of how hosts are chosen.
func (r Rules) Places() string {
	if r.Placement != "" {
		return r.Placement
	}
	return r.Chosen().Placement
}

// Vacates is what becomes of guests on a host whose owner stays, by what its
// owner agreed to or by the cluster's rules.
func (h Host) Vacates(r Rules) Vacate {
	if h.Policy.Vacate != "" {
		return h.Policy.Vacate
	}
	return r.Chosen().Name
}

// OwnerPolicy is what a host's owner has agreed to. The zero OwnerPolicy: the
// host has no owner.
type OwnerPolicy struct {
	Owned     bool          `json:"owned,omitempty"`
	Vacate    Vacate        `json:"vacate,omitempty"`
	Nowhere   Vacate        `json:"nowhere,omitempty"`       // what becomes of guests that shall leave and cannot: Stay or Suspend; empty: Suspend
	IdleAfter time.Duration `json:"idle_after_ns,omitempty"` // the owner is gone when nothing was seen of them for so long; 0: the preset's
	Hours     Hours         `json:"hours,omitzero"`          // when guests are welcome at all; outside of them the owner is there
	Cap       float64       `json:"cap,omitempty"`           // part of the host's CPUs that guests may use together while the owner is there, 0 to 1; 0: what is left over
	Preset    string        `json:"preset,omitempty"`        // thresholds and times: "condor", "boinc"; empty: our own
	Exclusive []string      `json:"exclusive,omitempty"`     // programs that mean the owner is there while they run
	Claimed   bool          `json:"claimed,omitempty"`       // the owner has said so by hand
}

// Hours is a part of each day, by the host's own clock. It may go past
// midnight. The zero Hours is all day.
type Hours struct {
	From time.Duration `json:"from_ns"` // since midnight
	To   time.Duration `json:"to_ns"`
}

// All reports whether h is all day.
func (h Hours) All() bool { return h.From == h.To }

// Has reports whether a time of day is in h.
func (h Hours) Has(t time.Time) bool {
	hour, minute, second := t.Clock()
	at := time.Duration(hour)*time.Hour + time.Duration(minute)*time.Minute + time.Duration(second)*time.Second
	switch {
	case h.All():
		return true
	case h.From < h.To:
		return h.From <= at && at < h.To
	}
	return at >= h.From || at < h.To
}

// OwnerSample is what a host's sensors saw at one moment. A sensor that is
// missing, or failed, leaves its field nil and says why in Deaf.
type OwnerSample struct {
	NonGuestCPUs *float64       // CPUs used since the last sample by anyone but Pagurus
	Waiting      *float64       // part of the last 10 s in which somebody waited for a CPU, 0 to 1
	Starved      *float64       // part of the last 10 s in which everybody waited for memory, 0 to 1
	Available    *float64       // part of the memory that can still be had, 0 to 1
	Idle         *time.Duration // since the last key, mouse, console or ssh input
	Exclusive    []string       // of the listed programs those that run
	OnBattery    bool
	Deaf         []string
}

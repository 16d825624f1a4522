package fleet

import "time"

// OwnerState is whether a host's owner is present. Package presence decides it.
type OwnerState string

// The states of an owner. In all but OwnerAbsent guests are deprioritised and give back memory.
const (
	OwnerAbsent    OwnerState = "absent"
	OwnerReturning OwnerState = "returning" // seen, but perhaps only briefly
	OwnerPresent   OwnerState = "present"   // stays: Vacate says what becomes of guests
	OwnerLeaving   OwnerState = "leaving"   // not seen any more, but not for long enough
)

// There reports whether guests must be deprioritised for the owner.
func (s OwnerState) There() bool { return s != OwnerAbsent && s != "" }

// Owner is what a host's sensors report. If the host has no owner, they report only its
// load, and State is empty.
type Owner struct {
	Present  bool       `json:"present"`            // uses the machine now, or did so recently enough: State.There
	Since    time.Time  `json:"since,omitzero"`     // when Present last changed
	LoadCPUs float64    `json:"load_cpus"`          // non-guest load
	Why      string     `json:"why,omitempty"`      // evidence, for people: "keyboard", "claimed by hand"
	State    OwnerState `json:"state,omitempty"`    // the owner's state
	Entered  time.Time  `json:"entered,omitzero"`   // when State was entered
	LastSign time.Time  `json:"last_sign,omitzero"` // of the owner; zero: none yet
	Deaf     []string   `json:"deaf,omitempty"`     // sensors that do not count, with reasons, for people
	Wish     *OwnerWish `json:"wish,omitempty"`     // a policy that was chosen at the machine and that the controller may not have yet
	SaidAt   time.Time  `json:"said_at,omitzero"`   // when this was reported, by the clock of the other times; the controller converts all to its own
}

// IdleFor is how long the owner has been away; 0 while present.
func (o Owner) IdleFor(at time.Time) time.Duration {
	if o.Present {
		return 0
	}
	return max(at.Sub(o.Since), 0)
}

// ThereFor is how long the owner has been present; 0 while away.
func (o Owner) ThereFor(at time.Time) time.Duration {
	if !o.Present {
		return 0
	}
	return max(at.Sub(o.Since), 0)
}

// By converts o's times to another clock, which shows at when the agent's shows SaidAt.
// Hosts' clocks may be wrong, and may jump.
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

// Vacate says what becomes of guests when the owner stays.
type Vacate string

// The choices. An owner may agree to one of the first three. Otherwise the cluster's
// choice counts, and without one Predictive.
const (
	Evacuate   Vacate = "evacuate"   // they leave as in a drain, and may stay away until the owner goes
	Suspend    Vacate = "suspend"    // they are suspended until the owner goes
	Stay       Vacate = "stay"       // they keep running in the lowest class
	Requeue    Vacate = "requeue"    // their whole job is requeued
	Predictive Vacate = "predictive" // they leave if that is expected to cost less than waiting
)

// VacatePolicy describes a choice.
type VacatePolicy struct {
	Name      Vacate `json:"name"`
	Placement string `json:"placement"` // the placement policy unless another is set
	Says      string `json:"says"`
}

// VacatePolicies are all choices. Package owners carries them out.
var VacatePolicies = []VacatePolicy{
	{Stay, "spread", "guests go on in the lowest class of CPU, for what the owner leaves"},
	{Suspend, "spread", "guests are suspended until the owner goes, and their jobs with them"},
	{Requeue, "spread", "jobs with a guest there end, and begin again from nothing where there is room, as HTCondor does with MPI"},
	{Evacuate, "spread", "guests leave while they run as soon as the owner stays; where they cannot they are suspended, unless the host's owner has them go on"},
	{Predictive, "longest-idle", "guests leave as soon as that is expected to cost their job less than to wait for the owner to go, for hosts whose owners have been away longest"},
}

// Rules are the cluster's defaults for hosts that do not set their own, and the CPU of virtual machines, whatever hosts set.
type Rules struct {
	Vacate    Vacate `json:"vacate,omitempty"`    // what becomes of guests when an owner stays; empty: Predictive
	Placement string `json:"placement,omitempty"` // the placement policy; empty: the one of Vacate
	CPU       string `json:"cpu_level,omitempty"` // the CPU of virtual machines that start where KVM runs them, one of ChosenCPUs; empty: what each host's agent is told
}

// Chosen is the vacate policy that r names.
func (r Rules) Chosen() VacatePolicy {
	for _, p := range VacatePolicies {
		if p.Name == r.Vacate {
			return p
		}
	}
	return VacatePolicies[len(VacatePolicies)-1]
}

// Places is the name of the placement policy.
func (r Rules) Places() string {
	if r.Placement != "" {
		return r.Placement
	}
	return r.Chosen().Placement
}

// Vacates says what becomes of guests on h when its owner stays: its owner's choice, or
// the cluster's.
func (h Host) Vacates(r Rules) Vacate {
	if h.Policy.Vacate != "" {
		return h.Policy.Vacate
	}
	return r.Chosen().Name
}

// OwnerPolicy is what a host's owner has agreed to. A host with the zero OwnerPolicy has
// no owner.
type OwnerPolicy struct {
	Owned     bool          `json:"owned,omitempty"`
	Vacate    Vacate        `json:"vacate,omitempty"`
	Nowhere   Vacate        `json:"nowhere,omitempty"`       // for guests that should leave and cannot: Stay or Suspend; empty: Suspend
	IdleAfter time.Duration `json:"idle_after_ns,omitempty"` // the owner is absent after this long without a sign; 0: the preset's
	Hours     Hours         `json:"hours,omitzero"`          // when guests are welcome; outside of them the owner counts as present
	Cap       float64       `json:"cap,omitempty"`           // share of the host's CPUs that all guests may use while the owner is present, 0 to 1; 0: what is left over
	Preset    string        `json:"preset,omitempty"`        // thresholds and times: "condor", "boinc"; empty: our own
	Exclusive []string      `json:"exclusive,omitempty"`     // while these programs run, the owner counts as present
	Claimed   bool          `json:"claimed,omitempty"`       // claimed by hand
}

// Hours is a part of each day, by the host's own clock. It may cross midnight. The zero
// Hours is all day.
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

// OwnerSample is one reading of a host's sensors. A sensor that is missing or failed
// leaves its field nil and gives the reason in Deaf.
type OwnerSample struct {
	NonGuestCPUs *float64       // non-guest CPUs used since the last sample
	Waiting      *float64       // share of the last 10 s in which some task waited for a CPU, 0 to 1
	Starved      *float64       // share of the last 10 s in which all tasks waited for memory, 0 to 1
	Available    *float64       // share of memory that is available, 0 to 1
	Idle         *time.Duration // since the last key, mouse, console or ssh input
	Exclusive    []string       // which of the listed programs run
	OnBattery    bool
	Deaf         []string
}

package fleet

import "time"

// Owner is what a host's sensors say of the person whose machine it is.
type Owner struct {
	Present  bool      `json:"present"`       // uses the machine now, or has so lately that they count as there
	Since    time.Time `json:"since"`         // when Present last changed, host's clock
	LoadCPUs float64   `json:"load_cpus"`     // CPUs in use by anything but guests
	Why      string    `json:"why,omitempty"` // what shows it, for people: "keyboard", "claimed by hand"
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

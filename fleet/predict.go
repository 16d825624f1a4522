package fleet

import "time"

// Profile is how a guest uses its memory, as a host saw it from outside in a
// look of a few seconds.
type Profile struct {
	At          time.Time     `json:"at"` // when the look began, host's clock
	MemoryBytes int64         `json:"memory_bytes"`
	FilledBytes int64         `json:"filled_bytes"`             // in pages that hold anything but zeros: what a copy has to send
	Changed     []Changed     `json:"changed"`                  // rising in both
	Resident    int64         `json:"resident_bytes,omitempty"` // host memory that the guest occupied; 0: not noted
	Took        time.Duration `json:"took_ns"`                  // processor time that the look cost the host
	Pages       int           `json:"pages"`                    // how many were looked at
	Mappings    int           `json:"mappings,omitempty"`       // of the address spaces of a container's processes
	Segments    int           `json:"segments,omitempty"`       // pieces of memory that its processes share, or may, without a file
	Cache       *Cache        `json:"cache,omitempty"`          // what the guest itself says of the rest; nil: it was not asked, or did not answer
}

// Changed says how much memory is in pages that changed within some time.
type Changed struct {
	Within time.Duration `json:"within_ns"`
	Bytes  int64         `json:"bytes"`
}

// Range is an expected value and the interval in which the outcome lies nine
// times in ten. The unit is in the name of the field that holds it.
type Range[T any] struct {
	Value T `json:"value"`
	Low   T `json:"low"`
	High  T `json:"high"`
}

// Prediction is what a migration is expected to cost when it begins. It is kept
// beside the outcome, so that the next one is better.
type Prediction struct {
	Total     Range[time.Duration] `json:"total_ns"`             // from the first order until the source is gone
	Ready     time.Duration        `json:"ready_ns"`             // of that, until it may switch
	Downtime  Range[time.Duration] `json:"downtime_ns"`          // of that, from its pause until the source has handed it over, as in Progress
	Mapping   time.Duration        `json:"mapping_ns,omitempty"` // of that, what more mappings than are usual take, whatever is left to send
	Bytes     Range[int64]         `json:"sent_bytes"`
	Rounds    Range[int]           `json:"rounds"`
	Converges bool                 `json:"converges"`      // otherwise it is cancelled after Total, and Downtime is what a switch at that time would take
	Why       string               `json:"why,omitempty"`  // it does not converge, for people
	Help      string               `json:"help,omitempty"` // what would make it converge, for people
	Basis     string               `json:"basis"`          // what the prediction rests on, for people

	Kind               Kind     `json:"kind"`
	ForOwner           bool     `json:"for_owner,omitempty"`   // it leaves a host to its owner, whose programs have the CPU first
	Profile            *Profile `json:"profile,omitempty"`     // nil: there was no sample, only the guest's size and CPUs
	LinkBytesPerSecond float64  `json:"link_bytes_per_second"` // what the copy was expected to get
	Limits             Limits   `json:"limits"`                // of the copy
	Share              int      `json:"share"`                 // copies that use the same link, itself included
}

// Foreseen is one migration that a request would begin.
type Foreseen struct {
	Guest      GuestID    `json:"guest"`
	Job        JobID      `json:"job"`
	From       HostID     `json:"from"`
	To         HostID     `json:"to"`
	Prediction Prediction `json:"prediction"`
}

// Forecast is what a request would lead to, were it made now.
type Forecast struct {
	At         time.Time            `json:"at"`
	Migrations []Foreseen           `json:"migrations"`
	Total      Range[time.Duration] `json:"total_ns"`    // until the last of them is over
	Downtime   Range[time.Duration] `json:"downtime_ns"` // of the guest that it is longest for
	Bytes      Range[int64]         `json:"sent_bytes"`
	Converges  bool                 `json:"converges"`       // all of them
	Notes      []string             `json:"notes,omitempty"` // for people
}

// Calibration is how well past predictions met their outcomes.
type Calibration struct {
	Moves    int     `json:"moves"` // that arrived and had been predicted
	Total    Fitness `json:"total"`
	Downtime Fitness `json:"downtime"`
	Bytes    Fitness `json:"bytes"`
	Verdicts int     `json:"verdicts"` // moves that ended by converging or not
	Right    int     `json:"right"`    // of those, as predicted
}

// Fitness is how well one quantity was predicted.
type Fitness struct {
	MedianError float64 `json:"median_error"` // |predicted-outcome|/outcome
	Bias        float64 `json:"bias"`         // median of outcome/predicted: above 1, predictions are too low
	Coverage    float64 `json:"coverage"`     // share of outcomes inside their 90 % interval
}

package fleet

import "time"

// Profile is how a guest uses its memory, measured by its host in a few seconds.
type Profile struct {
	At          time.Time     `json:"at"` // when sampling began, host's clock
	MemoryBytes int64         `json:"memory_bytes"`
	FilledBytes int64         `json:"filled_bytes"`             // in pages that are not all zero: what a copy must send
	Changed     []Changed     `json:"changed"`                  // both fields rise
	AtMark      []Changed     `json:"at_mark,omitempty"`        // as Changed, from a moment on that the guest's programs marked as cheap; empty: not sampled
	Scratch     int64         `json:"scratch_bytes,omitempty"`  // memory that they give back at such a moment, if a move waits for it
	Resident    int64         `json:"resident_bytes,omitempty"` // host memory that the guest occupied; 0: unknown
	Took        time.Duration `json:"took_ns"`                  // CPU time that sampling took
	Pages       int           `json:"pages"`                    // number of sampled pages
	Mappings    int           `json:"mappings,omitempty"`       // mappings of a container's processes
	Segments    int           `json:"segments,omitempty"`       // memory segments that its processes share or may share, without a file
	Processes   int           `json:"processes,omitempty"`      // of a container
	Ancestors   int           `json:"ancestors,omitempty"`      // that they have in the container, added up
	Cache       *Cache        `json:"cache,omitempty"`          // the guest's own report; nil: not asked, or no answer
}

// Changed is how much memory is in pages that changed within some time.
type Changed struct {
	Within time.Duration `json:"within_ns"`
	Bytes  int64         `json:"bytes"`
}

// Range is an expected value with its 90 % interval. The field's name gives the unit.
type Range[T any] struct {
	Value T `json:"value"`
	Low   T `json:"low"`
	High  T `json:"high"`
}

// Prediction is a migration's expected cost when it begins. It is stored with the outcome
// to improve later predictions.
type Prediction struct {
	Total     Range[time.Duration] `json:"total_ns"`             // from the first order until the source is gone
	Ready     time.Duration        `json:"ready_ns"`             // of that, until it can switch
	Downtime  Range[time.Duration] `json:"downtime_ns"`          // of that, from the guest's suspension until the source has handed it over, as in Progress
	Mapping   time.Duration        `json:"mapping_ns,omitempty"` // of that, for mappings beyond the usual number, however little memory is left
	Bytes     Range[int64]         `json:"sent_bytes"`
	Rounds    Range[int]           `json:"rounds"`
	Converges bool                 `json:"converges"`      // otherwise it is cancelled after Total, and Downtime is what a switch at that time would take
	Why       string               `json:"why,omitempty"`  // why not, for people
	Help      string               `json:"help,omitempty"` // what would make it converge, for people
	Basis     string               `json:"basis"`          // the evidence for the prediction, for people

	AtMark bool `json:"at_mark,omitempty"` // it waits for a moment that its programs mark as cheap, and is predicted from there on; the wait is not in it

	Kind               Kind     `json:"kind"`
	ForOwner           bool     `json:"for_owner,omitempty"`   // the move empties a host for its owner, whose programs get the CPU first
	Profile            *Profile `json:"profile,omitempty"`     // nil: no sample, only the guest's size and CPUs
	LinkBytesPerSecond float64  `json:"link_bytes_per_second"` // expected bandwidth of the copy
	Limits             Limits   `json:"limits"`                // of the copy
	Share              int      `json:"share"`                 // number of copies on the same link, including this one
}

// Foreseen is one migration that a request would start.
type Foreseen struct {
	Guest      GuestID    `json:"guest"`
	Job        JobID      `json:"job"`
	From       HostID     `json:"from"`
	To         HostID     `json:"to"`
	Prediction Prediction `json:"prediction"`
}

// Price is what a move would cost.
type Price struct {
	Total     Range[time.Duration] `json:"total_ns"`
	Downtime  Range[time.Duration] `json:"downtime_ns"`
	Bytes     Range[int64]         `json:"sent_bytes"`
	Converges bool                 `json:"converges"`
}

// Forecast is what a request would do if it were made now.
type Forecast struct {
	At         time.Time            `json:"at"`
	Migrations []Foreseen           `json:"migrations"`
	Total      Range[time.Duration] `json:"total_ns"`    // until the last one finishes
	Downtime   Range[time.Duration] `json:"downtime_ns"` // of the guest with the longest
	Bytes      Range[int64]         `json:"sent_bytes"`
	Converges  bool                 `json:"converges"`          // all of them
	Unmarked   *Price               `json:"unmarked,omitempty"` // what it would cost at moments that its programs do not mark as cheap; nil: it waits for no mark
	Notes      []string             `json:"notes,omitempty"`    // for people
}

// Calibration compares past predictions with their outcomes.
type Calibration struct {
	Moves    int     `json:"moves"` // that arrived and had a prediction
	Total    Fitness `json:"total"`
	Downtime Fitness `json:"downtime"`
	Bytes    Fitness `json:"bytes"`
	Verdicts int     `json:"verdicts"` // moves that either converged or did not
	Right    int     `json:"right"`    // of those, predicted correctly
}

// Fitness is how well one quantity was predicted.
type Fitness struct {
	MedianError float64 `json:"median_error"` // |predicted-outcome|/outcome
	Bias        float64 `json:"bias"`         // median of outcome/predicted: above 1, predictions are too low
	Coverage    float64 `json:"coverage"`     // share of outcomes inside their 90 % interval
}

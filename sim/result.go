package sim

import (
	"maps"
	"slices"
	"time"
)

// Result is the outcome of one run. Times without a unit are seconds.
type Result struct {
	Policy    string        `json:"policy"`
	Placement string        `json:"placement"`
	Seed      uint64        `json:"seed"`
	Hosts     int           `json:"hosts"`
	Ranks     int           `json:"ranks"` // of each job
	For       time.Duration `json:"for_ns"`
	Grace     time.Duration `json:"grace_ns,omitempty"`      // of each host
	IdleAfter time.Duration `json:"idle_after_ns,omitempty"` // of each host

	Finished    int     `json:"finished"`     // jobs
	UsefulHours float64 `json:"useful_hours"` // rank-hours of work done and kept
	WastedHours float64 `json:"wasted_hours"` // of lost work
	Again       int     `json:"again"`        // requeued jobs
	Stalled     float64 `json:"stalled_seconds"`

	Visits    int     `json:"visits"`            // arrivals of owners with guests on their machine
	Disturbed float64 `json:"disturbed_seconds"` // an owner was present while a guest ran there, or was copied to or from it
	Slowed    float64 `json:"slowed_seconds"`    // owners' programs were delayed by guests, by their CPU time
	Held      float64 `json:"held_seconds"`      // an owner was present while a guest's memory was there
	Moves     int     `json:"moves"`
	Aborted   int     `json:"aborted"`
	Lost      int     `json:"lost"` // guests
	Bytes     int64   `json:"bytes"`
	Vacate    Part    `json:"vacate"`     // from an owner's return until no guest was left, unless they went before
	Turn      Part    `json:"turnaround"` // of jobs, including waiting

	Events uint64        `json:"events"`
	Steps  uint64        `json:"steps"` // of the planner
	Took   time.Duration `json:"took_ns"`

	vacated, turnaround []time.Duration
}

// Part is a distribution, in seconds.
type Part struct {
	Count  int     `json:"count"`
	Median float64 `json:"median"`
	Most   float64 `json:"p95"`
}

func partOf(of []time.Duration) Part {
	if len(of) == 0 {
		return Part{}
	}
	slices.Sort(of)
	at := func(q float64) float64 { return of[min(len(of)-1, int(q*float64(len(of))))].Seconds() }
	return Part{len(of), at(0.5), at(0.95)}
}

// Throughput is the work done and kept, as the number of undisturbed ranks that would do
// the same.
func (r Result) Throughput() float64 { return r.UsefulHours / r.For.Hours() }

// close ends a run: unfinished work counts as far as it has come.
func (w *world) close() {
	for _, m := range w.hosts {
		w.mark(m)
	}
	for _, id := range slices.Sorted(maps.Keys(w.jobs)) { // sums depend on the order
		j := w.jobs[id]
		w.progress(j)
		if !j.over {
			w.out.UsefulHours += j.hours(j.done)
		}
	}
	w.out.Vacate, w.out.Turn = partOf(w.out.vacated), partOf(w.out.turnaround)
}

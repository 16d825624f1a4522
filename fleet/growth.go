package fleet

import (
	"slices"
	"time"
)

// Growth is one call of a job's program for more guests of its job, and what came of it.
type Growth struct {
	Request RequestID   `json:"request"`
	Asks    string      `json:"asks,omitempty"` // of the request
	State   GrowthState `json:"state"`
	Count   int         `json:"count"`           // how many more
	First   int         `json:"first,omitempty"` // the index of the first of them, once there was room
	At      time.Time   `json:"at"`              // when it was asked for
	Until   time.Time   `json:"until"`           // when it fails, if they do not run by then
	Ended   time.Time   `json:"ended,omitzero"`
	Cause   string      `json:"cause,omitempty"` // why it failed
}

// GrowthState is a growth's state. Package lifecycle defines the changes.
type GrowthState string

// The states of a growth.
const (
	GrowthWaiting  GrowthState = "waiting"  // for room
	GrowthStarting GrowthState = "starting" // its guests boot
	GrowthStopping GrowthState = "stopping" // it has failed, and its guests are being stopped
	GrowthDone     GrowthState = "done"     // its guests are the job's as all others
	GrowthFailed   GrowthState = "failed"   // and nothing of it is left
)

// Over reports whether nothing more comes of a growth.
func (s GrowthState) Over() bool { return s == GrowthDone || s == GrowthFailed }

// Limits of what programs ask for.
const (
	MostGrowth     = 16               // guests at once: their names fit an MPI library's hint
	MostGrowthWait = 10 * time.Minute // that one waits for them
	// GrowthsKept is how many growths of a job are known, for programs that are to be answered yet.
	GrowthsKept = 8
)

// Growing is the growth of a job that is under way, if one is.
func (j Job) Growing() (Growth, bool) {
	n := len(j.Growths)
	if n == 0 || j.Growths[n-1].State.Over() {
		return Growth{}, false
	}
	return j.Growths[n-1], true
}

// GrowthFor is the growth that a request asked for.
func (j Job) GrowthFor(r RequestID) (Growth, bool) {
	i := slices.IndexFunc(j.Growths, func(g Growth) bool { return g.Request == r })
	if i < 0 || r == "" {
		return Growth{}, false
	}
	return j.Growths[i], true
}

// Size is how many guests a job has now, with those that start.
func (j Job) Size() int { return j.Spec.Guests + j.Grown }

// Joined reports whether the guest of an index is one that the job's program has, or is to have from its beginning on:
// one that starts for a growth is not yet.
func (j Job) Joined(index int) bool {
	g, grows := j.Growing()
	return !grows || g.State == GrowthWaiting || index < g.First
}

// MostGuests is how many guests a job may have in all.
func (s JobSpec) MostGuests() int { return s.Guests + s.Grow }

// GrownSlots is how many ranks are meant to run in a guest by which a job grows: as many as in its first one.
func (s JobSpec) GrownSlots() int { return s.Slots(0) }

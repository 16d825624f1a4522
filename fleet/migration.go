package fleet

import "time"

// Migration is one attempt to move one guest. A second attempt is a second
// Migration.
type Migration struct {
	ID      MigrationID `json:"id"`
	Move    MoveID      `json:"move"` // empty: forgotten, and what is left is to be learnt from
	Guest   GuestID     `json:"guest"`
	Job     JobID       `json:"job"`
	From    HostID      `json:"from"`
	To      HostID      `json:"to"`
	Gen     uint64      `json:"gen"`  // the guest's Gen while this migration has it
	Mode    Mode        `json:"mode"` // how its memory goes
	Phase   Phase       `json:"phase"`
	Attempt int         `json:"attempt"`          // tries made in this Phase before this one
	Since   time.Time   `json:"since"`            // when Phase or Attempt last changed
	Listen  string      `json:"listen,omitempty"` // where the target takes in state, from its report
	Orphan  bool        `json:"orphan,omitempty"` // the source has lost the guest as it switched: only the target may have it
	Cause   string      `json:"cause,omitempty"`  // why it was aborted or lost
	Entered []Entered   `json:"entered"`          // every phase entered, in order
	Cost    Progress    `json:"cost"`             // what it cost, once switched
	Passes  []Pass      `json:"passes,omitempty"` // over its memory, until it was ready to switch
	Resumed time.Time   `json:"resumed,omitzero"` // when the target let it run, target host's clock

	Packed   bool `json:"packed,omitempty"`   // its memory is sent compressed; decided when it begins, for both hosts
	Preempts bool `json:"preempts,omitempty"` // by post-copy what it waits for comes on a line of its own; decided when it begins, for both hosts

	Predicted *Prediction `json:"predicted,omitempty"` // what it was expected to cost when it began
	Stall     *Stall      `json:"stall,omitempty"`     // what the job's ranks saw of it; nil: not traced, or not known yet
}

// BlackoutTime is how long the guest did not run: until its source had handed it
// over, and then until its target let it run. Hosts' clocks may differ, so what
// two of them say counts as far as the controller's allows, which saw the order
// to let it run go and its answer come. 0: it was never suspended, or it is not known.
func (m Migration) BlackoutTime() time.Duration {
	handed := m.Cost.Downtime
	for i, e := range m.Entered {
		if handed <= 0 || e.Phase != Activating || i+1 == len(m.Entered) {
			continue
		}
		most := max(0, m.Entered[i+1].At.Sub(e.At))
		if m.Resumed.IsZero() || m.Cost.SuspendedAt.IsZero() {
			return handed + most
		}
		return handed + min(max(0, m.Resumed.Sub(m.Cost.SuspendedAt)-handed), most)
	}
	return max(0, handed)
}

// Entered says when a phase was entered, by the controller's clock.
type Entered struct {
	Phase Phase     `json:"phase"`
	At    time.Time `json:"at"`
}

// Progress is how far a copy is and what it has cost so far, by the source's
// mechanism.
type Progress struct {
	Rounds              int           `json:"rounds"`          // passes over memory, the first included
	TotalBytes          int64         `json:"total_bytes"`     // memory of the guest
	RemainingBytes      int64         `json:"remaining_bytes"` // known to be dirty and not sent
	SentBytes           int64         `json:"sent_bytes"`
	CopiedBytes         int64         `json:"copied_bytes,omitempty"`   // memory that was sent, as it was before it was compressed
	DroppedBytes        int64         `json:"dropped_bytes,omitempty"`  // page cache that the guest gave up before the copy
	SlowedPercent       int           `json:"slowed_percent,omitempty"` // share of the time that its CPUs are stopped, so that it dirties less
	BytesPerSecond      float64       `json:"bytes_per_second"`
	DirtyBytesPerSecond float64       `json:"dirty_bytes_per_second"`
	Elapsed             time.Duration `json:"elapsed_ns"`
	Downtime            time.Duration `json:"downtime_ns"`               // from its pause until the source had handed it over; 0 before
	SuspendedAt         time.Time     `json:"suspended_at"`              // source host's clock
	PostCopyBytes       int64         `json:"post_copy_bytes,omitempty"` // sent after the guest ran at the target, by post-copy
	Faults              int64         `json:"faults,omitempty"`          // pages among those that the guest had to wait for
}

// Pass is one over a guest's memory, as it was when it was first seen, which is right
// after it began. A copy is looked at now and then: of passes that are shorter some
// are missing.
type Pass struct {
	Round     int           `json:"round"`      // the first is 1
	LeftBytes int64         `json:"left_bytes"` // known to be dirty and not sent
	SentBytes int64         `json:"sent_bytes"` // in all, by then
	At        time.Duration `json:"at_ns"`      // since the copy began
}

// mostPasses is how many are kept of a copy, which may make a thousand.
const mostPasses = 100

// Begun adds the pass that a copy is in to those before, if it is a new one.
func (p Progress) Begun(before []Pass) []Pass {
	n := len(before)
	if p.Rounds < 1 || n == mostPasses || n > 0 && p.Rounds <= before[n-1].Round {
		return before
	}
	return append(before, Pass{Round: p.Rounds, LeftBytes: p.RemainingBytes, SentBytes: p.SentBytes, At: p.Elapsed})
}

// Move is a gang of one or more migrations that switch together.
type Move struct {
	ID         MoveID        `json:"id"`
	Request    RequestID     `json:"request,omitempty"`
	Migrations []MigrationID `json:"migrations"`
	Why        string        `json:"why"`                 // "asked for", "host1 is draining"
	Choice     string        `json:"choice,omitempty"`    // why its guests go in the mode they go in, for people; empty: it was asked for
	Drains     HostID        `json:"drains,omitempty"`    // the host whose drain began it; empty: asked for
	ForOwner   HostID        `json:"for_owner,omitempty"` // the host that it leaves to its owner; empty: it is for something else
	Weighed    string        `json:"weighed,omitempty"`   // what was decided when that owner had gone, and why, for people; empty: nothing had to be
	Limits     Limits        `json:"limits,omitzero"`
	Begun      time.Time     `json:"begun"`
	Ended      time.Time     `json:"ended"` // zero while under way
}

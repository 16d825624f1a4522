package fleet

import "time"

// Migration is one attempt to move one guest. A second attempt is another Migration.
type Migration struct {
	ID      MigrationID `json:"id"`
	Move    MoveID      `json:"move"` // empty: the move is forgotten, and the migration is kept only for learning
	Guest   GuestID     `json:"guest"`
	Job     JobID       `json:"job"`
	From    HostID      `json:"from"`
	To      HostID      `json:"to"`
	Born    int64       `json:"born,omitempty"` // of the guest's job
	Gen     uint64      `json:"gen"`            // the guest's Gen during this migration
	Mode    Mode        `json:"mode"`           // how memory is sent
	Phase   Phase       `json:"phase"`
	Attempt int         `json:"attempt"`          // earlier attempts in this Phase
	Since   time.Time   `json:"since"`            // when Phase or Attempt last changed
	Listen  string      `json:"listen,omitempty"` // where the target receives state, with the secret of the move; from its report
	Orphan  bool        `json:"orphan,omitempty"` // the source lost the guest during the switch: only the target may have it
	Cause   string      `json:"cause,omitempty"`  // why it was aborted or lost
	Entered []Entered   `json:"entered"`          // all phases entered, in order
	Cost    Progress    `json:"cost"`             // known once switched
	Rounds  []Round     `json:"rounds,omitempty"` // until it was ready to switch
	Resumed time.Time   `json:"resumed,omitzero"` // when the target resumed it, target host's clock

	Packed   bool `json:"packed,omitempty"`   // memory is sent compressed; decided at the start, for both hosts
	Preempts bool `json:"preempts,omitempty"` // post-copy sends requested pages over a separate connection; decided at the start, for both hosts

	AtMark       bool   `json:"at_mark,omitempty"`       // its switch waits for a mark of its program, for some seconds; decided when its copy begins
	Marked       string `json:"marked,omitempty"`        // after what time, and at what mark of its program, its copy began, for people; empty: no program marks
	SwitchMarked string `json:"switch_marked,omitempty"` // the same of its switch; empty: it does not wait for marks

	Predicted *Prediction `json:"predicted,omitempty"` // expected cost at the start
	Stall     *Stall      `json:"stall,omitempty"`     // what the job's ranks saw; nil: not traced, or not known yet
}

// BlackoutTime is how long the guest did not run: until its source handed it over, and
// then until its target resumed it. Hosts' clocks may differ. So the result is limited by
// the controller's clock, which saw the activate order leave and its answer arrive. 0:
// never suspended, or unknown.
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

// Entered says when a phase was entered, controller's clock.
type Entered struct {
	Phase Phase     `json:"phase"`
	At    time.Time `json:"at"`
}

// Progress is a copy's state and cost so far, from the source's mechanism.
type Progress struct {
	Rounds              int           `json:"rounds"`          // of pre-copy, including the first
	TotalBytes          int64         `json:"total_bytes"`     // memory of the guest
	RemainingBytes      int64         `json:"remaining_bytes"` // remaining pages
	SentBytes           int64         `json:"sent_bytes"`
	CopiedBytes         int64         `json:"copied_bytes,omitempty"`   // memory sent, before compression
	DroppedBytes        int64         `json:"dropped_bytes,omitempty"`  // page cache that the guest dropped before the copy
	SlowedPercent       int           `json:"slowed_percent,omitempty"` // share of time that its CPUs are stopped, so that it changes less memory
	BytesPerSecond      float64       `json:"bytes_per_second"`
	DirtyBytesPerSecond float64       `json:"dirty_bytes_per_second"`
	Elapsed             time.Duration `json:"elapsed_ns"`
	Downtime            time.Duration `json:"downtime_ns"`               // from suspension until the source handed it over; 0 before
	SuspendedAt         time.Time     `json:"suspended_at"`              // source host's clock
	PostCopyBytes       int64         `json:"post_copy_bytes,omitempty"` // sent after the guest ran at the target, in post-copy
	Faults              int64         `json:"faults,omitempty"`          // pages of those that the guest waited for
}

// Round is one round of a copy, as first observed, right after it began. A copy is sampled
// at intervals, so some shorter rounds are missing.
type Round struct {
	Number    int           `json:"number"`     // the first is 1
	LeftBytes int64         `json:"left_bytes"` // remaining pages
	SentBytes int64         `json:"sent_bytes"` // total by then
	At        time.Duration `json:"at_ns"`      // since the copy began
}

// mostRounds limits the rounds kept of a copy, which may make a thousand.
const mostRounds = 100

// Begun appends a copy's current round to before, if it is new.
func (p Progress) Begun(before []Round) []Round {
	n := len(before)
	if p.Rounds < 1 || n == mostRounds || n > 0 && p.Rounds <= before[n-1].Number {
		return before
	}
	return append(before, Round{Number: p.Rounds, LeftBytes: p.RemainingBytes, SentBytes: p.SentBytes, At: p.Elapsed})
}

// Move is a gang of one or more migrations that switch together.
type Move struct {
	ID         MoveID        `json:"id"`
	Request    RequestID     `json:"request,omitempty"`
	Asks       string        `json:"asks,omitempty"` // of the request
	Migrations []MigrationID `json:"migrations"`
	Why        string        `json:"why"`                 // "asked for", "host1 is draining"
	Choice     string        `json:"choice,omitempty"`    // why its guests move in this mode, for people; empty: it was requested
	Drains     HostID        `json:"drains,omitempty"`    // the host whose drain started it; empty: a request did
	ForOwner   HostID        `json:"for_owner,omitempty"` // the host that it vacates for its owner; empty: it has another reason
	Weighed    string        `json:"weighed,omitempty"`   // what was decided when that owner had gone, and why, for people; empty: nothing
	Limits     Limits        `json:"limits,omitzero"`
	Begun      time.Time     `json:"begun"`
	Ended      time.Time     `json:"ended"` // zero while under way
}

package fleet

// Phase is a migration's phase. Package lifecycle defines the changes.
type Phase string

// The phases; docs/protocol.md has the table of changes.
const (
	Preparing   Phase = "preparing"  // target creates an empty guest
	Waiting     Phase = "waiting"    // target is prepared; the copy starts late enough to end with the gang's longest
	Copying     Phase = "copying"    // source copies memory while the guest runs
	Ready       Phase = "ready"      // converged; waits for the gang while changed memory is still sent
	Switching   Phase = "switching"  // source suspends the guest and sends the rest
	Activating  Phase = "activating" // target resumes the guest, the network follows
	PostCopying Phase = "post-copy"  // guest runs at the target while the source sends the rest of its memory
	Retiring    Phase = "retiring"   // source destroys the suspended copy
	Finished    Phase = "finished"
	Cancelling  Phase = "cancelling" // guest stays; its copy is cancelled before any switch
	Reverting   Phase = "reverting"  // source resumes the guest, because the switch certainly failed
	Discarding  Phase = "discarding" // target destroys what it has received
	Aborted     Phase = "aborted"
	Lost        Phase = "lost" // the guest is lost: its host is unknown, or the target lost it
)

// Side is source or target.
type Side string

// The sides.
const (
	Source Side = "source"
	Target Side = "target"
)

// PhaseTraits describes a phase. The tests of package lifecycle compare it with their
// table.
type PhaseTraits struct {
	Phase     Phase
	Verb      Verb   // the order it waits for; empty: none
	Side      Side   // the host that gets the order
	Label     string // what a phase without an order waits for, for people
	Committed bool   // the switch has begun and was not undone, so it cannot be cancelled
	Transfers bool   // memory is being sent, and Progress says how much is left
	Arrived   bool   // the target has the whole guest
	Back      bool   // the guest stays at its source
}

// Phases has a row for each phase in display order: forward, back, and neither. All lists
// of phases come from here.
var Phases = []PhaseTraits{
	{Phase: Preparing, Verb: Receive, Side: Target},
	{Phase: Waiting, Label: "its turn to copy, so that it is ready at the same time as the longest of its move; a guest that moves alone does not wait"},
	{Phase: Copying, Verb: Copy, Side: Source, Transfers: true},
	{Phase: Ready, Transfers: true, Label: "all guests of its move to be ready, then all switch together; it runs, and what it changes is still copied"},
	{Phase: Switching, Verb: Switch, Side: Source, Committed: true},
	{Phase: Activating, Verb: Activate, Side: Target, Committed: true},
	{Phase: PostCopying, Verb: Fetch, Side: Target, Committed: true, Transfers: true},
	{Phase: Retiring, Verb: Retire, Side: Source, Committed: true, Arrived: true},
	{Phase: Finished, Label: "nothing: the guest runs at the target", Committed: true, Arrived: true},
	{Phase: Cancelling, Verb: Revert, Side: Source, Back: true},
	{Phase: Reverting, Verb: Revert, Side: Source, Back: true},
	{Phase: Discarding, Verb: Discard, Side: Target, Back: true},
	{Phase: Aborted, Label: "nothing: the guest runs at the source", Back: true},
	{Phase: Lost, Label: "nothing: the guest is lost and its job is stopped", Committed: true},
}

var phaseTraits = func() map[Phase]PhaseTraits {
	all := map[Phase]PhaseTraits{}
	for _, t := range Phases {
		all[t.Phase] = t
	}
	return all
}()

// Traits describes the phase.
func (p Phase) Traits() PhaseTraits { return phaseTraits[p] }

// Ended reports whether the phase is final.
func (p Phase) Ended() bool { return p == Finished || p == Aborted || p == Lost }

// BeforeSwitch reports whether the migration can be cancelled without risk.
func (t PhaseTraits) BeforeSwitch() bool { return !t.Committed && !t.Back }

// PostCopies reports whether the guest runs at its target before all of its memory has
// arrived.
func (t PhaseTraits) PostCopies() bool { return t.Committed && t.Transfers }

// Moves reports whether the guest or its memory is in transit during the order.
func (v Verb) Moves() bool {
	for _, t := range Phases {
		if t.Verb == v && v != "" && !t.Back && !t.Arrived {
			return true
		}
	}
	return false
}

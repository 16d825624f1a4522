package fleet

// Phase is where a migration is. Package lifecycle owns it.
type Phase string

// The phases; docs/protocol.md has the table that leads from one to the next.
const (
	Preparing   Phase = "preparing"  // target makes an empty guest
	Waiting     Phase = "waiting"    // target is prepared; the copy begins when it would end with the gang's longest
	Copying     Phase = "copying"    // source copies memory while the guest runs
	Ready       Phase = "ready"      // converged; waits for the gang, still copying
	Switching   Phase = "switching"  // guest stops at the source, its state is whole at the target
	Activating  Phase = "activating" // guest runs at the target, the network follows
	PostCopying Phase = "post-copy"  // after post-copy: guest runs at the target, the rest of its memory comes from the source
	Retiring    Phase = "retiring"   // source destroys its stopped copy
	Finished    Phase = "finished"
	Cancelling  Phase = "cancelling" // the source runs on; its copy is cancelled before any switch
	Reverting   Phase = "reverting"  // source goes on after a switch that surely did not happen
	Discarding  Phase = "discarding" // target destroys what it half received
	Aborted     Phase = "aborted"
	Lost        Phase = "lost" // it is not known which host runs the guest, or the target lost it: the guest is lost
)

// Side is one of the two hosts of a migration.
type Side string

// The sides.
const (
	Source Side = "source"
	Target Side = "target"
)

// PhaseTraits says what a phase is. Which phase follows is in package lifecycle's
// table, whose tests compare the two.
type PhaseTraits struct {
	Phase     Phase
	Verb      Verb   // the order that it waits for; empty: none
	Side      Side   // the host that the order goes to
	Label     string // what a phase without an order waits for, for people
	Committed bool   // the switch has begun and was not undone: there is no cancelling any more
	Transfers bool   // memory is being sent, and Progress says how much is left
	Arrived   bool   // all of the guest is at its target
	Back      bool   // on the way back, or there: the guest stays at its source
}

// Phases has a row for each phase, in the order in which people see them: the way
// there, the way back, and what is neither. Everybody who lists phases takes them
// from here.
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

// Traits says what the phase is.
func (p Phase) Traits() PhaseTraits { return phaseTraits[p] }

// Ended reports whether no report can move the migration any further.
func (p Phase) Ended() bool { return p == Finished || p == Aborted || p == Lost }

// BeforeSwitch reports whether the migration can be cancelled at no risk.
func (t PhaseTraits) BeforeSwitch() bool { return !t.Committed && !t.Back }

// PostCopies reports whether the guest runs at its target before all of its
// memory has come.
func (t PhaseTraits) PostCopies() bool { return t.Committed && t.Transfers }

// Moves reports whether the order belongs to the part of a migration in which
// the guest, or its memory, is on the way to the target.
func (v Verb) Moves() bool {
	for _, t := range Phases {
		if t.Verb == v && v != "" && !t.Back && !t.Arrived {
			return true
		}
	}
	return false
}

package fleet

import "time"

// Verb is what an Order tells a host to do.
type Verb string

// The orders. Watch, Run and End stand as long as what they name goes on.
const (
	Start Verb = "start" // guest: boot it and set it up; done: its agent answers and the job's files are mounted
	Watch Verb = "watch" // guest: keep it; done: it ended by itself; failed: it is not here
	Stop  Verb = "stop"  // guest: end it and destroy it
	Run   Verb = "run"   // job, at guest 0's home: run the program if it does not run yet; done: it ended, Exit says how
	End   Verb = "end"   // job, at guest 0's home: tell the program to end, and end it when its grace is over; done: it ended, and all it wrote has arrived

	Receive  Verb = "receive"  // target: make an empty guest, ready to take in state; Listen says where
	Copy     Verb = "copy"     // source: copy while running; done: converged
	Switch   Verb = "switch"   // source: pause, send the rest; done: the target has it all, whole, not yet running (by post-copy: all but memory)
	Activate Verb = "activate" // target: let it run, make this host's network carry its address
	Fetch    Verb = "fetch"    // target, after post-copy: done: all memory has arrived; failed: some never will
	Retire   Verb = "retire"   // source: destroy the stopped copy
	Revert   Verb = "revert"   // source: run again
	Discard  Verb = "discard"  // target: destroy what was received
)

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

// AtTarget reports whether the target has been told to run the guest.
func (t PhaseTraits) AtTarget() bool { return t.Committed && (t.Side == Target || t.Arrived) }

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

// How long a host works on an order before it gives it up and says so, if it is
// heard from. Those who wait for the answer wait for Patience.
const (
	// startLimit covers fetching an image over an office line and booting
	// under emulation on a busy host.
	startLimit = 30 * time.Minute
	// copyLimit only ends what hangs: Task.Limits ends what does not converge, and
	// what follows after post-copy comes to its end or breaks.
	copyLimit   = 12 * time.Hour
	switchLimit = 2 * time.Minute // the longest that the guest is suspended
	quickLimit  = time.Minute     // what only talks to a process on the host, or flushes files
	// answerMargin is what an answer may take after the limit: what the host has
	// begun is undone, and the report goes over a bad line.
	answerMargin = 30 * time.Second
)

// Limit is how long a host may take over an order; 0: as long as it takes, or for
// End, which has its own, as long as the job's grace.
func (v Verb) Limit(mode Mode) time.Duration {
	switch v {
	case Start, Receive:
		return startLimit
	case Copy, Fetch:
		return copyLimit
	case Switch:
		if mode == StopAndCopy {
			return copyLimit // all there is goes over then
		}
		return switchLimit
	case Stop, Activate, Retire, Revert, Discard:
		return quickLimit
	}
	return 0
}

// Patience is how long the controller waits for the answer of a host that is heard
// from, before the order counts as unknown: longer than the host's own limit, or
// the host would still work on what is taken for lost. 0: for ever.
func (v Verb) Patience(mode Mode) time.Duration {
	if limit := v.Limit(mode); limit > 0 {
		return limit + answerMargin
	}
	return 0
}

// Patience is how long a program that was told to end may take in all, until its
// host has said so.
func (e Ending) Patience() time.Duration { return e.Grace + answerMargin }

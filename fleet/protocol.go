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
	Switch   Verb = "switch"   // source: suspend it, send the rest; done: the target has it all, whole, not yet running (by post-copy: all but memory)
	Activate Verb = "activate" // target: let it run, make this host's network carry its address
	Fetch    Verb = "fetch"    // target, after post-copy: done: all memory has arrived; failed: some never will
	Retire   Verb = "retire"   // source: destroy the suspended copy
	Revert   Verb = "revert"   // source: run again
	Discard  Verb = "discard"  // target: destroy what was received

	Arm      Verb = "arm"      // home: prepare a checkpoint while the guest runs
	Cut      Verb = "cut"      // home: suspend it; done: nothing of it runs. Without Continue it runs on after CutHold, and the cut is void
	Continue Verb = "continue" // home: let it run on; its state as at the cut is written meanwhile. Failed: the cut is void, and it runs
	Save     Verb = "save"     // home: wait until all of the cut is written, and put it into the vault Peer; Kept says what
	Drop     Verb = "drop"     // home or vault: done: the guest runs, if it is here, and here is nothing of the checkpoint of this guest
	Restore  Verb = "restore"  // home, in the place of Start: make it from the vault Peer; done: it is here, suspended
)

// Phase is where a migration is. Package lifecycle owns it.
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
	{Phase: Waiting, Label: "its turn to copy, so that it is ready at the same time as the longest of its move; a guest that moves alone waits only for a mark of its program"},
	{Phase: Copying, Verb: Copy, Side: Source, Transfers: true},
	{Phase: Ready, Transfers: true, Label: "all guests of its move to be ready, or a mark of a program, then all switch together; it runs, and what it changes is still copied"},
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

// UntilGone reports whether a silent host with a lease is asked until it answers or is gone.
// After tries alone, a guest would count as ended or lost while it may run on there, beside a
// successor on the same files; and a guest would have a checkpoint under way that nobody ends, so
// that it could not be moved.
func (v Verb) UntilGone() bool {
	for _, t := range Phases {
		if t.Verb == v && v != "" && (t.Committed && !t.Arrived || t.Back && t.Side == Source) {
			return true
		}
	}
	return v == Stop || v == Drop
}

// How long a connected host works on an order before it gives up and reports that.
// Callers wait for Patience.
const (
	// startLimit covers fetching an image over an office network and an emulated boot on
	// a busy host.
	startLimit = 30 * time.Minute
	// copyLimit only ends hung copies. Task.Limits ends copies that do not converge, and
	// post-copy finishes or fails by itself.
	copyLimit   = 12 * time.Hour
	switchLimit = 2 * time.Minute  // longest suspension of a guest, but for what RestoreLimit adds
	cutLimit    = 10 * time.Second // shorter than CutHold, see there
	// saveLimit covers putting a state into a vault over an office network, beside what it takes by its size.
	saveLimit  = 10 * time.Minute
	quickLimit = time.Minute // only talks to a local process, or flushes files
	// answerMargin covers undoing the order on the host, and a report over a bad network.
	answerMargin = 30 * time.Second
)

// RestoreLimit is how long a target may take to make a guest with so many bytes of memory from
// what it has received: one minute, and what putting the memory in place may add. The source waits
// longer than this for the target's answer, and Switch has longer than the source waits.
func RestoreLimit(memoryBytes int64) time.Duration { return time.Minute + fillLimit(memoryBytes) }

// fillLimit is how long putting so much memory in place may take on a slow, busy host.
func fillLimit(bytes int64) time.Duration { return time.Duration(bytes/(64<<20)) * time.Second }

// Limit is how long a host may work on an order about a guest with so many bytes of memory. 0:
// unlimited, or for End the job's grace.
func (v Verb) Limit(mode Mode, memoryBytes int64) time.Duration {
	switch v {
	case Start, Receive:
		return startLimit
	case Copy, Fetch:
		return copyLimit
	case Switch:
		if mode == StopAndCopy {
			return copyLimit + fillLimit(memoryBytes) // all memory is sent then
		}
		return switchLimit + fillLimit(memoryBytes)
	case Stop, Activate, Retire, Revert, Discard, Continue, Drop:
		return quickLimit
	case Arm:
		return RestoreLimit(memoryBytes)
	case Cut:
		return cutLimit
	case Save:
		return saveLimit + 8*fillLimit(memoryBytes)
	case Restore:
		return startLimit + 8*fillLimit(memoryBytes)
	}
	return 0
}

// Patience is how long the controller waits for a connected host's answer before the
// order counts as unknown. It exceeds the host's own limit, so that the host does not
// still work on an order that counts as unknown. 0: unlimited.
func (v Verb) Patience(mode Mode, memoryBytes int64) time.Duration {
	if limit := v.Limit(mode, memoryBytes); limit > 0 {
		return limit + answerMargin
	}
	return 0
}

// Patience is how long the controller waits for a program that was told to end.
func (e Ending) Patience() time.Duration { return e.Grace + answerMargin }

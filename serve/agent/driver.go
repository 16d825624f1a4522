package agent

import (
	"context"
	"io"
	"time"

	"pagurus/decide/timeslice"
	"pagurus/fleet"
)

// The errors that a driver's callers branch on. They live in fleet because a driver may not
// import this package.
var (
	ErrAbsent = fleet.ErrAbsent
	ErrUnsure = fleet.ErrUnsure
)

// Driver runs guests of one kind. Every method may be called twice with the same arguments,
// also after the agent was killed during the first call, and must then lead to the same
// result. Each method says what remains after an error. Guests outlive the driver: Open
// finds running guests and Close leaves them running.
type Driver interface {
	// Start boots a guest. It returns when the mechanism runs it; the guest agent inside
	// answers later. After an error no trace of the guest is left.
	Start(context.Context, fleet.Task) error
	// Stop ends a guest at once, in any state, and removes every trace of it. An absent
	// guest is not an error. After an error call again.
	Stop(context.Context, fleet.GuestID) error
	// Receive makes an empty guest that waits for state. listen is its address, "host:port"
	// or similar, which the source's Copy gets as Task.Listen. After an error no trace is
	// left.
	Receive(context.Context, fleet.Task) (listen string, err error)
	// Copy sends state to Task.Listen while the guest runs. It returns when the remaining
	// pages are few enough by Task.Limits. The guest still runs, or the mechanism has
	// suspended it and Copy returned as soon as it noticed. It calls progress about five times a
	// second. If ctx ends or the copy fails, it returns an error, the copy is cancelled and
	// the guest runs on.
	Copy(ctx context.Context, t fleet.Task, progress func(fleet.Progress)) error
	// Switch suspends the guest after a Copy, sends the rest and returns when the target has
	// all of it; with post-copy, when the target has all but memory (PostCopier). The guest
	// is then suspended in both places. An error that wraps ErrUnsure means that the target may
	// have it. After any other error the target certainly has not, and Resume is the way
	// back.
	// Switch calls lead(true) when frames for the guest should be forwarded to the target,
	// and lead(false) if the guest has to run here again for a moment. After an error the
	// caller of Resume undoes the forwarding.
	Switch(ctx context.Context, t fleet.Task, lead func(away bool)) (fleet.Progress, error)
	// Resume lets a suspended guest run: a target after Switch, or a source whose Switch
	// certainly failed. A copy still under way is cancelled. A running guest is not an
	// error. After an error the guest is suspended or absent.
	Resume(context.Context, fleet.GuestID) error
	// Inspect reports the guests on this host.
	Inspect(context.Context) (map[fleet.GuestID]fleet.GuestFacts, error)
}

// Linker is a driver whose guests have a link to the guest agent inside.
type Linker interface {
	// Link opens the byte stream to the guest agent. There is one at a time: a second call
	// ends the first stream. It may break at any byte.
	Link(context.Context, fleet.GuestID) (io.ReadWriteCloser, error)
	// Ended returns a channel that is closed when the guest is no longer on this host: it
	// ended by itself, was killed or was stopped.
	Ended(fleet.GuestID) <-chan struct{}
}

// Teller is a driver that keeps its guests' last output, from a console or similar.
type Teller interface {
	// LastWords is the last output of a guest that is here or has ended by itself, for
	// people. Empty if there is none.
	LastWords(fleet.GuestID) string
	// Ending is what is known of a guest that ended by itself, also after another agent's
	// life, until Stop; or of one that is here and had too little memory. nil: nothing.
	Ending(fleet.GuestID) *fleet.Remains
}

// Profiler is a driver that can profile its guests' memory.
type Profiler interface {
	// Profile samples a running guest for some seconds without disturbing it. It refuses a
	// guest that is being moved. It may be called at any time and leaves nothing behind.
	Profile(context.Context, fleet.GuestID) (fleet.Profile, error)
}

// Examiner is a driver that can tell what prevents its guests from being moved.
type Examiner interface {
	// Obstacles lists, for people, what prevents a running guest from being moved, each with
	// a remedy. It takes some milliseconds and does not disturb the guest. It refuses a
	// guest that is being moved. An empty list is not a promise.
	Obstacles(context.Context, fleet.GuestID) ([]string, error)
}

// PostCopier is a driver that can run a guest before its memory has arrived: by
// post-copy a Switch is done when the target has all but memory, and Resume
// there lets it run. The source must be kept until FetchRemaining is done.
type PostCopier interface {
	// FetchRemaining waits at the target until all memory is there. A guest that came
	// otherwise has it. After an error that wraps ErrUnsure call again; after any
	// other some of it never comes, and the guest is lost.
	FetchRemaining(context.Context, fleet.GuestID) error
	// Pushed says at the source what has been sent so far, and what the Switch
	// cost.
	Pushed(context.Context, fleet.GuestID) (fleet.Progress, error)
}

// Reclaimer is a driver whose guests can do without some of their memory, or can be
// suspended, while the owner of the host is present.
type Reclaimer interface {
	// ReclaimMemory takes freeBytes of unused memory from a guest, except a reserve, and
	// returns how much of the guest's memory the host has then. It holds until ReturnMemory,
	// also after a move, but of guests of Xen. After an error the guest has what it had.
	ReclaimMemory(ctx context.Context, g fleet.GuestID, freeBytes int64) (int64, error)
	// ReturnMemory ends ReclaimMemory; a guest that kept its memory is not an error. After an error call
	// again.
	ReturnMemory(context.Context, fleet.GuestID) error
	// Suspend suspends a running guest until Resume, its memory for the
	// host to take. A guest that is being moved is refused. After an error it may
	// be suspended or not: call again, or Resume.
	Suspend(context.Context, fleet.GuestID) error
}

// Checkpointer is a driver that can write a running guest to files with a stop of
// milliseconds, and make a guest from them.
type Checkpointer interface {
	// Arm prepares a checkpoint of a running guest into an empty folder. The guest runs on.
	// After an error nothing is left of it.
	Arm(ctx context.Context, g fleet.GuestID, folder string) error
	// Cut suspends an armed guest. After an error the guest runs.
	Cut(context.Context, fleet.GuestID) error
	// Continue lets a cut guest run on; its memory as at the cut is written meanwhile. A second
	// call is not an error.
	Continue(context.Context, fleet.GuestID) error
	// Saved waits until the folder has all of the cut. After an error the checkpoint is void
	// and the guest runs.
	Saved(context.Context, fleet.GuestID) (fleet.Saved, error)
	// Disarm ends a checkpoint in any state; the guest runs. An unarmed or absent guest is not
	// an error. After an error call again.
	Disarm(context.Context, fleet.GuestID) error
	// Restore makes a guest from a folder that a checkpoint was written to, on this or another
	// host. The guest is suspended until Resume. After an error no trace of it is left.
	Restore(ctx context.Context, t fleet.Task, folder string) error
}

// ResumeTimer is a driver that knows better than its caller when Resume let a guest run.
type ResumeTimer interface {
	// RanAgain returns when a guest that arrived here was resumed; zero: it did not, or that
	// is not known.
	RanAgain(fleet.GuestID) time.Time
}

// Lease stops all guests of the host when the controller has not been heard for too long, also
// without this agent.
type Lease interface {
	// Ask says what to ask the controller for now, and what is in force. The zero Lease asks for
	// nothing.
	Ask() fleet.Lease
	// Renew has the lease that the controller granted in force; a Length of 0 ends it. After an
	// error the one before is.
	Renew(fleet.Lease) error
	// Stopped says why a guest was stopped for the end of a lease; empty: it was not.
	Stopped(fleet.GuestID) string
}

// Scratcher is a driver whose guests' own files are on the host, beside their memory.
type Scratcher interface {
	// Scratch is what those of running guests take, and may.
	Scratch() ([]fleet.Scratch, error)
	// BoundScratch bounds one guest's. After an error the bound is as it was.
	BoundScratch(g fleet.GuestID, bytes int64) error
}

// Classes say how much of the host's CPUs guests get.
type Classes interface {
	// Class gives a guest on this host the share of its job's service class, and at most the
	// CPUs most; 0 is no limit. It may be called again. After an error the guest has its old
	// share, or a part of the new one is set.
	Class(g fleet.Guest, class fleet.Class, most float64) error
}

// Slicer gives guests time slices, and counts how they fare.
type Slicer interface {
	// Slice has a guest's processors run for so long before others do; 0 is the scheduler's own. It may be called again. After an
	// error the guest has its old slice, or a part of its processors has the new one.
	Slice(g fleet.Guest, d time.Duration) error
	// Counts is how the processors of these guests fared since some time. It leaves out guests of which it is only known how long they ran.
	Counts([]fleet.Guest) map[fleet.GuestID]timeslice.Counts
}

// Encryption makes what goes to other hosts go as is wanted.
type Encryption interface {
	// Encrypt has VXLAN and moving guests pass to other hosts through WireGuard alone; nil: in clear. It may be
	// called again and interrupts nothing that stays. After an error nothing goes in clear that should
	// not, and hosts may not be reached.
	Encrypt(context.Context, *fleet.WireGuard) error
	// Holds reports whether what the last Encrypt made is still there.
	Holds() bool
}

// Overlay makes the host's part of the jobs' networks match what is wanted.
type Overlay interface {
	// Apply makes these networks and removes all others. It may be called at any time. After
	// an error everything that was possible is done.
	Apply(context.Context, []fleet.Network) error
	// Forward sends frames for a guest on to its target instead of to the guest, until
	// Deliver. After an error frames go to the guest.
	Forward(fleet.Subnet, int) error
	// Deliver undoes Forward, if it was called.
	Deliver(fleet.Subnet, int) error
}

// Shares serves jobs' files at their share address, on networks that Overlay has made.
type Shares interface {
	// Apply serves every Network's Share and stops serving all others. File handles stay
	// valid across restarts of the agent and the server.
	Apply(context.Context, []fleet.Network) error
	// Failure says why a job's files are not served, after more than one try. nil: they are
	// served, or may be soon. It does not wait.
	Failure(fleet.JobID) error
}

// Gateways lead jobs to the Internet, on networks that Overlay has made.
type Gateways interface {
	// Apply leads the jobs whose Network has a Gateway, and no others. It is called again and again, and then starts what has
	// died. After an error everything that was possible is done.
	Apply(context.Context, []fleet.Network) error
}

// Clients are the host's file clients, which mount jobs' files for guests that do not mount
// them themselves.
type Clients interface {
	// KeepClients removes the clients of all networks but these, with what they have mounted. It is
	// called before Overlay removes the networks.
	KeepClients(context.Context, []fleet.Network) error
}

// Images provides the images that guests run.
type Images interface {
	// Ensure makes the image's files present on this host and returns their folder. After an
	// error nothing half-fetched is left.
	Ensure(context.Context, fleet.Digest) (folder string, err error)
}

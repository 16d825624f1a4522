package agent

import (
	"context"
	"io"
	"time"

	"pagurus/fleet"
)

// The errors a driver's callers branch on. They live in fleet because a driver
// may not import this package.
var (
	ErrAbsent = fleet.ErrAbsent
	ErrUnsure = fleet.ErrUnsure
)

// Driver runs guests of one kind. Every method may be called twice with the
// same arguments, also after the agent was killed in the middle of the first
// call, and must then lead to the same end. What a method leaves behind when
// it returns an error is said at each. Guests outlive the driver: Open finds
// those that run and Close leaves them running.
type Driver interface {
	// Start boots a guest. It returns when the mechanism runs it; the guest
	// agent inside answers later.
	// After an error no trace of the guest is left.
	Start(context.Context, fleet.Task) error
	// Stop ends a guest at once, in whatever state, and removes every trace
	// of it. It is not an error if the guest is absent. After an error call again.
	Stop(context.Context, fleet.GuestID) error
	// Receive makes an empty guest that waits for state and says where
	// ("host:port" or the like, to be given to the source's Copy as
	// Task.Listen). After an error no trace is left.
	Receive(context.Context, fleet.Task) (listen string, err error)
	// Copy sends state to Task.Listen while the guest runs, and returns when
	// what is left is small enough by Task.Limits. The guest still runs, or,
	// where the mechanism knows no better, has been paused for no longer than
	// it took to notice. It calls progress about five times a second. When
	// ctx ends before that, or the copy fails, it returns an error, the copy is
	// cancelled and the guest runs on as before.
	Copy(ctx context.Context, t fleet.Task, progress func(fleet.Progress)) error
	// Switch pauses the guest after a Copy, sends the rest and returns when
	// the target has it whole. The guest is paused in both places then. After
	// an error wrapping ErrUnsure it is not known whether the target has it; after
	// any other error the target surely has not, and Resume is the way back. By
	// post-copy it returns when the target has all but memory (PostCopier).
	// lead is called with true when it is time to lead what comes for the guest
	// on to the target, and with false should the guest have to run on here for
	// a moment after that. What it leads back after an error is Resume's caller's.
	Switch(ctx context.Context, t fleet.Task, lead func(away bool)) (fleet.Progress, error)
	// Resume lets a paused guest run: a target after Switch, or a source whose
	// Switch surely failed (a copy still under way is cancelled). A guest
	// that runs is not an error. After an error it is suspended or absent.
	Resume(context.Context, fleet.GuestID) error
	// Inspect says what is so on this host.
	Inspect(context.Context) (map[fleet.GuestID]fleet.GuestFacts, error)
}

// Linker is a driver whose guests have a link to the guest agent inside.
type Linker interface {
	// Link opens the byte stream to the guest agent. There is one at a time;
	// a second call ends the first's. It may be cut at any byte.
	Link(context.Context, fleet.GuestID) (io.ReadWriteCloser, error)
	// Ended returns a channel that is closed when the guest is no longer on
	// this host: it ended by itself, was killed, or was stopped.
	Ended(fleet.GuestID) <-chan struct{}
}

// Teller is a driver that knows what its guests said last, on a console or the
// like.
type Teller interface {
	// LastWords is what a guest said last, for people: one that is here, or one
	// that ended by itself. Empty if there is nothing to say.
	LastWords(fleet.GuestID) string
}

// Profiler is a driver that can look at how its guests use their memory.
type Profiler interface {
	// Profile looks at a running guest for some seconds, without disturbing it.
	// A guest that is being moved is refused. It may be called at any time and
	// leaves nothing behind.
	Profile(context.Context, fleet.GuestID) (fleet.Profile, error)
}

// Examiner is a driver that can tell what keeps its guests from being moved.
type Examiner interface {
	// Obstacles says, for people, what keeps a running guest from being moved,
	// each with what can be done about it. It takes some milliseconds and does not
	// disturb the guest; one that is being moved is refused. None is no promise.
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
	// ReclaimMemory has a guest of whose memory so much holds nothing give it back, but for
	// a reserve, and says how much the host has of it then. It holds until
	// ReturnMemory, also after a move. After an error the guest has what it had.
	ReclaimMemory(ctx context.Context, g fleet.GuestID, freeBytes int64) (int64, error)
	// ReturnMemory ends ReclaimMemory; a guest that kept its memory is not an error. After an error call
	// again.
	ReturnMemory(context.Context, fleet.GuestID) error
	// Suspend suspends a running guest until Resume, its memory for the
	// host to take. A guest that is being moved is refused. After an error it may
	// be suspended or not: call again, or Resume.
	Suspend(context.Context, fleet.GuestID) error
}

// ResumeTimer is a driver that knows better than its caller when Resume let a guest run.
type ResumeTimer interface {
	// RanAgain returns when a guest that arrived here was resumed; zero: it did not, or that
	// is not known.
	RanAgain(fleet.GuestID) time.Time
}

// Classes say how much of the host's CPUs guests get.
type Classes interface {
	// Class gives a guest that is on this host what its job's class says, and no
	// more than a part of its CPUs; 0 is no ceiling. It may be called again. After an
	// error it has what it had, or part of it.
	Class(g fleet.Guest, class fleet.Class, most float64) error
}

// Overlay makes the host's part of the jobs' networks match what is wanted.
type Overlay interface {
	// Apply makes it so and removes what is not wanted. It may be called at
	// any time with anything. After an error what could be done is done.
	Apply(context.Context, []fleet.Network) error
	// Forward leads what comes for a guest on to the host it moves to, in place
	// of to the guest, until Deliver. After an error frames go to the guest.
	Forward(fleet.Subnet, int) error
	// Deliver ends what Forward began, if it did.
	Deliver(fleet.Subnet, int) error
}

// Shares serves jobs' files at their share address, on networks that Overlay
// has made.
type Shares interface {
	// Apply serves every Network's Share and stops serving all others.
	// File handles stay valid over a restart of the agent and of the server.
	Apply(context.Context, []fleet.Network) error
	// Failure says why a job's files are not served, once that was tried more than
	// once; nil: they are, or may be in a moment. It does not wait.
	Failure(fleet.JobID) error
}

// Images has the images guests run.
type Images interface {
	// Ensure makes the image's files present on this host and returns the
	// folder that holds them. After an error nothing half-fetched is left.
	Ensure(context.Context, fleet.Digest) (folder string, err error)
}

package fleet

import (
	"cmp"
	"strings"
	"time"
)

// Event is what makes the controller think: a Request, Reports, an Observation or a Tick.
type Event interface{ event() }

// Observation is something the controller measured without a request: the stall of a
// migration or a job's traffic.
type Observation struct {
	At        time.Time
	Migration MigrationID // of Stall
	Stall     *Stall
	Job       JobID // of Traffic
	Traffic   []Traffic
}

// Caller is who made a request. The controller sets it from the connection.
type Caller struct {
	UID   uint32 `json:"uid"`
	GID   uint32 `json:"gid"`
	Admin bool   `json:"admin"` // may act on hosts and on other users' jobs
}

// RequestVerb is the kind of a request.
type RequestVerb string

// The kinds of requests.
const (
	Submit     RequestVerb = "submit"      // Spec, Image
	Cancel     RequestVerb = "cancel"      // Job, Grace
	SendSignal RequestVerb = "signal"      // Job, Signal; not stored
	Migrate    RequestVerb = "migrate"     // Guests or Job, To or ToSite (both empty: the planner chooses), Limits; with Host: as if Host were drained
	CancelMove RequestVerb = "cancel move" // Move
	Drain      RequestVerb = "drain"       // Host
	Undrain    RequestVerb = "undrain"     // Host
	Join       RequestVerb = "join"        // Host: its agent connected; made by the controller
	Forget     RequestVerb = "forget"      // Host: remove a host that never comes back
	SetPolicy  RequestVerb = "policy"      // Host, Policy: what its owner agreed to
	SetRules   RequestVerb = "rules"       // Rules: for the whole cluster
	Claim      RequestVerb = "claim"       // Host: its owner is present, whatever the sensors say
	Release    RequestVerb = "release"     // Host: its owner says that they have gone; ends Claim
	Isolate    RequestVerb = "isolate"     // Host, Quiet: reserve some of its CPUs for guests
)

// Request asks the controller for something.
type Request struct {
	ID     RequestID      `json:"id"`
	At     time.Time      `json:"at"` // set by the controller
	By     Caller         `json:"by"` // set by the controller
	Verb   RequestVerb    `json:"verb"`
	Job    JobID          `json:"job,omitempty"`
	Guest  GuestID        `json:"guest,omitempty"`  // short for one element in Guests
	Guests []GuestID      `json:"guests,omitempty"` // to move together
	Move   MoveID         `json:"move,omitempty"`
	Host   HostID         `json:"host,omitempty"`
	To     HostID         `json:"to,omitempty"`
	ToSite string         `json:"to_site,omitempty"` // if To is empty: move to a host of this site
	Limits Limits         `json:"limits,omitzero"`
	Spec   *JobSpec       `json:"spec,omitempty"`
	Grace  *time.Duration `json:"grace_ns,omitempty"` // nil: UsualGrace
	Signal string         `json:"signal,omitempty"`   // name, with or without SIG, or number
	Image  *Image         `json:"image,omitempty"`    // set by the controller from Spec.Image

	Migration MigrationID       `json:"migration,omitempty"`
	Traffic   []Traffic         `json:"traffic,omitempty"`
	Policy    *OwnerPolicy      `json:"policy,omitempty"`
	Rules     *Rules            `json:"rules,omitempty"`
	Isolation *IsolationRequest `json:"isolation,omitempty"`
}

// Answer is the result of a request.
type Answer struct {
	Job   JobID    `json:"job,omitempty"`
	Moves []MoveID `json:"moves,omitempty"`
	Notes []string `json:"notes,omitempty"` // for people: what could not be placed, and why
}

// Tick reports the time about once a second.
type Tick struct {
	At time.Time `json:"at"`
}

// Verb is the kind of an Order.
type Verb string

// The orders. Watch, Run and End stay outstanding while the guest or program exists.
const (
	Start Verb = "start" // guest: boot it and set it up; done: its agent answers and the job's files are mounted
	Watch Verb = "watch" // guest: keep it; done: it ended by itself; failed: it is not here
	Stop  Verb = "stop"  // guest: end it and destroy it
	Run   Verb = "run"   // job, at guest 0's home: run the program unless it already runs; done: it ended, Exit says how
	End   Verb = "end"   // job, at guest 0's home: tell the program to end, and kill it after its grace; done: it ended, and all of its output has arrived

	Receive  Verb = "receive"  // target: create an empty guest that can receive state; Listen is its address
	Copy     Verb = "copy"     // source: copy memory while the guest runs; done: converged
	Switch   Verb = "switch"   // source: suspend, send the rest; done: the target has all state (in post-copy all but memory), suspended
	Activate Verb = "activate" // target: resume the guest, direct this host's traffic to it
	Fetch    Verb = "fetch"    // target, after post-copy; done: all memory has arrived; failed: some never will
	Retire   Verb = "retire"   // source: destroy the suspended copy
	Revert   Verb = "revert"   // source: resume the guest
	Discard  Verb = "discard"  // target: destroy what was received
)

// Order is one idempotent instruction to one host. It is comparable: a report counts only
// for exactly the order it names. A host that has already carried it out answers Done
// again.
type Order struct {
	Verb      Verb        `json:"verb"`
	Host      HostID      `json:"host"`
	Job       JobID       `json:"job,omitempty"`
	Guest     GuestID     `json:"guest,omitempty"`
	Migration MigrationID `json:"migration,omitempty"`
	Peer      HostID      `json:"peer,omitempty"`
	Gen       uint64      `json:"gen,omitempty"`
	Attempt   int         `json:"attempt"` // distinguishes a late answer to one attempt from the answer to the next
}

// Task is an order with everything the host needs to carry it out.
type Task struct {
	Order  Order            `json:"order"`
	Guest  Guest            `json:"guest"`
	Job    Job              `json:"job"`
	Listen string           `json:"listen,omitempty"` // of Copy: where the target receives state
	Limits Limits           `json:"limits"`           // of a migration's orders; source and target must agree how memory is sent
	Have   map[string]int64 `json:"have,omitempty"`   // of Run and End: bytes of each output stream that the controller has
	Layout *Layout          `json:"layout,omitempty"` // of Start and Receive of a guest with a shape; set by the host's agent
	Orphan bool             `json:"orphan,omitempty"` // of Activate: the source lost the guest, so missing state never arrives
}

// Mode is how a guest's memory is sent.
type Mode string

// The modes. If empty, the controller chooses.
const (
	PreCopy     Mode = "pre-copy"      // sent while the guest runs, until little is left
	StopAndCopy Mode = "stop-and-copy" // the guest is suspended while all memory is sent
	PostCopy    Mode = "post-copy"     // sent once, then the guest runs at the target while the rest follows; cannot be undone
)

// CachePolicy says whether a guest's clean page cache is sent.
type CachePolicy string

// The policies. If empty, the cache is dropped where that saves time.
const (
	DropCache CachePolicy = "drop" // the guest drops it before the copy
	SendCache CachePolicy = "send" // it is sent like other memory
)

// Compression says whether memory is sent compressed.
type Compression string

// The choices. Only a Move's may be empty: the controller chooses.
const (
	CompressOn  Compression = "on"
	CompressOff Compression = "off"
)

// Limits bounds a move and each of its copies. A field's zero value means its default.
type Limits struct {
	Mode           Mode          `json:"mode,omitempty"`
	Downtime       time.Duration `json:"downtime_ns"`           // maximum downtime: converged when the rest is predicted to take no longer
	Lenient        bool          `json:"lenient,omitempty"`     // of a Task: Downtime is a default, which may be exceeded somewhat if more rounds do not help
	Rounds         int           `json:"rounds"`                // give up after this many rounds
	BytesPerSecond int64         `json:"bytes_per_second"`      // of a Move: limit for all it sends from one host; of a Task: limit of its copy; 0: none
	Deadline       time.Duration `json:"deadline_ns,omitempty"` // of a Move: a guest that is not ready this long after Begun stays; 0: only the limit of phase ready
	PageCache      CachePolicy   `json:"page_cache,omitempty"`
	Compress       Compression   `json:"compress,omitempty"`
	Preempt        bool          `json:"preempt,omitempty"`    // of a Task in post-copy: pages the guest waits for use a connection of their own
	Slow           bool          `json:"slow,omitempty"`       // of a Task in pre-copy: the guest may be slowed until it is ready, because it is not expected to converge otherwise
	AwaitGang      bool          `json:"await_gang,omitempty"` // of a Task: after the copy it waits for its gang, so the guest must not be suspended earlier
}

// Compare orders by host first.
func (o Order) Compare(b Order) int {
	if c := strings.Compare(string(o.Host), string(b.Host)); c != 0 { // checked first because it usually decides, and the rest costs more
		return c
	}
	return cmp.Or(
		cmp.Compare(o.Job, b.Job), cmp.Compare(o.Guest, b.Guest), cmp.Compare(o.Migration, b.Migration),
		cmp.Compare(o.Verb, b.Verb), cmp.Compare(o.Peer, b.Peer), cmp.Compare(o.Gen, b.Gen), cmp.Compare(o.Attempt, b.Attempt))
}

// Outcome is the result of an order.
type Outcome string

// The outcomes.
const (
	Done    Outcome = "done"
	Failed  Outcome = "failed"  // a promise: the order has had no lasting effect and will be refused from now on
	Unknown Outcome = "unknown" // no answer in time: it may have had its effect, or may still
	Gone    Outcome = "gone"    // of Switch: the guest has certainly ended at the source; only the target knows whether it has it
)

// Report is a host's answer to an Order.
type Report struct {
	At      time.Time `json:"at"` // set by the controller
	Order   Order     `json:"order"`
	Outcome Outcome   `json:"outcome"`
	Cause   string    `json:"cause,omitempty"`  // for people, when Outcome is not Done
	Listen  string    `json:"listen,omitempty"` // of Receive
	Cost    *Progress `json:"cost,omitempty"`   // of Copy and Switch; after post-copy of Retire
	Passes  []Pass    `json:"passes,omitempty"` // of Copy
	Resumed time.Time `json:"resumed,omitzero"` // of Activate: when the guest was resumed, target host's clock
	Exit    *Exit     `json:"exit,omitempty"`   // of Run
	Traces  []Trace   `json:"traces,omitempty"` // of Stop: the traces of the guest's ranks, for later queries
}

// Reports are reports that arrived together, in order of arrival.
type Reports []Report

func (Request) event()     {}
func (Report) event()      {}
func (Reports) event()     {}
func (Observation) event() {}
func (Tick) event()        {}

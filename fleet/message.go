package fleet

import (
	"cmp"
	"strings"
	"time"
)

// Event is what makes the controller think: a Request, Reports, an Observation or a Tick.
type Event interface{ event() }

// Observation is something the controller saw or measured without a request: the stall of
// a migration, a job's traffic, that a host's agent has come, or that a token was shown.
type Observation struct {
	At        time.Time
	Migration MigrationID // of Stall
	Stall     *Stall
	Job       JobID // of Traffic
	Traffic   []Traffic
	Called    HostID     // its agent calls, and the cluster may not know the host yet
	Attached  HostID     // its agent has come, and the snapshot has its first facts
	Enrolment *Enrolment // a machine or a person wants to join, and shows a token

	Leased HostID        // its agent asks for another lease than the one on record
	Lease  time.Duration // no lease that it may have from now on is longer; 0: it may have none

	Encryption Encryption // what the controller was configured to; empty: not observed
	Marked     GuestID    // its programs said when moves are cheap, and it waits to be copied
	Crowding   []JobID    // ended jobs whose output makes room for more of their user
	Given      PartName   // it has come back to its vault, for a checkpoint that is being taken back
}

// Caller is who made a request. The controller sets it from the connection.
type Caller struct {
	UID   uint32 `json:"uid"`
	GID   uint32 `json:"gid"`
	Admin bool   `json:"admin"`          // may act on hosts and on other people's jobs
	User  UserID `json:"user,omitempty"` // who is known by a certificate, or by uid; empty: only the uid is known
	Host  HostID `json:"host,omitempty"` // it is this host's agent, and nothing else is set

	Guest GuestID `json:"guest,omitempty"` // a program in this guest asks, for its own job; uid and gid are the job's
}

// RequestVerb is the kind of a request.
type RequestVerb string

// The kinds of requests.
const (
	Submit           RequestVerb = "submit"            // Spec, Image
	Cancel           RequestVerb = "cancel"            // Job, Grace
	MakeCheckpoint   RequestVerb = "checkpoint"        // Job
	RemoveCheckpoint RequestVerb = "remove checkpoint" // Checkpoint
	TakeCheckpoint   RequestVerb = "take checkpoint"   // Job, Copy: vaults get ready for a copy of a checkpoint that comes back
	Restart          RequestVerb = "restart"           // Job, Checkpoint or Beginning (neither: the newest checkpoint, if there is one): begin again
	SuspendJob       RequestVerb = "suspend"           // Job: make a checkpoint, then end its guests
	ResumeJob        RequestVerb = "resume"            // Job, which is suspended
	RemoveJob        RequestVerb = "remove job"        // Job, which has ended: forget it, with its output
	Grow             RequestVerb = "grow"              // Job, Count, Within: more guests, which its program asks for
	SendSignal       RequestVerb = "signal"            // Job, Signal
	Migrate          RequestVerb = "migrate"           // Guests or Job, To or ToSite (both empty: the planner chooses), Limits; with Host: as if Host were drained
	CancelMove       RequestVerb = "cancel move"       // Move
	Drain            RequestVerb = "drain"             // Host
	Undrain          RequestVerb = "undrain"           // Host
	Forget           RequestVerb = "forget"            // Host: remove a host that is gone for good
	SetPolicy        RequestVerb = "policy"            // Host, Policy: what its owner has agreed to
	SetRules         RequestVerb = "rules"             // Rules: what holds in the whole cluster
	Claim            RequestVerb = "claim"             // Host: its owner is there, whatever sensors say
	Release          RequestVerb = "release"           // Host: its owner is gone, as far as that was said by hand
	Isolate          RequestVerb = "isolate"           // Host, Isolation: some of its CPUs for guests alone
	AddToken         RequestVerb = "add token"         // Token, whose ID and Hash the controller sets
	DropToken        RequestVerb = "drop token"        // Token: only its ID counts
	SetUser          RequestVerb = "user"              // User: add or change; logins stay
	DropUser         RequestVerb = "drop user"         // User: only its ID counts
	Logout           RequestVerb = "logout"            // Key, which the controller sets: this login ends
)

// Request asks the controller for something.
type Request struct {
	ID     RequestID      `json:"id"`
	Asks   string         `json:"asks,omitempty"` // digest of what is asked, to tell another request under the same ID; empty: nothing is told apart
	At     time.Time      `json:"at"`             // set by the controller
	By     Caller         `json:"by"`             // set by the controller
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
	Now    bool           `json:"now,omitempty"`       // of Submit: refuse a job that would have to wait
	Grace  *time.Duration `json:"grace_ns,omitempty"`  // nil: UsualGrace
	Signal string         `json:"signal,omitempty"`    // name, with or without SIG, or number
	Count  int            `json:"count,omitempty"`     // of Grow
	Within time.Duration  `json:"within_ns,omitempty"` // of Grow: for how long there may be no room, and they may start
	Image  *Image         `json:"image,omitempty"`     // set by the controller from Spec.Image

	Checkpoint CheckpointID `json:"checkpoint,omitempty"`
	Beginning  bool         `json:"beginning,omitempty"` // of Restart: from the beginning of the program
	On         []HostID     `json:"on,omitempty"`        // of ResumeJob: only on these hosts from now on; none: as before
	Copy       *SealedCopy  `json:"copy,omitempty"`      // of TakeCheckpoint

	Taken *CheckpointCopy `json:"taken,omitempty"` // what Copy says; set by the controller, which tests the seal

	Traffic   []Traffic         `json:"traffic,omitempty"`
	Policy    *OwnerPolicy      `json:"policy,omitempty"`
	Rules     *Rules            `json:"rules,omitempty"`
	Isolation *IsolationRequest `json:"isolation,omitempty"`
	Token     *JoinToken        `json:"token,omitempty"`
	User      *User             `json:"user,omitempty"`
	Key       string            `json:"key,omitempty"`
}

// Answer is the result of a request.
type Answer struct {
	Job        JobID        `json:"job,omitempty"`
	Checkpoint CheckpointID `json:"checkpoint,omitempty"` // of MakeCheckpoint, SuspendJob and TakeCheckpoint
	Moves      []MoveID     `json:"moves,omitempty"`
	Notes      []string     `json:"notes,omitempty"` // for people: what could not be placed and why
	Token      string       `json:"token,omitempty"` // of AddToken: the whole token, which is nowhere else
	User       UserID       `json:"user,omitempty"`  // of an Enrolment: whose login it became
}

// Tick reports the time about once a second.
type Tick struct {
	At time.Time `json:"at"`
}

// Order is one idempotent instruction to one host. It is comparable: a report
// counts only for exactly the order it names. A host that has already carried
// it out answers Done again.
type Order struct {
	Verb      Verb        `json:"verb"`
	Host      HostID      `json:"host"`
	Job       JobID       `json:"job,omitempty"`
	Guest     GuestID     `json:"guest,omitempty"`
	Migration MigrationID `json:"migration,omitempty"`
	Peer      HostID      `json:"peer,omitempty"`

	Checkpoint CheckpointID `json:"checkpoint,omitempty"` // of Arm, Cut, Continue, Save, Drop and Restore

	Born    int64  `json:"born,omitempty"` // of the job; a host takes no answer to an order about one job for an answer about another
	Gen     uint64 `json:"gen,omitempty"`
	Attempt int    `json:"attempt"` // distinguishes a late answer to one attempt from the answer to the next
}

// Task is an order with everything the host needs to carry it out.
type Task struct {
	Order  Order            `json:"order"`
	Guest  Guest            `json:"guest"`
	Job    Job              `json:"job"`
	Listen string           `json:"listen,omitempty"` // for Copy: where the target takes in state, with the secret of the move
	Limits Limits           `json:"limits"`           // for the orders of a migration; source and target must agree how memory is sent
	Have   map[string]int64 `json:"have,omitempty"`   // for Run and End: bytes of each output stream the controller has
	Layout *Layout          `json:"layout,omitempty"` // for Start and Receive of a guest with a shape; set by the host's agent
	Orphan bool             `json:"orphan,omitempty"` // for Activate: what has not come of the guest by now never will

	Deposit  *Deposit  `json:"deposit,omitempty"`   // for Save and Restore
	FileHost *FileHost `json:"file_host,omitempty"` // for orders of a checkpoint; nil: the task's own host is on the machine with the job's files
}

// Compare orders by host first.
func (o Order) Compare(b Order) int {
	if c := strings.Compare(string(o.Host), string(b.Host)); c != 0 { // checked first because it usually decides, and the rest costs more
		return c
	}
	return cmp.Or(
		cmp.Compare(o.Job, b.Job), cmp.Compare(o.Guest, b.Guest), cmp.Compare(o.Migration, b.Migration), cmp.Compare(o.Checkpoint, b.Checkpoint),
		cmp.Compare(o.Verb, b.Verb), cmp.Compare(o.Peer, b.Peer), cmp.Compare(o.Born, b.Born), cmp.Compare(o.Gen, b.Gen), cmp.Compare(o.Attempt, b.Attempt))
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

// OutcomeMeaning is an outcome with what it means, for people.
type OutcomeMeaning struct {
	Outcome Outcome
	Says    string
}

// Outcomes are all outcomes. docs/protocol.md is printed from them.
var Outcomes = []OutcomeMeaning{
	{Done, "it has been carried out"},
	{Failed, "a promise that neither it nor an earlier try of it has had a lasting effect, nor ever will"},
	{Unknown, "no answer came"},
	{Gone, "of switch only: the guest has certainly ended at the source, and only the target knows whether it has the guest"},
}

// Report is a host's answer to an Order.
type Report struct {
	At      time.Time  `json:"at"` // set by the controller
	Order   Order      `json:"order"`
	Outcome Outcome    `json:"outcome"`
	Cause   string     `json:"cause,omitempty"`    // for people, when Outcome is not Done
	Listen  string     `json:"listen,omitempty"`   // of Receive
	Cost    *Progress  `json:"cost,omitempty"`     // of Copy and Switch; after post-copy of Retire
	Rounds  []Round    `json:"rounds,omitempty"`   // of Copy
	Resumed time.Time  `json:"resumed,omitzero"`   // of Activate: when the guest was resumed, target host's clock
	Exit    *Exit      `json:"exit,omitempty"`     // of Run
	Traces  []Trace    `json:"traces,omitempty"`   // of Stop: the traces of the guest's ranks, for later queries
	AtFault bool       `json:"at_fault,omitempty"` // the host is the cause of Failed, and another may do better
	Kept    *KeptState `json:"kept,omitempty"`     // of Save
	Seen    uint64     `json:"seen,omitempty"`     // the generation of the guest that the host has seen, if the order was refused because it is of an older one
	Remains *Remains   `json:"remains,omitempty"`  // of Watch, Start, Restore and Activate, if the guest ended by itself; of Stop, if it had too little memory
}

// Reports are reports that arrived together, in order of arrival.
type Reports []Report

func (Request) event()     {}
func (Report) event()      {}
func (Reports) event()     {}
func (Observation) event() {}
func (Tick) event()        {}

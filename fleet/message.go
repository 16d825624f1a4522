package fleet

import (
	"cmp"
	"strings"
	"time"
)

// Event is anything that makes the controller think: a Request, a Report, several
// Reports, an Observation or a Tick.
type Event interface{ event() }

// Observation is what the controller has seen without being asked: the stall of a
// migration, as the ranks saw it, or the traffic between the guests of a job.
type Observation struct {
	At        time.Time
	Migration MigrationID // that Stall is of
	Stall     *Stall
	Job       JobID // that Traffic is of
	Traffic   []Traffic
}

// Caller is who asks. The controller sets it from the connection.
type Caller struct {
	UID   uint32 `json:"uid"`
	GID   uint32 `json:"gid"`
	Admin bool   `json:"admin"`          // may act on hosts and on other people's jobs
	User  UserID `json:"user,omitempty"` // who is known by a certificate, or by uid; empty: only the uid is known
	Host  HostID `json:"host,omitempty"` // it is this host's agent, and nothing else is set
}

// RequestVerb is what is asked for.
type RequestVerb string

// What can be asked of the controller.
const (
	Submit     RequestVerb = "submit"      // Spec, Image
	Cancel     RequestVerb = "cancel"      // Job, Grace
	SendSignal RequestVerb = "signal"      // Job, Signal; nothing of it is stored
	Migrate    RequestVerb = "migrate"     // Guests or Job, To or ToSite (both empty: the planner chooses), Limits; Host: they go as if it were drained
	CancelMove RequestVerb = "cancel move" // Move
	Drain      RequestVerb = "drain"       // Host
	Undrain    RequestVerb = "undrain"     // Host
	Join       RequestVerb = "join"        // Host: its agent called; made by the controller itself
	Forget     RequestVerb = "forget"      // Host: remove a host that is gone for good
	SetPolicy  RequestVerb = "policy"      // Host, Policy: what its owner has agreed to
	SetRules   RequestVerb = "rules"       // Rules: what holds in the whole cluster
	Claim      RequestVerb = "claim"       // Host: its owner is there, whatever sensors say
	Release    RequestVerb = "release"     // Host: its owner is gone, as far as that was said by hand
	Isolate    RequestVerb = "isolate"     // Host, Isolation: some of its CPUs for guests alone
	AddToken   RequestVerb = "add token"   // Token, whose ID and Hash the controller sets
	DropToken  RequestVerb = "drop token"  // Token, of which only the ID counts
	SetUser    RequestVerb = "user"        // User: add or change; logins stay
	DropUser   RequestVerb = "drop user"   // User, of which only the ID counts
	Enrol      RequestVerb = "enrol"       // Host if one joins, Enrolment; made by the controller itself
	Logout     RequestVerb = "logout"      // Enrolment.Key, which the controller sets: this login ends
)

// Request is what a person or program asks of the controller.
type Request struct {
	ID     RequestID      `json:"id"`
	At     time.Time      `json:"at"` // set by the controller
	By     Caller         `json:"by"` // set by the controller
	Verb   RequestVerb    `json:"verb"`
	Job    JobID          `json:"job,omitempty"`
	Guest  GuestID        `json:"guest,omitempty"`  // short for Guests of one
	Guests []GuestID      `json:"guests,omitempty"` // to move together
	Move   MoveID         `json:"move,omitempty"`
	Host   HostID         `json:"host,omitempty"`
	To     HostID         `json:"to,omitempty"`
	ToSite string         `json:"to_site,omitempty"` // a host of this site, where To is empty
	Limits Limits         `json:"limits,omitzero"`
	Spec   *JobSpec       `json:"spec,omitempty"`
	Grace  *time.Duration `json:"grace_ns,omitempty"` // nil: UsualGrace
	Signal string         `json:"signal,omitempty"`   // its name, with or without SIG, or its number
	Image  *Image         `json:"image,omitempty"`    // set by the controller from Spec.Image

	Migration MigrationID       `json:"migration,omitempty"`
	Traffic   []Traffic         `json:"traffic,omitempty"`
	Policy    *OwnerPolicy      `json:"policy,omitempty"`
	Rules     *Rules            `json:"rules,omitempty"`
	Isolation *IsolationRequest `json:"isolation,omitempty"`
	Token     *JoinToken        `json:"token,omitempty"`
	User      *User             `json:"user,omitempty"`
	Enrolment *Enrolment        `json:"enrolment,omitempty"`
}

// Answer is what a request led to.
type Answer struct {
	Job   JobID    `json:"job,omitempty"`
	Moves []MoveID `json:"moves,omitempty"`
	Notes []string `json:"notes,omitempty"` // for people: what could not be placed and why
	Token string   `json:"token,omitempty"` // of AddToken: the whole token, which is nowhere else
	User  UserID   `json:"user,omitempty"`  // of Enrol: whose login it became
}

// Tick says that time has passed. It comes about once a second.
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
	Gen       uint64      `json:"gen,omitempty"`
	Attempt   int         `json:"attempt"` // tells a late answer to one try from the answer to the next
}

// Task is an order with all a host needs to carry it out.
type Task struct {
	Order  Order            `json:"order"`
	Guest  Guest            `json:"guest"`
	Job    Job              `json:"job"`
	Listen string           `json:"listen,omitempty"` // for Copy: where the target takes in state
	Limits Limits           `json:"limits"`           // for the orders of a migration; source and target must agree how memory is sent
	Have   map[string]int64 `json:"have,omitempty"`   // for Run and End: bytes of each output stream the controller has
	Layout *Layout          `json:"layout,omitempty"` // for Start and Receive of a guest with a shape; set by the host's agent
	Orphan bool             `json:"orphan,omitempty"` // for Activate: what has not come of the guest by now never will
}

// Compare puts orders in a fixed order, by host first.
func (o Order) Compare(b Order) int {
	if c := strings.Compare(string(o.Host), string(b.Host)); c != 0 { // mostly: the rest costs more
		return c
	}
	return cmp.Or(
		cmp.Compare(o.Job, b.Job), cmp.Compare(o.Guest, b.Guest), cmp.Compare(o.Migration, b.Migration),
		cmp.Compare(o.Verb, b.Verb), cmp.Compare(o.Peer, b.Peer), cmp.Compare(o.Gen, b.Gen), cmp.Compare(o.Attempt, b.Attempt))
}

// Outcome is how an order went.
type Outcome string

// The outcomes.
const (
	Done    Outcome = "done"
	Failed  Outcome = "failed"  // a promise: the order has had no lasting effect and will be refused from now on
	Unknown Outcome = "unknown" // no answer in time: it may have happened, or may yet
	Gone    Outcome = "gone"    // of Switch: the guest has ended at the source, surely; whether it was handed over before, the target knows
)

// Report is a host's answer to an Order.
type Report struct {
	At      time.Time `json:"at"` // set by the controller
	Order   Order     `json:"order"`
	Outcome Outcome   `json:"outcome"`
	Cause   string    `json:"cause,omitempty"`  // for people, when Outcome is not Done
	Listen  string    `json:"listen,omitempty"` // of Receive
	Cost    *Progress `json:"cost,omitempty"`   // of Copy and Switch; of Retire after post-copy
	Passes  []Pass    `json:"passes,omitempty"` // of Copy
	Resumed time.Time `json:"resumed,omitzero"` // of Activate: when the guest was let run, target host's clock
	Exit    *Exit     `json:"exit,omitempty"`   // of Run
	Traces  []Trace   `json:"traces,omitempty"` // of Stop: what the guest's ranks have done, for later questions
}

// Reports are those that came together, in the order in which they came.
type Reports []Report

func (Request) event()     {}
func (Report) event()      {}
func (Reports) event()     {}
func (Observation) event() {}
func (Tick) event()        {}

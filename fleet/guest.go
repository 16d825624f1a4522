package fleet

import (
	"fmt"
	"strings"
	"time"
)

// GuestState is a guest's state. Package lifecycle defines the changes.
type GuestState string

// The states of a guest.
const (
	GuestStarting  GuestState = "starting"
	GuestRestoring GuestState = "restoring" // its host makes it from a checkpoint
	GuestRestored  GuestState = "restored"  // it is there, suspended, until all guests of its job are
	GuestResuming  GuestState = "resuming"  // they are, and its host lets it run
	GuestRunning   GuestState = "running"
	GuestMoving    GuestState = "moving" // in a migration
	GuestStopping  GuestState = "stopping"
	GuestSought    GuestState = "sought" // the store was restored from a backup, and no host has said yet that it runs the guest
	GuestEnded     GuestState = "ended"
	GuestLost      GuestState = "lost" // its host is unknown, or the target lost it; its hosts destroy what they have
)

// Ended reports whether the guest is gone for good.
func (s GuestState) Ended() bool { return s == GuestEnded || s == GuestLost }

// Check refuses a name that cannot be part of a path, a command line or a cgroup's name.
func (id GuestID) Check() error {
	ok := len(id) > 0 && len(id) <= 64 && strings.Trim(string(id[:1]), "-_") != ""
	for _, r := range id {
		ok = ok && (r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '-' || r == '_')
	}
	if !ok {
		return fmt.Errorf("%.70q is not the name of a guest", string(id))
	}
	return nil
}

// Guest is one migratable virtual machine or container of a job.
type Guest struct {
	ID        GuestID      `json:"id"`
	Job       JobID        `json:"job"`
	Index     int          `json:"index"` // in the job; guest 0 runs the program that starts the ranks
	Kind      Kind         `json:"kind"`
	State     GuestState   `json:"state"`
	Home      HostID       `json:"home"`    // the one host that may run it
	Gen       uint64       `json:"gen"`     // raised on every change of Home; hosts refuse older orders
	Attempt   int          `json:"attempt"` // earlier attempts of the state's order
	Since     time.Time    `json:"since"`   // when State or Attempt last changed
	Need      Resources    `json:"need"`
	Image     Digest       `json:"image"`
	Reason    string       `json:"reason,omitempty"`     // why it was placed at Home, for people
	Cause     string       `json:"cause,omitempty"`      // why it failed, for people
	Remains   *Remains     `json:"remains,omitempty"`    // of a guest that ended by itself, or had too little memory; nil: nothing is known
	HostFault bool         `json:"host_fault,omitempty"` // it ended because of its host
	Migration MigrationID  `json:"migration,omitempty"`  // its migration while it is moving
	Aborts    int          `json:"aborts,omitempty"`     // aborted moves since the last successful one
	RetryAt   time.Time    `json:"retry_at"`             // after an aborted move: no automatic move before this time
	Suspended bool         `json:"suspended,omitempty"`  // to be suspended while the owner of Home is present
	Born      int64        `json:"born,omitempty"`       // of its job
	From      CheckpointID `json:"from,omitempty"`       // what it is made from; empty: it boots
	Vault     HostID       `json:"vault,omitempty"`      // where that is
	Shape     *Shape       `json:"shape,omitempty"`      // what it sees, for a tuned job; never changes
	CPU       string       `json:"cpu,omitempty"`        // the CPU that it sees; empty: that of the shape, otherwise HostCPU; never changes
}

package fleet

import (
	"fmt"
	"time"
)

// OwnerVerb is what the owner of a machine asks the agent there, at its socket.
type OwnerVerb string

// The verbs.
const (
	OwnerStatus  OwnerVerb = "status"
	OwnerPause   OwnerVerb = "pause"   // For; 0: until resume
	OwnerResume  OwnerVerb = "resume"  // ends a pause
	OwnerAgrees  OwnerVerb = "policy"  // Policy: what the owner agrees to from now on
	OwnerHistory OwnerVerb = "history" // with the status
)

// OwnerAsk is what the owner asks.
type OwnerAsk struct {
	Verb   OwnerVerb     `json:"verb"`
	For    time.Duration `json:"for_ns,omitempty"`
	Policy *OwnerPolicy  `json:"policy,omitempty"`
}

// LongestPause is how long a pause may be that has an end.
const LongestPause = 30 * 24 * time.Hour

// Refused says what is wrong with it; empty: nothing.
func (a OwnerAsk) Refused() string {
	switch {
	case a.Verb == OwnerPause && (a.For < 0 || a.For > LongestPause):
		return fmt.Sprintf("a pause is at most %s, or without an end: `pagurus owner pause`", ShortDuration(LongestPause))
	case a.Verb == OwnerAgrees && a.Policy == nil:
		return "it says no policy; pagurus and its agent may be of different versions, see `pagurus version`"
	case a.Verb == OwnerAgrees:
		return a.Policy.Refused()
	}
	switch a.Verb {
	case OwnerStatus, OwnerPause, OwnerResume, OwnerHistory:
		return ""
	}
	return fmt.Sprintf("the agent cannot %q; pagurus and its agent may be of different versions, see `pagurus version`", a.Verb)
}

// OwnerAnswer is what the agent says.
type OwnerAnswer struct {
	Refused string       `json:"refused,omitempty"` // why nothing was done; then nothing else is set
	Host    HostID       `json:"host"`
	At      time.Time    `json:"at"`
	Owner   *Owner       `json:"owner,omitempty"` // nil: not known yet
	Policy  OwnerPolicy  `json:"policy"`
	Pause   bool         `json:"pause"`
	Until   time.Time    `json:"until,omitzero"`    // of the pause; zero: until resume
	Unsent  bool         `json:"unsent,omitempty"`  // the controller has not taken the policy yet
	Alone   bool         `json:"alone,omitempty"`   // the controller is not heard
	Guests  []OwnerGuest `json:"guests"`            // on the machine
	Notices *EndNotices  `json:"notices,omitempty"` // nil: nobody looks, or nothing is known yet
	History []OwnerEvent `json:"history,omitempty"` // the oldest first
}

// OwnerGuest is a guest on an owner's machine. Whose it is, and what it does, is not the owner's business.
type OwnerGuest struct {
	ID          GuestID   `json:"id"`
	Since       time.Time `json:"since"`
	CPUs        float64   `json:"cpus"`
	MemoryBytes int64     `json:"memory_bytes"`
	Run         RunState  `json:"run"`
	Leaving     bool      `json:"leaving,omitempty"`
}

// OwnerEvent is something that happened on an owner's machine.
type OwnerEvent struct {
	At   time.Time `json:"at"`
	Says string    `json:"says"`
}

// OwnerWish is a policy that the owner has chosen at the machine, until the controller has it.
type OwnerWish struct {
	ID     string      `json:"id"` // of this choice
	Policy OwnerPolicy `json:"policy"`
}

package qemu

import (
	"time"

	"pagurus/act/host"
	"pagurus/fleet"
)

// record is what is stored about a guest for later agents, in the guest's folder. It omits what QEMU knows.
type record struct {
	host.Record
	PostCopy bool          `json:"post_copy,omitempty"` // it moves here in post-copy
	Awaits   *awaiting     `json:"awaits,omitempty"`    // the source of the move by which it comes; nil: it has come, or began here
	Copy     *copying      `json:"copy,omitempty"`      // the last copy from this host
	Layout   *fleet.Layout `json:"layout,omitempty"`

	Accelerator string `json:"accelerator,omitempty"` // empty: an earlier Pagurus made it

	Device string `json:"device,omitempty"` // address of the host's device that it has for itself; empty: none

	Pair *pairing `json:"pair,omitempty"` // its card has two halves; nil: it has one

	Make   *makes  `json:"make,omitempty"`   // what it is made of; nil: an earlier Pagurus made it
	Saving *saving `json:"saving,omitempty"` // its last checkpoint; nil: none is made
}

// awaiting is what a target knows of its source. Where it waits for it is the record's Listen.
type awaiting struct {
	Gen     uint64       `json:"gen"`
	From    fleet.HostID `json:"from"`
	Streams int          `json:"streams"`
}

// copying is one copy order on the source.
type copying struct {
	Migration   fleet.MigrationID `json:"migration"`
	Listen      string            `json:"listen"`
	Limits      fleet.Limits      `json:"limits"`
	Begun       bool              `json:"begun"`           // QEMU has accepted it
	Waits       bool              `json:"waits,omitempty"` // QEMU copies on until the guest is stopped
	Good        bool              `json:"good,omitempty"`  // the copy has converged and is held for the gang
	SuspendedAt time.Time         `json:"suspended_at"`    // when the guest was suspended
	Downtime    time.Duration     `json:"downtime_ns"`     // from then until the target had it
	Past        bool              `json:"past,omitempty"`  // a checkpoint was begun since: what QEMU says of its migration is not of this copy
}

// Ours returns the record as this agent writes it. It can be changed without changing this one.
func (r record) Ours() record {
	r.Recorded = host.ByUs()
	if r.Copy != nil {
		c := *r.Copy
		r.Copy = &c
	}
	if r.Pair != nil {
		p := *r.Pair
		r.Pair = &p
	}
	if r.Saving != nil {
		s := *r.Saving
		r.Saving = &s
	}
	return r
}

package qemu

import (
	"fmt"
	"path/filepath"
	"time"

	"pagurus/act/host"
	"pagurus/fleet"
	"pagurus/internal/note"
)

// record is what is remembered of a guest beyond the agent's own life, in the
// guest's folder as guest.json. What QEMU itself knows is not in it.
type record struct {
	Guest     fleet.GuestID     `json:"guest"`
	Gen       uint64            `json:"gen"`
	Process   host.Process      `json:"process"`
	StartedAt time.Time         `json:"started_at"`
	Complete  bool              `json:"complete"` // Start or Receive went to its end; what is not complete is destroyed
	Incoming  fleet.MigrationID `json:"incoming,omitempty"`
	Target    bool              `json:"target,omitempty"`    // made by Receive and not yet resumed
	PostCopy  bool              `json:"post_copy,omitempty"` // it comes by post-copy
	Listen    string            `json:"listen,omitempty"`
	Copy      *copying          `json:"copy,omitempty"` // the last copy this host was the source of
	Layout    *fleet.Layout     `json:"layout,omitempty"`
}

// copying is one order to copy a guest away.
type copying struct {
	Migration   fleet.MigrationID `json:"migration"`
	Listen      string            `json:"listen"`
	Limits      fleet.Limits      `json:"limits"`
	Begun       bool              `json:"begun"`          // QEMU has taken the order
	Good        bool              `json:"good,omitempty"` // and the copy waits, held, for others
	SuspendedAt time.Time         `json:"suspended_at"`   // when it stopped the guest
	Downtime    time.Duration     `json:"downtime_ns"`    // from then until the target had it
}

// readRecord reads a guest's folder. There being none is an fs.ErrNotExist.
func readRecord(dir string) (r record, err error) {
	err = note.Load(filepath.Join(dir, recordFile), &r)
	return r, err
}

// writeRecord replaces guest.json whole. The folder is writable for QEMU, but
// sticky: QEMU can neither replace nor foresee a file that root makes here.
// Nothing is synced: a host that loses power has lost the guest as well.
func writeRecord(dir string, r record) error {
	if err := note.Replace(filepath.Join(dir, recordFile), r); err != nil {
		return fmt.Errorf("remember guest %s: %w", r.Guest, err)
	}
	return nil
}

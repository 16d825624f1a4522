package qemu

import (
	"fmt"
	"path/filepath"
	"time"

	"pagurus/act/host"
	"pagurus/fleet"
	"pagurus/internal/note"
)

// record is what is stored about a guest for later agents, in the guest's folder as
// guest.json. It omits what QEMU knows.
type record struct {
	host.Recorded
	Guest     fleet.GuestID     `json:"guest"`
	Gen       uint64            `json:"gen"`
	Process   host.Process      `json:"process"`
	StartedAt time.Time         `json:"started_at"`
	Complete  bool              `json:"complete"` // Start or Receive finished; incomplete guests are destroyed
	Incoming  fleet.MigrationID `json:"incoming,omitempty"`
	Target    bool              `json:"target,omitempty"`    // made by Receive and not yet resumed
	PostCopy  bool              `json:"post_copy,omitempty"` // it moves here in post-copy
	Listen    string            `json:"listen,omitempty"`
	Copy      *copying          `json:"copy,omitempty"` // the last copy from this host
	Layout    *fleet.Layout     `json:"layout,omitempty"`

	Accelerator string `json:"accelerator,omitempty"` // empty: an earlier Pagurus made it
}

// copying is one copy order on the source.
type copying struct {
	Migration   fleet.MigrationID `json:"migration"`
	Listen      string            `json:"listen"`
	Limits      fleet.Limits      `json:"limits"`
	Begun       bool              `json:"begun"`          // QEMU has accepted it
	Good        bool              `json:"good,omitempty"` // the copy has converged and is held for the gang
	SuspendedAt time.Time         `json:"suspended_at"`   // when the guest was suspended
	Downtime    time.Duration     `json:"downtime_ns"`    // from then until the target had it
}

// readRecord reads the record in a guest's folder. A missing one is an fs.ErrNotExist, one of
// an agent that is too new a host.ErrNewer.
func readRecord(dir string) (r record, err error) {
	err = host.LoadRecord(filepath.Join(dir, recordFile), &r)
	return r, err
}

// writeRecord replaces guest.json atomically. QEMU can write in the folder, but it is
// sticky: QEMU can neither replace nor pre-create root's files there. Nothing is synced:
// a host that loses power has lost the guest as well.
func writeRecord(dir string, r record) error {
	r.Recorded = host.ByUs()
	if err := note.Replace(filepath.Join(dir, recordFile), r); err != nil {
		return fmt.Errorf("remember guest %s: %w", r.Guest, err)
	}
	return nil
}

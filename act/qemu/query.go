package qemu

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"pagurus/act/qemu/qmp"
	"pagurus/fleet"
)

// The states of a migration in query-migrate.
const (
	stateSetup      = "setup"
	stateUnplug     = "wait-unplug" // the guest shall let go of a function that QEMU has plugged in just now
	stateActive     = "active"
	stateGate       = "pre-switchover" // the guest is suspended, QEMU waits for migrate-continue
	stateDevice     = "device"         // the rest is being sent
	stateCompleted  = "completed"
	stateCancelling = "cancelling"

	// In post-copy, on either side.
	statePostCopy        = "postcopy-active" // the guest is at the target, memory follows
	statePostCopyDevice  = "postcopy-device" // from QEMU 10.2 on, before postcopy-active
	statePostCopyPaused  = "postcopy-paused" // the connection broke
	statePostCopyRecover = "postcopy-recover"
)

// migration is QEMU's answer to query-migrate.
type migration struct {
	Status    string `json:"status"`
	TotalTime int64  `json:"total-time"` // ms
	Downtime  int64  `json:"downtime"`   // ms
	Desc      string `json:"error-desc"`
	Throttle  int    `json:"cpu-throttle-percentage"` // while the guest is slowed
	RAM       struct {
		Total         int64   `json:"total"`
		Remaining     int64   `json:"remaining"`
		PostCopyBytes int64   `json:"postcopy-bytes"`
		Faults        int64   `json:"postcopy-requests"`
		Sent          int64   `json:"transferred"`
		Copied        int64   `json:"normal-bytes"` // bytes of sent pages that are not zero
		Normal        int64   `json:"normal"`       // pages that were sent
		Zero          int64   `json:"duplicate"`    // and pages that were sent as zeros
		Rounds        int     `json:"dirty-sync-count"`
		DirtyPages    int64   `json:"dirty-pages-rate"` // a second
		PageSize      int64   `json:"page-size"`
		Megabits      float64 `json:"mbps"`
	} `json:"ram"`
	Sockets []struct {
		Type string `json:"type"`
		Host string `json:"host"`
		Port string `json:"port"`
	} `json:"socket-address"`
}

func queryMigrate(ctx context.Context, q *qmp.Client) (migration, error) {
	var m migration
	err := q.Do(ctx, "query-migrate", nil, &m)
	return m, err
}

// underWay reports whether QEMU is sending the guest.
func (m migration) underWay() bool {
	switch m.Status {
	case stateSetup, stateUnplug, stateActive, stateGate, stateDevice, stateCancelling:
		return true
	}
	return false
}

// refusedThere is QEMU's only message if the target reported an error. If the target has closed the
// connection before that was read, the message is one of the system's: closedThere.
const refusedThere = "Sibling indicated error"

var closedThere = []string{unix.EPIPE.Error(), unix.ECONNRESET.Error()}

func (m migration) cause() error {
	closed := slices.ContainsFunc(closedThere, func(said string) bool { return strings.Contains(strings.ToLower(m.Desc), said) })
	if closed || strings.HasPrefix(m.Desc, refusedThere) {
		return fmt.Errorf("the target's QEMU has ended, or refuses the guest's state (%s); if that is by post-copy, the guest's memory may be in pages of another size there, which --mode pre-copy does not mind", m.Desc)
	}
	if m.Desc != "" {
		return errors.New(m.Desc)
	}
	if m.Status == "" {
		return errors.New("qemu knows of no migration")
	}
	return errors.New("the migration is " + m.Status)
}

// bytesPerMegabit converts QEMU's megabits a second to bytes a second.
const bytesPerMegabit = 1e6 / 8

func (m migration) progress() fleet.Progress {
	p := fleet.Progress{
		Rounds: m.RAM.Rounds, TotalBytes: m.RAM.Total, RemainingBytes: m.RAM.Remaining, SentBytes: m.RAM.Sent,
		CopiedBytes: m.RAM.Copied, SlowedPercent: m.Throttle,
		BytesPerSecond:      m.RAM.Megabits * bytesPerMegabit,
		DirtyBytesPerSecond: float64(m.RAM.DirtyPages * m.RAM.PageSize),
		Elapsed:             time.Duration(m.TotalTime) * time.Millisecond, PostCopyBytes: m.RAM.PostCopyBytes, Faults: m.RAM.Faults,
	}
	if math.IsNaN(p.BytesPerSecond) || math.IsInf(p.BytesPerSecond, 0) || p.BytesPerSecond < 0 {
		p.BytesPerSecond = 0
	}
	if m.Status == stateCompleted {
		p.Downtime = time.Duration(m.Downtime) * time.Millisecond
	}
	return p
}

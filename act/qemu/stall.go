package qemu

import (
	"cmp"
	"errors"
	"fmt"
	"time"

	"pagurus/fleet"
)

// Limit is how long a copy may make no progress, SuspendedLimit the same while the guest
// is suspended.
const (
	Limit          = 30 * time.Second
	SuspendedLimit = 10 * time.Second
)

// stallGuard notices a copy without progress, for example over a cut cable.
type stallGuard struct {
	Limit time.Duration // 0: that of a running guest
	sent  int64
	since time.Time
}

// Check records a copy's progress. It returns an error if nothing was sent for longer
// than the limit.
func (s *stallGuard) Check(p fleet.Progress, now time.Time) error {
	if p.SentBytes != s.sent || s.since.IsZero() {
		s.sent, s.since = p.SentBytes, now
	} else if limit := cmp.Or(s.Limit, Limit); now.Sub(s.since) > limit {
		return fmt.Errorf("nothing could be sent for %s", limit)
	}
	return nil
}

// errDeadLine: a switch makes no progress.
var errDeadLine = errors.New("the line is dead")

// pulseWatch notices a switch without progress: nothing is sent, or QEMU does not answer.
type pulseWatch struct {
	patience time.Duration
	stall    stallGuard
	answered time.Time
}

// newPulseWatch begins a watch now.
func newPulseWatch(l fleet.Limits) *pulseWatch {
	return &pulseWatch{patience: patience(l), stall: stallGuard{Limit: SuspendedLimit}, answered: time.Now()}
}

// patience is how long QEMU may not answer while it sends the rest of a suspended guest.
// In pre-copy it is the time in which the rest may be sent.
func patience(l fleet.Limits) time.Duration {
	if l.Mode == fleet.StopAndCopy || l.Mode == fleet.PostCopy {
		return SuspendedLimit // no memory is left, or it comes later
	}
	return max(SuspendedLimit, 2*l.Downtime)
}

// Heard records QEMU's progress.
func (w *pulseWatch) Heard(p fleet.Progress, now time.Time) error {
	w.answered = now
	if err := w.stall.Check(p, now); err != nil {
		return fmt.Errorf("%w: %w", errDeadLine, err)
	}
	return nil
}

// Silent records that QEMU did not answer, and why; nil: it may be busy sending.
func (w *pulseWatch) Silent(cause error, now time.Time) error {
	if now.Sub(w.answered) < w.patience {
		return nil
	}
	return fmt.Errorf("%w: QEMU does not answer: %w", errDeadLine, cause)
}

package qemu

import (
	"cmp"
	"errors"
	"fmt"
	"time"

	"pagurus/fleet"
)

// Limit is how long a copy may go nowhere, and Standing how long while the guest
// is suspended for it.
const (
	Limit          = 30 * time.Second
	SuspendedLimit = 10 * time.Second
)

// stallGuard notices a copy that goes nowhere, as over a cut line.
type stallGuard struct {
	Limit time.Duration // 0: that of a guest that runs
	sent  int64
	since time.Time
}

// Check takes how far a copy is now. It is an error that nothing has been sent for
// longer than the limit.
func (s *stallGuard) Check(p fleet.Progress, now time.Time) error {
	if p.SentBytes != s.sent || s.since.IsZero() {
		s.sent, s.since = p.SentBytes, now
	} else if limit := cmp.Or(s.Limit, Limit); now.Sub(s.since) > limit {
		return fmt.Errorf("nothing could be sent for %s", limit)
	}
	return nil
}

// errDeadLine is that a switch goes nowhere.
var errDeadLine = errors.New("the line is dead")

// pulseWatch notices a switch that goes nowhere: nothing goes over the line, or QEMU answers
// nobody.
type pulseWatch struct {
	patience time.Duration
	stall    stallGuard
	answered time.Time
}

// newPulseWatch begins to watch one, from now on.
func newPulseWatch(l fleet.Limits) *pulseWatch {
	return &pulseWatch{patience: patience(l), stall: stallGuard{Limit: SuspendedLimit}, answered: time.Now()}
}

// patience is how long QEMU may answer nobody while it sends the last of a guest that
// is suspended. By pre-copy that is as much as is sent in the time that is allowed.
func patience(l fleet.Limits) time.Duration {
	if l.Mode == fleet.StopAndCopy || l.Mode == fleet.PostCopy {
		return SuspendedLimit // of all memory nothing is left, or all of it comes later
	}
	return max(SuspendedLimit, 2*l.Downtime)
}

// Heard takes how far QEMU says that it is.
func (w *pulseWatch) Heard(p fleet.Progress, now time.Time) error {
	w.answered = now
	if err := w.stall.Check(p, now); err != nil {
		return fmt.Errorf("%w: %w", errDeadLine, err)
	}
	return nil
}

// Silent takes that QEMU has not answered, and why; nil: it may be busy with sending.
func (w *pulseWatch) Silent(cause error, now time.Time) error {
	if now.Sub(w.answered) < w.patience {
		return nil
	}
	return fmt.Errorf("%w: QEMU does not answer: %w", errDeadLine, cause)
}

package pace

import (
	"cmp"
	"errors"
	"fmt"
	"time"

	"pagurus/fleet"
)

// Limit is how long a copy may go nowhere, and Standing how long while the guest
// stands still for it.
const (
	Limit    = 30 * time.Second
	Standing = 10 * time.Second
)

// Stall notices a copy that goes nowhere, as over a cut line.
type Stall struct {
	Limit time.Duration // 0: that of a guest that runs
	sent  int64
	since time.Time
}

// Check takes how far a copy is now. It is an error that nothing has been sent for
// longer than the limit.
func (s *Stall) Check(p fleet.Progress, now time.Time) error {
	if p.SentBytes != s.sent || s.since.IsZero() {
		s.sent, s.since = p.SentBytes, now
	} else if limit := cmp.Or(s.Limit, Limit); now.Sub(s.since) > limit {
		return fmt.Errorf("nothing could be sent for %s", limit)
	}
	return nil
}

// ErrDead is that a switch goes nowhere.
var ErrDead = errors.New("the line is dead")

// Watch notices a switch that goes nowhere: nothing goes over the line, or QEMU answers
// nobody.
type Watch struct {
	patience time.Duration
	stall    Stall
	answered time.Time
}

// NewWatch begins to watch one, from now on.
func NewWatch(l fleet.Limits) *Watch {
	return &Watch{patience: patience(l), stall: Stall{Limit: Standing}, answered: time.Now()}
}

// patience is how long QEMU may answer nobody while it sends the last of a guest that
// stands still. By pre-copy that is as much as is sent in the time that is allowed.
func patience(l fleet.Limits) time.Duration {
	if l.Mode == fleet.StopAndCopy || l.Mode == fleet.PostCopy {
		return Standing // of all memory nothing is left, or all of it comes later
	}
	return max(Standing, 2*l.Downtime)
}

// Heard takes how far QEMU says that it is.
func (w *Watch) Heard(p fleet.Progress, now time.Time) error {
	w.answered = now
	if err := w.stall.Check(p, now); err != nil {
		return fmt.Errorf("%w: %w", ErrDead, err)
	}
	return nil
}

// Silent takes that QEMU has not answered, and why; nil: it may be busy with sending.
func (w *Watch) Silent(cause error, now time.Time) error {
	if now.Sub(w.answered) < w.patience {
		return nil
	}
	return fmt.Errorf("%w: QEMU answers nobody: %w", ErrDead, cause)
}

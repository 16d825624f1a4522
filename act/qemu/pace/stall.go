package pace

import (
	"cmp"
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

// Patience is how long QEMU may answer nobody while it sends the last of a guest that
// stands still. By pre-copy that is as much as is sent in the time that is allowed.
func Patience(l fleet.Limits) time.Duration {
	if l.Mode == fleet.StopAndCopy || l.Mode == fleet.PostCopy {
		return Standing // of all memory nothing is left, or all of it comes later
	}
	return max(Standing, 2*l.Downtime)
}

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

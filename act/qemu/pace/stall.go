package pace

import (
	"fmt"
	"time"

	"pagurus/fleet"
)

// Limit is how long a copy may go nowhere.
const Limit = 30 * time.Second

// Stall notices a copy that goes nowhere, as over a cut line.
type Stall struct {
	sent  int64
	since time.Time
}

// Check takes how far a copy is now. It is an error that nothing has been sent for
// longer than Limit.
func (s *Stall) Check(p fleet.Progress, now time.Time) error {
	if p.SentBytes != s.sent || s.since.IsZero() {
		s.sent, s.since = p.SentBytes, now
	} else if now.Sub(s.since) > Limit {
		return fmt.Errorf("nothing could be sent for %s", Limit)
	}
	return nil
}

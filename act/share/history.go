package share

import (
	"fmt"
	"sync"
	"time"

	"pagurus/fleet"
)

const (
	// shortestPause and longestPause are between two starts of a server that
	// keeps dying; the pause doubles.
	shortestPause = time.Second
	longestPause  = 30 * time.Second
	// recent is how long a death counts for the pause and is reported.
	recent = 10 * time.Minute
)

// history is how a server has fared lately. It has a lock of its own, which
// nobody holds while waiting for anything: it can be asked while the server is
// being started or ended.
type history struct {
	mu       sync.Mutex
	deaths   []time.Time // recent ones
	starting bool        // since the last death
	failure  error       // of the last start; nil: it runs, as far as known
}

// pause is how long to wait before a server that has died is started again: at
// once after the first death, later for longer and longer.
func (h *history) pause(now time.Time) time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.trimLocked(now)
	if len(h.deaths) == 0 {
		return 0
	}
	length := shortestPause << min(len(h.deaths)-1, 10)
	length = min(length, longestPause)
	return max(0, h.deaths[len(h.deaths)-1].Add(length).Sub(now))
}

// died records a death; a new start is tried.
func (h *history) died(now time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.deaths = append(h.deaths, now)
	h.starting = true
}

// tried records what came of the last start.
func (h *history) tried(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.failure, h.starting = err, false
}

func (h *history) trimLocked(now time.Time) {
	for len(h.deaths) > 0 && now.Sub(h.deaths[0]) > recent {
		h.deaths = h.deaths[1:]
	}
}

// trouble says it in a person's words; empty: there was none.
func (h *history) trouble(job fleet.JobID, now time.Time) string {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.trimLocked(now)
	switch {
	case len(h.deaths) == 0:
		return ""
	case h.failure != nil:
		return fmt.Sprintf("the file server of job %s died and cannot be started again: %v", job, h.failure)
	case h.starting:
		return fmt.Sprintf("the file server of job %s died and is being started again", job)
	case len(h.deaths) == 1:
		return fmt.Sprintf("the file server of job %s died and was started again", job)
	default:
		return fmt.Sprintf("the file server of job %s died %d times in the last %d minutes and was started again",
			job, len(h.deaths), int(recent.Minutes()))
	}
}

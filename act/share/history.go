package share

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"pagurus/fleet"
)

const (
	// shortestPause and longestPause limit the pause between starts of a server that
	// keeps dying; it doubles.
	shortestPause = time.Second
	longestPause  = 30 * time.Second
	// recent is how long a death counts for the pause and is reported.
	recent = 10 * time.Minute
)

// history is a server's recent failures. Its lock is never held during a wait, so that it
// can be read while the server is starting or ending.
type history struct {
	mu       sync.Mutex
	deaths   []time.Time // recent ones
	starting bool        // since the last death
	failure  error       // of the last start; nil: it is believed to run
	refused  int         // successive lasting errors of Apply
	refusal  error       // the last of them
}

// enoughTries is the number of starts before a server's error counts for waiting guests.
// A server killed during its start may succeed next time.
const enoughTries = 2

// applied records the result of applying the wanted server.
func (h *history) applied(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch why := (lasting{}); {
	case err == nil:
		h.refused, h.refusal = 0, nil
	case errors.As(err, &why):
		h.refused++
		h.refusal = why
	}
}

// verdict is why there will be no server; nil: there is, or will be.
func (h *history) verdict() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.refused < enoughTries {
		return nil
	}
	return h.refusal
}

// pause is how long to wait before a dead server is restarted: not at all after the first
// death, then longer and longer.
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

// died records a death, followed by a restart.
func (h *history) died(now time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.deaths = append(h.deaths, now)
	h.starting = true
}

// tried records the result of the last start.
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

// trouble describes recent failures for people; empty: none.
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

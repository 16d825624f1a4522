package main

import (
	"context"
	"errors"
	"time"

	"golang.org/x/sys/unix"

	"pagurus/fleet"
)

// scratch is the memory of a process that it does not need at its cheap moments.
type scratch struct {
	bytes int64
	gave  string // the last wait for which it gave all of it back
	rests bool   // it gave it back at a cheap moment of which it has not said that it is over
}

// awaited is what waits for a mark, until it was not told again for fleet.AwaitedKept. Both clocks are those of disturbed.
type awaited struct {
	what fleet.Awaited
	told disturbed
}

// Await notes what waits for a mark.
func (m *member) Await(_ context.Context, a fleet.Awaited) error {
	m.steering.await(a)
	return nil
}

func (s *steering) await(a fleet.Awaited) {
	s.mu.Lock()
	defer s.mu.Unlock()
	news := a.For != s.awaited.what.For
	s.awaited = awaited{a, disturbed{time.Now().Round(0), s.uptime(), fleet.AwaitedKept}}
	if news && len(s.scratch) > 0 { // who asks wants to know that this guest knows
		s.changedLocked()
	}
}

// awaitedLocked is the wait for which a mark is awaited now; empty: nothing waits.
func (s *steering) awaitedLocked(now time.Time, up time.Duration) string {
	if s.awaited.told.left(now, up) <= 0 {
		return ""
	}
	return s.awaited.what.For
}

// markLocked notes a cheap moment, and what scratch memory a process has. If a move waits, the moment counts once the process has
// given that back, which it is told to do.
func (s *steering) markLocked(pid int32, c steerCall, now time.Time) (a fleet.WishAnswer) {
	waits := s.awaitedLocked(now, s.uptime())
	of := s.scratch[pid]
	of.rests = of.rests && !c.cheap && c.bytes == nil // it may have written it again, or named more
	switch {
	case c.gave:
		of.gave, of.rests = waits, s.markers[pid].ends
	case c.bytes != nil:
		of.bytes = *c.bytes
	default:
		of.bytes = 0
	}
	if _, known := s.scratch[pid]; of.bytes == 0 {
		delete(s.scratch, pid)
	} else if known || len(s.scratch) < mostOwners {
		s.scratch[pid] = of
	}
	if c.cheap && waits != "" && of.bytes > 0 {
		a.Rows = []string{"give 1"}
		return a
	}
	if c.cheap || c.gave {
		delete(s.notNow, pid)
		s.noteMarkerLocked(pid, marker{cheap: true, ends: s.markers[pid].ends})
		s.marks.Cheaps++
		s.cheapAt = now
	}
	s.changedLocked()
	return a
}

// countScratchLocked adds to marks what scratch memory there is.
func (s *steering) countScratchLocked(m *fleet.Marks, now time.Time, up time.Duration) {
	m.For = s.awaitedLocked(now, up)
	for pid, of := range s.scratch {
		if errors.Is(unix.Kill(int(pid), 0), unix.ESRCH) { // it has ended
			delete(s.scratch, pid)
			continue
		}
		m.Scratch += of.bytes
		if m.For == "" || of.gave != m.For && !of.rests {
			m.Held += of.bytes
		}
	}
}

package container

import "time"

// stages are what a switch consists of, and how long each took: for the log, in
// which people look for what a guest stood still for.
type stages struct {
	last time.Time
	all  []any // as slog takes them
}

// begin begins to count.
func (s *stages) begin() { s.last, s.all = time.Now(), nil }

// done ends a stage.
func (s *stages) done(name string) {
	now := time.Now()
	s.all = append(s.all, name, now.Sub(s.last).Round(100*time.Microsecond))
	s.last = now
}

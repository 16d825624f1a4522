// Package health decides when what a host counts is a sign that the host may fail, and when a host is emptied for it.
//
// It must not know where counters come from, or what a guest is. Its tests go through the table.
package health

import (
	"slices"
	"strings"
	"time"

	"pagurus/fleet"
)

// limit is from when on events of a kind are a sign.
type limit struct {
	kind  fleet.SignKind
	count uint64        // so many
	in    time.Duration // within so long
	grave bool          // guests should leave
}

// limits are those of all kinds. An error that was not corrected comes before the next one: in a study of Google's machines
// (Schroeder, Pinheiro and Weber, "DRAM errors in the wild", 2009) corrected errors made uncorrected ones 9 to 400 times as
// likely within the month. A disk with its first errors is likelier to fail by one to two orders of magnitude (Pinheiro, Weber and Barroso,
// "Failure trends in a large disk drive population", 2007). Links and heat slow a host, and seldom end it.
var limits = []limit{
	{fleet.MemoryFaults, 1, 24 * time.Hour, true},
	{fleet.MachineChecks, 1, 24 * time.Hour, true},
	{fleet.MemoryErrors, 100, time.Hour, true},
	{fleet.FileSystemErrors, 1, 24 * time.Hour, true},
	{fleet.DiskErrors, 10, time.Hour, true},
	{fleet.SwapStorm, 50_000, time.Minute, true}, // pages that were read from swap
	{fleet.LinkErrors, 1000, 10 * time.Minute, false},
	{fleet.LinkFlaps, 6, 10 * time.Minute, false},
	{fleet.Throttling, 1000, 10 * time.Minute, false},
}

func limitOf(k fleet.SignKind) (limit, bool) {
	i := slices.IndexFunc(limits, func(l limit) bool { return l.kind == k })
	if i < 0 {
		return limit{}, false
	}
	return limits[i], true
}

// Limit says from how many events within how long a kind is a sign; 0: there is no limit.
func Limit(k fleet.SignKind) (count uint64, in time.Duration) {
	l, _ := limitOf(k)
	return l.count, l.in
}

// mostRises bounds what is kept of one counter. Rises that came one after the other are one then.
const mostRises = 120

// Watch is what was seen of a host's counters. It can be kept as JSON, for the next agent. The zero Watch has seen nothing.
type Watch struct {
	Counters []Seen `json:"counters,omitempty"`
	Check    *Check `json:"check,omitempty"` // the last one; nil: none
}

// Seen is what is known of one counter.
type Seen struct {
	fleet.Counter
	Rises []Rise `json:"rises,omitempty"` // within the limit's time, oldest first
}

// Rise is by how much a counter rose.
type Rise struct {
	At time.Time `json:"at"`
	By uint64    `json:"by"`
}

// Check is what an administrator's own program said.
type Check struct {
	Failed bool      `json:"failed"`
	Says   string    `json:"says,omitempty"`
	Since  time.Time `json:"since"` // when it first said so
	At     time.Time `json:"at"`
}

// TakeCounters takes the counters as they are now. A counter that is seen for the first time has not risen, and one that is lower than
// before begins again. Those of devices that are gone are forgotten when nothing of them counts any more.
func (w *Watch) TakeCounters(now []fleet.Counter, at time.Time) {
	for _, c := range now {
		i := slices.IndexFunc(w.Counters, func(s Seen) bool { return s.Kind == c.Kind && s.Where == c.Where })
		if i < 0 {
			w.Counters = append(w.Counters, Seen{Counter: c})
			continue
		}
		s := &w.Counters[i]
		if c.Total > s.Total {
			s.rise(c.Total-s.Total, at)
		}
		s.Total = c.Total
	}
	w.Counters = slices.DeleteFunc(w.Counters, func(s Seen) bool {
		there := slices.ContainsFunc(now, func(c fleet.Counter) bool { return c.Kind == s.Kind && c.Where == s.Where })
		return !there && len(s.within(at)) == 0
	})
}

// Clone is a copy that does not change.
func (w Watch) Clone() Watch {
	w.Counters = slices.Clone(w.Counters) // TakeCounters replaces Rises as a whole
	if w.Check != nil {
		c := *w.Check
		w.Check = &c
	}
	return w
}

func (s *Seen) rise(by uint64, at time.Time) {
	s.Rises = append(slices.Clone(s.within(at)), Rise{at, by})
	if len(s.Rises) > mostRises { // the two oldest become one, of the later time
		s.Rises[1].By += s.Rises[0].By
		s.Rises = s.Rises[1:]
	}
}

// within are the rises that count at a time. One that lies ahead is from before the clock was set back, and counts.
func (s *Seen) within(at time.Time) []Rise {
	_, in := Limit(s.Kind)
	i := slices.IndexFunc(s.Rises, func(r Rise) bool { return at.Sub(r.At) < in })
	if i < 0 {
		return nil
	}
	return s.Rises[i:]
}

// Checked takes what the administrator's program said.
func (w *Watch) Checked(failed bool, says string, at time.Time) {
	c := Check{Failed: failed, Says: lastLine(says), Since: at, At: at}
	if w.Check != nil && w.Check.Failed == failed {
		c.Since = w.Check.Since
	}
	w.Check = &c
}

// mostSaid bounds what is shown of a check, in bytes.
const mostSaid = 300

func lastLine(s string) string {
	lines := strings.Split(strings.TrimSpace(strings.ToValidUTF8(s, "?")), "\n")
	last := strings.TrimSpace(lines[len(lines)-1])
	if len(last) > mostSaid {
		last = strings.ToValidUTF8(last[:mostSaid], "") + "…"
	}
	return last
}

// Signs are what is to be shown at a time, grave ones first.
func (w Watch) Signs(at time.Time) (out []fleet.Sign) {
	if c := w.Check; c != nil && c.Failed {
		out = append(out, fleet.Sign{Kind: fleet.CheckFailed, Since: c.Since, Last: c.At, Says: c.Says, Grave: true})
	}
	for _, s := range w.Counters {
		l, known := limitOf(s.Kind)
		sum, rises := uint64(0), s.within(at)
		for _, r := range rises {
			sum += r.By
		}
		if known && sum >= l.count {
			out = append(out, fleet.Sign{Kind: s.Kind, Where: s.Where, Count: sum, Since: rises[0].At, Last: rises[len(rises)-1].At, Grave: l.grave})
		}
	}
	slices.SortStableFunc(out, func(a, b fleet.Sign) int {
		switch {
		case a.Grave == b.Grave:
			return strings.Compare(string(a.Kind)+a.Where, string(b.Kind)+b.Where)
		case a.Grave:
			return -1
		}
		return 1
	})
	return out
}

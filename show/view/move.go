package view

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"pagurus/fleet"
)

// Skew says how closely the guests of a gang switched. Hosts' clocks may
// differ, so of what two hosts said only that is compared which one clock
// measured; what the controller's clock measured is always there.
type Skew struct {
	Switch   time.Duration  `json:"switch_ns"`             // from the order to switch, before any guest stood still, until the last was heard to run; controller's clock
	Suspends *time.Duration `json:"suspends_ns,omitempty"` // between the first and the last pause; nil: their hosts have different clocks
	Resumes  *time.Duration `json:"resumes_ns,omitempty"`  // between the first and the last guest that ran again; likewise
	Blackout *time.Duration `json:"blackout_ns,omitempty"` // from the first pause to the last resume; likewise
}

// clocks tells whose clock a host has: hosts of one machine share it.
func clocks(s fleet.Snapshot) func(fleet.HostID) string {
	return func(id fleet.HostID) string {
		if m := s.Hosts[id].Facts.Machine; m != "" {
			return "machine " + m
		}
		return "host " + string(id)
	}
}

// blackout is how long the guest did not run, if one clock measured both ends.
func blackout(p Part, clock func(fleet.HostID) string) *time.Duration {
	if p.Cost.SuspendedAt.IsZero() || p.Resumed.IsZero() || clock(p.From) != clock(p.To) {
		return nil
	}
	d := p.Resumed.Sub(p.Cost.SuspendedAt)
	return &d
}

// Resuming is the second part of the time a guest was suspended: from when the
// source had handed it over, after Progress.Downtime, until it ran at the target.
// In it the controller hears of the one, keeps it and orders the other.
type Resuming struct {
	Took  time.Duration `json:"took_ns"`
	About bool          `json:"about,omitempty"` // no one clock saw both ends
}

// resuming gives the second part of a guest's stillness; nil: not known.
func resuming(p Part) *Resuming {
	if p.Progress.Downtime <= 0 || p.Cost.SuspendedAt.IsZero() {
		return nil
	}
	if p.Blackout != nil {
		return &Resuming{Took: max(0, *p.Blackout-p.Progress.Downtime)}
	}
	if p.Resumed.IsZero() {
		return nil
	}
	return &Resuming{Took: p.BlackoutTime() - p.Cost.Downtime, About: true}
}

// blackoutText splits the time the guest was suspended into its parts; empty: it did
// not, or nobody knows.
func (p Part) blackoutText() string {
	switch r := p.Resuming; {
	case r == nil:
		return ""
	case r.About:
		return fmt.Sprintf("blackout: %s until %s had handed it over, then about %s until it ran on %s", Took(p.Progress.Downtime), p.From, Took(r.Took), p.To)
	default:
		return fmt.Sprintf("blackout of %s: %s until %s had handed it over, %s until it ran on %s", Took(*p.Blackout), Took(p.Progress.Downtime), p.From, Took(r.Took), p.To)
	}
}

// skew gives how closely those switched that did; nil for fewer than two.
func skew(parts []Part, clock func(fleet.HostID) string) *Skew {
	var out Skew
	var paused, resumed span
	n := 0
	for _, p := range parts {
		begun, ended := p.entered(fleet.Switching), p.left(fleet.Activating)
		if begun.IsZero() || ended.IsZero() {
			continue
		}
		n++
		out.Switch = max(out.Switch, ended.Sub(begun)) // all begin in one change
		paused.add(p.Cost.SuspendedAt, clock(p.From))
		resumed.add(p.Resumed, clock(p.To))
	}
	if n < 2 {
		return nil
	}
	out.Suspends, out.Resumes = paused.length(), resumed.length()
	if out.Suspends != nil && out.Resumes != nil && paused.clock == resumed.clock {
		d := resumed.last.Sub(paused.first)
		out.Blackout = &d
	}
	return &out
}

// span is from the first to the last of some moments of one clock.
type span struct {
	first, last time.Time
	clock       string
	mixed       bool // of several clocks, or one is not known
}

func (s *span) add(t time.Time, clock string) {
	switch {
	case t.IsZero(), s.clock != "" && s.clock != clock:
		s.mixed = true
	case s.clock == "":
		s.first, s.last, s.clock = t, t, clock
	case t.Before(s.first):
		s.first = t
	case t.After(s.last):
		s.last = t
	}
}

func (s *span) length() *time.Duration {
	if s.mixed || s.clock == "" {
		return nil
	}
	d := s.last.Sub(s.first)
	return &d
}

// entered gives when a phase was first entered; zero: it was not.
func (p Part) entered(phase fleet.Phase) time.Time {
	for _, e := range p.Entered {
		if e.Phase == phase {
			return e.At
		}
	}
	return time.Time{}
}

// left gives when a phase was left; zero: it was not, or the guest was lost in it.
func (p Part) left(phase fleet.Phase) time.Time {
	for i, e := range p.Entered {
		if e.Phase == phase && i+1 < len(p.Entered) && p.Entered[i+1].Phase != fleet.Lost {
			return p.Entered[i+1].At
		}
	}
	return time.Time{}
}

// Together says how closely a gang switched, in a sentence; empty when there is
// nothing to say.
func (m Move) Together() string {
	if m.Skew == nil {
		return ""
	}
	line := fmt.Sprintf("%s: switched together: %s from the order until the last guest was heard to run", m.ID, Took(m.Skew.Switch))
	if p := m.Skew.Suspends; p != nil {
		line += fmt.Sprintf("; suspended within %s of each other", Took(*p))
	}
	if r := m.Skew.Resumes; r != nil {
		line += fmt.Sprintf("; running again within %s of each other", Took(*r))
	}
	if s := m.Skew.Blackout; s != nil {
		line += fmt.Sprintf("; %s from the first suspend to the last resume", Took(*s))
	}
	return line
}

// Show tells all that is known of a move: what was asked, what each guest cost
// beside what was predicted and what ranks saw of it, how long each was in which
// phase, and how closely they switched.
func (m Move) Show(now time.Time) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %s, because: %s\n", m.ID, Count(len(m.Parts), "guest"), orElse(Clean(m.Why), "nobody said why"))
	fmt.Fprintf(&b, "begun %s, %s\n", clockTime(m.Begun), m.ending(now))
	if l := limits(m.Limits); l != "" {
		fmt.Fprintf(&b, "limits: %s\n", l)
	}
	if m.Choice != "" && len(m.Parts) > 0 {
		fmt.Fprintf(&b, "mode: %s, because: %s\n", m.Parts[0].Mode, Clean(m.Choice))
	}
	b.WriteString("\n" + m.costs(now).Text())
	for _, p := range m.Parts {
		for _, said := range []string{p.prediction(), p.savingsText(), p.blackoutText(), p.postCopyText(now), p.StallLine()} {
			if said != "" {
				fmt.Fprintf(&b, "%s: %s\n", p.Guest, said)
			}
		}
	}
	b.WriteString("\n" + m.phases(now).Text())
	if together := m.Together(); together != "" {
		b.WriteString("\n" + together + "\n")
	}
	return b.String()
}

func (m Move) ending(now time.Time) string {
	if m.Ended.IsZero() {
		return "under way for " + Took(max(now.Sub(m.Begun), 0))
	}
	return fmt.Sprintf("ended %s, %s in all", clockTime(m.Ended), Took(m.Ended.Sub(m.Begun)))
}

// limits says what bounds a move; empty: nothing but what bounds all.
func limits(l fleet.Limits) string {
	var words []string
	for _, f := range fleet.LimitFlags {
		switch v := f.Field(&l).(type) {
		case *string:
			if said := f.SaysOf[*v]; said != "" {
				words = append(words, said)
			}
		case *int64:
			if *v > 0 {
				words = append(words, fmt.Sprintf(f.Says, Rate(float64(*v))))
			}
		case *time.Duration:
			if *v > 0 {
				words = append(words, fmt.Sprintf(f.Says, Took(*v)))
			}
		}
	}
	return strings.Join(words, ", ")
}

// savingsText says how less was sent than the guest's memory; empty: it was not.
func (p Part) savingsText() string {
	var words []string
	if n := p.Progress.DroppedBytes; n > 0 {
		words = append(words, Bytes(n)+" of page cache dropped before the copy")
	}
	if n := p.Progress.CopiedBytes; p.Packed && n > 0 {
		words = append(words, fmt.Sprintf("%s of memory sent compressed to %s", Bytes(n), Bytes(p.Progress.SentBytes)))
	} else if p.Packed {
		words = append(words, "sent compressed")
	}
	if n := p.Progress.SlowedPercent; n > 0 {
		words = append(words, fmt.Sprintf("slowed by up to %d %%, since it changed memory as fast as that was sent", n))
	}
	return strings.Join(words, ", ")
}

// costs has a row for each guest: how far it is or what it cost.
func (m Move) costs(now time.Time) Table {
	t := Table{Columns: []string{"GUEST", "FROM", "TO", "PHASE", "TOTAL", "ROUNDS", "SENT", "RATE", "DIRTIED", "DOWNTIME", "BLACKOUT", "STALL"},
		Empty: "its guests are no longer known"}
	for _, p := range m.Parts {
		pr := p.Progress
		row := []string{cell(string(p.Guest)), cell(string(p.From)), cell(string(p.To)), cell(string(p.Phase)), Took(p.TotalTime(now)),
			"-", "-", "-", "-", p.downtime(), "-", p.stall()}
		if pr.TotalBytes > 0 {
			row[5], row[6] = fmt.Sprint(pr.Rounds), Bytes(pr.SentBytes)
		}
		if pr.BytesPerSecond > 0 {
			row[7] = Rate(pr.BytesPerSecond)
		}
		if pr.DirtyBytesPerSecond > 0 {
			row[8] = Rate(pr.DirtyBytesPerSecond)
		}
		if p.Blackout != nil {
			row[10] = Took(*p.Blackout)
		}
		t.Rows = append(t.Rows, row)
		if p.Cause != "" {
			t.Notes = append(t.Notes, fmt.Sprintf("%s: %s", p.Guest, p.Cause))
		}
	}
	return t
}

// prediction says what a migration was expected to cost; empty: nobody said.
func (p Part) prediction() string {
	if p.Predicted == nil {
		return ""
	}
	if !p.Predicted.Converges {
		return "predicted not to converge: " + orElse(Clean(p.Predicted.Why), "nobody said why")
	}
	return fmt.Sprintf("predicted %s in all, downtime %s, %s sent",
		between(p.Predicted.Total, Took), between(p.Predicted.Downtime, Took), between(p.Predicted.Bytes, Bytes))
}

// postCopyText says what came after the guest ran at its target; empty: nothing does.
func (p Part) postCopyText(now time.Time) string {
	begun := p.entered(fleet.PostCopying)
	if begun.IsZero() {
		return ""
	}
	so := fmt.Sprintf("post-copy: %s came after it ran on %s", Bytes(p.Progress.PostCopyBytes), p.To)
	if p.Progress.Faults > 0 { // of a container nobody counts them
		so += fmt.Sprintf(", of which it waited for %s", Count(int(p.Progress.Faults), "page"))
	}
	switch ended := p.left(fleet.PostCopying); {
	case !ended.IsZero():
		return fmt.Sprintf("%s; all was there %s later", so, Took(ended.Sub(begun)))
	case p.Phase.Ended():
		return so + "; the rest never came"
	}
	return fmt.Sprintf("%s; %s are still to come, for %s now", so, Bytes(p.Progress.RemainingBytes), Took(max(now.Sub(begun), 0)))
}

// phases has a row for each guest and a column for each phase that any of them
// was in: for how long.
func (m Move) phases(now time.Time) Table {
	t := Table{Columns: []string{"GUEST"}}
	var order []fleet.Phase
	for _, t := range fleet.Phases {
		if slices.ContainsFunc(m.Parts, func(p Part) bool { return !p.entered(t.Phase).IsZero() }) {
			order = append(order, t.Phase)
		}
	}
	for _, phase := range order {
		t.Columns = append(t.Columns, strings.ToUpper(string(phase)))
	}
	for _, p := range m.Parts {
		row := []string{cell(string(p.Guest))}
		for _, phase := range order {
			row = append(row, p.during(phase, now))
		}
		t.Rows = append(t.Rows, row)
	}
	return t
}

// during says how long a migration was in a phase, or when it came to its end.
func (p Part) during(phase fleet.Phase, now time.Time) string {
	for i, e := range p.Entered {
		switch {
		case e.Phase != phase:
		case phase.Ended():
			return clockTime(e.At)
		case i+1 < len(p.Entered):
			return Took(p.Entered[i+1].At.Sub(e.At))
		default:
			return Took(max(now.Sub(e.At), 0)) + "…"
		}
	}
	return "-"
}

func clockTime(t time.Time) string { return t.Local().Format("15:04:05.000") }

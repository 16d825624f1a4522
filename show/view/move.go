package view

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"pagurus/fleet"
)

// Skew says how closely a gang's guests switched. Hosts' clocks may differ, so times of two
// hosts are compared only if one clock measured both. The controller's own measure is always
// there.
type Skew struct {
	Switch   time.Duration  `json:"switch_ns"`             // from the switch orders, before any guest is suspended, until the last guest is reported running; controller's clock
	Suspends *time.Duration `json:"suspends_ns,omitempty"` // between the first and the last suspension; nil: the hosts' clocks differ
	Resumes  *time.Duration `json:"resumes_ns,omitempty"`  // between the first and the last resume; likewise
	Blackout *time.Duration `json:"blackout_ns,omitempty"` // from the first suspension to the last resume; likewise
}

// clocks gives the clock of a host: hosts of one machine share it.
func clocks(s fleet.Snapshot) func(fleet.HostID) string {
	return func(id fleet.HostID) string {
		if m := s.Hosts[id].Facts.Machine; m != "" {
			return "machine " + m
		}
		return "host " + string(id)
	}
}

// blackout is the time the guest did not run, if one clock measured both ends.
func blackout(p Part, clock func(fleet.HostID) string) *time.Duration {
	if p.Cost.SuspendedAt.IsZero() || p.Resumed.IsZero() || clock(p.From) != clock(p.To) {
		return nil
	}
	d := p.Resumed.Sub(p.Cost.SuspendedAt)
	return &d
}

// Resuming is the second part of a guest's blackout: from the source's end of
// Progress.Downtime until the guest ran at the target. In it the controller gets the report,
// commits it and sends the next order.
type Resuming struct {
	Took  time.Duration `json:"took_ns"`
	About bool          `json:"about,omitempty"` // no single clock measured both ends
}

// resuming gives the second part of a guest's blackout; nil: unknown.
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

// blackoutText splits the blackout into its parts; empty if there was none, or it is
// unknown.
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

// markText says what mark of its program a guest waited for; empty: none.
func (p Part) markText() string {
	switch {
	case p.Marked != "" && p.SwitchMarked != "":
		return "its copy began " + Clean(p.Marked) + "; its switch began " + Clean(p.SwitchMarked)
	case p.SwitchMarked != "":
		return "its switch began " + Clean(p.SwitchMarked)
	case p.Marked != "":
		return "its copy began " + Clean(p.Marked)
	}
	return ""
}

// skew gives the skew of the guests that switched; nil for fewer than two.
func skew(parts []Part, clock func(fleet.HostID) string) *Skew {
	var out Skew
	var suspended, resumed span
	n := 0
	for _, p := range parts {
		begun, ended := p.entered(fleet.Switching), p.left(fleet.Activating)
		if begun.IsZero() || ended.IsZero() {
			continue
		}
		n++
		out.Switch = max(out.Switch, ended.Sub(begun)) // all begin in one change
		suspended.add(p.Cost.SuspendedAt, clock(p.From))
		resumed.add(p.Resumed, clock(p.To))
	}
	if n < 2 {
		return nil
	}
	out.Suspends, out.Resumes = suspended.length(), resumed.length()
	if out.Suspends != nil && out.Resumes != nil && suspended.clock == resumed.clock {
		d := resumed.last.Sub(suspended.first)
		out.Blackout = &d
	}
	return &out
}

// span is the range of some times on one clock.
type span struct {
	first, last time.Time
	clock       string
	mixed       bool // of several clocks, or with an unknown one
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

// entered gives when a phase was first entered, or zero.
func (p Part) entered(phase fleet.Phase) time.Time {
	for _, e := range p.Entered {
		if e.Phase == phase {
			return e.At
		}
	}
	return time.Time{}
}

// left gives when a phase was left; zero if it was not, or the guest was lost in it.
func (p Part) left(phase fleet.Phase) time.Time {
	for i, e := range p.Entered {
		if e.Phase == phase && i+1 < len(p.Entered) && p.Entered[i+1].Phase != fleet.Lost {
			return p.Entered[i+1].At
		}
	}
	return time.Time{}
}

// Together says in a sentence how closely a gang switched; empty if there is no skew.
func (m Move) Together() string {
	if m.Skew == nil {
		return ""
	}
	line := fmt.Sprintf("%s: switched together: %s from the order until the last guest was reported to run", m.ID, Took(m.Skew.Switch))
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

// Show tells everything known of a move: the request, each guest's cost beside the
// prediction and the ranks' stall, the time in each phase, and the skew.
func (m Move) Show(now time.Time) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %s, because: %s\n", Clean(string(m.ID)), Count(len(m.Parts), "guest"), orElse(Clean(m.Why), "no reason given"))
	fmt.Fprintf(&b, "begun %s, %s\n", clockTime(m.Begun), m.ending(now))
	if l := limits(m.Limits); l != "" {
		fmt.Fprintf(&b, "limits: %s\n", l)
	}
	if m.Choice != "" && len(m.Parts) > 0 {
		fmt.Fprintf(&b, "mode: %s, because: %s\n", Clean(string(m.Parts[0].Mode)), Clean(m.Choice))
	}
	b.WriteString("\n" + m.costs(now).Text())
	for _, p := range m.Parts {
		for _, said := range []string{p.markText(), p.prediction(), p.savingsText(), p.blackoutText(), p.postCopyText(now), p.StallLine()} {
			if said != "" {
				fmt.Fprintf(&b, "%s: %s\n", Clean(string(p.Guest)), Clean(said))
			}
		}
	}
	b.WriteString("\n" + m.phases(now).Text())
	if together := m.Together(); together != "" {
		b.WriteString("\n" + Clean(together) + "\n")
	}
	return b.String()
}

func (m Move) ending(now time.Time) string {
	if m.Ended.IsZero() {
		return "under way for " + Took(max(now.Sub(m.Begun), 0))
	}
	return fmt.Sprintf("ended %s, %s in all", clockTime(m.Ended), Took(m.Ended.Sub(m.Begun)))
}

// limits names a move's limits; empty if they are the defaults.
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

// savingsText says how less than the guest's memory was sent; empty if it was not.
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

// costs has a row for each guest: its progress or its cost.
func (m Move) costs(now time.Time) Table {
	t := Table{Columns: []string{"GUEST", "FROM", "TO", "PHASE", "TOTAL", "ROUNDS", "SENT", "RATE", "DIRTIED", "DOWNTIME", "BLACKOUT", "STALL"},
		Empty: "its guests are no longer known"}
	for _, p := range m.Parts {
		pr := p.Progress
		row := []string{cell(string(p.Guest)), cell(string(p.From)), cell(string(p.To)), cell(PhaseWord(p.Phase)), Took(p.TotalTime(now)),
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

// prediction says what a migration was predicted to cost; empty without a prediction.
func (p Part) prediction() string {
	if p.Predicted == nil {
		return ""
	}
	if !p.Predicted.Converges {
		return "predicted not to converge: " + orElse(Clean(p.Predicted.Why), "no reason given")
	}
	return fmt.Sprintf("predicted %s in all, downtime %s, %s sent",
		between(p.Predicted.Total, Took), between(p.Predicted.Downtime, Took), between(p.Predicted.Bytes, Bytes))
}

// postCopyText says what came by post-copy; empty if nothing did.
func (p Part) postCopyText(now time.Time) string {
	begun := p.entered(fleet.PostCopying)
	if begun.IsZero() {
		return ""
	}
	so := fmt.Sprintf("post-copy: %s came after it ran on %s", Bytes(p.Progress.PostCopyBytes), p.To)
	if p.Progress.Faults > 0 { // not counted for containers
		so += fmt.Sprintf(", and it waited for %s", Count(int(p.Progress.Faults), "page"))
	}
	switch ended := p.left(fleet.PostCopying); {
	case !ended.IsZero():
		return fmt.Sprintf("%s; all was there %s later", so, Took(ended.Sub(begun)))
	case p.Phase.Ended():
		return so + "; the rest never came"
	}
	return fmt.Sprintf("%s; %s are still to come, for %s now", so, Bytes(p.Progress.RemainingBytes), Took(max(now.Sub(begun), 0)))
}

// phases has a row for each guest and a column for each phase that occurred, with its
// duration.
func (m Move) phases(now time.Time) Table {
	t := Table{Columns: []string{"GUEST"}}
	var order []fleet.Phase
	for _, t := range fleet.Phases {
		if slices.ContainsFunc(m.Parts, func(p Part) bool { return !p.entered(t.Phase).IsZero() }) {
			order = append(order, t.Phase)
		}
	}
	for _, phase := range order {
		t.Columns = append(t.Columns, strings.ToUpper(PhaseWord(phase)))
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

// during says how long a migration was in a phase, or when it ended.
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

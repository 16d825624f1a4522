package view

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"pagurus/fleet"
)

const (
	matrixMost = 16 // ranks whose matrix is shown completely
	flowsMost  = 10 // of a larger one
	gapsMost   = 10
)

// JobDetail is a job with everything known of it.
type JobDetail struct {
	Job
	Moves  []Move        `json:"moves"`  // of its guests
	Traces []fleet.Trace `json:"traces"` // of its ranks; empty if it is not traced
}

// Detail gives a job with everything known of it.
func (c Cluster) Detail(j Job, traces []fleet.Trace) JobDetail {
	d := JobDetail{Job: j, Moves: []Move{}, Traces: traces}
	for _, m := range c.Moves {
		if slices.ContainsFunc(m.Parts, func(p Part) bool { return p.Job == j.ID }) {
			d.Moves = append(d.Moves, m)
		}
	}
	if d.Traces == nil {
		d.Traces = []fleet.Trace{}
	}
	return d
}

// Text describes the job for people. c is its cluster.
func (d JobDetail) Text(c Cluster) string {
	parts := []string{c.Line(d.Job) + "\n" + "  " + Command(d.Spec.Args) + "\n"}
	if len(d.Moves) > 0 {
		parts = append(parts, Cluster{At: c.At, Moves: d.Moves}.MoveTable().Text())
	}
	switch {
	case !d.Spec.Trace:
		parts = append(parts, "There are no traces of its ranks: it runs with --no-trace.\n")
	case len(d.Traces) == 0:
		parts = append(parts, "No rank has called MPI_Init yet, or the program does not use MPI.\n")
	default:
		parts = append(parts, CallTable(d.Traces).Text(), SpanTable(d.Traces).Text(), SentTable(d.Traces).Text(), GapTable(d.Traces).Text())
	}
	return strings.Join(parts, "\n")
}

// CallTable shows each rank's time by class of calls.
func CallTable(traces []fleet.Trace) Table {
	t := Table{Empty: "no ranks", Columns: []string{"RANK", "GUEST", "ELAPSED", "IN MPI", "SEND-RECV", "COLLECTIVE", "WAIT", "OTHER", "HANDED OVER", "NORMAL GAP"}}
	for _, tr := range traces {
		inside := time.Duration(0)
		row := []string{fmt.Sprint(tr.Rank), cell(string(tr.Guest)), Took(tr.Elapsed), "-"}
		for _, class := range fleet.CallClasses {
			c := tr.Calls[class]
			inside += c.Took
			row = append(row, calls(c))
		}
		if all := inside + tr.Outside; all > 0 {
			row[3] = fmt.Sprintf("%.0f%%", 100*float64(inside)/float64(all))
		}
		t.Rows = append(t.Rows, append(row, sent(tr.Handed), "< "+Took(tr.Normal)))
	}
	ranks := 0
	for _, tr := range traces {
		ranks = max(ranks, tr.Ranks)
	}
	if ranks > len(traces) {
		t.Notes = append(t.Notes, fmt.Sprintf("of %d ranks %d sent no trace", ranks, ranks-len(traces)))
	}
	return t
}

func calls(c fleet.Calls) string {
	if c.Count == 0 {
		return "-"
	}
	return fmt.Sprintf("%s in %d", Took(c.Took), c.Count)
}

func sent(s fleet.Sent) string {
	if s.Messages == 0 {
		return "-"
	}
	return fmt.Sprintf("%s in %d", amount(s.Bytes), s.Messages)
}

// amount is Bytes of a guest's number, which may be anything.
func amount(n uint64) string { return Bytes(int64(min(n, 1<<62))) }

// SentTable shows how many bytes and messages each rank has sent to which: completely if
// that fits a screen, otherwise the largest flows.
func SentTable(traces []fleet.Trace) Table {
	ranks := 0
	for _, t := range traces {
		ranks = max(ranks, t.Rank+1)
		for _, s := range t.Sent {
			ranks = max(ranks, s.Rank+1)
		}
	}
	if ranks > matrixMost {
		return flows(traces)
	}
	t := Table{Columns: []string{"SENT BY"}, Empty: noneSent}
	for to := range ranks {
		t.Columns = append(t.Columns, fmt.Sprintf("TO %d", to))
	}
	for _, tr := range traces {
		row := append([]string{fmt.Sprint(tr.Rank)}, slices.Repeat([]string{"-"}, ranks)...)
		for _, s := range tr.Sent {
			if s.Rank >= 0 {
				row[1+s.Rank] = sent(s)
			}
		}
		t.Rows = append(t.Rows, row)
		if tr.Elsewhere.Messages > 0 {
			t.Notes = append(t.Notes, fmt.Sprintf("rank %d has sent %s to processes that are not of this job's first ranks", tr.Rank, sent(tr.Elsewhere)))
		}
	}
	return t
}

const noneSent = "no messages from rank to rank"

// flows lists the largest cells of a matrix, and their share of all.
func flows(traces []fleet.Trace) Table {
	type flow struct {
		from int
		fleet.Sent
	}
	var all []flow
	bytes, messages := 0.0, 0.0
	for _, t := range traces {
		for _, s := range append(slices.Clone(t.Sent), t.Elsewhere) {
			bytes, messages = bytes+float64(s.Bytes), messages+float64(s.Messages)
		}
		for _, s := range t.Sent {
			all = append(all, flow{t.Rank, s})
		}
	}
	slices.SortStableFunc(all, func(a, b flow) int { return cmp.Compare(b.Bytes, a.Bytes) })
	t := Table{Columns: []string{"SENT BY", "TO", "BYTES", "MESSAGES", "OF ALL"}, Empty: noneSent}
	for _, f := range all[:min(len(all), flowsMost)] {
		share := "-"
		if bytes > 0 {
			share = fmt.Sprintf("%.1f%%", 100*float64(f.Bytes)/bytes)
		}
		t.Rows = append(t.Rows, []string{fmt.Sprint(f.from), fmt.Sprint(f.Rank), amount(f.Bytes), fmt.Sprint(f.Messages), share})
	}
	if len(all) > flowsMost {
		t.Notes = append(t.Notes, fmt.Sprintf("these are the largest of %d pairs of ranks, which have sent %s in %.0f messages; --json lists them all",
			len(all), amount(uint64(min(bytes, 1<<62))), messages))
	}
	return t
}

// GapTable lists the ranks' longest gaps.
func GapTable(traces []fleet.Trace) Table {
	t := Table{Columns: []string{"GAP", "RANK", "BEGAN", "WHERE", "WHY"}, Empty: "no gaps"}
	var all []fleet.Gap
	for _, tr := range traces {
		all = append(all, tr.Gaps...)
	}
	slices.SortStableFunc(all, func(a, b fleet.Gap) int { return cmp.Compare(b.Took, a.Took) })
	for _, g := range all[:min(len(all), gapsMost)] {
		t.Rows = append(t.Rows, []string{Took(g.Took), fmt.Sprint(g.Rank), g.At.Local().Format("15:04:05.000"), where(g), orElse(Why(g.Why), "-")})
	}
	return t
}

func where(g fleet.Gap) string {
	at := "between calls"
	if g.InMPI {
		at = "in MPI, " + cell(string(g.Call))
	}
	if g.Open {
		at += ", goes on"
	}
	return at
}

// Why lists the causes of a gap.
func Why(causes []fleet.Cause) string {
	var words []string
	for _, c := range causes {
		w := reason(c)
		if c.Rank != nil {
			w = fmt.Sprintf("rank %d: %s", *c.Rank, w)
		}
		words = append(words, w)
	}
	return strings.Join(words, "; ")
}

func reason(c fleet.Cause) string {
	switch c.What {
	case fleet.GuestSuspended:
		return "guest suspended by a move for " + Took(c.Took)
	case fleet.TCPTimeout:
		return Count(c.Count, "TCP retransmission time-out")
	case fleet.TCPProbe:
		return Count(c.Count, "TCP retransmission time-out") + " of a last segment (loss probe)"
	case fleet.TCPResent:
		return Count(c.Count, "TCP segment") + " sent again"
	case fleet.TCPDelayed:
		return Count(c.Count, "TCP acknowledgement") + " held back"
	case fleet.VCPUStolen:
		return "host gave the guest's CPUs to other programs for " + Took(c.Took)
	case fleet.CPUShared:
		// Which others depends on the guest's kind: see fleet.CPUShared.
		return "ready, but others had the CPU for " + Took(c.Took)
	case fleet.RankStopped:
		return "stopped or asleep for " + Took(c.Took)
	case fleet.Computing:
		return "computed, or its host was slow, for " + Took(c.Took)
	}
	return Clean(string(c.What))
}

// stall gives a migration's stall.
func (p Part) stall() string {
	if p.Stall == nil {
		return "-"
	}
	return Took(p.Stall.Took)
}

// StallLine says a migration's stall and its causes; empty if unknown.
func (p Part) StallLine() string {
	s := p.Stall
	if s == nil {
		return ""
	}
	line := fmt.Sprintf("stall %s, seen by rank %d %s", Took(s.Took), s.Rank, where(s.Gap))
	if why := Why(s.Why); why != "" {
		line += ": " + why
	}
	if s.AtSwitch > 0 && s.AtSwitch != s.Took {
		line += "; at the switch itself " + Took(s.AtSwitch)
	}
	if s.Undisturbed > 0 {
		line += "; undisturbed, the longest gap in as long a time is " + Took(s.Undisturbed)
	}
	return line
}

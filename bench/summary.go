package bench

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"pagurus/bench/stats"
)

// mostHarness is the share of the runs' time that the measuring itself may take.
const mostHarness = 0.005

// cut is the share that a trimmed mean drops at both ends.
const cut = 0.1

// Summary has the statistics of a record, figure by figure.
type Summary struct {
	Rows []Row `json:"rows"`
	// Notes hold for the whole record.
	Notes []string `json:"notes,omitempty"`
}

// Row is one figure of one program on one target.
type Row struct {
	Program string          `json:"program"`
	Figure  Figure          `json:"figure"`
	Target  string          `json:"target"`
	Runs    int             `json:"runs"`
	Mean    *stats.Interval `json:"mean,omitempty"`    // Student's
	Median  *stats.Interval `json:"median,omitempty"`  // bootstrap
	Trimmed *stats.Interval `json:"trimmed,omitempty"` // 10 % at both ends
	Doubts  []string        `json:"doubts,omitempty"`
	// If it is compared with another target:
	Base     string          `json:"base,omitempty"`   // that target; empty when two records are compared, as the first is the base
	Ratio    *stats.Interval `json:"ratio,omitempty"`  // to the base's, in pairs of one round
	Chance   *float64        `json:"chance,omitempty"` // p, the chance of pairs so one-sided (Wilcoxon)
	Sentence string          `json:"sentence,omitempty"`
}

// Aside names the base of a row's ratio if it is not the first target, which a reader would
// expect.
func (s Summary) Aside(r Row) string {
	if r.Ratio == nil || r.Base == s.Rows[0].Target {
		return ""
	}
	return r.Base
}

// Summarise computes the statistics of a record. Emulated processors are not compared with
// real ones: that would be quoted as the cost of virtualization, and is not.
func (r *Record) Summarise() Summary {
	var s Summary
	if !r.Complete {
		s.Notes = append(s.Notes, "it was cut off: what is here was measured before")
	}
	if r.Machine.Load > float64(r.Machine.CPUs)/2 {
		s.Notes = append(s.Notes, fmt.Sprintf("the machine was busy as it began: load %.1f on %d CPUs", r.Machine.Load, r.Machine.CPUs))
	}
	if share := r.HarnessShare(); share > mostHarness {
		s.Notes = append(s.Notes, fmt.Sprintf("the measuring itself took %.1f %% of the time of the runs: they are too short", 100*share))
	}
	for _, t := range r.Spec.Targets {
		if r.Guests[t].Emulated() {
			s.Notes = append(s.Notes, fmt.Sprintf("%s is emulated in software, since KVM does not work here: its figures say nothing of what virtualization costs, and are held only against those of other emulated targets; with KVM the same command gives the real overhead", t))
		}
	}
	for _, p := range r.Spec.Programs {
		for _, f := range p.Figures {
			for i, t := range r.Spec.Targets {
				if got, _ := r.Samples(p.Name, f.Name, t); len(got) == 0 && len(r.Sittings) > 0 {
					continue // each promise has its own targets
				}
				s.Rows = append(s.Rows, r.row(p.Name, f, t, r.comparedWith(i)))
			}
		}
	}
	s.Notes = append(s.Notes, append(r.layoutNotes(), r.moved()...)...)
	if err := r.Failures(); err != nil {
		s.Notes = append(s.Notes, strings.Split(err.Error(), "\n")...)
	}
	s.Notes = append(s.Notes, r.Notes...)
	return s
}

// comparedWith is the target with which target i is compared: the one that its setting names, or
// the first that is emulated, or not, as it is; empty for that one itself.
func (r *Record) comparedWith(i int) string {
	if named := r.Guests[r.Spec.Targets[i]].Beside; slices.Contains(r.Spec.Targets, named) {
		return named
	}
	for _, t := range r.Spec.Targets[:i] {
		if r.Guests[t].Emulated() == r.Guests[r.Spec.Targets[i]].Emulated() {
			return t
		}
	}
	return ""
}

// row computes the statistics of one figure.
func (r *Record) row(program string, f Figure, target, base string) Row {
	values, _ := r.Samples(program, f.Name, target)
	confidence := r.Spec.Confidence
	row := Row{Program: program, Figure: f, Target: target, Runs: len(values)}
	if len(values) == 0 {
		row.Doubts = []string{"no run gave this figure"}
		return row
	}
	row.Mean = known(stats.Mean(values, confidence))
	row.Median = known(stats.Resampled(values, confidence, r.Spec.Seed))
	row.Trimmed = known(stats.Trimmed(values, cut, confidence))
	row.Doubts = stats.Doubts(values)
	if base == "" {
		return row
	}
	both := r.pairs(program, f.Name, target, base)
	row.Doubts = append(row.Doubts, r.apart(both)...)
	row.Base = base
	if row.Ratio = known(stats.Ratio(both.ours, both.theirs, confidence)); row.Ratio != nil {
		row.Sentence = stats.Sentence(target, base, *row.Ratio, f.Sense)
		if p, err := stats.Wilcoxon(both.ours, both.theirs); err == nil {
			row.Chance = &p
		}
	}
	return row
}

// known returns an interval if there is one.
func known(v stats.Interval, err error) *stats.Interval {
	if err != nil {
		return nil // too few samples: Doubts say so
	}
	return &v
}

// pairs are the samples of two targets in the rounds that both have.
type pairs struct {
	program, target, base string
	ours, theirs          []float64
	rounds                []int
}

func (r *Record) pairs(program, figure, target, base string) pairs {
	values, rounds := r.Samples(program, figure, base)
	in := map[int]float64{}
	for i, round := range rounds {
		in[round] = values[i]
	}
	both := pairs{program: program, target: target, base: base}
	values, rounds = r.Samples(program, figure, target)
	for i, round := range rounds {
		if v, ok := in[round]; ok {
			both.add(values[i], v, round)
		}
	}
	return both
}

func (p *pairs) add(ours, theirs float64, round int) {
	p.ours, p.theirs, p.rounds = append(p.ours, ours), append(p.theirs, theirs), append(p.rounds, round)
}

// Compare compares what two records have in common. Their runs are not in pairs, since they
// did not take turns.
func Compare(a, b *Record) Summary {
	var s Summary
	differ := func(what, one, other string) {
		if one != other {
			s.Notes = append(s.Notes, fmt.Sprintf("%s differs: %s, and %s", what, cmp.Or(one, "nothing"), cmp.Or(other, "nothing")))
		}
	}
	differ("the commit", a.Machine.Commit, b.Machine.Commit)
	differ("the kernel", a.Machine.Kernel, b.Machine.Kernel)
	differ("the CPU", a.Machine.CPU, b.Machine.CPU)
	differ("the number of CPUs", fmt.Sprint(a.Machine.CPUs), fmt.Sprint(b.Machine.CPUs))
	differ("the number of ranks", fmt.Sprint(a.Spec.Ranks), fmt.Sprint(b.Spec.Ranks))
	for _, p := range a.Spec.Programs {
		for _, f := range p.Figures {
			for _, t := range a.Spec.Targets {
				if row, ok := compare(a, b, p.Name, f, t); ok {
					s.Rows = append(s.Rows, row)
				}
			}
		}
	}
	for _, p := range a.Spec.Programs {
		for _, q := range b.Spec.Programs {
			if p.Name == q.Name {
				differ("the command of "+p.Name, p.Command, q.Command)
			}
		}
	}
	for _, t := range a.Spec.Targets {
		if g, ok := b.Guests[t]; ok {
			was := a.Guests[t]
			differ("the number of guests of "+t, fmt.Sprint(was.Guests), fmt.Sprint(g.Guests))
			differ("the number of CPUs of a guest of "+t, fmt.Sprint(was.CPUs), fmt.Sprint(g.CPUs))
			was.Guests, was.CPUs = g.Guests, g.CPUs
			differ("how "+t+" is made", fmt.Sprint(was), fmt.Sprint(g))
		}
	}
	if len(s.Rows) == 0 {
		s.Notes = append(s.Notes, "the records have no program and target in common")
	}
	return s
}

// compare compares one figure of two records.
func compare(a, b *Record, program string, f Figure, target string) (Row, bool) {
	before, _ := a.Samples(program, f.Name, target)
	after, _ := b.Samples(program, f.Name, target)
	if len(before) == 0 || len(after) == 0 {
		return Row{}, false
	}
	row := Row{Program: program, Figure: f, Target: target, Runs: min(len(before), len(after))}
	row.Mean = known(stats.Mean(after, a.Spec.Confidence))
	row.Doubts = stats.Doubts(before)
	for _, d := range stats.Doubts(after) {
		if !slices.Contains(row.Doubts, d) {
			row.Doubts = append(row.Doubts, d)
		}
	}
	if row.Ratio = known(stats.RatioOfGroups(after, before, a.Spec.Confidence)); row.Ratio != nil {
		row.Sentence = stats.Sentence("the second", "the first", *row.Ratio, f.Sense)
		if p, err := stats.Welch(after, before); err == nil {
			row.Chance = &p
		}
	}
	return row, true
}

package bench

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"

	"gonum.org/v1/gonum/stat"

	"pagurus/bench/stats"
)

// Tolerance is how many times what it was a figure may be without having got worse.
const Tolerance = 1.1

// Build is one of two commits whose figures are held against each other.
type Build struct {
	Commit string
	// Turn measures a few times in a lab of its own.
	Turn func(context.Context) (*Record, error)
}

// of joins the name of a target with the commit that it was measured with, where that is not
// the record's own.
const of = " of "

// Against measures a trial of this commit and of another in turn, each turn in a lab of its own.
// Only what both gave in their turns is kept.
func (r *Promises) Against(ctx context.Context, turns int, this, that Build) error {
	source, orders := rand.New(rand.NewPCG(1, 0)), targetOrders{}
	for turn := range turns {
		got := map[string]*Record{}
		for _, side := range orders.next(source, []string{"", of}) {
			build := this
			if side == of {
				build = that
			}
			fmt.Printf("%s, turn %d of %d: %s\n", r.Trial, turn+1, turns, build.Commit)
			var err error
			if got[side], err = build.Turn(ctx); err != nil {
				return fmt.Errorf("%s of %s: %w", r.Trial, build.Commit, err)
			}
		}
		r.keepTurn(got[""], got[of], that.Commit)
		if err := r.Save(); err != nil {
			return err
		}
	}
	return nil
}

// keepTurn takes over what both commits gave in their turns.
func (r *Promises) keepTurn(this, that *Record, commit string) {
	round, turn := 0, 1
	for _, run := range r.Record.Runs {
		round, turn = max(round, run.Round+1), max(turn, run.Turn+1)
	}
	both := func(target string) bool {
		is := func(run Run) bool { return run.Target == target }
		return slices.ContainsFunc(this.Runs, is) && slices.ContainsFunc(that.Runs, is)
	}
	for from, suffix := range map[*Record]string{this: "", that: of + commit} {
		for _, run := range from.Runs {
			if !both(run.Target) {
				continue
			}
			run.Target, run.Round, run.Turn = run.Target+suffix, run.Round+round, turn
			r.AddRun(run)
		}
		r.Record.Moves = append(r.Record.Moves, from.Moves...)
	}
	for _, target := range slices.DeleteFunc(slices.Clone(this.Spec.Targets), func(t string) bool { return !both(t) }) {
		r.Record.Guests[target] = Setting{Beside: target + of + commit}
	}
}

// Forget drops what a record has of a trial that is measured again.
func (r *Promises) Forget(trial string) {
	r.Record.Runs = slices.DeleteFunc(r.Record.Runs, func(run Run) bool { return run.Program == trial })
}

// Change is what became of a figure since a commit.
type Change struct {
	Part, Sample string // of the part's samples: a target and its figure
	Commit       string
	Was, Is      float64 // geometric means
	Ratio        stats.Interval
	Tolerance    float64
	Failure      string // why there is no ratio; empty: there is one
}

// Changes are those of all figures that a record has of other commits, too. The samples of a
// turn share a lab, and whatever was odd about it. So the geometric mean of a turn is what is
// paired, and the interval is that of as many pairs as there were turns.
func (r *Record) Changes(tolerance float64) (all []Change) {
	for _, p := range r.Spec.Programs {
		for _, t := range r.Spec.Targets {
			target, commit, ok := strings.Cut(t, of)
			if !ok {
				continue
			}
			for _, f := range p.Figures {
				is, was := r.byTurn(p.Name, target, f.Name), r.byTurn(p.Name, t, f.Name)
				if len(was) == 0 && len(is) == 0 {
					continue
				}
				c := Change{Part: p.Name, Sample: target + "_" + f.Name, Commit: commit, Tolerance: tolerance}
				c.pairTurns(is, was, r.Spec.Confidence)
				all = append(all, c)
			}
		}
	}
	return all
}

// byTurn gives the logarithms of a target's samples, by turn.
func (r *Record) byTurn(program, target, figure string) map[int][]float64 {
	got := map[int][]float64{}
	for _, run := range r.Runs {
		if v, ok := run.Figures[figure]; ok && run.Program == program && run.Target == target {
			got[run.Turn] = append(got[run.Turn], math.Log(v))
		}
	}
	return got
}

// pairTurns computes the change from the samples of each turn.
func (c *Change) pairTurns(is, was map[int][]float64, confidence float64) {
	var now, before []float64
	for turn, logs := range is {
		if other, ok := was[turn]; ok {
			now, before = append(now, math.Exp(stat.Mean(logs, nil))), append(before, math.Exp(stat.Mean(other, nil)))
		}
	}
	var err error
	if c.Ratio, err = stats.Ratio(now, before, confidence); err != nil {
		c.Failure = err.Error()
		return
	}
	c.Is, c.Was = stat.GeometricMean(now, nil), stat.GeometricMean(before, nil)
}

// Worse reports whether the figure has surely grown by more than is tolerated.
func (c Change) Worse() bool { return c.Failure == "" && c.Ratio.Low > c.Tolerance }

// Verdict says what became of the figure.
func (c Change) Verdict() string {
	more, less := "more", "less"
	if strings.HasSuffix(c.Sample, "_s") {
		more, less = "slower", "faster"
	}
	switch {
	case c.Failure != "":
		return "nothing is known"
	case c.Worse():
		return fmt.Sprintf("%s, surely by more than the %g × that are tolerated", strings.ToUpper(more), c.Tolerance)
	case c.Ratio.Low > 1:
		return fmt.Sprintf("%s, but not surely by more than %g ×", more, c.Tolerance)
	case c.Ratio.High < 1:
		return less
	case c.Ratio.High > c.Tolerance:
		return "no difference seen, but more turns may show one"
	}
	return "no difference seen"
}

// String is the change for people.
func (c Change) String() string {
	if c.Failure != "" {
		return fmt.Sprintf("%s %s: no ratio to %s: %s", c.Part, c.Sample, c.Commit, c.Failure)
	}
	return fmt.Sprintf("%s %s: %.2f × (%.2f to %.2f) of %s: %s", c.Part, c.Sample, c.Ratio.Value, c.Ratio.Low, c.Ratio.High, c.Commit, c.Verdict())
}

// Package bench is the harness of measurements: an experiment is a spec, and
// gives a record that can be repeated and compared years later. Targets are run
// in turn, so that a machine that drifts does not lie.
//
// It must not know what a target is nor how a program is run there. Its tests
// run small programs of the machine.
//
// Promises hold what was measured against what was promised: their trials say
// themselves how they measure.
package bench

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"time"

	"pagurus/bench/stats"
)

// Figure is one number that a program gives.
type Figure struct {
	Name  string      `json:"name"` // of the program's figures
	Says  string      `json:"says"` // for people: "HPL time"
	Unit  string      `json:"unit"`
	Sense stats.Sense `json:"sense"`
}

// Result is what one run of a program gave.
type Result struct {
	Figures map[string]float64
	Curves  map[string][]Point // what depends on the size of messages or the like
	Parts   map[string][]Part  // what figures consist of
}

// Part is one of those that a figure is the sum of, in its unit.
type Part struct {
	Name  string  `json:"name"`
	Value float64 `json:"value"`
}

// CopyRounds is the name of the curve of a move: what was left as each round of its copy
// began, by when that was. Its points are not at the same places in all runs.
const CopyRounds = "copy rounds"

// Point is one of a curve.
type Point struct {
	X float64 `json:"x"`
	Y float64 `json:"y"`
}

// Program is something to run on every target.
type Program struct {
	Name    string                            `json:"name"`
	Command string                            `json:"command"` // for a shell, on every rank
	Output  string                            `json:"output,omitempty"`
	Files   map[string]string                 `json:"files,omitempty"` // its input, by name
	Figures []Figure                          `json:"figures"`
	Read    func(text string) (Result, error) `json:"-"` // of Output, or where that is empty of what rank 0 printed
}

// Spec says what is measured.
type Spec struct {
	Name       string    `json:"name"`
	Targets    []string  `json:"targets"` // the first is what others of its sort are compared with
	Programs   []Program `json:"programs"`
	Runs       int       `json:"runs"` // of each program on each target
	Ranks      int       `json:"ranks"`
	Seed       uint64    `json:"seed"` // of the order in which targets take turns
	Confidence float64   `json:"confidence"`
}

// Check says what is wrong with a spec.
func (s Spec) Check() error {
	switch {
	case len(s.Targets) == 0:
		return errors.New("no target is named")
	case len(s.Programs) == 0:
		return errors.New("no program is named")
	case s.Runs < 2:
		return fmt.Errorf("%d runs have no interval: at least 2 are needed", s.Runs)
	case s.Confidence <= 0.5 || s.Confidence >= 1:
		return fmt.Errorf("a confidence of %g is none: write 0.95 for 95 %%", s.Confidence)
	}
	seen := map[string]bool{}
	for _, t := range s.Targets {
		if seen[t] {
			return fmt.Errorf("target %s is named twice", t)
		}
		seen[t] = true
	}
	return nil
}

// Place is where programs are run, with all targets.
type Place interface {
	// Open makes ready what runs a program once on each target.
	Open(ctx context.Context, p Program, targets []string) (Round, error)
}

// Round is one program, ready to be run once on each target.
type Round interface {
	// Run runs the program to its end and gives the text of its Output.
	Run(ctx context.Context, target string) (text string, err error)
	// Close ends what Open began.
	Close() error
}

// Experiment is a spec under way.
type Experiment struct {
	Spec    Spec
	Place   Place
	Record  Record           // of what was measured so far
	KeepRun func() error     // called after every run; nil: not
	Say     func(what Run)   // called after every run; nil: not
	Now     func() time.Time // nil: time.Now
	// Apart is how far this machine's CPUs are from each other, asked before and after
	// every run: a virtual machine's are moved. 0: not known; nil: not asked.
	Apart func() time.Duration
	// Used is the processor time that measuring has used so far, without the programs';
	// nil: not known.
	Used func() time.Duration
}

// failuresKept is after how many failures one after another of the same program
// on the same target no better ones are expected.
const failuresKept = 3

// Run carries the experiment out. When ctx ends, what was measured is in the
// record, which says that it is not complete. A program that fails is recorded
// as failed, and others go on; the error says so at the end.
func (e *Experiment) Run(ctx context.Context) (err error) {
	if err := e.Spec.Check(); err != nil {
		return err
	}
	if e.Now == nil {
		e.Now = time.Now
	}
	e.Record.Spec = e.Spec
	source := rand.New(rand.NewPCG(e.Spec.Seed, 0))
	orders := make([]targetOrders, len(e.Spec.Programs))
	for round := range e.Spec.Runs {
		for i, p := range e.Spec.Programs {
			if err := e.round(ctx, round, p, orders[i].next(source, e.Spec.Targets)); err != nil {
				return err
			}
		}
	}
	e.Record.Complete = true
	if e.KeepRun != nil {
		err = e.KeepRun()
	}
	return errors.Join(err, e.Record.Failures())
}

// round runs one program once on each target.
func (e *Experiment) round(ctx context.Context, round int, p Program, targets []string) (err error) {
	var hopeful []string
	for _, t := range targets {
		if e.Record.failed(p.Name, t) < failuresKept {
			hopeful = append(hopeful, t)
		}
	}
	if len(hopeful) == 0 {
		return nil
	}
	opened, err := e.Place.Open(ctx, p, hopeful)
	if err != nil {
		return fmt.Errorf("making ready to run %s: %w", p.Name, err)
	}
	defer func() { err = errors.Join(err, opened.Close()) }()
	for _, t := range hopeful {
		apart := e.apart()
		r := Run{Round: round, Program: p.Name, Target: t, Begun: e.Now()}
		during, underway := e.beginRun(ctx)
		text, err := opened.Run(during, t)
		r.Took = e.Now().Sub(r.Begun)
		cost := underway.end(&r)
		r.Apart, r.Least = apart, apart
		if after := e.apart(); after > 0 {
			r.Apart, r.Least = max(apart, after), min(apart, after)
		}
		if err != nil && ctx.Err() != nil {
			return context.Cause(ctx) // it was cut off: that is no figure of its
		}
		if err == nil {
			var got Result
			got, err = p.result(text)
			r.Figures, r.Curves, r.Parts = got.Figures, got.Curves, got.Parts
		}
		if err != nil {
			r.Failure = err.Error()
		}
		e.Record.Runs, e.Record.Harness = append(e.Record.Runs, r), e.Record.Harness+cost
		if e.Say != nil {
			e.Say(r)
		}
		if e.KeepRun != nil {
			if err := e.KeepRun(); err != nil {
				return err
			}
		}
		if err := ctx.Err(); err != nil {
			return context.Cause(ctx)
		}
	}
	return nil
}

func (e *Experiment) apart() time.Duration {
	if e.Apart == nil {
		return 0
	}
	return e.Apart()
}

// result reads what a program said, and wants all its figures, greater than 0, and
// nothing but numbers.
func (p Program) result(text string) (Result, error) {
	got, err := p.Read(text)
	if err == nil {
		err = got.check()
	}
	if err != nil {
		return Result{}, err
	}
	for _, f := range p.Figures {
		if v, ok := got.Figures[f.Name]; !ok || !(v > 0) {
			return Result{}, fmt.Errorf("%s gave %s as %g: it has to be greater than 0", p.Name, f.Says, v)
		}
	}
	return got, nil
}

// check refuses what a program may say and no record can hold: what is infinite, or no
// number.
func (r Result) check() error {
	for name, v := range r.Figures {
		if !finite(v) {
			return fmt.Errorf("it gave %s as %g, which is no number", name, v)
		}
	}
	for name, curve := range r.Curves {
		for _, p := range curve {
			if !finite(p.X) || !finite(p.Y) {
				return fmt.Errorf("it gave a point of its %s as %g at %g, which is no number", name, p.Y, p.X)
			}
		}
	}
	for name, parts := range r.Parts {
		for _, p := range parts {
			if !finite(p.Value) {
				return fmt.Errorf("of its %s it gave %s as %g, which is no number", name, p.Name, p.Value)
			}
		}
	}
	return nil
}

func finite(v float64) bool { return !math.IsInf(v, 0) && !math.IsNaN(v) }

package measuring

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"pagurus/bench"
	"pagurus/bench/drive"
	"pagurus/show/view"
)

// asked is what is asked for of every experiment.
type asked struct {
	Streams
	targets    []string
	runs       int
	confidence float64
	seed       uint64
	report     string
	guests     map[string]bench.Setting                 // by target
	notes      []string                                 // what holds for all of it, known before
	sum        func(r *bench.Record) []string           // what is noted when it is over; nil: nothing
	meter      *drive.Meter                             // of what measuring uses; nil: it types no commands
	own        time.Duration                            // processor time of this program that was the runs'
	show       func(*bench.Record, bench.Summary) error // prints what came of it; nil: its figures are printed
}

// usual is what is asked for unless a flag says otherwise.
func usual(std Streams) asked {
	return asked{Streams: std, runs: 20, confidence: 0.97, seed: 1, meter: &drive.Meter{}}
}

// flags are those of every experiment; runs says what one is.
func (o *asked) flags(cmd *cobra.Command, runs string) {
	f := cmd.Flags()
	f.IntVar(&o.runs, "runs", o.runs, runs)
	f.Float64Var(&o.confidence, "confidence", o.confidence, "confidence of all intervals")
	f.Uint64Var(&o.seed, "seed", o.seed, "seed of the order in which targets take turns")
	f.StringVar(&o.report, "report", "", "folder for the record and the report (default: one in "+defaultFolder+"/)")
}

// check says what is wrong with it, and chooses a folder where none is named.
func (o *asked) check() error {
	if o.report == "" {
		o.report = filepath.Join(defaultFolder, time.Now().Format("20060102-150405"))
	}
	if _, err := os.Stat(filepath.Join(o.report, bench.RecordName)); err == nil {
		return fmt.Errorf("%s has a record already: name another folder with --report", o.report)
	}
	return bench.Spec{Targets: o.targets, Programs: make([]bench.Program, 1), Runs: o.runs, Confidence: o.confidence}.Check()
}

// remark says what the record and the report are to say, too.
func (o *asked) remark(format string, args ...any) {
	note := fmt.Sprintf(format, args...)
	o.say("%s", note)
	o.notes = append(o.notes, note)
}

// measure runs an experiment whose place and programs are known.
func (o *asked) measure(ctx context.Context, cmd *cobra.Command, e *bench.Experiment) error {
	file := filepath.Join(o.report, bench.RecordName)
	e.Spec.Targets, e.Spec.Runs, e.Spec.Seed, e.Spec.Confidence = o.targets, o.runs, o.seed, o.confidence
	e.Record = bench.Record{Begun: time.Now().UTC(), Command: os.Args, Machine: bench.Here(o.Version), Guests: o.guests, Notes: o.notes}
	e.Used = func() time.Duration { return o.meter.Used() - o.own }
	kept := time.Time{}
	write := func() error {
		kept = time.Now()
		return e.Record.Write(file)
	}
	e.KeepRun = func() error {
		if !e.Record.Complete && time.Since(kept) < keepEvery {
			return nil
		}
		return write()
	}
	all := e.Spec.Programs
	turns := o.runs * len(o.targets) * len(all)
	e.Say = func(r bench.Run) {
		o.say("%d of %d: %s on %s, run %d: %s", len(e.Record.Runs), turns, r.Program, r.Target, r.Round+1, outcome(r, all))
	}
	err := e.Run(ctx)
	if len(e.Record.Runs) == 0 && o.own == 0 {
		return err
	}
	if o.sum != nil {
		e.Record.Notes = append(e.Record.Notes, o.sum(&e.Record)...)
	}
	return errors.Join(err, write(), o.finish(cmd, &e.Record))
}

// keepEvery is between two writes of the record while runs are shorter: of thousands
// of them it is large.
const keepEvery = 5 * time.Second

// outcome says what a run gave.
func outcome(r bench.Run, all []bench.Program) string {
	if r.Failure != "" {
		return r.Failure
	}
	var said []string
	for _, p := range all {
		for _, f := range p.Figures {
			if v, ok := r.Figures[f.Name]; ok && p.Name == r.Program {
				said = append(said, f.Says+" "+amount(v, f.Unit))
			}
		}
	}
	if r.Moves != nil {
		said = append(said, view.Count(r.Moves.Finished, "move"))
	}
	return strings.Join(said, ", ")
}

// finish prints what came of it and keeps that beside the record.
func (o *asked) finish(cmd *cobra.Command, r *bench.Record) error {
	what := r.Summarise()
	show := o.show
	if show == nil {
		show = func(*bench.Record, bench.Summary) error { return o.print(cmd, what) }
	}
	return errors.Join(show(r, what), o.keepRecord(r, what))
}

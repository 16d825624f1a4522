package measuring

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"
	"time"

	"pagurus/bench"
	"pagurus/bench/report"
)

// keepRecord writes what a record says beside it: a page for people, every sample as
// CSV, as are the points of curves and the parts of figures, and the figures as JSON.
func (o *asked) keepRecord(r *bench.Record, what bench.Summary) error {
	samples, err1 := samplesCSV(r)
	curves, err2 := curvesCSV(r)
	parts, err3 := partsCSV(r)
	if err := errors.Join(err1, err2, err3); err != nil {
		return err
	}
	figures, err := json.MarshalIndent(what, "", "  ")
	if err != nil {
		return err
	}
	page, err := o.page(r, what)
	if err != nil {
		return err
	}
	err = errors.Join(
		bench.Whole(filepath.Join(o.report, "report.html"), page),
		bench.Whole(filepath.Join(o.report, "samples.csv"), samples),
		bench.Whole(filepath.Join(o.report, "curves.csv"), curves),
		bench.Whole(filepath.Join(o.report, "parts.csv"), parts),
		bench.Whole(filepath.Join(o.report, "figures.json"), append(figures, '\n')),
	)
	if err == nil {
		o.say("the record and the report are in %s", o.report)
	}
	return err
}

// page draws the record, with what noise was found where that lies beside it.
func (o *asked) page(r *bench.Record, what bench.Summary) ([]byte, error) {
	found, err := bench.LoadNoise(filepath.Join(o.report, bench.NoiseName))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	return report.Draw(r, what, found)
}

// samplesCSV is a line for every figure of every run, also of runs whose figures are
// shown nowhere else.
func samplesCSV(r *bench.Record) ([]byte, error) {
	return runsCSV(r, []string{"begun", "took_s", "figure", "unit", "value", "failure"}, func(run bench.Run, line func(...string)) {
		begun, took := run.Begun.UTC().Format(time.RFC3339Nano), fmt.Sprint(run.Took.Seconds())
		if run.Failure != "" {
			line(begun, took, "", "", "", run.Failure)
		}
		for _, name := range slices.Sorted(maps.Keys(run.Figures)) {
			line(begun, took, name, unit(r, run.Program, name), fmt.Sprint(run.Figures[name]), "")
		}
	})
}

// curvesCSV is a line for every point of every run's curves.
func curvesCSV(r *bench.Record) ([]byte, error) {
	return runsCSV(r, []string{"curve", "x", "y"}, func(run bench.Run, line func(...string)) {
		for _, name := range slices.Sorted(maps.Keys(run.Curves)) {
			for _, p := range run.Curves[name] {
				line(name, fmt.Sprint(p.X), fmt.Sprint(p.Y))
			}
		}
	})
}

// partsCSV is a line for every part of every run's figures.
func partsCSV(r *bench.Record) ([]byte, error) {
	return runsCSV(r, []string{"figure", "part", "unit", "value"}, func(run bench.Run, line func(...string)) {
		for _, name := range slices.Sorted(maps.Keys(run.Parts)) {
			for _, p := range run.Parts[name] {
				line(name, p.Name, unit(r, run.Program, name), fmt.Sprint(p.Value))
			}
		}
	})
}

// runsCSV has the lines that are made of each run, behind which run it is.
func runsCSV(r *bench.Record, columns []string, of func(run bench.Run, line func(...string))) ([]byte, error) {
	lines := [][]string{append([]string{"program", "target", "run"}, columns...)}
	for _, run := range r.Runs {
		of(run, func(cells ...string) {
			lines = append(lines, append([]string{run.Program, run.Target, fmt.Sprint(run.Round + 1)}, cells...))
		})
	}
	var b bytes.Buffer
	err := csv.NewWriter(&b).WriteAll(lines)
	return b.Bytes(), err
}

// unit of a program's figure; empty: it has none, or is one of those beside.
func unit(r *bench.Record, program, figure string) string {
	for _, p := range r.Spec.Programs {
		for _, f := range p.Figures {
			if p.Name == program && f.Name == figure {
				return f.Unit
			}
		}
	}
	return ""
}

package measuring

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"time"

	"pagurus/measure/bench"
)

// keep writes what a record says beside it: a page for people, every sample as
// CSV, and the figures as JSON.
func (o *asked) keep(r *bench.Record, what bench.Summary) error {
	samples, err := samplesCSV(r)
	if err != nil {
		return err
	}
	figures, err := json.MarshalIndent(what, "", "  ")
	if err != nil {
		return err
	}
	report, err := o.page()
	if err != nil {
		return err
	}
	err = errors.Join(
		bench.Whole(filepath.Join(o.report, "report.html"), report),
		bench.Whole(filepath.Join(o.report, "samples.csv"), samples),
		bench.Whole(filepath.Join(o.report, "figures.json"), append(figures, '\n')),
	)
	if err == nil {
		o.say("the record and the report are in %s", o.report)
	}
	return err
}

// page has the record drawn by the program that can.
func (o *asked) page() ([]byte, error) {
	program, err := o.Beside("pagurus-page")
	if err != nil {
		return nil, err
	}
	drawn, err := exec.Command(program, filepath.Join(o.report, bench.RecordName)).Output()
	if refused := (*exec.ExitError)(nil); errors.As(err, &refused) {
		err = errors.New(string(bytes.TrimSpace(refused.Stderr)))
	}
	if err != nil {
		return nil, fmt.Errorf("draw the report: %w", err)
	}
	return drawn, nil
}

// samplesCSV is a line for every figure of every run.
func samplesCSV(r *bench.Record) ([]byte, error) {
	var b bytes.Buffer
	w := csv.NewWriter(&b)
	lines := [][]string{{"program", "target", "run", "begun", "took_s", "figure", "unit", "value", "failure"}}
	for _, run := range r.Runs {
		head := []string{run.Program, run.Target, fmt.Sprint(run.Round + 1), run.Begun.UTC().Format(time.RFC3339Nano), fmt.Sprint(run.Took.Seconds())}
		if run.Failure != "" {
			lines = append(lines, append(head, "", "", "", run.Failure))
		}
		for _, p := range r.Spec.Programs {
			for _, f := range p.Figures {
				if v, ok := run.Figures[f.Name]; ok && p.Name == run.Program {
					lines = append(lines, append(head[:len(head):len(head)], f.Name, f.Unit, fmt.Sprint(v), ""))
				}
			}
		}
	}
	err := w.WriteAll(lines)
	return b.Bytes(), err
}

package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"strings"
	"time"

	"pagurus/bench/drive"
	"pagurus/bench/stats"
	"pagurus/fleet"
)

// Confidence is the confidence of every quoted interval.
const Confidence = 0.95

// PromisesRecord is the result of measuring promises, at one sitting or several: the raw
// samples, the figures made from them, and the promises. Record is the counterpart for
// experiments without promises.
type PromisesRecord struct {
	Sittings []Sitting                 `json:"sittings"`
	Samples  map[string][]float64      `json:"samples"`
	Figures  map[string]stats.Interval `json:"figures"`
	Limits   map[string]float64        `json:"limits"`           // upper limits of figures
	Floors   map[string]float64        `json:"floors,omitempty"` // lower limits of figures
	Moves    []fleet.Migration         `json:"moves,omitempty"`  // with their predictions
}

// Sitting says when something was measured, and with which commit and kernel.
type Sitting struct {
	Begun  time.Time `json:"begun"`
	Commit string    `json:"commit"`
	Kernel string    `json:"kernel"`
}

// Promises is one run that measures promises: the measured Pagurus, and the results.
type Promises struct {
	drive.Pagurus
	Repeat int // how often each comparison is repeated
	Record PromisesRecord
	Missed []string // figures that miss their promises
}

// Trial is one of the things that are measured for what is promised of them.
type Trial struct {
	Name, Says string
	Measure    func(context.Context) error
	Lab        []string // flags of `pagurus lab up`; nil: the usual ones
}

// NewPromises returns a run without measurements.
func NewPromises(p drive.Pagurus, repeat int) *Promises {
	return &Promises{Pagurus: p, Repeat: repeat, Record: PromisesRecord{
		Samples: map[string][]float64{}, Figures: map[string]stats.Interval{}, Limits: map[string]float64{}, Floors: map[string]float64{},
	}}
}

// Continue adds a file's earlier record, if the file exists, to this one. Both sides of a
// comparison are sampled in the same sitting, so their ratio stays valid. An unreadable record
// is an error.
func (r *Promises) Continue(file string) error {
	text, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	var was PromisesRecord
	if err == nil {
		err = json.Unmarshal(text, &was)
	}
	if err != nil {
		return fmt.Errorf("going on with the record %s: %w", file, err)
	}
	r.Record.Sittings, r.Record.Moves = was.Sittings, was.Moves
	maps.Copy(r.Record.Samples, was.Samples)
	maps.Copy(r.Record.Figures, was.Figures)
	maps.Copy(r.Record.Limits, was.Limits)
	maps.Copy(r.Record.Floors, was.Floors)
	return nil
}

// KeepRecord writes the record to a file unless it is empty.
func (r *Promises) KeepRecord(file string) error {
	if len(r.Record.Samples)+len(r.Record.Moves) == 0 {
		return nil
	}
	return writeRecord(file, r.Record)
}

// Sample records one measured value.
func (r *Promises) Sample(name string, v float64) {
	r.Record.Samples[name] = append(r.Record.Samples[name], v)
}

// InTurn executes both sides of a comparison. Every second repeat begins with the other side, so
// that aftereffects do not always hit the same side.
func InTurn(repeat int, one, other func() error) error {
	if repeat%2 == 1 {
		one, other = other, one
	}
	if err := one(); err != nil {
		return err
	}
	return other()
}

// AtMost prints a figure with its promise: an upper limit.
func (r *Promises) AtMost(name string, v stats.Interval, limit float64) {
	r.Record.Limits[name] = limit
	r.checkLimit(name, v, limit, 1)
}

// AtLeast prints a figure with its promise: a lower limit.
func (r *Promises) AtLeast(name string, v stats.Interval, limit float64) {
	r.Record.Floors[name] = limit
	r.checkLimit(name, v, limit, -1)
}

func (r *Promises) checkLimit(name string, v stats.Interval, limit, sign float64) {
	r.Record.Figures[name] = v
	text, missed := verdict(v, limit, sign)
	fmt.Printf("%-52s %s, %s\n", name, v, text)
	if missed {
		r.Missed = append(r.Missed, name)
	}
}

// verdict compares a figure's estimate with its promise. It also says if the interval reaches
// beyond it. sign is 1 if more is worse.
func verdict(v stats.Interval, limit, sign float64) (text string, missed bool) {
	beyond, worst := "above", v.High
	if sign < 0 {
		beyond, worst = "below", v.Low
	}
	missed = sign*v.Value > sign*limit
	switch {
	case missed:
		text = fmt.Sprintf("%s the promised %.3g", strings.ToUpper(beyond), limit)
	case sign*worst > sign*limit:
		text = fmt.Sprintf("within the promised %.3g (interval reaches %s)", limit, beyond)
	default:
		text = fmt.Sprintf("within the promised %.3g", limit)
	}
	return text, missed
}

// Mean prints the mean of a sample, with an upper limit as its promise.
func (r *Promises) Mean(name, sample string, limit float64) error {
	m, err := stats.Mean(r.Record.Samples[sample], Confidence)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	r.AtMost(name, m, limit)
	return nil
}

// Ratio prints the ratio of two samples taken in turn, with an upper limit as its promise.
func (r *Promises) Ratio(name, ours, theirs string, limit float64) error {
	v, err := r.compare(name, ours, theirs)
	if err == nil {
		r.AtMost(name, v, limit)
	}
	return err
}

// Beside prints a ratio without a promise.
func (r *Promises) Beside(name, one, other string) error {
	v, err := r.compare(name, one, other)
	if err != nil {
		return err
	}
	r.Record.Figures[strings.TrimSpace(name)] = v
	fmt.Printf("%-52s %s\n", name, v)
	return nil
}

func (r *Promises) compare(name, one, other string) (stats.Interval, error) {
	v, err := stats.Ratio(r.Record.Samples[one], r.Record.Samples[other], Confidence)
	if err != nil {
		return v, fmt.Errorf("%s: %w", name, err)
	}
	return v, nil
}

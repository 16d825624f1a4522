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

// Confidence is that of every interval quoted.
const Confidence = 0.95

// PromisesRecord is what measuring promises leaves, at one sitting or at several: the raw
// samples, the figures made of them, and what was promised. Record is its sibling for
// experiments that promise nothing.
type PromisesRecord struct {
	Sittings []Sitting                 `json:"sittings"`
	Samples  map[string][]float64      `json:"samples"`
	Figures  map[string]stats.Interval `json:"figures"`
	Limits   map[string]float64        `json:"limits"`           // that figures are not above
	Floors   map[string]float64        `json:"floors,omitempty"` // that they are not below
	Moves    []fleet.Migration         `json:"moves,omitempty"`  // with what was predicted of them
}

// Sitting is when something was measured, and of what.
type Sitting struct {
	Begun  time.Time `json:"begun"`
	Commit string    `json:"commit"`
	Kernel string    `json:"kernel"`
}

// Promises is one run that measures what is promised: the Pagurus that is measured, and
// what came of it.
type Promises struct {
	drive.Pagurus
	Repeat int // how often each comparison is repeated
	Record PromisesRecord
	Missed []string // figures that are not as promised
}

// Trial is one of the things that are measured for what is promised of them.
type Trial struct {
	Name, Says string
	Measure    func(context.Context) error
	Lab        []string // flags of `pagurus lab up`; nil: the usual ones
}

// NewPromises gives a run in which nothing was measured yet.
func NewPromises(p drive.Pagurus, repeat int) *Promises {
	return &Promises{Pagurus: p, Repeat: repeat, Record: PromisesRecord{
		Samples: map[string][]float64{}, Figures: map[string]stats.Interval{}, Limits: map[string]float64{}, Floors: map[string]float64{},
	}}
}

// Continue takes over what a record that was kept in a file holds, if it is there:
// what is measured now is added to it. Both sides of a comparison are sampled in the
// same sitting, so that their ratio stands. A record that cannot be read is an error.
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

// KeepRecord writes the record to a file, if there is anything in it.
func (r *Promises) KeepRecord(file string) error {
	if len(r.Record.Samples)+len(r.Record.Moves) == 0 {
		return nil
	}
	return writeRecord(file, r.Record)
}

// Sample keeps one measured value.
func (r *Promises) Sample(name string, v float64) {
	r.Record.Samples[name] = append(r.Record.Samples[name], v)
}

// InTurn does both sides of a comparison, in each repeat the other one first,
// so that what one leaves behind does not always meet the same side.
func InTurn(repeat int, one, other func() error) error {
	if repeat%2 == 1 {
		one, other = other, one
	}
	if err := one(); err != nil {
		return err
	}
	return other()
}

// AtMost prints a figure beside what was promised: that it is not above limit.
func (r *Promises) AtMost(name string, v stats.Interval, limit float64) {
	r.Record.Limits[name] = limit
	r.checkLimit(name, v, limit, 1)
}

// AtLeast prints a figure beside what was promised: that it is not below limit.
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

// verdict holds a figure against what was promised, by its estimate; that the
// truth may be beyond it is said. The sign is 1 where more is worse.
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

// Mean prints the mean of a sample, which is promised not to be above limit.
func (r *Promises) Mean(name, sample string, limit float64) error {
	m, err := stats.Mean(r.Record.Samples[sample], Confidence)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	r.AtMost(name, m, limit)
	return nil
}

// Ratio prints the ratio of two samples taken in turn, which is promised not to
// be above limit.
func (r *Promises) Ratio(name, ours, theirs string, limit float64) error {
	v, err := r.compare(name, ours, theirs)
	if err == nil {
		r.AtMost(name, v, limit)
	}
	return err
}

// Beside prints a ratio of which nothing was promised.
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

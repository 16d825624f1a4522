// Command pagurus-bench measures the figures Pagurus promises, as ratios in
// one run, each with its interval, on a lab of this machine. `make bench` runs
// it. It drives the real binaries as a person would, and QEMU by hand where
// that is what is compared with; a record of every raw sample is kept. It exits
// with 1 when a figure is above what is promised.
//
// Its tests are of what needs no lab: verdicts, command lines, what the kernel
// says of a process.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"pagurus/fleet"
	"pagurus/measure/drive"
	"pagurus/measure/stats"
	"pagurus/show/demo"
)

const (
	// confidence is that of every interval quoted.
	confidence = 0.95
	// labHosts is how many hosts the lab has.
	labHosts = 3
)

// record is what one run of the bench leaves: enough to be repeated and
// compared years later.
type record struct {
	Begun   time.Time                 `json:"begun"`
	Commit  string                    `json:"commit"`
	Kernel  string                    `json:"kernel"`
	Samples map[string][]float64      `json:"samples"`
	Figures map[string]stats.Interval `json:"figures"`
	Limits  map[string]float64        `json:"limits"`
	Moves   []fleet.Migration         `json:"moves,omitempty"` // with what was predicted of them
}

// bench is one run.
type bench struct {
	drive.Pagurus
	repeat int
	record record
	above  []string               // figures that are not as promised
	names  map[fleet.JobID]string // of the programs that jobs run
	chosen []string               // programs to predict; empty: all
}

func main() {
	repeat := flag.Int("repeat", 8, "how often each comparison is repeated")
	out := flag.String("o", "dist/bench.json", "where the record goes")
	only := flag.String("only", "", "one of size, start, migration, less, stall, disturbed, predict (default: all)")
	programs := flag.String("programs", "", "of predict: only these, joined by commas")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *repeat, *only, *out, strings.FieldsFunc(*programs, func(r rune) bool { return r == ',' })); err != nil {
		fmt.Fprintln(os.Stderr, "pagurus-bench:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, repeat int, only, out string, programs []string) (err error) {
	program, err := drive.Beside()
	if err != nil {
		return err
	}
	b := &bench{Pagurus: drive.Pagurus{Program: program}, repeat: repeat, names: map[fleet.JobID]string{}, chosen: programs}
	if err := demo.NoLab(ctx, b.Program); err != nil {
		return err
	}
	b.record = record{
		Begun: time.Now().UTC(), Commit: drive.Commit(), Kernel: output("uname", "-r"),
		Samples: map[string][]float64{}, Figures: map[string]stats.Interval{}, Limits: map[string]float64{},
	}
	if b.Dir, err = os.MkdirTemp("/var/tmp", "pagurus-bench-"); err != nil {
		return err
	}
	defer os.RemoveAll(b.Dir)
	defer func() {
		err = errors.Join(err, b.record.keep(out))
	}()
	if err := b.Witness(ctx); err != nil {
		return err
	}
	if err := demo.NoLab(ctx, b.Program); err != nil {
		return err // it came while the image was built
	}
	if _, err := b.Type(ctx, "lab", "up", "--hosts", fmt.Sprint(labHosts)); err != nil {
		return err
	}
	defer func() {
		_, e := b.Type(context.WithoutCancel(ctx), "lab", "down")
		err = errors.Join(err, e)
	}()
	for _, part := range []struct {
		name string
		f    func(context.Context) error
	}{{"size", b.size}, {"start", b.start}, {"migration", b.migration}, {"less", b.less}, {"stall", b.stall}, {"disturbed", b.disturbed}, {"predict", b.predict}} {
		if only != "" && only != part.name {
			continue
		}
		if err := part.f(ctx); err != nil {
			return fmt.Errorf("%s: %w", part.name, err)
		}
	}
	if len(b.above) > 0 {
		return fmt.Errorf("above what is promised: %s", strings.Join(b.above, "; "))
	}
	return nil
}

// keep writes the record, if there is anything in it.
func (r record) keep(file string) error {
	if len(r.Samples)+len(r.Moves) == 0 {
		return nil
	}
	return drive.Keep(file, r)
}

// exitCancelled is what `pagurus wait` exits with for a job that was cancelled.
const exitCancelled = 125

// discard ends a job that has served its purpose, and returns when all of it
// is gone, so that it disturbs nothing that is measured next.
func (b *bench) discard(ctx context.Context, job string) error {
	ctx = context.WithoutCancel(ctx)
	if _, err := b.Type(ctx, "cancel", job); err != nil {
		return err
	}
	_, err := b.Type(ctx, "wait", job)
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) && exit.ExitCode() == exitCancelled {
		return nil
	}
	if err == nil {
		err = errors.New("it had come to its end by itself")
	}
	return fmt.Errorf("ending job %s: %w", job, err)
}

// inTurn does both sides of a comparison, in each repeat the other one first,
// so that what one leaves behind does not always meet the same side.
func inTurn(repeat int, one, other func() error) error {
	if repeat%2 == 1 {
		one, other = other, one
	}
	if err := one(); err != nil {
		return err
	}
	return other()
}

// sample keeps one measured value.
func (b *bench) sample(name string, v float64) {
	b.record.Samples[name] = append(b.record.Samples[name], v)
}

// figure prints a figure beside what was promised of it.
func (b *bench) figure(name string, v stats.Interval, limit float64) {
	b.record.Figures[name], b.record.Limits[name] = v, limit
	text, above := verdict(v, limit)
	fmt.Printf("%-52s %s, %s\n", name, v, text)
	if above {
		b.above = append(b.above, name)
	}
}

// verdict holds a figure against what was promised, by its estimate; that the
// truth may be above it is said.
func verdict(v stats.Interval, limit float64) (text string, above bool) {
	above = v.Value > limit
	switch {
	case above:
		text = fmt.Sprintf("ABOVE the promised %.3g", limit)
	case v.High > limit:
		text = fmt.Sprintf("within the promised %.3g (interval reaches above)", limit)
	default:
		text = fmt.Sprintf("within the promised %.3g", limit)
	}
	return text, above
}

// ratio prints the ratio of two samples taken in turn.
func (b *bench) ratio(name, ours, theirs string, limit float64) error {
	r, err := stats.Ratio(b.record.Samples[ours], b.record.Samples[theirs], confidence)
	if err != nil {
		return err
	}
	b.figure(name, r, limit)
	return nil
}

// beside prints a ratio of which nothing was promised.
func (b *bench) beside(name, one, other string) error {
	r, err := stats.Ratio(b.record.Samples[one], b.record.Samples[other], confidence)
	if err != nil {
		return err
	}
	b.record.Figures[strings.TrimSpace(name)] = r
	fmt.Printf("%-52s %s\n", name, r)
	return nil
}

func output(name string, args ...string) string {
	out, _ := exec.Command(name, args...).Output()
	return strings.TrimSpace(string(out))
}

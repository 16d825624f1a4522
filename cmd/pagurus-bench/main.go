// Command pagurus-bench measures the figures Pagurus promises, as ratios in
// one run, each with its interval, on a lab of this machine. `make bench` runs
// it. It drives the real binaries as a person would, and QEMU by hand where
// that is what is compared with; a record of every raw sample is kept.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"time"

	"pagurus/measure/stats"
)

// confidence is that of every interval quoted.
const confidence = 0.95

// record is what one run of the bench leaves: enough to be repeated and
// compared years later.
type record struct {
	Begun   time.Time                 `json:"begun"`
	Commit  string                    `json:"commit"`
	Kernel  string                    `json:"kernel"`
	Samples map[string][]float64      `json:"samples"`
	Figures map[string]stats.Interval `json:"figures"`
	Limits  map[string]float64        `json:"limits"`
}

// bench is one run.
type bench struct {
	bin    string // folder of the binaries
	dir    string // working directory of the jobs
	repeat int
	record record
}

func main() {
	repeat := flag.Int("repeat", 8, "how often each comparison is repeated")
	out := flag.String("o", "bench.json", "where the record goes")
	only := flag.String("only", "", "one of migration, start, size (default: all)")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, *repeat, *only, *out); err != nil {
		fmt.Fprintln(os.Stderr, "pagurus-bench:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, repeat int, only, out string) (err error) {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	b := &bench{bin: filepath.Dir(self), repeat: repeat}
	b.record = record{
		Begun: time.Now().UTC(), Commit: output("git", "describe", "--always", "--dirty"), Kernel: output("uname", "-r"),
		Samples: map[string][]float64{}, Figures: map[string]stats.Interval{}, Limits: map[string]float64{},
	}
	if b.dir, err = os.MkdirTemp("/var/tmp", "pagurus-bench-"); err != nil {
		return err
	}
	defer os.RemoveAll(b.dir)
	defer func() {
		if text, e := json.MarshalIndent(b.record, "", "  "); e == nil && len(b.record.Samples) > 0 {
			_ = os.WriteFile(out, append(text, '\n'), 0o644)
		}
	}()
	if err := b.prepare(ctx); err != nil {
		return err
	}
	defer func() {
		_, e := b.pagurus(context.WithoutCancel(ctx), "lab", "down")
		if err == nil {
			err = e
		}
	}()
	for _, part := range []struct {
		name string
		f    func(context.Context) error
	}{{"size", b.size}, {"start", b.start}, {"migration", b.migration}} {
		if only != "" && only != part.name {
			continue
		}
		if err := part.f(ctx); err != nil {
			return fmt.Errorf("%s: %w", part.name, err)
		}
	}
	return nil
}

// prepare makes the image, the program that keeps guests busy, and the lab.
func (b *bench) prepare(ctx context.Context) error {
	if _, err := b.pagurus(ctx, "image", "build", "openmpi"); err != nil {
		return err
	}
	source, err := filepath.Abs("internal/testkit/witness/witness.c")
	if err != nil {
		return err
	}
	text, err := os.ReadFile(source)
	if err != nil {
		return fmt.Errorf("run it from the top of the source tree: %w", err)
	}
	if err := os.WriteFile(filepath.Join(b.dir, "witness.c"), text, 0o644); err != nil {
		return err
	}
	if _, err := b.pagurus(ctx, "image", "shell", "openmpi", "--", "mpicc", "-O2", "-o", "witness", "witness.c"); err != nil {
		return err
	}
	_, err = b.pagurus(ctx, "lab", "up", "--hosts", "3")
	return err
}

func (b *bench) pagurus(ctx context.Context, args ...string) (string, error) {
	c := exec.CommandContext(ctx, filepath.Join(b.bin, "pagurus"), args...)
	c.Dir = b.dir
	out, err := c.CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("pagurus %s: %w: %s", strings.Join(args, " "), err, out)
	}
	return strings.TrimSpace(string(out)), nil
}

// sample keeps one measured value.
func (b *bench) sample(name string, v float64) {
	b.record.Samples[name] = append(b.record.Samples[name], v)
}

// figure prints a figure beside what was promised of it.
func (b *bench) figure(name string, v stats.Interval, limit float64) {
	b.record.Figures[name], b.record.Limits[name] = v, limit
	verdict := "within"
	if v.Value > limit {
		verdict = "ABOVE"
	}
	fmt.Printf("%-52s %s, %s the promised %.3g\n", name, v, verdict, limit)
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

func output(name string, args ...string) string {
	out, _ := exec.Command(name, args...).Output()
	return strings.TrimSpace(string(out))
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

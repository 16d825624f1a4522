// Command pagurus-bench measures the figures Pagurus promises, as ratios in
// one run, each with its interval, on a lab of this machine. `make bench` runs
// it. It drives the real binaries as a person would, and QEMU by hand where
// that is what is compared with; a record of every raw sample is kept. It exits
// with 1 when a figure is not as promised.
//
// Its tests are of what needs no lab: command lines, what the kernel says of a
// process.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"pagurus/bench/drive"
	"pagurus/bench/figures"
	"pagurus/cmd/pagurus-bench/light"
	"pagurus/fleet"
	"pagurus/show/demo"
)

// labHosts is how many hosts the lab has.
const labHosts = 3

// bench is one run.
type bench struct {
	*figures.Run
	names  map[fleet.JobID]string // of the programs that jobs run
	chosen []string               // programs to predict; empty: all
}

// part is one of the things that are measured.
type part struct {
	name, says string
	measure    func(context.Context) error
	lab        []string // what lab it needs; nil: the usual one
}

// parts are all of them. Those of containers are in a package of their own.
func (b *bench) parts() []part {
	all := []part{
		{"size", "memory and processor time of an idle cluster's controller and agents", b.size, nil},
		{"start", "a warm run to MPI_Init, beside a boot by hand", b.start, nil},
		{"migration", "a move's total time, beside QEMU's migrate typed by hand", b.migration, nil},
		{"page-cache", "what is not sent of a guest that moves", b.pageCache, nil},
		{"stall", "stall of a coupled job, beside moves by hand", b.stall, nil},
		{"stall-light", "the same where guests are containers", b.stallContainer, nil},
		{"disturbed", "what ten moves cost LAMMPS", b.disturbed, nil},
		{"predict", "what was predicted of moves, beside what was so", b.predict, nil},
		{"owner", "an owner's job and a parallel one, with the system and without", b.owners, ownerLab()},
	}
	for _, p := range light.Parts() {
		all = append(all, part{"light-" + p.Name, p.Says, func(ctx context.Context) error { return p.Measure(ctx, b.Run) }, nil})
	}
	return all
}

func main() {
	b := &bench{Run: figures.New(drive.Pagurus{}, 0), names: map[fleet.JobID]string{}}
	all := b.parts()
	flag.IntVar(&b.Repeat, "repeat", 20, "how often each comparison is repeated")
	out := flag.String("o", "dist/bench.json", "where the record goes")
	only := flag.String("only", "", "the one part to measure (default: all)")
	add := flag.Bool("add", false, "add to the record of earlier runs, since some parts take hours; predictions are judged by those of each run alone")
	programs := flag.String("programs", "", "of predict: only these, joined by commas")
	flag.Usage = func() {
		fmt.Fprintln(flag.CommandLine.Output(), "Measures what Pagurus promises, on a lab of this machine.\n\nParts:")
		for _, p := range all {
			fmt.Fprintf(flag.CommandLine.Output(), "  %-14s %s\n", p.name, p.says)
		}
		fmt.Fprintln(flag.CommandLine.Output(), "\nFlags:")
		flag.PrintDefaults()
	}
	flag.Parse()
	if *only != "" {
		all = slices.DeleteFunc(all, func(p part) bool { return p.name != *only })
		if len(all) == 0 {
			fmt.Fprintf(os.Stderr, "pagurus-bench: %q is none of the parts: see -help\n", *only)
			os.Exit(2)
		}
	}
	if *add {
		if err := b.Continue(*out); err != nil {
			fmt.Fprintln(os.Stderr, "pagurus-bench:", err)
			os.Exit(2)
		}
	}
	b.chosen = strings.FieldsFunc(*programs, func(r rune) bool { return r == ',' })
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := b.run(ctx, all, *out); err != nil {
		fmt.Fprintln(os.Stderr, "pagurus-bench:", err)
		os.Exit(1)
	}
}

func (b *bench) run(ctx context.Context, parts []part, out string) (err error) {
	if b.Program, err = drive.Beside(); err != nil {
		return err
	}
	if err := demo.NoLab(ctx, b.Program); err != nil {
		return err
	}
	b.Record.Sittings = append(b.Record.Sittings, figures.Sitting{Begun: time.Now().UTC(), Commit: drive.Commit(), Kernel: output("uname", "-r")})
	if b.Dir, err = os.MkdirTemp("/var/tmp", "pagurus-bench-"); err != nil {
		return err
	}
	defer os.RemoveAll(b.Dir)
	defer func() {
		err = errors.Join(err, b.KeepRecord(out))
	}()
	if err := b.Witness(ctx); err != nil {
		return err
	}
	if err := demo.NoLab(ctx, b.Program); err != nil {
		return err // it came while the image was built
	}
	for len(parts) > 0 { // those that share a lab
		n := 1
		for n < len(parts) && slices.Equal(parts[n].lab, parts[0].lab) {
			n++
		}
		if err := b.inLab(ctx, parts[:n]); err != nil {
			return err
		}
		parts = parts[n:]
	}
	if len(b.Missed) > 0 {
		return fmt.Errorf("not as promised: %s", strings.Join(b.Missed, "; "))
	}
	return nil
}

// inLab measures parts in a lab of their own.
func (b *bench) inLab(ctx context.Context, parts []part) (err error) {
	lab := parts[0].lab
	if lab == nil {
		lab = []string{"--hosts", fmt.Sprint(labHosts)}
	}
	if _, err := b.Type(ctx, append([]string{"lab", "up"}, lab...)...); err != nil {
		return err
	}
	defer func() {
		_, e := b.Type(context.WithoutCancel(ctx), "lab", "down")
		err = errors.Join(err, e)
	}()
	for _, p := range parts {
		if err := p.measure(ctx); err != nil {
			return fmt.Errorf("%s: %w", p.name, err)
		}
	}
	return nil
}

func cores() int { return runtime.NumCPU() }

func output(name string, args ...string) string {
	out, _ := exec.Command(name, args...).Output()
	return strings.TrimSpace(string(out))
}

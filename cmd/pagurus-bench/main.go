// Command pagurus-bench measures the figures Pagurus promises, as ratios in
// one run, each with its interval, on a lab of this machine. `make bench` runs
// it. It drives the real binaries as a person would, and QEMU by hand where
// that is what is compared with; a record of every raw sample is kept. It exits
// with 1 when a figure is not as promised.
//
// Its tests are of what needs no lab: command lines, what programs and the kernel
// print, and the files that runc is told by.
package main

import (
	"context"
	"embed"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"pagurus/bench"
	"pagurus/bench/drive"
	"pagurus/fleet"
	"pagurus/show/demo"
)

//go:embed programs/*.c
var sources embed.FS

// compile compiles one of the programs here.
func (b *experiments) compile(ctx context.Context, image, name string, compiler ...string) error {
	source, err := sources.ReadFile("programs/" + name + ".c")
	if err != nil {
		return err
	}
	return b.Compile(ctx, image, name, source, compiler...)
}

// labHosts is how many hosts the lab has.
const labHosts = 3

// experiments are one run of them.
type experiments struct {
	*bench.Promises
	names  map[fleet.JobID]string // of the programs that jobs run
	chosen []string               // programs to predict; empty: all
}

func newExperiments() *experiments {
	return &experiments{Promises: bench.NewPromises(drive.Pagurus{}, 0), names: map[fleet.JobID]string{}}
}

// trials are all of them.
func (b *experiments) trials() []bench.Trial {
	return []bench.Trial{
		{Name: "size", Says: "memory and processor time of an idle cluster's controller and agents", Measure: b.size},
		{Name: "crowd", Says: "the controller with 2,000 TLS connections of agents that report", Measure: b.crowd, Lab: crowdLab()},
		{Name: "start", Says: "a warm run to MPI_Init, beside a boot by hand", Measure: b.start},
		{Name: "migration", Says: "a move's total time, beside QEMU's migrate typed by hand", Measure: b.migration},
		{Name: "page-cache", Says: "what is not sent of a guest that moves", Measure: b.pageCache},
		{Name: "stall", Says: "stall of a coupled job, beside moves by hand", Measure: b.stall},
		{Name: "stall-light", Says: "the same where guests are containers", Measure: b.stallContainer},
		{Name: "disturbed", Says: "what ten moves cost LAMMPS", Measure: b.disturbed},
		{Name: "predict", Says: "what was predicted of moves, beside what was so", Measure: b.predict},
		{Name: "owner", Says: "an owner's job and a parallel one, with the system and without", Measure: b.owners, Lab: ownerLab()},
		{Name: "light-start", Says: "a warm run of containers to MPI_Init", Measure: b.startContainers},
		{Name: "light-native", Says: "HPL, STREAM, a solver and NetPIPE in containers, beside natively in the same networks", Measure: b.native},
		{Name: "light-small", Says: "a move of a process of 352.8 KB, from the command to running", Measure: b.small},
		{Name: "light-mappings", Says: "moves of processes with thousands of memory mappings", Measure: b.mappings},
		{Name: "light-sizes", Says: "moves of 50 MiB, 500 MiB and 1.5 GiB, beside runc checkpoint, copy and runc restore", Measure: b.sizes},
	}
}

func main() {
	b := newExperiments()
	all := b.trials()
	flag.IntVar(&b.Repeat, "repeat", 20, "how often each comparison is repeated")
	out := flag.String("o", "dist/bench.json", "where the record goes")
	only := flag.String("only", "", "the one part to measure (default: all)")
	add := flag.Bool("add", false, "add to the record of earlier runs, since some parts take hours; predictions are judged by those of each run alone")
	programs := flag.String("programs", "", "of predict: only these, joined by commas")
	flag.Usage = func() {
		fmt.Fprintln(flag.CommandLine.Output(), "Measures what Pagurus promises, on a lab of this machine.\n\nParts:")
		for _, p := range all {
			fmt.Fprintf(flag.CommandLine.Output(), "  %-14s %s\n", p.Name, p.Says)
		}
		fmt.Fprintln(flag.CommandLine.Output(), "\nFlags:")
		flag.PrintDefaults()
	}
	flag.Parse()
	if *only != "" {
		all = slices.DeleteFunc(all, func(p bench.Trial) bool { return p.Name != *only })
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

func (b *experiments) run(ctx context.Context, trials []bench.Trial, out string) (err error) {
	if b.Program, err = drive.Beside(); err != nil {
		return err
	}
	if err := demo.NoLab(ctx, b.Program); err != nil {
		return err
	}
	b.Sit(drive.Commit())
	if b.Dir, err = os.MkdirTemp("/var/tmp", "pagurus-bench-"); err != nil {
		return err
	}
	defer os.RemoveAll(b.Dir)
	b.File = out
	defer func() {
		b.Record.Complete = err == nil
		err = errors.Join(err, b.Save())
	}()
	if err := b.Witness(ctx); err != nil {
		return err
	}
	if err := demo.NoLab(ctx, b.Program); err != nil {
		return err // it came while the image was built
	}
	return b.Carry(ctx, trials, []string{"--hosts", strconv.Itoa(labHosts)})
}

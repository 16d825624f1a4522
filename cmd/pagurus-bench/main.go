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

	viewedHosts, viewers int // of page
}

func newExperiments() *experiments {
	return &experiments{Promises: bench.NewPromises(drive.Pagurus{}, 0), names: map[fleet.JobID]string{}}
}

// measures are what carries each measurement of the catalogue out.
func (b *experiments) measures() map[string]func(context.Context) error {
	return map[string]func(context.Context) error{
		"size":                b.size,
		"idle":                b.idleAgents,
		"crowd":               b.crowd,
		"crowd-hostile":       b.crowdHostile,
		"page":                b.page,
		"start":               b.start,
		"migration":           b.migration,
		"page-cache":          b.pageCache,
		"stall":               b.stall,
		"stall-container":     b.stallContainer,
		"disturbed":           b.disturbed,
		"checkpoints":         b.checkpoints,
		"checkpoint-stop":     b.checkpointStop,
		"predict":             b.predict,
		"owner":               b.owners,
		"container-start":     b.startContainers,
		"container-native":    b.native,
		"container-small":     b.small,
		"container-mappings":  b.mappings,
		"container-processes": b.processes,
		"container-sizes":     b.sizes,
		"join":                b.join,
		"encryption":          b.encryption,
		"jail":                b.jail,
		"marks":               b.marks,
		"simulate":            b.simulate,
	}
}

// trials are all of them, in the catalogue's order.
func (b *experiments) trials() (all []bench.Trial) {
	measures, labs := b.measures(), map[string][]string{"owner": ownerLab(), "crowd": crowdLab(), "crowd-hostile": crowdLab(), "page": crowdLab(), "encryption": encryptionLab(), "jail": jailLab(), "join": joinLab()}
	for _, m := range bench.Catalogue {
		if m.By == bench.ByMake {
			all = append(all, bench.Trial{Name: m.Name, Says: m.Says, Measure: measures[m.Name], Lab: labs[m.Name], Bare: m.Name == "simulate"})
		}
	}
	return all
}

// asked is what the command line asks for.
type asked struct {
	out, only, against string
	add, build, guard  bool
	tolerance          float64
	kernel, words, cpu string
}

// defaultTurns is how many turns each of two commits takes, if nothing else is said.
const defaultTurns = 6

// flags reads the command line.
func (b *experiments) flags(all []bench.Trial) (a asked) {
	flag.IntVar(&b.Repeat, "repeat", 20, fmt.Sprintf("how often each comparison is repeated; with -against how many turns each commit takes (default then: %d)", defaultTurns))
	flag.StringVar(&a.out, "o", "", "where the record goes (default: dist/bench.json; of -guard dist/bench-guard.json)")
	flag.StringVar(&a.only, "only", "", "the one part to measure (default: all)")
	arms := flag.String("arms", "", "only these of what a part compares, joined by commas (default: all)")
	flag.StringVar(&a.against, "against", "", "a commit: measure the part with it and this one in turn, and say how figures have changed")
	flag.BoolVar(&a.guard, "guard", false, "measure the figures that matter against the commits of their records; -only: one part of these")
	flag.BoolVar(&a.build, "build", false, "of -against and -guard: only build the commits, into "+builtBefore+", and measure nothing")
	flag.Float64Var(&a.tolerance, "tolerance", bench.Tolerance, "of -against and -guard: how many times what it was a figure may be")
	flag.BoolVar(&a.add, "add", false, "add to the record of earlier runs, since some parts take hours; predictions are judged by those of each run alone")
	flag.StringVar(&a.kernel, "kernel", "", "a file with a kernel of virtual machines, which run on KVM then, also where it has no hardware virtualization")
	flag.StringVar(&a.words, "kernel-words", "", "words for the command line of -kernel")
	flag.StringVar(&a.cpu, "cpu", "", "the CPU of virtual machines with -kernel (default: the host's)")
	programs := flag.String("programs", "", "of predict: only these, joined by commas")
	flag.IntVar(&b.viewedHosts, "hosts", 10_000, "of page: so many hosts")
	flag.IntVar(&b.viewers, "watchers", 1000, "of page: so many watchers")
	flag.Usage = func() {
		fmt.Fprintln(flag.CommandLine.Output(), "Measures what Pagurus promises, on a lab of this machine.\n\nParts:")
		for _, p := range all {
			fmt.Fprintf(flag.CommandLine.Output(), "  %-14s %s\n", p.Name, p.Says)
		}
		fmt.Fprintln(flag.CommandLine.Output(), "\nFlags:")
		flag.PrintDefaults()
	}
	flag.Parse()
	list := func(text string) []string { return strings.FieldsFunc(text, func(r rune) bool { return r == ',' }) }
	b.chosen, b.Arms = list(*programs), list(*arms)
	repeats := false
	flag.Visit(func(f *flag.Flag) { repeats = repeats || f.Name == "repeat" })
	if a.against != "" && !repeats {
		b.Repeat = defaultTurns
	}
	if a.guard && !repeats {
		b.Repeat = 0 // each figure has its own
	}
	if a.out == "" {
		if a.out = "dist/bench.json"; a.guard {
			a.out = guardRecord
		}
	}
	return a
}

// refused says what is wrong with what is asked for.
func (a asked) refused(known []bench.Trial) error {
	switch {
	case a.only != "" && !slices.ContainsFunc(known, func(t bench.Trial) bool { return t.Name == a.only }):
		return fmt.Errorf("%q is none of the parts: see -help", a.only)
	case a.against != "" && a.guard:
		return errors.New("-guard knows the commits itself: leave -against out")
	case a.against != "" && a.only == "":
		return errors.New("-against takes one part at a time: name it with -only")
	case a.build && a.against == "" && !a.guard:
		return errors.New("-build builds other commits: name one with -against, or those of -guard")
	case a.kernel == "" && a.words+a.cpu != "":
		return errors.New("-kernel-words and -cpu are for virtual machines with a kernel of one's own: name it with -kernel")
	case a.kernel != "" && slices.Contains(ownMachines, a.only):
		return fmt.Errorf("%s makes its machines itself: measure it without -kernel", a.only)
	case !(a.tolerance >= 1):
		return fmt.Errorf("a tolerance of %g × is none: write 1.1 for a tenth more", a.tolerance)
	}
	return nil
}

func main() {
	b := newExperiments()
	all := b.trials()
	a := b.flags(all)
	if err := a.refused(all); err != nil {
		fmt.Fprintln(os.Stderr, "pagurus-bench:", err)
		os.Exit(2)
	}
	if a.only != "" {
		all = slices.DeleteFunc(all, func(p bench.Trial) bool { return p.Name != a.only })
	}
	if a.add {
		if err := b.Continue(a.out); err != nil {
			fmt.Fprintln(os.Stderr, "pagurus-bench:", err)
			os.Exit(2)
		}
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := b.run(ctx, all, a); err != nil {
		fmt.Fprintln(os.Stderr, "pagurus-bench:", err)
		os.Exit(1)
	}
}

func (b *experiments) run(ctx context.Context, trials []bench.Trial, a asked) (err error) {
	if b.Program, err = drive.Beside(); err != nil {
		return err
	}
	measure := func() error { return b.Carry(ctx, trials, usualLab()) }
	if a.against != "" {
		o, err := b.builds(ctx, a.against)
		if a.build || err != nil {
			return err
		}
		measure = func() error { return b.held(ctx, a, o) }
	}
	if a.guard {
		guards, err := b.guards(ctx, a)
		if a.build || err != nil {
			return err
		}
		measure = func() error { return b.guard(ctx, a, guards) }
	}
	if err := demo.NoLab(ctx, b.Program); err != nil {
		return err
	}
	b.Sit(drive.Commit())
	if b.Dir, err = os.MkdirTemp("/var/tmp", "pagurus-bench-"); err != nil {
		return err
	}
	defer os.RemoveAll(b.Dir)
	b.File = a.out
	defer func() {
		b.Record.Complete = err == nil || errors.Is(err, errWorse) || errors.Is(err, bench.ErrMissed)
		err = errors.Join(err, b.Save())
	}()
	if err := b.Witness(ctx); err != nil {
		return err
	}
	if err := b.ownKernel(ctx, a); err != nil {
		return err
	}
	if err := demo.NoLab(ctx, b.Program); err != nil {
		return err // it came while the image was built
	}
	return measure()
}

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
		"size":               b.size,
		"idle":               b.idleAgents,
		"crowd":              b.crowd,
		"page":               b.page,
		"start":              b.start,
		"migration":          b.migration,
		"page-cache":         b.pageCache,
		"stall":              b.stall,
		"stall-container":    b.stallContainer,
		"disturbed":          b.disturbed,
		"checkpoints":        b.checkpoints,
		"checkpoint-stop":    b.checkpointStop,
		"predict":            b.predict,
		"owner":              b.owners,
		"container-start":    b.startContainers,
		"container-native":   b.native,
		"container-small":    b.small,
		"container-mappings": b.mappings,
		"container-sizes":    b.sizes,
		"join":               b.join,
		"encryption":         b.encryption,
		"jail":               b.jail,
		"marks":              b.marks,
	}
}

// trials are all of them, in the catalogue's order.
func (b *experiments) trials() (all []bench.Trial) {
	measures, labs := b.measures(), map[string][]string{"owner": ownerLab(), "crowd": crowdLab(), "page": crowdLab(), "encryption": encryptionLab(), "jail": jailLab(), "join": joinLab()}
	for _, m := range bench.Catalogue {
		if m.By == bench.ByMake {
			all = append(all, bench.Trial{Name: m.Name, Says: m.Says, Measure: measures[m.Name], Lab: labs[m.Name]})
		}
	}
	return all
}

func main() {
	b := newExperiments()
	all := b.trials()
	flag.IntVar(&b.Repeat, "repeat", 20, "how often each comparison is repeated")
	out := flag.String("o", "dist/bench.json", "where the record goes")
	only := flag.String("only", "", "the one part to measure (default: all)")
	add := flag.Bool("add", false, "add to the record of earlier runs, since some parts take hours; predictions are judged by those of each run alone")
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
	return b.Carry(ctx, trials, usualLab())
}

package main

import (
	"context"
	"errors"
	"fmt"

	"pagurus/bench"
	"pagurus/bench/noise"
	"pagurus/bench/programs"
	"pagurus/bench/stats"
	"pagurus/bench/targets"
)

const (
	solverSide  = 500
	solverSteps = 1000
	solverTimes = 10 // in memory of their own: how that lies is most of what runs differ by
)

// short are the sizes: a program's speed differs by a tenth from one start to the
// next and stays as it is until its end, as its memory happens to lie. So many short
// runs tell more than a few long ones; NetPIPE's differ within a run.
var short = programs.Size{Rows: 4000, Solves: 12, StreamLength: 4_000_000, StreamTimes: 40, MessageBytes: 1 << 20, Messages: 400}

// huge has a program's memory in huge pages, on either side: it lies better then, and
// more alike from one start to the next.
func huge(p bench.Program) bench.Program {
	p.Command = "env GLIBC_TUNABLES=glibc.malloc.hugetlb=1 " + p.Command
	return p
}

// often are the programs of a round: those that differ most from one run to the next
// come more than once.
func often() []bench.Program {
	netpipe, solver, stream := programs.NetPIPE(short), huge(jacobi()), huge(programs.Stream(short))
	return []bench.Program{solver, stream, netpipe, solver, stream, huge(programs.HPCC(short, targets.Ranks, "hpl")), solver}
}

// jacobi is the solver.
func jacobi() bench.Program {
	return bench.Program{
		Name: "jacobi", Command: fmt.Sprintf("./jacobi %d %d %d", solverSide, solverSteps, solverTimes), Read: readJacobi,
		Figures: []bench.Figure{{Name: "solver_s", Says: "time of a solver", Unit: "s", Sense: stats.Slower}},
	}
}

// readJacobi gives how long the solver took.
func readJacobi(text string) (bench.Result, error) {
	took, err := programs.Named(text, "SECONDS")
	return bench.Result{Figures: map[string]float64{"solver_s": took}}, err
}

// native compares programs in two containers on two hosts with the same two
// processes outside of them, in the same networks and of the same image.
func (b *experiments) native(ctx context.Context) error {
	if _, err := b.Type(ctx, "image", "build", hpcImage); err != nil {
		return err
	}
	if err := b.compile(ctx, hpcImage, "jacobi", "mpicc", "-O3"); err != nil {
		return err
	}
	if err := b.Compile(ctx, hpcImage, programs.StreamName, programs.StreamSource, "mpicc", "-O3"); err != nil {
		return err
	}
	e := bench.Experiment{
		Spec: bench.Spec{
			Targets: []string{targets.Native, targets.Contained}, Runs: max(b.Repeat, 2), Ranks: targets.Ranks, Confidence: bench.Confidence,
			Programs: often(),
		},
		Place: &targets.Lab{
			Pagurus: b.Pagurus, Image: hpcImage, Memory: "768M", On: []string{"host1", "host2"}, Rest: targets.UsualRest,
			Kinds: map[string][]string{targets.Contained: {"--kind", "container"}},
		},
		Apart: noise.FarApart,
		Say: func(r bench.Run) {
			// A program that comes more than once in a round has a number for each.
			for _, was := range b.Record.Runs {
				if was.Program == r.Program && was.Target == r.Target {
					r.Round = max(r.Round, was.Round+1)
				}
			}
			b.AddRun(r)
			fmt.Printf("  %-9s apart %s to %s%s%s\n", r.Target, r.Least, r.Apart, r.Given(), r.Failure)
		},
		KeepRun: b.Save,
	}
	b.Declare(e.Spec.Programs...)
	if err := e.Run(ctx); err != nil {
		return err
	}
	return b.nativeFigures()
}

// nativeFigures gives each ratio of all pairs, and of those that are alike, which is held
// against what was promised.
func (b *experiments) nativeFigures() error {
	var errs []error
	for _, f := range []struct {
		says, program, figure string
		limit                 float64
		judge                 func(string, stats.Interval, float64)
	}{
		{"HPL: time in containers / natively", "hpcc", "hpl_s", 1.01, b.AtMost},
		{"STREAM: time in containers / natively", "stream", "stream_s", 1.01, b.AtMost},
		{"solver: time in containers / natively", "jacobi", "solver_s", 1.01, b.AtMost},
		{"NetPIPE: latency in containers / natively", "netpipe", "latency_s", 1.10, b.AtMost},
		{"NetPIPE: bandwidth in containers / natively", "netpipe", "bandwidth_bps", 0.95, b.AtLeast},
	} {
		errs = append(errs, b.Beside(f.says+", all pairs", targets.Contained+"_"+f.figure, targets.Native+"_"+f.figure))
		v, err := b.Record.AlikeRatio(f.program, f.figure, targets.Contained, targets.Native)
		if err != nil {
			errs = append(errs, fmt.Errorf("%s, of pairs that are alike: %w", f.says, err))
			continue
		}
		f.judge(f.says, v, f.limit)
	}
	return errors.Join(errs...)
}

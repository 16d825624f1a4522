package light

import (
	"context"
	"errors"
	"fmt"

	"pagurus/measure/bench"
	where "pagurus/measure/bench/place"
	"pagurus/measure/bench/programs"
	"pagurus/measure/figures"
	"pagurus/measure/stats"
)

const (
	solverSide  = 500
	solverSteps = 10000
)

// short are the sizes: a program's speed differs by a tenth from one start to the
// next and stays as it is until its end, as its memory happens to lie. So many short
// runs tell more than a few long ones; NetPIPE's differ within a run.
var short = programs.Size{Rows: 4000, Solves: 3, StreamLength: 4_000_000, StreamTimes: 40, MessageBytes: 1 << 20, Messages: 400}

// huge has a program's memory in huge pages, on either side: it lies better then, and
// more alike from one start to the next.
func huge(p bench.Program) bench.Program {
	p.Command = "env GLIBC_TUNABLES=glibc.malloc.hugetlb=1 " + p.Command
	return p
}

// jacobi is the solver.
func jacobi() bench.Program {
	return bench.Program{
		Name: "jacobi", Command: fmt.Sprintf("./jacobi %d %d", solverSide, solverSteps), Read: readJacobi,
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
func (l *light) native(ctx context.Context) error {
	if _, err := l.Type(ctx, "image", "build", hpcImage); err != nil {
		return err
	}
	if err := l.compile(ctx, hpcImage, "jacobi", "mpicc", "-O3"); err != nil {
		return err
	}
	if err := l.Compile(ctx, hpcImage, programs.StreamName, programs.StreamSource, "mpicc", "-O3"); err != nil {
		return err
	}
	e := bench.Experiment{
		Spec: bench.Spec{
			Targets: []string{where.Native, where.Contained}, Runs: max(l.Repeat, 2), Ranks: where.Ranks, Confidence: figures.Confidence,
			Programs: []bench.Program{programs.NetPIPE(short), huge(jacobi()), huge(programs.Stream(short)), huge(programs.HPCC(short, "hpl"))},
		},
		Place: &where.Lab{
			Pagurus: l.Pagurus, Image: hpcImage, Memory: "768M", On: []string{"host1", "host2"},
			Kinds: map[string][]string{where.Contained: {"--kind", "container"}},
		},
		Say: func(r bench.Run) {
			line := fmt.Sprintf("  %-9s", r.Target)
			for name, v := range r.Figures {
				l.Sample(name+"_"+r.Target, v)
				line += fmt.Sprintf(" %s %.4g", name, v)
			}
			fmt.Println(line + r.Failure)
		},
	}
	if err := e.Run(ctx); err != nil {
		return err
	}
	return l.nativeFigures()
}

func (l *light) nativeFigures() error {
	var errs []error
	for _, f := range []struct {
		says, sample string
		limit        float64
		least        bool
	}{
		{"HPL: time in containers / natively", "hpl_s_", 1.01, false},
		{"STREAM: time in containers / natively", "stream_s_", 1.01, false},
		{"solver: time in containers / natively", "solver_s_", 1.01, false},
		{"NetPIPE: latency in containers / natively", "latency_s_", 1.10, false},
		{"NetPIPE: bandwidth in containers / natively", "bandwidth_bps_", 0.95, true},
	} {
		compare := l.Ratio
		if f.least {
			compare = l.RatioAtLeast
		}
		errs = append(errs, compare(f.says, f.sample+where.Contained, f.sample+where.Native, f.limit))
	}
	return errors.Join(errs...)
}

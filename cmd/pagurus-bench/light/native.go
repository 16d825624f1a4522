package light

import (
	"context"
	"errors"
	"fmt"
	"time"

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
func (l *containerBench) native(ctx context.Context) error {
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
			Targets: []string{targets.Native, targets.Contained}, Runs: max(l.Repeat, 2), Ranks: targets.Ranks, Confidence: bench.Confidence,
			Programs: often(),
		},
		Place: &targets.Lab{
			Pagurus: l.Pagurus, Image: hpcImage, Memory: "768M", On: []string{"host1", "host2"}, Rest: targets.UsualRest,
			Kinds: map[string][]string{targets.Contained: {"--kind", "container"}},
		},
		Apart: noise.FarApart,
		Say: func(r bench.Run) {
			line := fmt.Sprintf("  %-9s", r.Target)
			if r.Failure == "" {
				l.Sample(apartOf(r.Program)+r.Target, r.Apart.Seconds())
				l.Sample(leastOf(r.Program)+r.Target, r.Least.Seconds())
				line += fmt.Sprintf(" apart %s to %s", r.Least, r.Apart)
			}
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

// apartOf and leastOf begin the names of how far the CPUs were from each other in a
// program's runs, at most and at least.
func apartOf(program string) string { return "apart_s_" + program + "_" }
func leastOf(program string) string { return "apart_least_s_" + program + "_" }

// nativeFigures gives each ratio of all pairs, and of those that are alike, which is held
// against what was promised.
func (l *containerBench) nativeFigures() error {
	var errs []error
	for _, f := range []struct {
		says, program, sample string
		limit                 float64
		judge                 func(string, stats.Interval, float64)
	}{
		{"HPL: time in containers / natively", "hpcc", "hpl_s_", 1.01, l.AtMost},
		{"STREAM: time in containers / natively", "stream", "stream_s_", 1.01, l.AtMost},
		{"solver: time in containers / natively", "jacobi", "solver_s_", 1.01, l.AtMost},
		{"NetPIPE: latency in containers / natively", "netpipe", "latency_s_", 1.10, l.AtMost},
		{"NetPIPE: bandwidth in containers / natively", "netpipe", "bandwidth_bps_", 0.95, l.AtLeast},
	} {
		ours, theirs := l.Record.Samples[f.sample+targets.Contained], l.Record.Samples[f.sample+targets.Native]
		errs = append(errs, l.Beside(f.says+", all pairs", f.sample+targets.Contained, f.sample+targets.Native))
		likeOurs, likeTheirs, err := l.alike(f.program, ours, theirs)
		if err == nil {
			var v stats.Interval
			if v, err = stats.Ratio(likeOurs, likeTheirs, bench.Confidence); err == nil {
				f.judge(f.says, v, f.limit)
			}
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("%s, of pairs that are alike: %w", f.says, err))
		}
	}
	return errors.Join(errs...)
}

// alike leaves only the pairs of a program's samples in which the CPUs were near each
// other in both runs, or far in both.
func (l *containerBench) alike(program string, ours, theirs []float64) (likeOurs, likeTheirs []float64, err error) {
	a, b := l.distances(program, targets.Contained), l.distances(program, targets.Native)
	if n := len(ours); len(theirs) != n || len(a) != n || len(b) != n {
		return nil, nil, fmt.Errorf("of %d and %d runs there are %d and %d distances of the CPUs: begin a new record", n, len(theirs), len(a), len(b))
	}
	for i, like := range bench.Alike(a, b) {
		if like {
			likeOurs, likeTheirs = append(likeOurs, ours[i]), append(likeTheirs, theirs[i])
		}
	}
	return likeOurs, likeTheirs, nil
}

// distances are those of a program's runs; of older ones only the most is known.
func (l *containerBench) distances(program, target string) (all []bench.Distance) {
	most, least := l.Record.Samples[apartOf(program)+target], l.Record.Samples[leastOf(program)+target]
	for i := range most {
		d := bench.Distance{Least: seconds(most[i]), Most: seconds(most[i])}
		if k := i - (len(most) - len(least)); k >= 0 {
			d.Least = seconds(least[k])
		}
		all = append(all, d)
	}
	return all
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

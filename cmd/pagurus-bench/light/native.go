package light

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"pagurus/measure/drive"
	"pagurus/measure/figures"
)

// benchmark is a program that is run both ways.
type benchmark struct {
	name    string
	command string // for a shell
	output  string // the file it writes its results to, in the job's folder; empty: rank 0's standard output
	read    func(text string) (map[string]float64, error)
}

const (
	problemSize = 3000 // rows of HPL's matrix; HPCC makes STREAM's vectors from it
	solverSide  = 2000
	solverSteps = 1500
	netpipeMost = 1 << 20 // bytes of the messages that show its bandwidth
)

// benchmarks are all. HPL and STREAM are in one program.
var benchmarks = []benchmark{
	{"hpcc", "hpcc", "hpccoutf.txt", readHPCC},
	{"latency", "NPopenmpi -l 1 -u 4 -p 0 -n 4000 -o np.out", "np.out", readLatency},
	{"bandwidth", fmt.Sprintf("NPopenmpi -l %d -u %d -p 0 -n 100 -o np.out", netpipeMost, netpipeMost+1), "np.out", readBandwidth},
	{"jacobi", fmt.Sprintf("./jacobi %d %d", solverSide, solverSteps), "", readJacobi},
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
	if err := os.WriteFile(filepath.Join(l.Dir, "hpccinf.txt"), []byte(hpccInput(problemSize)), 0o644); err != nil {
		return err
	}
	for i := range max(l.Repeat, 2) {
		for _, b := range benchmarks {
			if err := l.both(ctx, i, b); err != nil {
				return fmt.Errorf("%s: %w", b.name, err)
			}
		}
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
		{"NetPIPE: bandwidth in containers / natively", "bandwidth_", 0.95, true},
	} {
		compare := l.Ratio
		if f.least {
			compare = l.RatioAtLeast
		}
		errs = append(errs, compare(f.says, f.sample+"container", f.sample+"native", f.limit))
	}
	return errors.Join(errs...)
}

// both runs a program in the containers of a job and natively in the networks of
// the same job, the other way round in every other repeat.
func (l *light) both(ctx context.Context, repeat int, b benchmark) error {
	return l.between(ctx, b, func(run func() error, job string) error {
		return figures.InTurn(repeat, func() error {
			return l.take(b, "container", run)
		}, func() error {
			return l.take(b, "native", func() error { return l.natively(ctx, job, b) })
		})
	})
}

// take runs a program and keeps its results as samples.
func (l *light) take(b benchmark, where string, run func() error) error {
	if b.output != "" {
		if err := os.RemoveAll(filepath.Join(l.Dir, b.output)); err != nil {
			return err
		}
	}
	if err := run(); err != nil {
		return fmt.Errorf("%s: %w", where, err)
	}
	file := b.output
	if file == "" {
		file = outputOf(0)
	}
	text, err := os.ReadFile(filepath.Join(l.Dir, file))
	if err != nil {
		return fmt.Errorf("%s: %w", where, err)
	}
	results, err := b.read(string(text))
	if err != nil {
		return fmt.Errorf("%s: %w", where, err)
	}
	line := fmt.Sprintf("  %-9s", where)
	for name, v := range results {
		l.Sample(name+"_"+where, v)
		line += fmt.Sprintf(" %s %.4g", name, v)
	}
	fmt.Println(line)
	return nil
}

// The files in the job's folder by which its ranks are told, and tell: what is
// written to the first lets them begin, what is written to the last would let
// them end.
func goes(rank int) string     { return fmt.Sprintf("go.%d", rank) }
func done(rank int) string     { return fmt.Sprintf("done.%d", rank) }
func over(rank int) string     { return fmt.Sprintf("over.%d", rank) }
func outputOf(rank int) string { return fmt.Sprintf("output.%d", rank) }

// ranks is how many ranks, and containers, a job of these has.
const ranks = 2

// waiter is what each rank runs: it waits to be told, runs the program, says so,
// and stays, so that the job's networks do. Waiting costs nothing.
func waiter(b benchmark) string {
	return `r=$OMPI_COMM_WORLD_RANK; read word <go.$r; ` + b.command + ` >output.$r 2>&1; echo $? >done.$r; read word <over.$r`
}

// between starts the containers, hands f what makes them run the program, and
// ends them.
func (l *light) between(ctx context.Context, b benchmark, f func(run func() error, job string) error) (err error) {
	for r := range ranks {
		for _, name := range []string{goes(r), over(r)} {
			if err := fifo(filepath.Join(l.Dir, name)); err != nil {
				return err
			}
		}
		if err := os.RemoveAll(filepath.Join(l.Dir, done(r))); err != nil {
			return err
		}
	}
	n := strconv.Itoa(ranks)
	job, err := l.Type(ctx, "run", "--detach", "--kind", "container", "-n", n, "--guests", n, "--mem", "768M", "--image", hpcImage, "--on", "host1,host2", "--",
		"sh", "-c", waiter(b))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.Discard(ctx, job)) }()
	if err := l.Running(ctx, job); err != nil {
		return err
	}
	return f(func() error {
		for r := range ranks {
			if err := tell(ctx, filepath.Join(l.Dir, goes(r))); err != nil {
				return err
			}
		}
		return l.awaitRanks(ctx)
	}, job)
}

const (
	tellLimit = time.Minute     // for a rank to listen
	runLimit  = 3 * time.Minute // for a program to come to its end
	lookEvery = 50 * time.Millisecond
)

// fifo makes a pipe with a name that everybody may use.
func fifo(path string) error {
	if err := os.RemoveAll(path); err != nil {
		return err
	}
	if err := unix.Mkfifo(path, 0o666); err != nil {
		return fmt.Errorf("make %s: %w", path, err)
	}
	return os.Chmod(path, 0o666)
}

// tell writes a line to a pipe as soon as somebody reads it.
func tell(ctx context.Context, path string) error {
	for begun := time.Now(); ; {
		f, err := os.OpenFile(path, os.O_WRONLY|unix.O_NONBLOCK, 0)
		if err == nil {
			_, err = f.WriteString("go\n")
			return errors.Join(err, f.Close())
		}
		if !errors.Is(err, unix.ENXIO) || time.Since(begun) > tellLimit {
			return fmt.Errorf("nobody listens: %w", err)
		}
		if err := drive.Pause(ctx, lookEvery); err != nil {
			return err
		}
	}
}

// awaitRanks waits until all ranks have come to the end of the program.
func (l *light) awaitRanks(ctx context.Context) error {
	begun := time.Now()
	for r := range ranks {
		for {
			text, err := os.ReadFile(filepath.Join(l.Dir, done(r)))
			if code := strings.TrimSpace(string(text)); err == nil && code != "" {
				if code != "0" {
					said, _ := os.ReadFile(filepath.Join(l.Dir, outputOf(r)))
					return fmt.Errorf("rank %d exited with %s: %s", r, code, said)
				}
				break
			}
			if time.Since(begun) > runLimit {
				return fmt.Errorf("rank %d has not come to its end in %s", r, runLimit)
			}
			if err := drive.Pause(ctx, lookEvery); err != nil {
				return err
			}
		}
	}
	return nil
}

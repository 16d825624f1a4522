// Package light measures what is promised of guests that are containers: the
// speed of programs in them, how quickly they start, and their moves beside those
// of runc. It uses a lab as a person would, and the processes in it as somebody
// without Pagurus would.
//
// Its tests are of what needs no lab: what programs print, and the files that
// runc and mpirun are told by.
package light

import (
	"bufio"
	"context"
	"embed"
	"fmt"
	"strconv"
	"strings"
	"time"

	"pagurus/bench"
	"pagurus/bench/drive"
)

//go:embed programs
var sources embed.FS

// Trials are all of them.
func Trials(r *bench.Promises) []bench.Trial {
	l := &containerBench{r}
	return []bench.Trial{
		{Name: "light-start", Says: "a warm run of containers to MPI_Init", Measure: l.start},
		{Name: "light-native", Says: "HPL, STREAM, a solver and NetPIPE in containers, beside natively in the same networks", Measure: l.native},
		{Name: "light-small", Says: "a move of a process of 352.8 KB, from the command to running", Measure: l.small},
		{Name: "light-mappings", Says: "moves of processes with thousands of memory mappings", Measure: l.mappings},
		{Name: "light-sizes", Says: "moves of 50 MiB, 500 MiB and 1.5 GiB, beside runc checkpoint, copy and runc restore", Measure: l.sizes},
	}
}

// containerBench is one run of them.
type containerBench struct{ *bench.Promises }

// The images that jobs run.
const (
	hpcImage   = "hpc"
	plainImage = "plain" // without MPI: a job's program is all that runs, with the guest agent
)

// startLimit is what a warm run to MPI_Init may take, in seconds.
const startLimit = 1.5

// start takes the time from the command to MPI_Init returned on both ranks of a
// warm job of two containers.
func (l *containerBench) start(ctx context.Context) error {
	if err := l.Initialised(ctx); err != nil {
		return err
	}
	if _, err := l.ToInit(ctx, "container"); err != nil {
		return err // the first run warms the caches
	}
	for range max(l.Repeat, 2) {
		took, err := l.ToInit(ctx, "container")
		if err != nil {
			return err
		}
		l.Sample("light_run_s", took.Seconds())
		fmt.Printf("  run to MPI_Init %.2f s\n", took.Seconds())
	}
	return l.Mean("seconds from a warm run to MPI_Init, containers", "light_run_s", startLimit)
}

// compile compiles one of the programs here.
func (l *containerBench) compile(ctx context.Context, image, name string, compiler ...string) error {
	source, err := sources.ReadFile("programs/" + name + ".c")
	if err != nil {
		return err
	}
	return l.Compile(ctx, image, name, source, compiler...)
}

// plain sees to it that the image without MPI is there, and the program that is
// moved.
func (l *containerBench) plain(ctx context.Context) error {
	if _, err := l.Type(ctx, "image", "build", plainImage, "--packages", "coreutils"); err != nil {
		return err
	}
	return l.compile(ctx, "openmpi", "still", "gcc", "-O2", "-static")
}

// gap is a time for which a program did not run, by its own account.
type gap struct {
	ended time.Time
	took  time.Duration
}

// gaps are those in what a program said.
func gaps(said string) (all []gap, err error) {
	for lines := bufio.NewScanner(strings.NewReader(said)); lines.Scan(); {
		words := strings.Fields(lines.Text())
		if len(words) != 3 || words[0] != "GAP" {
			continue
		}
		at, err1 := strconv.ParseFloat(words[1], 64)
		took, err2 := strconv.ParseFloat(words[2], 64)
		if err1 != nil || err2 != nil {
			return nil, fmt.Errorf("the program said %q", lines.Text())
		}
		all = append(all, gap{time.UnixMicro(int64(at * 1e6)), time.Duration(took * 1e9)})
	}
	return all, nil
}

// stalled gives the longest of the gaps that ended after a moment.
func stalled(said string, after time.Time) (longest gap, err error) {
	all, err := gaps(said)
	if err != nil {
		return longest, err
	}
	for _, g := range all {
		if g.ended.After(after) && g.took > longest.took {
			longest = g
		}
	}
	if longest.took == 0 {
		return longest, fmt.Errorf("the program noticed nothing at all, which nobody believes: %q", said)
	}
	return longest, nil
}

// settleTime is how long a job is left alone before it is disturbed and until its
// silences are read.
const settleTime = 2 * time.Second

// moved moves a guest of a job and gives how long the command took and what the
// job noticed.
func (l *containerBench) moved(ctx context.Context, job, to string) (m movement, err error) {
	if err := drive.Pause(ctx, settleTime); err != nil {
		return m, err
	}
	m.begun = time.Now()
	if _, err := l.Type(ctx, "migrate", job+"g0", "--to", to, "--wait"); err != nil {
		return m, err
	}
	m.took = time.Since(m.begun)
	if err := drive.Pause(ctx, settleTime); err != nil {
		return m, err
	}
	said, err := l.Type(ctx, "logs", job)
	if err != nil {
		return m, err
	}
	m.longest, err = stalled(said, m.begun)
	return m, err
}

// movement is one move as the user and the program saw it.
type movement struct {
	begun   time.Time
	took    time.Duration // the command
	longest gap           // of the program's since
}

// running is how long after the command the program ran again.
func (m movement) running() time.Duration { return m.longest.ended.Sub(m.begun) }

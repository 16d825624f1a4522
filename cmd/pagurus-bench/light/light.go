// Package light measures what is promised of guests that are containers: the
// speed of programs in them, how quickly they start, and their moves beside those
// of runc. It uses a lab as a person would, and the processes in it as somebody
// without Pagurus would.
//
// Its tests are of what needs no lab: what programs print, and the files that
// runc and mpirun are told by.
package light

import (
	"context"
	"embed"
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
	run := bench.Seconds("light_run", func(ctx context.Context) (time.Duration, error) { return l.ToInit(ctx, "container") })
	if err := l.InTurn(ctx, nil, run); err != nil {
		return err
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
	if _, err := l.noted(ctx); err != nil {
		return m, err
	}
	said, err := l.Type(ctx, "logs", job)
	if err != nil {
		return m, err
	}
	return m, m.noticed(said)
}

// movement is one move as the user and the program saw it.
type movement struct {
	begun   time.Time
	took    time.Duration // the command
	longest drive.Gap     // of the program's since
}

// noticed takes from what the program said what it noticed.
func (m *movement) noticed(said string) (err error) {
	m.longest, err = drive.LongestGap(said, m.begun, time.Now())
	return err
}

// figures are what is compared.
func (m movement) figures() map[string]float64 {
	return map[string]float64{"running_s": m.running().Seconds(), "command_s": m.took.Seconds(), "stall_s": m.longest.Took.Seconds()}
}

// running is how long after the command the program ran again.
func (m movement) running() time.Duration { return m.longest.Ended.Sub(m.begun) }

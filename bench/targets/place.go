// Package targets is where the bench's programs run: in guests of a lab or of a
// cluster, as a person would start them, and natively in the networks of a lab's
// containers, as somebody without Pagurus would.
//
// It must not know what the programs measure. Its tests are of what needs no lab:
// how ranks are spread and told, and where containers are found.
package targets

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"pagurus/bench"
	"pagurus/bench/drive"
	"pagurus/fleet"
)

// The targets that are in the same networks.
const (
	Native    = "native"
	Contained = "container"
)

// Ranks is how many ranks, and guests, a job has unless something else is said.
const Ranks = 2

// Lab runs programs in a folder of this machine.
type Lab struct {
	drive.Pagurus
	Image  string
	Ranks  int                 // of each job; 0: as many as the constant says
	Guests int                 // that they are spread over; 0: likewise
	Memory string              // of each guest, as for --mem
	On     []string            // hosts to start on; empty: any
	Export string              // folder that guests see at the same path: Dir or above it; empty: Dir
	Kinds  map[string][]string // what `pagurus run` is told beside, by target; Native needs none
	Rest   time.Duration       // before the program runs natively or in containers that wait: see rest
	Every  time.Duration       // between two moves of a guest, on targets that end in Moved
	Counts bool                // what TCP of the guests did is in the text of runs in their networks: see Counted
}

// Job is the shape of its jobs: their ranks, and the guests that those are spread over.
func (l *Lab) Job() fleet.JobSpec {
	return fleet.JobSpec{Ranks: cmp.Or(l.Ranks, Ranks), Guests: cmp.Or(l.Guests, Ranks)}
}

func (l *Lab) exported() string {
	if l.Export == "" {
		return l.Dir
	}
	return l.Export
}

// round is a program that is ready to run. Where one of the targets is native, a
// job of containers lends its networks, and runs the program itself for the
// target of containers: its ranks are there from the beginning and wait, which
// costs nothing.
type round struct {
	lab     *Lab
	program bench.Program
	job     string // of containers that wait; empty: there is none
	ran     bool   // it has run the program
}

// Open puts the program's files into the folder, and starts containers if there
// is a native target.
func (l *Lab) Open(ctx context.Context, p bench.Program, targets []string) (bench.Round, error) {
	for name, text := range p.Files {
		if err := os.WriteFile(filepath.Join(l.Dir, name), []byte(text), 0o644); err != nil {
			return nil, err
		}
	}
	r := &round{lab: l, program: p}
	for _, t := range targets {
		if (t == Native || l.Counts && t == Contained) && r.job == "" {
			if err := r.wait(ctx); err != nil {
				return nil, errors.Join(err, r.Close())
			}
		}
	}
	return r, nil
}

// Close ends the job that waits.
func (r *round) Close() error {
	if r.job == "" {
		return nil
	}
	return r.lab.Discard(context.Background(), r.job)
}

// Run runs the program once.
func (r *round) Run(ctx context.Context, target string) (string, error) {
	if err := r.clear(); err != nil {
		return "", err
	}
	before, err := r.counts()
	if err != nil {
		return "", err
	}
	did := ""
	switch {
	case target == Native:
		err = r.natively(ctx)
		did, err = r.did(before, err)
	case target == Contained && r.job != "" && !r.ran:
		r.ran = true
		err = r.beginProgram(ctx)
		did, err = r.did(before, err)
	default:
		err = r.inGuests(ctx, target)
	}
	file := r.program.Output
	if file == "" {
		file = outputOf(0)
	}
	text, readErr := os.ReadFile(filepath.Join(r.lab.Dir, file))
	if err == nil {
		err = readErr
	}
	return string(text) + did, err
}

// natively runs the program beside the containers that wait.
func (r *round) natively(ctx context.Context) error {
	ctx, stop := context.WithTimeoutCause(ctx, runLimit, fmt.Errorf("it has not come to its end in %s", runLimit))
	defer stop()
	return r.lab.natively(ctx, r.job, r.program)
}

// counts are those of the job that waits, if anybody wants them.
func (r *round) counts() (map[string]uint64, error) {
	if !r.lab.Counts || r.job == "" {
		return nil, nil
	}
	return counts(r.job, r.lab.Job().Guests)
}

// did is what TCP did since before, after a run that ended with err.
func (r *round) did(before map[string]uint64, err error) (string, error) {
	if err != nil || before == nil {
		return "", err
	}
	after, err := r.counts()
	return since(before, after), err
}

// clear removes what an earlier run has written.
func (r *round) clear() error {
	names := []string{r.program.Output}
	for rank := range r.lab.Job().Ranks {
		names = append(names, outputOf(rank))
	}
	for _, name := range names {
		if name == "" {
			continue
		}
		if err := os.RemoveAll(filepath.Join(r.lab.Dir, name)); err != nil {
			return err
		}
	}
	return nil
}

// RankVariables are where MPI libraries tell a program its rank, as a
// shell reads them.
const RankVariables = "${OMPI_COMM_WORLD_RANK:-${PMI_RANK:-0}}"

// run is how `pagurus run` is told of a job on a target.
func (l *Lab) run(target string, flags ...string) []string {
	job := l.Job()
	args := append([]string{"run", "-n", strconv.Itoa(job.Ranks), "--guests", strconv.Itoa(job.Guests), "--mem", l.Memory, "--image", l.Image, "--export", l.exported()}, flags...)
	if len(l.On) > 0 {
		args = append(args, "--on", strings.Join(l.On, ","))
	}
	return append(args, l.kind(target)...)
}

// inGuests runs the program as a job of its own, and looks after it meanwhile.
func (r *round) inGuests(ctx context.Context, target string) error {
	ctx, stop := context.WithTimeout(ctx, runLimit)
	defer stop()
	meanwhile, over := context.WithCancel(ctx)
	defer over()
	followed := make(chan error, 1)
	go func() { followed <- r.followJob(meanwhile, target) }()
	_, err := r.lab.Type(ctx, append(r.lab.run(target), "--", "sh", "-c", r.program.Command+" >output."+RankVariables+" 2>&1")...)
	over()
	amiss := <-followed
	if err == nil {
		return amiss
	}
	said, _ := os.ReadFile(filepath.Join(r.lab.Dir, outputOf(0)))
	return fmt.Errorf("%w: %s", err, said)
}

// The files in the job's folder by which ranks that wait are told, and tell: what
// is written to the first lets them begin, what is written to the last would let
// them end.
func goes(rank int) string     { return fmt.Sprintf("go.%d", rank) }
func done(rank int) string     { return fmt.Sprintf("done.%d", rank) }
func over(rank int) string     { return fmt.Sprintf("over.%d", rank) }
func outputOf(rank int) string { return fmt.Sprintf("output.%d", rank) }

// waiter is what each rank of containers that wait runs: it is told, runs the
// program, says so, and stays, so that the job's networks do.
func waiter(p bench.Program) string {
	return `r=` + RankVariables + `; read word <go.$r; ` + p.Command + ` >output.$r 2>&1; echo $? >done.$r; read word <over.$r`
}

// pipes makes what ranks that wait are told by.
func (r *round) pipes() error {
	for rank := range r.lab.Job().Ranks {
		for _, name := range []string{goes(rank), over(rank)} {
			if err := fifo(filepath.Join(r.lab.Dir, name)); err != nil {
				return err
			}
		}
		if err := os.RemoveAll(filepath.Join(r.lab.Dir, done(rank))); err != nil {
			return err
		}
	}
	return nil
}

// wait starts the containers.
func (r *round) wait(ctx context.Context) (err error) {
	if err := r.pipes(); err != nil {
		return err
	}
	r.job, err = r.lab.Type(ctx, append(r.lab.run(Contained, "--detach"), "--", "sh", "-c", waiter(r.program))...)
	if err != nil {
		return err
	}
	return r.lab.Running(ctx, r.job)
}

// UsualRest is long enough that whether native processes or containers were first could
// not be told any more.
const UsualRest = 2 * time.Second

// rest lets the machine be, so that a program that is run right after another finds it as
// the first did: processors are faster after a pause, and what ended leaves things to be
// removed. Without it the second of a program that only computes was 1.2 % slower.
func (l *Lab) rest(ctx context.Context) error { return drive.Pause(ctx, l.Rest) }

// beginProgram has the containers that wait run the program.
func (r *round) beginProgram(ctx context.Context) error {
	ranks := r.lab.Job().Ranks
	if err := r.lab.rest(ctx); err != nil {
		return err
	}
	bench.UnderwayOf(ctx).Begins()
	for rank := range ranks {
		if err := writeToPipe(ctx, filepath.Join(r.lab.Dir, goes(rank))); err != nil {
			return err
		}
	}
	begun := time.Now()
	for rank := range ranks {
		for {
			text, err := os.ReadFile(filepath.Join(r.lab.Dir, done(rank)))
			if code := strings.TrimSpace(string(text)); err == nil && code != "" {
				if code != "0" {
					said, _ := os.ReadFile(filepath.Join(r.lab.Dir, outputOf(rank)))
					return fmt.Errorf("rank %d exited with %s: %s", rank, code, said)
				}
				break
			}
			if time.Since(begun) > runLimit {
				return fmt.Errorf("rank %d has not come to its end in %s", rank, runLimit)
			}
			if err := drive.Pause(ctx, pollEvery); err != nil {
				return err
			}
		}
	}
	return nil
}

const (
	tellLimit = time.Minute      // for a rank to listen
	runLimit  = 10 * time.Minute // for a program to come to its end
	pollEvery = 50 * time.Millisecond
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

// writeToPipe writes a line to a pipe as soon as a process reads it.
func writeToPipe(ctx context.Context, path string) error {
	for begun := time.Now(); ; {
		f, err := os.OpenFile(path, os.O_WRONLY|unix.O_NONBLOCK, 0)
		if err == nil {
			_, err = f.WriteString("go\n")
			return errors.Join(err, f.Close())
		}
		if !errors.Is(err, unix.ENXIO) || time.Since(begun) > tellLimit {
			return fmt.Errorf("no process listens: %w", err)
		}
		if err := drive.Pause(ctx, pollEvery); err != nil {
			return err
		}
	}
}

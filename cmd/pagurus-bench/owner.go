package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"

	"pagurus/bench"
	"pagurus/bench/drive"
	"pagurus/decide/cost"
	"pagurus/fleet"
)

// The experiment is that of the slides "MPI execution on a grid with virtual
// machines": a parallel job on hosts 1 to 4, owners' jobs begin on 1 and 2, and
// the guests there go to 5 and 6.
const (
	homework   = "homework" // the owners' program, by which they are known
	coupledRun = 90 * time.Second
	ownersRun  = 45 * time.Second
)

var (
	owned    = []string{"host1", "host2"}
	borrowed = "host1,host2,host3,host4"
)

// ownerLab is six hosts that share the cores of this machine in equal parts:
// what guests take on one is not taken from another.
func ownerLab() []string {
	const hosts = 6
	each := float64(runtime.NumCPU()) / hosts
	return []string{"--hosts", strconv.Itoa(hosts), "--cpus-altogether", strconv.FormatFloat(each, 'f', 3, 64), "--mem-per-host", "1G", "--" + fleet.EncryptionFlag, string(fleet.NoEncryption)}
}

// trialSteps and trialTurns are of the runs from which the length of the others
// follows.
const (
	trialCoupled = 200
	trialTurns   = 1_000_000
)

// owners compares what an owner's job and a parallel job take with the system,
// without it, where both stay, and, of the owner's, on an empty machine.
func (b *experiments) owners(ctx context.Context) error {
	if err := b.compile(ctx, "openmpi", "coupled", "mpicc", "-O1"); err != nil {
		return err
	}
	shell, err := os.ReadFile("/bin/sh")
	if err == nil {
		err = os.WriteFile(filepath.Join(b.Dir, homework), shell, 0o755)
	}
	if err != nil {
		return fmt.Errorf("making the owners' program: %w", err)
	}
	one, err := b.alone(ctx, trialTurns)
	if err != nil {
		return err
	}
	turns := int(trialTurns * ownersRun.Seconds() / one.Seconds())
	trial, _, err := b.parallel(ctx, trialCoupled, nil)
	if err != nil {
		return err
	}
	steps := int(trialCoupled * coupledRun.Seconds() / trial.Seconds())
	if err := b.InTurn(ctx, nil, bench.Arm{Name: "empty", Measure: func(ctx context.Context) (map[string]float64, error) {
		empty, err := b.alone(ctx, turns)
		return map[string]float64{"owner_s": empty.Seconds()}, err
	}}, b.shared("with", true, steps, turns), b.shared("without", false, steps, turns)); err != nil {
		return err
	}
	errs := []error{
		b.Ratio("owner's job with the system / on an empty machine", "with_owner_s", "empty_owner_s", 1.05),
		b.Ratio("owner's job with the system / without it", "with_owner_s", "without_owner_s", 0.8),
		b.Ratio("MPI job with the system / without it", "with_mpi_s", "without_mpi_s", 0.9),
	}
	if len(b.Samples("vacated_s")) > 0 {
		errs = append(errs, b.Ratio("owner's return to host free / predicted time of the move", "vacated_s", "predicted_vacate_s", 1.5))
	}
	return errors.Join(errs...)
}

// shared is the parallel job beside the owner's, with the system or without.
func (b *experiments) shared(name string, system bool, steps, turns int) bench.Arm {
	return bench.Arm{Name: name, Measure: func(ctx context.Context) (map[string]float64, error) {
		if err := b.agree(ctx, system); err != nil {
			return nil, err
		}
		var homework time.Duration
		_, mpi, err := b.parallel(ctx, steps, func(job string) (err error) {
			begun := time.Now()
			if homework, err = b.alone(ctx, turns); err == nil && system {
				err = b.vacated(ctx, job, begun)
			}
			return err
		})
		return map[string]float64{"owner_s": homework.Seconds(), "mpi_s": mpi.Seconds()}, err
	}}
}

// agree says that hosts have owners, or that they have none.
func (b *experiments) agree(ctx context.Context, system bool) error {
	for _, h := range owned {
		args := []string{"host", "policy", h, "--owner", "no"}
		if system {
			args = []string{"host", "policy", h, "--owner", "yes", "--vacate", "evacuate", "--idle-after", "3s", "--exclusive", homework}
		}
		if _, err := b.Type(ctx, args...); err != nil {
			return err
		}
	}
	return b.awaitAway(ctx)
}

// awaitAway waits until no owner counts as there and no host drains.
func (b *experiments) awaitAway(ctx context.Context) error {
	return drive.Until(ctx, "owners did not go", func() bool {
		s, err := b.Snapshot(ctx)
		if err != nil {
			return false
		}
		for _, h := range s.Hosts {
			if o := h.Facts.Owner; h.State != fleet.HostUp || o != nil && o.Present {
				return false
			}
		}
		return true
	})
}

// alone runs the owners' programs side by side, each on its host, and gives what
// they took on the average.
func (b *experiments) alone(ctx context.Context, turns int) (time.Duration, error) {
	type end struct {
		took time.Duration
		err  error
	}
	ends := make(chan end, len(owned))
	for _, h := range owned {
		go func() {
			begun := time.Now()
			_, err := b.Type(ctx, "lab", "exec", h, "--", filepath.Join(b.Dir, homework), "-c",
				fmt.Sprintf("i=0; while [ $i -lt %d ]; do i=$((i+1)); done", turns))
			ends <- end{time.Since(begun), err}
		}()
	}
	var sum time.Duration
	var err error
	for range owned {
		e := <-ends
		sum, err = sum+e.took, errors.Join(err, e.err)
	}
	return sum / time.Duration(len(owned)), err
}

// coupledMemory is what each rank of the parallel job has, in MiB.
const coupledMemory = "192"

// parallel runs the parallel job, does something once it computes, and gives how
// long its steps took, and the job altogether.
func (b *experiments) parallel(ctx context.Context, steps int, meanwhile func(job string) error) (computing, all time.Duration, err error) {
	if meanwhile == nil {
		meanwhile = func(string) error { return nil }
	}
	said, j, err := b.ToEnd(ctx, "BEGUN", meanwhile, "-n", "4", "--guests", "4", "--mem", "384M", "--on", borrowed, "--", "./coupled", strconv.Itoa(steps), coupledMemory)
	if err != nil {
		return 0, 0, err
	}
	seconds, ok := doneIn(said, steps)
	if !ok {
		return 0, 0, fmt.Errorf("the parallel job did not come to its end: %s", said)
	}
	return time.Duration(seconds * float64(time.Second)), j.Ended.Sub(j.Started), nil
}

// doneIn reads how many seconds the parallel job's steps took, if it did them all.
func doneIn(said string, steps int) (seconds float64, ok bool) {
	for line := range strings.Lines(said) {
		var n int
		var sum float64
		if _, err := fmt.Sscanf(line, "DONE %d %f %f", &n, &sum, &seconds); err == nil && n == steps {
			return seconds, true
		}
	}
	return 0, false
}

// vacated notes how long it took from the owners' return until their hosts were
// free of guests, beside what was predicted of the moves.
func (b *experiments) vacated(ctx context.Context, job string, begun time.Time) error {
	s, err := b.Snapshot(ctx)
	if err != nil {
		return err
	}
	for _, h := range owned {
		for _, m := range s.Migrations {
			if m.Job != fleet.JobID(job) || m.From != fleet.HostID(h) || m.Phase != fleet.Finished || m.Predicted == nil {
				continue
			}
			free := m.Entered[len(m.Entered)-1].At.Sub(begun)
			b.Sample("vacated_s", free.Seconds())
			b.Sample("predicted_vacate_s", m.Predicted.Total.Value.Seconds())
			b.Sample("vacate_move_s", cost.Total(m).Seconds())
			fmt.Printf("  %s was free %.1f s after its owner's return; the move took %.1f s, said %.1f s\n", h, free.Seconds(), cost.Total(m).Seconds(), m.Predicted.Total.Value.Seconds())
		}
	}
	return nil
}

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
)

const (
	// disturbances is how many moves there are in a run that is disturbed.
	disturbances = 10
	// runTime is how long the undisturbed run shall take. A job is worth moving
	// if it goes on for longer than this.
	runTime = 150 * time.Second
	// trialSteps is the length of the run from which that of the others follows.
	trialSteps = 1000
)

// liquid is what LAMMPS computes: atoms of a Lennard-Jones liquid, a bar that
// the two ranks share.
const liquid = `units lj
atom_style atomic
lattice fcc 0.8442
region box block 0 24 0 6 0 6
create_box 1 box
create_atoms 1 box
mass 1 1.0
velocity all create 3.0 87287 loop geom
pair_style lj/cut 2.5
pair_coeff 1 1 1.0 1.0 2.5
neighbor 0.3 bin
neigh_modify every 20 delay 0 check no
fix 1 all nve
thermo 100
thermo_modify flush yes
variable steps index 1000
run ${steps}
`

// disturbed compares how long LAMMPS runs on two guests when nothing moves and
// when its guests move ten times, one after another. What copying takes of the
// processors that the ranks compute on is stated by itself.
func (b *experiments) disturbed(ctx context.Context) error {
	if _, err := b.Type(ctx, "image", "build", "lammps"); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(b.Dir, "in.liquid"), []byte(liquid), 0o644); err != nil {
		return err
	}
	var trial liquidRun
	for range 2 { // the first run of an image is slow, and would have the others be too short for their moves
		var err error
		if trial, err = b.liquid(ctx, trialSteps, 0); err != nil {
			return err
		}
	}
	steps := int(trialSteps * runTime.Seconds() / trial.loop.Seconds())
	var undisturbed, moved liquidRun
	arm := func(name string, run *liquidRun, moves int) bench.Arm {
		return bench.Seconds(name, func(ctx context.Context) (_ time.Duration, err error) {
			*run, err = b.liquid(ctx, steps, moves)
			return run.took, err
		})
	}
	err := b.InTurn(ctx, func() {
		copying := (moved.copying - undisturbed.copying) / time.Duration(runtime.NumCPU())
		b.Sample("run_copying_s", copying.Seconds())
		b.Sample("run_moved_less_copying_s", (moved.took - copying).Seconds())
	}, arm("run_undisturbed", &undisturbed, 0), arm("run_moved", &moved, disturbances))
	if err != nil {
		return err
	}
	if err := b.Beside(fmt.Sprintf("LAMMPS with %d moves, copying and all / undisturbed", disturbances), "run_moved_s", "run_undisturbed_s"); err != nil {
		return err
	}
	return b.Ratio(fmt.Sprintf("LAMMPS with %d moves, less copying / undisturbed", disturbances), "run_moved_less_copying_s", "run_undisturbed_s", 1.10)
}

// liquidRun is how long a run took.
type liquidRun struct {
	took    time.Duration // the job
	loop    time.Duration // of that LAMMPS's steps, by its own clock: not to begin and to end
	copying time.Duration // processor time that QEMU took for other than what guests computed
}

// liquid runs LAMMPS for so many steps with so many moves under it.
func (b *experiments) liquid(ctx context.Context, steps, moves int) (run liquidRun, err error) {
	watching, stop := context.WithCancel(ctx)
	defer stop()
	spent := make(chan time.Duration, 1)
	said, j, err := b.ToEnd(ctx, "Step", func(job string) error { // LAMMPS has written its first line of results
		go func() { spent <- besides(watching) }()
		return b.spread(ctx, job, moves)
	}, "-n", "2", "--guests", "2", "--mem", "384M", "--image", "lammps", "--on", "host1,host2", "--",
		"lmp", "-in", "in.liquid", "-log", "none", "-var", "steps", strconv.Itoa(steps))
	if err != nil {
		return run, err
	}
	stop()
	run.took, run.copying = j.Ended.Sub(j.Started), <-spent
	run.loop, err = loopTime(said)
	return run, err
}

// loopTime finds in what LAMMPS has printed how long its steps took.
func loopTime(said string) (time.Duration, error) {
	_, rest, found := strings.Cut(said, "Loop time of ")
	number, _, _ := strings.Cut(rest, " ")
	seconds, err := strconv.ParseFloat(number, 64)
	if !found || err != nil || !(seconds > 0) {
		return 0, errors.New("LAMMPS does not say how long its steps took")
	}
	return time.Duration(seconds * float64(time.Second)), nil
}

// surely is the part of runTime in which no run is over yet, if it is faster than the
// trial was.
const surely = 0.85

// spread moves the job's guests in turn, at equal distances over the run.
func (b *experiments) spread(ctx context.Context, job string, moves int) error {
	begun := time.Now()
	for i := range moves {
		due := time.Duration(surely * float64(runTime) * (float64(i) + 0.5) / float64(moves))
		if err := drive.Pause(ctx, due-time.Since(begun)); err != nil {
			return err
		}
		if _, err := b.Type(ctx, "migrate", fmt.Sprintf("%sg%d", job, i%2), "--wait"); err != nil {
			return err
		}
	}
	return nil
}

// besides gives, when ctx ends, the processor time that the QEMUs of the lab
// have taken since it was called, but that of their virtual processors.
func besides(ctx context.Context) time.Duration {
	first, last := map[int]time.Duration{}, map[int]time.Duration{}
	for looks := 0; ; looks++ {
		for _, pid := range processesIn(guestFolder("*", "*")) {
			own, err := withoutGuest(pid)
			if err != nil {
				continue // it has ended; what it took until the look before counts
			}
			if looks == 0 {
				first[pid] = own
			}
			last[pid] = max(own, last[pid])
		}
		if drive.Pause(ctx, 100*time.Millisecond) != nil {
			break
		}
	}
	var sum time.Duration
	for pid := range last {
		sum += last[pid] - first[pid]
	}
	return sum
}

// withoutGuest gives the processor time of a QEMU without that of its virtual
// processors, whose threads are named "CPU 0/TCG" and the like.
func withoutGuest(pid int) (time.Duration, error) {
	own, err := cpuTime(statOf(pid))
	if err != nil {
		return 0, err
	}
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
	if err != nil {
		return 0, err
	}
	for _, file := range threads {
		name, _ := os.ReadFile(filepath.Join(filepath.Dir(file), "comm"))
		if !strings.HasPrefix(string(name), "CPU ") {
			continue
		}
		guest, err := cpuTime(file)
		if err != nil {
			return 0, err
		}
		own -= guest
	}
	return own, nil
}

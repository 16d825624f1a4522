// Package demo shows the main job on real input: a lab of three hosts, and LAMMPS melting a
// Lennard-Jones solid on four ranks in four guests. The melt runs once undisturbed, and then
// again while guests move, in the same processes over the same connections. At last a host
// loses its power during a melt, which goes on from a checkpoint. The demo types
// the commands that a user would type, and reads only what the cluster reports. `make demo`
// is its test. The tests here cover the comparison of logs, the waits' ends and the check
// for a user's lab.
package demo

import (
	"cmp"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"pagurus/fleet"
	"pagurus/internal/pause"
)

//go:embed in.melt
var melt []byte

//go:embed twice.melt
var twice []byte

// The logs of the two melts, as named in twice.melt.
const (
	undisturbedLog = "log.undisturbed"
	movedLog       = "log.moved"
)

// Cluster is the demo's access to a running controller.
type Cluster interface {
	Snapshot(context.Context) (fleet.Snapshot, error)
	Trace(context.Context, fleet.JobID) ([]fleet.Trace, error)
}

// Demo is one run of the demo.
type Demo struct {
	Pagurus string  // path of the binary
	Cluster Cluster // usable once the lab is up
	Out     io.Writer
	Steps   int  // time steps of the melt
	Fixed   bool // exactly so many, however short the melt is

	dir     string
	started time.Time
}

// The demo's time limits: far above what a slow machine needs, so that a fault ends with a
// message.
const (
	jobLimit  = 8 * time.Minute
	pollEvery = 200 * time.Millisecond
	// endLimit is how long a command may take to end properly: `lab up` removes what it has
	// made.
	endLimit = time.Minute
)

// lease is that of the lab's hosts: so long, and some seconds, is a host without power waited for.
const lease = "15s"

// act is a melt of the demo.
type act struct {
	kind    fleet.Kind
	words   []string                                                   // that `pagurus run` is told beside what all are told
	disturb func(ctx context.Context, job fleet.JobID, out *run) error // during the second melt
}

// onTwo leaves the third host to guests that move, and to checkpoints.
var onTwo = []string{"--on", "host1,host2"}

// errOver ends waits when the program has ended.
var errOver = errors.New("the program has ended")

// errShort: the melt was too short for guests to move during it.
var errShort = errors.New("the melt is too short")

// NoLab refuses if a lab is up: it is a user's, and a demo or measurement takes its own lab
// down at the end.
func NoLab(ctx context.Context, pagurus string) error {
	said, err := exec.CommandContext(ctx, pagurus, "lab", "status", "--json").Output()
	var status struct{ Lab json.RawMessage }
	if e := json.Unmarshal(said, &status); e != nil {
		if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
			err = errors.New(strings.TrimSpace(string(exit.Stderr)))
		}
		return fmt.Errorf("asking whether a lab is up: %w", errors.Join(err, e))
	}
	if status.Lab != nil {
		return errors.New("a lab is up already, and this makes and ends one of its own: `pagurus lab down` first")
	}
	return nil
}

// Run runs the demo. It takes its lab down in any case. An error says what went wrong.
func (d *Demo) Run(ctx context.Context) (err error) {
	d.started = time.Now()
	if err := NoLab(ctx, d.Pagurus); err != nil {
		return err
	}
	if d.dir, err = os.MkdirTemp("/var/tmp", "pagurus-demo-"); err != nil {
		return fmt.Errorf("making a folder for the job's files: %w", err)
	}
	defer os.RemoveAll(d.dir)
	for name, text := range map[string][]byte{"in.melt": melt, "twice.melt": twice} {
		if err := os.WriteFile(filepath.Join(d.dir, name), text, 0o644); err != nil {
			return fmt.Errorf("writing the input: %w", err)
		}
	}
	d.say("The image: Debian with Open MPI and LAMMPS, built once and kept.")
	if err := d.call(ctx, "image", "build", "lammps"); err != nil {
		return err
	}
	d.say("A cluster on this machine: three hosts, each a network namespace with a real agent.")
	if err := NoLab(ctx, d.Pagurus); err != nil {
		return err // a lab came up while the image was built
	}
	if err := d.call(ctx, "lab", "up", "--hosts", "3", "--lease", lease); err != nil {
		return err // `lab up` has removed what it made
	}
	defer func() {
		down, cancel := context.WithTimeout(context.WithoutCancel(ctx), endLimit)
		defer cancel()
		err = errors.Join(err, d.call(down, "lab", "down"))
	}()
	return d.show(ctx)
}

// show runs the melt in virtual machines and then in containers, if hosts can run them, and
// compares the two.
func (d *Demo) show(ctx context.Context) error {
	steps := d.Steps
	d.say("A melt on 4 ranks in 4 guests on two hosts: once undisturbed, then again while guest 1\n   moves to host3 and host2 is drained.")
	vm, err := d.melted(ctx, act{kind: fleet.VM, words: onTwo, disturb: d.move})
	if err != nil {
		return err
	}
	if why := cannot(vm.final, fleet.Container); why != "" {
		d.say("No containers: the hosts cannot run any. " + why)
	} else {
		d.say("The same in containers.")
		if err := d.call(ctx, "undrain", "host2"); err != nil {
			return err
		}
		d.Steps = steps
		container, err := d.melted(ctx, act{kind: fleet.Container, words: onTwo, disturb: d.move})
		if err != nil {
			return err
		}
		d.say("Virtual machines and containers")
		if err := beside(d.Out, vm, container); err != nil {
			return err
		}
		d.say("In containers again. During the second melt host2 loses its power, and the job goes on from a checkpoint.")
		if err := d.call(ctx, "undrain", "host2"); err != nil {
			return err
		}
		if _, err := d.melted(ctx, act{kind: fleet.Container, words: append([]string{"--restarts", "1"}, onTwo...), disturb: d.cutPower}); err != nil {
			return err
		}
	}
	fmt.Fprintf(d.Out, "\nAll of it took %.0f s.\n", time.Since(d.started).Seconds())
	return nil
}

// cannot says why hosts cannot run guests of a kind; empty: they can.
func cannot(s fleet.Snapshot, kind fleet.Kind) string {
	for _, h := range s.Hosts {
		if a, ok := h.Facts.Abilities[kind]; !ok || a.Trouble != "" {
			return fmt.Sprintf("%s: %s", h.ID, cmp.Or(a.Trouble, "its agent knows no such guests"))
		}
	}
	return ""
}

// melted runs the melt in guests of one kind, as long as needed, and reports it.
func (d *Demo) melted(ctx context.Context, a act) (run, error) {
	r, err := d.melt(ctx, a)
	if errors.Is(err, errShort) {
		steps, took := d.enough()
		d.say(fmt.Sprintf("The melt took %.1f s, too short to move guests under it: again with %d steps in place of %d.", took.Seconds(), steps, d.Steps))
		d.Steps = steps
		r, err = d.melt(ctx, a)
	}
	if err != nil {
		return run{}, err
	}
	d.say("What happened")
	if r.log, err = d.read(undisturbedLog); err != nil {
		return run{}, err
	}
	moved, err := d.read(movedLog)
	if err != nil {
		return run{}, err
	}
	same := compare(r.log, moved)
	report(d.Out, r, same)
	if same.Differs != "" {
		return run{}, fmt.Errorf("the results differ: %s", same.Differs)
	}
	r.steps = d.Steps
	return r, nil
}

// melt runs LAMMPS, disturbs its second melt, and returns what the cluster reports. If the first
// melt was too short for that, nothing disturbs it and the error is errShort.
func (d *Demo) melt(ctx context.Context, a act) (run, error) {
	ctx, cancel := context.WithTimeout(ctx, jobLimit)
	defer cancel()
	for _, log := range []string{undisturbedLog, movedLog} { // earlier logs must not be mistaken for this run's
		if err := os.RemoveAll(filepath.Join(d.dir, log)); err != nil {
			return run{}, err
		}
	}
	args := []string{"run", "--kind", string(a.kind), "-n", "4", "--guests", "4", "--mem", "384M", "--image", "lammps", "--trace"}
	args = append(append(args, a.words...), "--", "lmp", "-in", "twice.melt", "-log", "none", "-var", "steps", fmt.Sprint(d.Steps))
	before, err := d.Cluster.Snapshot(ctx)
	if err != nil {
		return run{}, err
	}
	alive, end := context.WithCancelCause(ctx)
	over := make(chan error, 1)
	go func() {
		err := d.call(ctx, args...)
		end(errOver)
		over <- err
	}()
	job, err := d.newest(alive, before)
	out := run{}
	watched := make(chan []fleet.Gap, 1)
	if err == nil {
		go func() { watched <- d.collectGaps(alive, job, &out) }()
		err = d.followMelt(ctx, alive, job, a, &out)
	}
	if errors.Is(err, errShort) {
		return run{}, errors.Join(<-over, err)
	}
	if err != nil {
		// An error of the program itself comes first: the rest follows from it.
		itself := errors.Is(context.Cause(alive), errOver)
		cancel()
		if e := <-over; itself {
			err = errors.Join(cmp.Or(e, errors.New("the melt was over before guests had moved: more --steps make it longer")), err)
		}
		return run{}, err
	}
	if err := <-over; err != nil {
		return run{}, err
	}
	out.gaps = <-watched
	if out.final, err = d.Cluster.Snapshot(ctx); err != nil {
		return run{}, err
	}
	out.job = out.final.Jobs[job]
	for log, took := range map[string]*time.Duration{undisturbedLog: &out.undisturbed, movedLog: &out.moved} {
		text, err := d.read(log)
		if err != nil {
			return run{}, err
		}
		*took, _ = loopTime(text) // an incomplete log is noticed in the comparison
	}
	return out, nil
}

// followMelt waits for the first melt's end and disturbs the second.
func (d *Demo) followMelt(ctx, alive context.Context, job fleet.JobID, a act, out *run) error {
	if err := d.await(alive, "the melt to begin", func() bool { return d.steady(undisturbedLog) }); err != nil {
		return err
	}
	out.from = time.Now()
	looped := func() bool { text, _ := d.read(undisturbedLog); _, ok := loopTime(text); return ok }
	if err := d.await(alive, "the first melt to end", looped); err != nil {
		return err
	}
	out.until = time.Now()
	if steps, _ := d.enough(); steps > d.Steps {
		return errShort
	}
	if err := d.await(alive, "the second melt to begin", func() bool { return d.steady(movedLog) }); err != nil {
		return err
	}
	return a.disturb(ctx, job, out)
}

// enough gives the steps for a melt that is long enough for moves, from the log of the first
// with d.Steps, and how long that took.
func (d *Demo) enough() (steps int, took time.Duration) {
	text, err := d.read(undisturbedLog)
	took, ok := loopTime(text)
	if err != nil || !ok || d.Fixed {
		return d.Steps, took // a missing log is noticed in the comparison
	}
	return lengthen(d.Steps, took), took
}

// cutPower cuts the power of a host that has guests of the job, some steps after a checkpoint, and
// returns when the job runs again.
func (d *Demo) cutPower(ctx context.Context, job fleet.JobID, out *run) error {
	if err := d.call(ctx, "checkpoint", string(job), "--wait"); err != nil {
		return err
	}
	kept := d.printed(movedLog)
	if err := d.await(ctx, "the melt to go on", func() bool { return d.printed(movedLog) > kept }); err != nil {
		return err
	}
	if err := d.call(ctx, "lab", "power", "host2", "off"); err != nil {
		return err
	}
	off := time.Now()
	again := func() bool {
		s, err := d.Cluster.Snapshot(ctx)
		return err == nil && (s.Jobs[job].Incarnation > 0 && s.Jobs[job].State == fleet.JobRunning || s.Jobs[job].State == fleet.JobEnded)
	}
	if err := d.await(ctx, "the job to go on elsewhere", again); err != nil {
		return err
	}
	out.without = time.Since(off)
	return d.call(ctx, "explain", string(job))
}

// move moves guests as an owner would.
func (d *Demo) move(ctx context.Context, job fleet.JobID, _ *run) error {
	if err := d.call(ctx, "migrate", string(job)+"g1", "--to", "host3", "--wait"); err != nil {
		return err
	}
	return d.call(ctx, "drain", "host2", "--wait")
}

// steady reports whether a melt has printed some of its steps.
func (d *Demo) steady(log string) bool { return d.printed(log) > 2 }

// printed is how many steps a melt has printed.
func (d *Demo) printed(log string) int {
	text, _ := d.read(log) // may not exist yet
	return len(thermo(text))
}

func (d *Demo) await(ctx context.Context, what string, is func() bool) error {
	for !is() {
		if err := pause.For(ctx, pollEvery); err != nil {
			return fmt.Errorf("waiting for %s: %w", what, err)
		}
	}
	return nil
}

func (d *Demo) newest(ctx context.Context, before fleet.Snapshot) (fleet.JobID, error) {
	for {
		now, err := d.Cluster.Snapshot(ctx)
		if err != nil {
			return "", err
		}
		for id := range now.Jobs {
			if _, old := before.Jobs[id]; !old {
				return id, nil
			}
		}
		if err := pause.For(ctx, pollEvery); err != nil {
			return "", fmt.Errorf("waiting for the job to appear: %w", err)
		}
	}
}

// collectGaps notes the guests' hosts and keeps the ranks' latest gaps, until the job's
// program has ended.
func (d *Demo) collectGaps(ctx context.Context, job fleet.JobID, out *run) []fleet.Gap {
	var gaps []fleet.Gap
	for turn := 0; pause.For(ctx, pollEvery) == nil; turn++ {
		s, err := d.Cluster.Snapshot(ctx)
		if err != nil {
			continue
		}
		out.noteHosts(s, job)
		if j := s.Jobs[job]; j.State == fleet.JobStopping && !j.Requeue || j.State == fleet.JobEnded {
			break
		}
		if turn%5 == 4 && s.Jobs[job].State == fleet.JobRunning {
			traces, _ := d.Cluster.Trace(ctx, job) // a failure is tried again
			for _, t := range traces {
				gaps = append(gaps, t.Gaps...)
			}
		}
	}
	return gaps
}

func (d *Demo) read(log string) (string, error) {
	text, err := os.ReadFile(filepath.Join(d.dir, log))
	if err != nil {
		return "", fmt.Errorf("reading a log of LAMMPS: %w", err)
	}
	return string(text), nil
}

// call runs one pagurus command in the job's folder, shown as typed.
func (d *Demo) call(ctx context.Context, args ...string) error {
	fmt.Fprintf(d.Out, "\n$ pagurus %s\n", strings.Join(args, " "))
	c := exec.CommandContext(ctx, d.Pagurus, args...)
	c.Dir, c.Stdout, c.Stderr = d.dir, d.Out, d.Out
	c.Cancel = func() error { return c.Process.Signal(os.Interrupt) }
	c.WaitDelay = endLimit
	if err := c.Run(); err != nil {
		return fmt.Errorf("pagurus %s: %w", strings.Join(slices.Concat(args[:1]), " "), err)
	}
	return nil
}

func (d *Demo) say(text string) { fmt.Fprintf(d.Out, "\n== %s\n", text) }

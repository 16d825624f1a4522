// Package demo is the main job on real input, as a story: a lab of three
// hosts, LAMMPS melting a Lennard-Jones solid on four ranks in four guests,
// once undisturbed and once while guests move under it. It types the commands
// a person would type and reads back only what the cluster itself says. Its
// test is that it runs: make demo; the comparing of logs is tested here.
package demo

import (
	"context"
	_ "embed"
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
)

//go:embed in.melt
var melt []byte

// Cluster is what the demo asks of a running controller.
type Cluster interface {
	Snapshot(context.Context) (fleet.Snapshot, error)
	Gaps(context.Context, fleet.JobID) ([]fleet.Gap, error)
}

// Demo is one showing.
type Demo struct {
	Pagurus string  // path of the binary to call
	Cluster Cluster // answers once the lab is up
	Out     io.Writer
	Steps   int // time steps of the melt

	dir     string
	started time.Time
}

// The limits of the demo's waits: far above what a slow machine needs, so that
// something wrong ends in words and not in silence.
const (
	jobLimit  = 8 * time.Minute
	pollEvery = 200 * time.Millisecond
)

// Run shows it all. The lab is taken down again whatever happens; an error
// says what did not go as promised.
func (d *Demo) Run(ctx context.Context) (err error) {
	d.started = time.Now()
	if d.dir, err = os.MkdirTemp("/var/tmp", "pagurus-demo-"); err != nil {
		return fmt.Errorf("making a folder for the job's files: %w", err)
	}
	defer os.RemoveAll(d.dir)
	if err := os.WriteFile(filepath.Join(d.dir, "in.melt"), melt, 0o644); err != nil {
		return fmt.Errorf("writing the input: %w", err)
	}
	d.say("The image: Debian with Open MPI and LAMMPS, built once and kept.")
	if err := d.call(ctx, "image", "build", "lammps"); err != nil {
		return err
	}
	d.say("A cluster on this machine: three hosts, each a network namespace with a real agent.")
	defer func() {
		down, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
		defer cancel()
		err = errors.Join(err, d.call(down, "lab", "down"))
	}()
	if err := d.call(ctx, "lab", "up", "--hosts", "3"); err != nil {
		return err
	}
	return d.show(ctx)
}

func (d *Demo) show(ctx context.Context) error {
	d.say("First the melt undisturbed: 4 ranks, 4 guests, two hosts.")
	quiet, err := d.melt(ctx, "log.quiet", nil)
	if err != nil {
		return err
	}
	d.say("Now the same, while guest 1 moves to host3 and then host2 is drained.")
	moved, err := d.melt(ctx, "log.moved", d.disturb)
	if err != nil {
		return err
	}
	d.say("What happened")
	same, err := d.compare("log.quiet", "log.moved")
	if err != nil {
		return err
	}
	report(d.Out, quiet, moved, same, time.Since(d.started))
	if same.Differs != "" {
		return fmt.Errorf("the results differ: %s", same.Differs)
	}
	return nil
}

// melt runs LAMMPS once, lets disturb do its work meanwhile, and gives what
// the cluster says of it.
func (d *Demo) melt(ctx context.Context, log string, disturb func(context.Context, fleet.JobID) error) (run, error) {
	ctx, cancel := context.WithTimeout(ctx, jobLimit)
	defer cancel()
	args := []string{"run", "-n", "4", "--guests", "4", "--mem", "384M", "--image", "lammps", "--on", "host1,host2", "--trace",
		"--", "lmp", "-in", "in.melt", "-log", log, "-var", "steps", fmt.Sprint(d.Steps)}
	before, err := d.Cluster.Snapshot(ctx)
	if err != nil {
		return run{}, err
	}
	type ended struct{ err error }
	over := make(chan ended, 1)
	go func() { over <- ended{d.call(ctx, args...)} }()
	job, err := d.newest(ctx, before)
	if err != nil {
		cancel()
		return run{}, errors.Join(err, (<-over).err)
	}
	out := run{}
	watched := make(chan []fleet.Gap, 1)
	go func() { watched <- d.gather(ctx, job, &out) }()
	if disturb != nil {
		if err := d.steady(ctx, log); err == nil {
			err = disturb(ctx, job)
		}
		if err != nil {
			cancel()
			return run{}, errors.Join(err, (<-over).err)
		}
	}
	if e := <-over; e.err != nil {
		return run{}, e.err
	}
	out.gaps = <-watched
	out.final, err = d.Cluster.Snapshot(ctx)
	out.job = out.final.Jobs[job]
	return out, err
}

// disturb is the owner's part in the story.
func (d *Demo) disturb(ctx context.Context, job fleet.JobID) error {
	if err := d.call(ctx, "migrate", string(job)+"g1", "--to", "host3", "--wait"); err != nil {
		return err
	}
	return d.call(ctx, "drain", "host2", "--wait")
}

// steady returns when the melt has begun to print.
func (d *Demo) steady(ctx context.Context, log string) error {
	for {
		text, _ := os.ReadFile(filepath.Join(d.dir, log))
		if len(thermo(string(text))) > 2 {
			return nil
		}
		if err := pause(ctx); err != nil {
			return fmt.Errorf("waiting for the melt to begin: %w", err)
		}
	}
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
		if err := pause(ctx); err != nil {
			return "", fmt.Errorf("waiting for the job to appear: %w", err)
		}
	}
}

// gather notes where guests are and keeps the last gaps the ranks told of,
// until the job's program has ended.
func (d *Demo) gather(ctx context.Context, job fleet.JobID, out *run) []fleet.Gap {
	var gaps []fleet.Gap
	for turn := 0; pause(ctx) == nil; turn++ {
		s, err := d.Cluster.Snapshot(ctx)
		if err != nil {
			continue
		}
		out.note(s, job)
		if s.Jobs[job].State == fleet.JobStopping || s.Jobs[job].State == fleet.JobEnded {
			break
		}
		if turn%5 == 4 && s.Jobs[job].State == fleet.JobRunning {
			if g, err := d.Cluster.Gaps(ctx, job); err == nil {
				gaps = append(gaps, g...)
			}
		}
	}
	return gaps
}

func (d *Demo) compare(a, b string) (comparison, error) {
	first, err := os.ReadFile(filepath.Join(d.dir, a))
	if err != nil {
		return comparison{}, fmt.Errorf("reading the first log: %w", err)
	}
	second, err := os.ReadFile(filepath.Join(d.dir, b))
	if err != nil {
		return comparison{}, fmt.Errorf("reading the second log: %w", err)
	}
	return compare(string(first), string(second)), nil
}

// call runs one pagurus command in the job's folder, shown as typed.
func (d *Demo) call(ctx context.Context, args ...string) error {
	fmt.Fprintf(d.Out, "\n$ pagurus %s\n", strings.Join(args, " "))
	c := exec.CommandContext(ctx, d.Pagurus, args...)
	c.Dir, c.Stdout, c.Stderr = d.dir, d.Out, d.Out
	c.Cancel = func() error { return c.Process.Signal(os.Interrupt) }
	c.WaitDelay = 20 * time.Second
	if err := c.Run(); err != nil {
		return fmt.Errorf("pagurus %s: %w", strings.Join(slices.Concat(args[:1]), " "), err)
	}
	return nil
}

func (d *Demo) say(text string) { fmt.Fprintf(d.Out, "\n== %s\n", text) }

func pause(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(pollEvery):
		return nil
	}
}

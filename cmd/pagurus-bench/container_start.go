package main

import (
	"context"
	"time"

	"pagurus/bench"
	"pagurus/bench/drive"
)

// The images that jobs run.
const (
	hpcImage   = "hpc"
	plainImage = "plain" // without MPI: a job's program is all that runs, with the guest agent
)

// containerStart is what a warm run to MPI_Init may take, in seconds.
const containerStart = 1.5

// startContainers takes the time from the command to MPI_Init returned on both ranks of a
// warm job of two containers.
func (b *experiments) startContainers(ctx context.Context) error {
	if err := b.Initialised(ctx); err != nil {
		return err
	}
	if _, err := b.ToInit(ctx, "container"); err != nil {
		return err // the first run warms the caches
	}
	run := bench.Seconds("container_run", func(ctx context.Context) (time.Duration, error) { return b.ToInit(ctx, "container") })
	if err := b.InTurn(ctx, nil, run); err != nil {
		return err
	}
	return b.Mean("seconds from a warm run to MPI_Init, containers", "container_run_s", containerStart)
}

// still sees to it that the image without MPI is there, and the program that is
// moved.
func (b *experiments) still(ctx context.Context) error {
	if _, err := b.Type(ctx, "image", "build", plainImage, "--packages", "coreutils"); err != nil {
		return err
	}
	return b.compile(ctx, "openmpi", "still", "gcc", "-O2", "-static")
}

// quietTime is how long a container is left alone before it is disturbed and until its
// gaps are read.
const quietTime = 2 * time.Second

// moveContainer moves a guest of a job and gives how long the command took and what the
// job noticed.
func (b *experiments) moveContainer(ctx context.Context, job, to string) (m movement, err error) {
	if err := drive.Pause(ctx, quietTime); err != nil {
		return m, err
	}
	m.begun = time.Now()
	if _, err := b.Type(ctx, "migrate", job+"g0", "--to", to, "--wait"); err != nil {
		return m, err
	}
	m.took = time.Since(m.begun)
	if err := drive.Pause(ctx, quietTime); err != nil {
		return m, err
	}
	moved, err := b.noted(ctx)
	if err != nil {
		return m, err
	}
	m.down = moved.Cost.Downtime
	said, err := b.Type(ctx, "logs", job)
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
	down    time.Duration // by the host; 0: nobody says
}

// noticed takes from what the program said what it noticed.
func (m *movement) noticed(said string) (err error) {
	m.longest, err = drive.LongestGap(said, m.begun, time.Now())
	return err
}

// figures are what is compared.
func (m movement) figures() map[string]float64 {
	got := map[string]float64{"running_s": m.running().Seconds(), "command_s": m.took.Seconds(), "stall_s": m.longest.Took.Seconds()}
	if m.down > 0 {
		got["suspended_s"] = m.down.Seconds()
	}
	return got
}

// running is how long after the command the program ran again.
func (m movement) running() time.Duration { return m.longest.Ended.Sub(m.begun) }

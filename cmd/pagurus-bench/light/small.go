package light

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"pagurus/fleet"
)

// The process of the Nanvix study had 342.8 KB of text and data, 2 of user area
// and 8 of stack. What ours has of these lies in memory that it writes to, but
// for the stack; its own text and the library's data come on top.
const (
	smallBytes   = 344_800
	smallRunning = 0.100 // s, from the command
	smallStall   = 0.080 // s
)

// small moves a process of the size of the Nanvix study's to and fro.
func (l *containerBench) small(ctx context.Context) (err error) {
	if err := l.plain(ctx); err != nil {
		return err
	}
	job, err := l.Type(ctx, "run", "--detach", "--kind", "container", "-n", "1", "--mem", "64M", "--image", plainImage, "--on", "host1", "--",
		"./still", strconv.Itoa(smallBytes))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.Discard(ctx, job)) }()
	if err := l.Says(ctx, job, "START"); err != nil {
		return err
	}
	hosts := []string{"host2", "host1"}
	for i := range 1 + 2*max(l.Repeat, 1) {
		m, err := l.moved(ctx, job, hosts[i%2])
		if err != nil {
			return err
		}
		phases, err := l.phases(ctx)
		if err != nil {
			return err
		}
		fmt.Printf("  running after %.0f ms, stall %.0f ms, all done after %.0f ms; %s\n",
			ms(m.running()), ms(m.longest.took), ms(m.took), phases)
		if i == 0 {
			continue // the first warms the caches
		}
		l.Sample("small_running_s", m.running().Seconds())
		l.Sample("small_stall_s", m.longest.took.Seconds())
		l.Sample("small_command_s", m.took.Seconds())
	}
	return errors.Join(
		l.Mean("seconds from the command until 352.8 KB run there", "small_running_s", smallRunning),
		l.Mean("seconds of downtime", "small_stall_s", smallStall),
	)
}

func ms(d time.Duration) float64 { return 1e3 * d.Seconds() }

// phases says how long each phase of the newest move took, and keeps it.
func (l *containerBench) phases(ctx context.Context) (string, error) {
	s, err := l.Snapshot(ctx)
	if err != nil {
		return "", err
	}
	last, err := l.LastMove(ctx)
	if err != nil {
		return "", err
	}
	m := s.Migrations[last.Migrations[0]]
	l.Record.Moves = append(l.Record.Moves, m)
	return inPhases(m), nil
}

// inPhases says how long each phase of a migration took.
func inPhases(m fleet.Migration) string {
	text := fmt.Sprintf("down %.0f ms by the host;", ms(m.Cost.Downtime))
	for i, e := range m.Entered[:max(0, len(m.Entered)-1)] {
		text += fmt.Sprintf(" %s %.0f", e.Phase, ms(m.Entered[i+1].At.Sub(e.At)))
	}
	return text
}

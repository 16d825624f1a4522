package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"pagurus/bench"
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
func (b *experiments) small(ctx context.Context) error {
	if err := b.still(ctx); err != nil {
		return err
	}
	err := b.contained(ctx, "64M", func(job string) error {
		if _, err := b.moveContainer(ctx, job, hosts[0]); err != nil {
			return err // the first warms the caches
		}
		moves := 0
		return b.Rounds(ctx, 2*max(b.Repeat, 1), nil, bench.Arm{Name: "small", Measure: func(ctx context.Context) (map[string]float64, error) {
			moves++
			m, err := b.moveContainer(ctx, job, hosts[moves%2])
			return m.figures(), err
		}})
	}, "./still", strconv.Itoa(smallBytes))
	if err != nil {
		return err
	}
	return errors.Join(
		b.Mean("seconds from the command until 352.8 KB run there", "small_running_s", smallRunning),
		b.Mean("seconds of downtime", "small_stall_s", smallStall),
	)
}

// hosts are those that processes move to, in turn: they start on the second.
var hosts = []string{"host2", "host1"}

// contained runs a program in a container on host1 and does something when it says START.
func (b *experiments) contained(ctx context.Context, memory string, do func(job string) error, program ...string) error {
	return b.During(ctx, "START", do, append([]string{"--kind", "container", "-n", "1", "--mem", memory, "--image", plainImage, "--on", "host1", "--"}, program...)...)
}

func ms(d time.Duration) float64 { return 1e3 * d.Seconds() }

// noted keeps the newest move, and prints how long each of its phases took.
func (b *experiments) noted(ctx context.Context) (fleet.Migration, error) {
	m, _, err := b.LastMove(ctx)
	if err == nil {
		b.Record.Moves = append(b.Record.Moves, m)
		fmt.Println("  " + inPhases(m))
	}
	return m, err
}

// inPhases says how long each phase of a migration took.
func inPhases(m fleet.Migration) string {
	text := fmt.Sprintf("down %.0f ms by the host;", ms(m.Cost.Downtime))
	for i, e := range m.Entered[:max(0, len(m.Entered)-1)] {
		text += fmt.Sprintf(" %s %.0f", e.Phase, ms(m.Entered[i+1].At.Sub(e.At)))
	}
	return text
}

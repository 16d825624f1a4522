package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"pagurus/bench"
	"pagurus/bench/drive"
	"pagurus/fleet"
)

const (
	// settleTime is how long a job is left alone before it is disturbed and until its
	// gaps are read.
	settleTime = 3 * time.Second
	// after is how long after a move a gap still counts as its own.
	after = 2 * time.Second
	// gangSize is how many guests move together.
	gangSize = 4
)

// The least time after which TCP in a job's guests sends again what was not
// acknowledged, in µs: as Pagurus has it, and as Linux has it by itself, which
// is what somebody without Pagurus has.
const (
	ourTimeout   = 20_000
	linuxTimeout = 200_000
)

// stall compares how long a tightly coupled job stalls when one of its
// guests moves, by Pagurus and by hand between learning bridges, and when all
// four of a job move as a gang and one of them alone. The job itself tells.
// Beside that the two things that keep it short, frames led on to the target and
// small time-outs of TCP, are shown each without the other.
func (b *experiments) stall(ctx context.Context) error {
	err := b.stallsOf(ctx, []side{
		{"stall_move", shape{fleet.VM, 2, ourTimeout}, 1, false},
		{"stall_only_led_on", shape{fleet.VM, 2, linuxTimeout}, 1, false},
		{"stall_hand", shape{fleet.VM, 2, linuxTimeout}, 1, true},
		{"stall_only_timeout", shape{fleet.VM, 2, ourTimeout}, 1, true},
		{"stall_one_of_four", shape{fleet.VM, gangSize, ourTimeout}, 1, false},
		{"stall_gang", shape{fleet.VM, gangSize, ourTimeout}, gangSize, false},
		{"stall_four_by_hand", shape{fleet.VM, gangSize, linuxTimeout}, gangSize - 1, true},
	})
	if err != nil {
		return err
	}
	return errors.Join(
		b.Ratio("stall of moving a guest / by hand between learning bridges", "stall_move_s", "stall_hand_s", 0.2),
		b.Beside("  with frames led on, but Linux's time-outs / by hand", "stall_only_led_on_s", "stall_hand_s"),
		b.Beside("  by hand, but with small time-outs / by hand", "stall_only_timeout_s", "stall_hand_s"),
		b.Ratio("stall of moving a gang of 4 / one guest of the same job", "stall_gang_s", "stall_one_of_four_s", 1.5),
		b.Beside("  three of the four by hand in turn / the gang", "stall_four_by_hand_s", "stall_gang_s"),
	)
}

// stallContainer is the same of guests that are containers, beside a virtual machine by
// hand: what somebody without KVM has from either.
func (b *experiments) stallContainer(ctx context.Context) error {
	err := b.stallsOf(ctx, []side{
		{"stall_container", shape{fleet.Container, 2, ourTimeout}, 1, false},
		{"stall_container_hand", shape{fleet.VM, 2, linuxTimeout}, 1, true},
		{"stall_container_one_of_four", shape{fleet.Container, gangSize, ourTimeout}, 1, false},
		{"stall_container_gang", shape{fleet.Container, gangSize, ourTimeout}, gangSize, false},
	})
	if err != nil {
		return err
	}
	return errors.Join(
		b.Beside("stall of moving a container / a virtual machine by hand between learning bridges", "stall_container_s", "stall_container_hand_s"),
		b.Ratio("stall of moving a gang of 4 containers / one of the same job", "stall_container_gang_s", "stall_container_one_of_four_s", 1.5),
	)
}

// side is one of the things that are compared.
type side struct {
	name   string
	of     shape
	moved  int // guests
	byHand bool
}

// stallsOf takes them in turn.
func (b *experiments) stallsOf(ctx context.Context, sides []side) error {
	if err := b.compile(ctx, "openmpi", "tight", "mpicc", "-O2"); err != nil {
		return err
	}
	var arms []bench.Arm
	for _, s := range sides {
		take := b.stallOf
		if s.byHand {
			take = b.stallByHand
		}
		arms = append(arms, bench.Seconds(s.name, func(ctx context.Context) (time.Duration, error) { return take(ctx, s.of, s.moved) }))
	}
	return b.InTurn(ctx, nil, arms...)
}

// shape is that of a tightly coupled job.
type shape struct {
	kind    fleet.Kind
	guests  int
	timeout int // of TCP, in µs
}

// coupled is what `pagurus run` is told of the job: it is on the first two hosts. The program is
// copied into the guests: a move by hand does not keep the job's files in their place.
func (s shape) coupled() []string {
	n := strconv.Itoa(s.guests)
	first := fmt.Sprintf("echo %d >/proc/sys/net/ipv4/tcp_rto_min_us && ", s.timeout)
	if s.kind == fleet.Container { // which cannot set it: it is ourTimeout
		first = ""
	}
	return []string{"--kind", string(s.kind), "-n", n, "--guests", n, "--mem", "256M", "--image", "openmpi", "--on", "host1,host2", "--",
		"sh", "-c", first + "cp tight /tmp/tight && cd /tmp && exec ./tight 0.02"}
}

// stallOf moves guests of a job by Pagurus, the last ones, together.
func (b *experiments) stallOf(ctx context.Context, s shape, moved int) (longest time.Duration, err error) {
	err = b.computes(ctx, func(job string) error {
		if err := drive.Pause(ctx, settleTime); err != nil {
			return err
		}
		args := []string{"migrate"}
		for i := s.guests - moved; i < s.guests; i++ {
			args = append(args, fmt.Sprintf("%sg%d", job, i))
		}
		begun := time.Now()
		if _, err := b.Type(ctx, append(args, "--to", "host3", "--wait")...); err != nil {
			return err
		}
		ended := time.Now()
		if err := drive.Pause(ctx, settleTime); err != nil {
			return err
		}
		longest, err = b.longestGap(ctx, job, begun, ended.Add(after))
		return err
	}, s.coupled()...)
	return longest, err
}

// longestGap is the longest of a job's that ended in a window of time.
func (b *experiments) longestGap(ctx context.Context, job string, from, to time.Time) (longest time.Duration, err error) {
	out, err := b.Type(ctx, "logs", job)
	if err != nil {
		return 0, err
	}
	g, err := drive.LongestGap(out, from, to)
	return g.Took, err
}

// stallByHand moves guests of a job one after another as somebody without
// Pagurus would, the last ones; of several the sum of their gaps is taken.
// The first stays: mpirun's output comes through it.
func (b *experiments) stallByHand(ctx context.Context, s shape, moved int) (sum time.Duration, err error) {
	job, err := b.Type(ctx, append([]string{"run", "--detach"}, s.coupled()...)...)
	if err != nil {
		return 0, err
	}
	net := &bridges{}
	var hands []*handMove
	defer func() {
		for _, h := range hands {
			h.end()
		}
		err = errors.Join(err, net.clear(), b.restart(ctx), b.abandon(ctx, job))
	}()
	if err := b.Says(ctx, job, "START"); err != nil {
		return 0, err
	}
	if err := drive.Pause(ctx, computing+settleTime); err != nil {
		return 0, err
	}
	homes, err := b.homes(ctx, job)
	if err != nil {
		return 0, err
	}
	for _, host := range []string{"host1", "host2"} {
		if _, err := b.Type(ctx, "lab", "kill", host); err != nil {
			return 0, err
		}
	}
	if err := net.make(ctx, s.guests); err != nil {
		return 0, err
	}
	var begun, ended []time.Time
	for i := s.guests - moved; i < s.guests; i++ {
		if err := drive.Pause(ctx, settleTime); err != nil {
			return 0, err
		}
		begun = append(begun, time.Now())
		h, err := b.byHand(ctx, fmt.Sprintf("%sg%d", job, i), i, homes[i], "host3")
		if h != nil {
			hands = append(hands, h)
		}
		if err != nil {
			return 0, err
		}
		ended = append(ended, time.Now())
	}
	if err := drive.Pause(ctx, settleTime); err != nil {
		return 0, err
	}
	// Its agent brings the output of the first guest, late but whole.
	if _, err := b.Type(ctx, "lab", "restart", "host1"); err != nil {
		return 0, err
	}
	if err := drive.Pause(ctx, settleTime); err != nil {
		return 0, err
	}
	for i := range begun {
		one, err := b.longestGap(ctx, job, begun[i], ended[i].Add(after))
		if err != nil {
			return 0, err
		}
		sum += one
	}
	return sum, nil
}

// homes gives where each guest of a job is.
func (b *experiments) homes(ctx context.Context, job string) (map[int]string, error) {
	s, err := b.Snapshot(ctx)
	if err != nil {
		return nil, err
	}
	homes := map[int]string{}
	for _, g := range s.Guests {
		if string(g.Job) == job {
			homes[g.Index] = string(g.Home)
		}
	}
	return homes, nil
}

// restart brings all agents back.
func (b *experiments) restart(ctx context.Context) (err error) {
	for _, host := range []string{"host1", "host2"} {
		_, e := b.Type(context.WithoutCancel(ctx), "lab", "restart", host)
		err = errors.Join(err, e)
	}
	return err
}

// abandon ends a job whose guests were taken away behind its back, however it
// ends.
func (b *experiments) abandon(ctx context.Context, job string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
	defer cancel()
	_, _ = b.Type(ctx, "cancel", job) // it may have failed already
	_, _ = b.Type(ctx, "wait", job)
	return ctx.Err()
}

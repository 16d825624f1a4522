package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"pagurus/bench"
)

// size is one process that is moved by either.
type size struct {
	name  string
	mib   int
	rate  int     // bytes a second that it writes to
	stall float64 // most of runc's; 0: nothing is promised
}

// sizesMoved are all. What is promised of stalls holds from 500 MiB on.
var sizesMoved = []size{
	{"50 MiB", 50, 0, 0},
	{"500 MiB", 500, 0, 0.15},
	{"1.5 GiB", 1536, 0, 0.15},
	{"1.5 GiB, 100 MB/s written to", 1536, 100_000_000, 0.15},
}

const (
	sizeTotal = 0.7 // most of runc's total: until the process runs at the target
	busyStall = 0.5 // s, of the process that is written to
)

// memory is what a guest needs for the process, with room for its files.
func (s size) memory() string { return fmt.Sprintf("%dM", s.mib+s.mib/8+128) }

func (s size) command(program string) []string {
	return []string{program, strconv.Itoa(s.mib << 20), strconv.Itoa(s.rate)}
}

// sizes compares moves with what somebody without Pagurus has in runc.
func (b *experiments) sizes(ctx context.Context) error {
	if err := b.still(ctx); err != nil {
		return err
	}
	r, err := newRunc(ctx, b.Dir)
	if err != nil {
		return err
	}
	var errs []error
	for _, s := range sizesMoved {
		if err := b.sizeOf(ctx, s, r); err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
		errs = append(errs, b.sizeFigures(s))
	}
	return errors.Join(errs...)
}

func (b *experiments) sizeOf(ctx context.Context, s size, r *runc) error {
	arm := func(who string, move func(context.Context, size) (movement, error)) bench.Arm {
		return bench.Arm{Name: s.name + " " + who, Measure: func(ctx context.Context) (map[string]float64, error) {
			m, err := move(ctx, s)
			return m.figures(), err
		}}
	}
	return b.InTurn(ctx, nil, arm("ours", b.moveSize), arm("runc", r.move))
}

func (b *experiments) sizeFigures(s size) error {
	errs := []error{
		b.Ratio(s.name+": until it runs there / runc's", s.name+" ours_running_s", s.name+" runc_running_s", sizeTotal),
		// Ours keeps the source's processes until the target has its own, and ends them
		// then; runc has ended them before it copies anything.
		b.Beside("  "+s.name+": until all is done / until runc is", s.name+" ours_command_s", s.name+" runc_command_s"),
	}
	if s.stall > 0 {
		errs = append(errs, b.Ratio(s.name+": stall / runc's", s.name+" ours_stall_s", s.name+" runc_stall_s", s.stall))
	} else {
		errs = append(errs, b.Beside("  "+s.name+": stall / runc's", s.name+" ours_stall_s", s.name+" runc_stall_s"))
	}
	if s.rate > 0 {
		errs = append(errs, b.Mean("seconds that "+s.name+", downtime", s.name+" ours_stall_s", busyStall))
	}
	return errors.Join(errs...)
}

// moveSize moves a process by Pagurus.
func (b *experiments) moveSize(ctx context.Context, s size) (m movement, err error) {
	err = b.contained(ctx, s.memory(), func(job string) (err error) {
		m, err = b.moveContainer(ctx, job, hosts[0])
		return err
	}, s.command("./still")...)
	return m, err
}

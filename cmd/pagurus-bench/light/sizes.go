package light

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
func (l *containerBench) sizes(ctx context.Context) error {
	if err := l.plain(ctx); err != nil {
		return err
	}
	r, err := newRunc(ctx, l.Dir)
	if err != nil {
		return err
	}
	var errs []error
	for _, s := range sizesMoved {
		if err := l.sizeOf(ctx, s, r); err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
		errs = append(errs, l.sizeFigures(s))
	}
	return errors.Join(errs...)
}

func (l *containerBench) sizeOf(ctx context.Context, s size, r *runc) error {
	for i := range max(l.Repeat, 2) {
		var ours, theirs movement
		err := bench.InTurn(i, func() (err error) {
			ours, err = l.moveSize(ctx, s)
			return err
		}, func() (err error) {
			theirs, err = r.move(ctx, s)
			return err
		})
		if err != nil {
			return err
		}
		for _, m := range []struct {
			who string
			movement
		}{{"ours", ours}, {"runc", theirs}} {
			l.Sample(s.name+" running_s "+m.who, m.running().Seconds())
			l.Sample(s.name+" command_s "+m.who, m.took.Seconds())
			l.Sample(s.name+" stall_s "+m.who, m.longest.took.Seconds())
		}
		fmt.Printf("  %s: running after %.2f s, all done after %.2f s, stall %.3f s; runc %.2f s, %.2f s, %.3f s\n", s.name,
			ours.running().Seconds(), ours.took.Seconds(), ours.longest.took.Seconds(),
			theirs.running().Seconds(), theirs.took.Seconds(), theirs.longest.took.Seconds())
	}
	return nil
}

func (l *containerBench) sizeFigures(s size) error {
	errs := []error{
		l.Ratio(s.name+": until it runs there / runc's", s.name+" running_s ours", s.name+" running_s runc", sizeTotal),
		// Ours keeps the source's processes until the target has its own, and ends them
		// then; runc has ended them before it copies anything.
		l.Beside("  "+s.name+": until all is done / until runc is", s.name+" command_s ours", s.name+" command_s runc"),
	}
	if s.stall > 0 {
		errs = append(errs, l.Ratio(s.name+": stall / runc's", s.name+" stall_s ours", s.name+" stall_s runc", s.stall))
	} else {
		errs = append(errs, l.Beside("  "+s.name+": stall / runc's", s.name+" stall_s ours", s.name+" stall_s runc"))
	}
	if s.rate > 0 {
		errs = append(errs, l.Mean("seconds that "+s.name+", downtime", s.name+" stall_s ours", busyStall))
	}
	return errors.Join(errs...)
}

// moveSize moves a process by Pagurus.
func (l *containerBench) moveSize(ctx context.Context, s size) (m movement, err error) {
	job, err := l.Type(ctx, append([]string{"run", "--detach", "--kind", "container", "-n", "1", "--mem", s.memory(), "--image", plainImage, "--on", "host1", "--"},
		s.command("./still")...)...)
	if err != nil {
		return m, err
	}
	defer func() { err = errors.Join(err, l.Discard(ctx, job)) }()
	if err := l.Says(ctx, job, "START"); err != nil {
		return m, err
	}
	m, err = l.moved(ctx, job, "host2")
	if err == nil {
		_, err = l.phases(ctx)
	}
	return m, err
}

package host

import (
	"fmt"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"pagurus/fleet"
)

// ThreadTime returns the processor time that this thread has used. The goroutine must be
// locked to its thread.
func ThreadTime() (time.Duration, error) {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_THREAD, &u); err != nil {
		return 0, fmt.Errorf("read the processor time of a thread: %w", err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano()), nil
}

// Rising sorts the points by time and removes decreases that are due to chance: two
// neighbours in the wrong order both get their mean.
func Rising(points []fleet.Changed) []fleet.Changed {
	slices.SortFunc(points, func(a, b fleet.Changed) int { return int(a.Within - b.Within) })
	type block struct {
		sum int64
		n   int64
	}
	var blocks []block
	for _, p := range points {
		blocks = append(blocks, block{p.Bytes, 1})
		for k := len(blocks) - 1; k > 0 && blocks[k-1].sum*blocks[k].n > blocks[k].sum*blocks[k-1].n; k-- {
			blocks[k-1] = block{blocks[k-1].sum + blocks[k].sum, blocks[k-1].n + blocks[k].n}
			blocks = blocks[:k]
		}
	}
	i := 0
	for _, b := range blocks {
		for range b.n {
			points[i].Bytes = b.sum / b.n
			i++
		}
	}
	return points
}

package noise

import (
	"fmt"
	"math"
	"runtime"
	"sync/atomic"
	"time"
)

const (
	apartCPUs   = 8 // how many CPUs beyond the first are tried
	apartBursts = 20
	apartTrips  = 100 // in a burst; the best burst counts, since others may have been interrupted
	apartLimit  = 20 * time.Millisecond
)

// Apart returns how long a cache line takes to the farthest CPU and back. It starts at the first
// CPU that this process may use, and tries the next few. That is some 50 ns if they share a
// cache, otherwise several times as long. A virtual machine's CPUs may be moved between both at
// any time. Apart takes a millisecond, or up to 20 for each busy CPU. It returns 0 if there is
// only one CPU, and an error if none could be tried.
func Apart() (farthest time.Duration, err error) {
	cpus, err := CPUs()
	if err != nil || len(cpus) < 2 {
		return 0, err
	}
	for _, other := range cpus[1:min(len(cpus), 1+apartCPUs)] {
		d, err := Between(cpus[0], other)
		if err != nil {
			return 0, err
		}
		farthest = max(farthest, d)
	}
	return farthest, nil
}

// FarApart is Apart, but returns 0 if the distance is unknown.
func FarApart() time.Duration {
	d, err := Apart()
	if err != nil {
		return 0
	}
	return d
}

// Between returns how long a cache line takes from one CPU to another and back.
func Between(one, other int) (time.Duration, error) {
	var b ball
	answered := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked, as in Probe
		answered <- b.answer(other)
	}()
	asked := make(chan error)
	best := time.Duration(math.MaxInt64)
	go func() {
		runtime.LockOSThread()
		defer b.over.Store(true)
		asked <- b.ask(one, &best)
	}()
	errs := [2]error{<-asked, <-answered}
	for _, err := range errs {
		if err != nil {
			return 0, err
		}
	}
	if best == math.MaxInt64 {
		return 0, fmt.Errorf("CPUs %d and %d were too busy to say how far they are from each other", one, other)
	}
	return best / apartTrips, nil
}

// ball goes back and forth. It is odd while the other CPU has it. Its two fields are in cache
// lines of their own.
type ball struct {
	at   atomic.Uint64
	_    [120]byte
	over atomic.Bool
}

// ask sends the ball and records the time of the best burst.
func (b *ball) ask(cpu int, best *time.Duration) error {
	if err := stay(cpu); err != nil {
		return err
	}
	begun := time.Now()
	for range apartBursts {
		at := time.Now()
		for range apartTrips {
			thrown := b.at.Add(1)
			for spins := 0; b.at.Load() == thrown; spins++ {
				if spins&0xffff == 0xffff && time.Since(begun) > apartLimit {
					return nil
				}
			}
		}
		*best = min(*best, time.Since(at))
		if time.Since(begun) > apartLimit {
			return nil
		}
	}
	return nil
}

// answer returns the ball until the end.
func (b *ball) answer(cpu int) error {
	if err := stay(cpu); err != nil {
		return err
	}
	for !b.over.Load() {
		if v := b.at.Load(); v&1 == 1 {
			b.at.Store(v + 1)
		}
	}
	return nil
}

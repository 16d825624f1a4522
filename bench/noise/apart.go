package noise

import (
	"fmt"
	"math"
	"runtime"
	"sync/atomic"
	"time"
)

const (
	apartCPUs   = 8 // beyond the first, that are asked
	apartBursts = 20
	apartTrips  = 100 // of a burst; the best burst counts, since others may have been interrupted
	apartLimit  = 20 * time.Millisecond
)

// Apart is how long a cache line takes from the first CPU that this process may use to
// the farthest of the next few, and back: some 50 ns where they share a cache, several
// times that where they do not. The CPUs of a virtual machine may be moved from the one
// to the other at any time. It takes a millisecond, or where CPUs are busy up to 20 for
// each. 0 where there is only one CPU; an error where none could be asked.
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

// FarApart is Apart, and 0 where it is not known.
func FarApart() time.Duration {
	d, err := Apart()
	if err != nil {
		return 0
	}
	return d
}

// Between is how long a cache line takes from one CPU to another and back.
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

// ball is what is thrown to and fro: odd where the other has it. Each of the two is in a
// cache line of its own.
type ball struct {
	at   atomic.Uint64
	_    [120]byte
	over atomic.Bool
}

// ask throws it, and keeps how long the best burst took.
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

// answer throws it back until it is over.
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

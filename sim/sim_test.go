package sim

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"testing"
	"time"

	"pagurus/decide/owners"
	"pagurus/fleet"
)

// random makes a small world with many faults.
func random(seed uint64) Config {
	r := rand.New(rand.NewPCG(seed, 1))
	all := owners.All()
	c := Config{
		Seed: seed, Hosts: 4 + r.IntN(8), Policy: all[r.IntN(len(all))], For: time.Duration(1+r.IntN(3)) * time.Hour, Strict: true,
		Machine: Machine{CPUs: 2, MemoryBytes: int64(2+r.IntN(3)) << 30, IdleAfter: time.Duration(r.IntN(60)) * time.Second,
			Grace: time.Duration(seed%3) * 10 * time.Second},
		Work: Work{Jobs: 1 + r.IntN(3), Ranks: 1 + r.IntN(4), CPUs: 1 + r.IntN(2), Time: time.Duration(5+r.IntN(60)) * time.Minute, Dirty: float64(uint(1) << (10 + r.IntN(18)))},
	}
	if r.IntN(4) > 0 {
		c.Owners = Model{Up: Weibull{0.5, 0.2 + r.Float64()}, Down: Weibull{0.5, 0.01 + 0.1*r.Float64()}, Daily: r.IntN(2) == 0}
	}
	for range r.IntN(30) {
		m := fleet.HostID(fmt.Sprintf("host%d", 1+r.IntN(c.Hosts)))
		at := time.Duration(r.Int64N(int64(c.For)))
		switch do := cueWords[r.IntN(len(cueWords))]; do {
		case returns:
			c.Script = append(c.Script, Cue{At: at, Do: returns, Host: m, Load: 2 * r.Float64()},
				Cue{At: at + time.Duration(r.Int64N(int64(10*time.Minute))), Do: departs, Host: m})
		case cuts:
			c.Script = append(c.Script, Cue{At: at, Do: cuts, Host: m}, Cue{At: at + time.Duration(r.Int64N(int64(10*time.Minute))), Do: mends, Host: m})
		case drains:
			c.Script = append(c.Script, Cue{At: at, Do: drains, Host: m}, Cue{At: at + time.Duration(r.Int64N(int64(10*time.Minute))), Do: undrains, Host: m})
		}
	}
	return c
}

// seeds is the number of worlds; a failing seed becomes a scenario.
const seeds = 200

// The invariants always hold, and the same configuration gives the same run.
func TestSeeds(t *testing.T) {
	n := uint64(seeds)
	if testing.Short() {
		n = 20
	}
	var moved, visits, again int
	for seed := range n {
		r, err := Run(random(seed))
		if err != nil {
			t.Errorf("%v", err)
			continue
		}
		moved, visits, again = moved+r.Moves, visits+r.Visits, again+r.Again
		if seed%10 == 0 {
			twice, err := Run(random(seed))
			if r.Took, twice.Took = 0, 0; err != nil || !reflect.DeepEqual(r, twice) {
				t.Errorf("seed %d is not the same twice: %+v and %+v, %v", seed, r, twice, err)
			}
		}
	}
	if testing.Short() {
		return
	}
	if moved < 50 || visits < 100 || again < 5 {
		t.Errorf("too little happens to show anything: %d moves, %d visits, %d jobs again", moved, visits, again)
	}
}

package main

import (
	"context"
	"time"

	"pagurus/bench"
)

// simulated is a day of 2,000 desktops with 60 jobs, with the two policies that decide most. What happens
// in it is the same in all versions that decide alike.
var simulated = []string{"simulate", "--model", "nd07cpu", "--hosts", "2000", "--jobs", "60", "--policy", "evacuate,predictive", "--seed", "1"}

// simulate takes the time of a simulation, which is that of the planner but for little.
func (b *experiments) simulate(ctx context.Context) error {
	err := b.InTurn(ctx, nil, bench.Seconds("simulate", func(ctx context.Context) (time.Duration, error) {
		begun := time.Now()
		_, err := b.Type(ctx, simulated...)
		return time.Since(begun), err
	}))
	if err != nil {
		return err
	}
	return b.Mean("seconds of a simulated day of 2,000 hosts", "simulate_s", simulateMost)
}

// simulateMost is how long it may take.
const simulateMost = 5

package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"pagurus/bench"
	"pagurus/bench/drive"
	"pagurus/fleet"
)

// forked are programs with many processes, and the downtime that each may have, in seconds.
// In a chain each process is the child of the one before, and the kernel itself takes longer
// for each ancestor.
var forked = []struct {
	count int
	kind  string // as processes.c has it
	down  float64
}{{20, "flat", 0.3}, {60, "flat", 0.6}, {100, "flat", 0.8}, {120, "flat", 1}, {120, "chain", 1}}

// amiss is how far a prediction may be from what was seen.
const amiss = 1.5

// processes moves programs with many processes to and fro, and judges what was predicted.
func (b *experiments) processes(ctx context.Context) error {
	if err := b.still(ctx); err != nil { // it builds the image
		return err
	}
	if err := b.compile(ctx, "openmpi", "processes", "gcc", "-O2"); err != nil {
		return err
	}
	var errs []error
	for _, p := range forked {
		name := fmt.Sprintf("%d processes (%s)", p.count, p.kind)
		has := func(f fleet.Profile) bool { return f.Processes > p.count }
		if err := b.movePredicted(ctx, name, has, "./processes", strconv.Itoa(p.count), p.kind); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		errs = append(errs, b.Mean("seconds of downtime of "+name, name+"_down_s", p.down),
			b.Mean("predicted and seen downtime of "+name+", the larger / the smaller", name+"_amiss", amiss))
	}
	return errors.Join(errs...)
}

// movePredicted moves a program to and fro when its profile has what it should, and keeps how long it was suspended, and what was predicted
// from such a profile.
func (b *experiments) movePredicted(ctx context.Context, name string, has func(fleet.Profile) bool, program ...string) error {
	return b.contained(ctx, "512M", func(job string) error {
		guest := fleet.GuestID(job + "g0")
		err := drive.Until(ctx, "its profile has not what it should", func() bool { // its agent looks every half minute
			s, err := b.Snapshot(ctx)
			p := s.Hosts[s.Guests[guest].Home].Facts.Guests[guest].Profile
			return err == nil && p != nil && has(*p)
		})
		if err != nil {
			return err
		}
		moves := 0
		return b.Rounds(ctx, 2*max(b.Repeat, 1), nil, bench.Arm{Name: name, Measure: func(ctx context.Context) (map[string]float64, error) {
			if _, err := b.Type(ctx, "migrate", job+"g0", "--to", hosts[moves%2], "--wait"); err != nil {
				return nil, err
			}
			moves++
			m, err := b.noted(ctx)
			seen := m.Cost.Downtime.Seconds()
			figures := map[string]float64{"down_s": seen}
			if m.Predicted != nil && m.Predicted.Profile != nil && has(*m.Predicted.Profile) && seen > 0 {
				said := m.Predicted.Downtime.Value.Seconds()
				figures["predicted_s"], figures["amiss"] = said, max(said/seen, seen/said)
			}
			return figures, err
		}})
	}, program...)
}

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

// mapped are programs with many memory mappings, and what a move of each may take of
// their time, in seconds. CRIU takes nine tenths of that.
var mapped = []struct {
	kind  string // as mappings.c has it
	count int
	down  float64
}{{"gaps", 3000, 0.4}, {"gaps", 30000, 2}, {"shared", 3000, 1.5}}

// mappings moves programs with many memory mappings to and fro. Beside what they stood
// still for it keeps what was predicted.
func (b *experiments) mappings(ctx context.Context) error {
	if err := b.still(ctx); err != nil {
		return err
	}
	if err := b.compile(ctx, "openmpi", "mappings", "gcc", "-O2", "-static"); err != nil {
		return err
	}
	var errs []error
	for _, p := range mapped {
		name := fmt.Sprintf("%d mappings (%s)", p.count, p.kind)
		if err := b.moveMapped(ctx, name, p.kind, p.count); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		errs = append(errs, b.Mean("seconds that "+name+" downtime", name+"_down_s", p.down))
	}
	return errors.Join(errs...)
}

func (b *experiments) moveMapped(ctx context.Context, name, kind string, count int) error {
	return b.contained(ctx, "512M", func(job string) error {
		guest := fleet.GuestID(job + "g0")
		err := drive.Until(ctx, "its mappings are not reported", func() bool { // its agent looks every half minute
			s, err := b.Snapshot(ctx)
			p := s.Hosts[s.Guests[guest].Home].Facts.Guests[guest].Profile
			return err == nil && p != nil && p.Mappings >= count
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
			figures := map[string]float64{"down_s": m.Cost.Downtime.Seconds()}
			if m.Predicted != nil && m.Predicted.Profile != nil && m.Predicted.Profile.Mappings >= count {
				figures["predicted_s"] = m.Predicted.Downtime.Value.Seconds()
			}
			return figures, err
		}})
	}, "./mappings", strconv.Itoa(count), kind)
}

package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"

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
		has := func(f fleet.Profile) bool { return f.Mappings >= p.count }
		if err := b.movePredicted(ctx, name, has, "./mappings", strconv.Itoa(p.count), p.kind); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		errs = append(errs, b.Mean("seconds that "+name+" downtime", name+"_down_s", p.down))
	}
	return errors.Join(errs...)
}

package qemu

import (
	"context"
	"errors"
	"fmt"
	"time"

	"pagurus/act/host"
	"pagurus/fleet"
)

// profilePlan is how a guest's memory is looked at. The times span what rounds of a
// copy take, from the last ones to the first; longer ones add little, because a
// working set is full after some seconds. The pages are enough to tell 1 % of
// memory from 1.2 %, and cost some hundredths of a second of one processor.
var profilePlan = host.SamplePlan{
	Pages: 8192,
	After: []time.Duration{100 * time.Millisecond, 400 * time.Millisecond, 1300 * time.Millisecond, 4 * time.Second},
}

// Profile samples how a guest uses its memory, which takes some seconds. The guest does not
// take part. A guest that is being moved is refused.
func (d *Driver) Profile(ctx context.Context, id fleet.GuestID) (fleet.Profile, error) {
	p, err := d.profile(ctx, id)
	if err != nil {
		return fleet.Profile{}, fmt.Errorf("sample the memory of guest %s: %w", id, err)
	}
	return p, nil
}

func (d *Driver) profile(ctx context.Context, id fleet.GuestID) (fleet.Profile, error) {
	g, q, err := d.here(ctx, id)
	if err != nil {
		return fleet.Profile{}, err
	}
	if status, err := vmStatus(ctx, q); err != nil || status != vmRunning {
		return fleet.Profile{}, errors.Join(err, fmt.Errorf("it does not run here: it is %s", status))
	}
	if info, err := queryMigrate(ctx, q); err != nil || info.underWay() {
		return fleet.Profile{}, errors.Join(err, errors.New("it is being moved"))
	}
	area, err := g.area(ctx, q)
	if err != nil {
		return fleet.Profile{}, err
	}
	return sampleRAM(ctx, area, profilePlan)
}

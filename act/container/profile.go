package container

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"pagurus/act/container/criu"
	"pagurus/act/container/kernelstate"
	"pagurus/act/container/sampler"
	"pagurus/act/container/sandbox"
	"pagurus/act/host"
	"pagurus/fleet"
)

// profilePlan is how a guest's memory is looked at. The times span what rounds of a
// copy take, from the last ones to the first; longer ones add little, because a
// working set is full after some seconds. The pages are enough to tell 1 % of
// memory from 1.3 %, and cost 26 ms of one processor: ranks that wait for each other
// all wait for the one whose processor that is.
var profilePlan = sampler.Plan{
	Pages: 4096,
	After: []time.Duration{50 * time.Millisecond, 200 * time.Millisecond, 1000 * time.Millisecond, 3 * time.Second},
}

// Profile looks at how a guest uses its memory, which takes some seconds. It
// asks nothing of the guest. One that is being moved is refused.
func (d *Driver) Profile(ctx context.Context, id fleet.GuestID) (fleet.Profile, error) {
	g, err := d.movableGuest(id)
	var p fleet.Profile
	if err == nil {
		ctx, stop := context.WithCancel(ctx)
		defer stop()
		defer context.AfterFunc(g.life, stop)()
		p, err = sampler.SampleMemory(ctx, sampler.Subject{
			Processes: host.Family(g.remembered().Process.PID), Files: filepath.Join(g.dir, storeDir),
		}, profilePlan)
	}
	if err != nil {
		return fleet.Profile{}, fmt.Errorf("look at the memory of guest %s: %w", id, err)
	}
	return p, nil
}

// Obstacles says, for people, what keeps a running guest from being moved, each
// with what can be done about it. It takes some milliseconds, and a moment more if
// files are locked, and does not disturb the guest. None is no promise: what only a
// dump can find is missing.
func (d *Driver) Obstacles(ctx context.Context, id fleet.GuestID) ([]string, error) {
	g, err := d.movableGuest(id)
	if err != nil {
		return nil, fmt.Errorf("look what keeps guest %s from being moved: %w", id, err)
	}
	r := g.remembered()
	found := append(criu.Obstacles(r.Process.PID, ghostBytes(r), r.Export), kernelstate.LastingLocks(ctx, r.Process.PID, r.Export)...)
	found = append(found, kernelstate.LastingSockets(ctx, r.Process.PID)...)
	if r.Agent != "" && !sandbox.AgentShown(r.Process.PID) {
		found = append(found, sandbox.Elsewhere)
	}
	return found, nil
}

// movableGuest finds a guest that runs here and is not being moved.
func (d *Driver) movableGuest(id fleet.GuestID) (*guest, error) {
	g, err := d.here(id)
	if err != nil {
		return nil, err
	}
	r := g.remembered()
	if run := r.runs(); run != fleet.Running {
		return nil, fmt.Errorf("it does not run here: it is %s", run)
	}
	if c := r.Copy; c != nil && !c.Cancelled {
		return nil, errors.New("it is being moved")
	}
	return g, nil
}

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

// profilePlan says how a guest's memory is sampled. The intervals cover the lengths of a
// copy's rounds, from the last to the first. Longer intervals add little, because a
// working set is full after some seconds. The number of pages is enough to tell 1 % of
// memory from 1.3 %. Sampling costs 26 ms of one processor, and ranks that wait for each
// other all wait for the rank on that processor.
var profilePlan = host.SamplePlan{
	Pages: 4096,
	After: []time.Duration{50 * time.Millisecond, 200 * time.Millisecond, 1000 * time.Millisecond, 3 * time.Second},
}

// Profile measures how a guest uses its memory, which takes some seconds. The guest does not
// take part. A guest that is being moved is refused.
func (d *Driver) Profile(ctx context.Context, id fleet.GuestID) (fleet.Profile, error) {
	g, err := d.movableGuest(id)
	var p fleet.Profile
	if err == nil {
		ctx, stop := context.WithCancel(ctx)
		defer stop()
		defer context.AfterFunc(g.life, stop)()
		family := host.Family(g.Remembered().Process.PID)
		p, err = sampler.SampleMemory(ctx, sampler.Subject{Processes: family, Files: filepath.Join(g.Dir, storeDir)}, profilePlan)
		p.Processes, p.Ancestors = len(family), host.Ancestors(family)
	}
	if err != nil {
		return fleet.Profile{}, fmt.Errorf("sample the memory of guest %s: %w", id, err)
	}
	return p, nil
}

// answerLimit is how long the server of a guest's files may take before programs that use
// them count as waiting.
const answerLimit = 5 * time.Second

// Obstacles returns, for people to read, the obstacles to moving a running guest, each with a
// remedy. It takes some milliseconds, and slightly longer if files are locked. It does not
// disturb the guest. An empty list is no guarantee, because some obstacles are found only by a
// dump.
func (d *Driver) Obstacles(ctx context.Context, id fleet.GuestID) ([]string, error) {
	g, err := d.movableGuest(id)
	if err != nil {
		return nil, fmt.Errorf("check what keeps guest %s from being moved: %w", id, err)
	}
	r := g.Remembered()
	if err := g.askFiles(ctx, answerLimit); err != nil { // what follows would wait for the server, too
		return []string{err.Error()}, nil
	}
	found := append(r.obstacles(), kernelstate.LastingLocks(ctx, r.Process.PID, r.paths()...)...)
	found = append(found, kernelstate.LastingSockets(ctx, r.Process.PID)...)
	if r.Agent != "" && !sandbox.AgentShown(r.Process.PID) {
		found = append(found, sandbox.Elsewhere)
	}
	return found, nil
}

// obstacles returns those that can be seen without a look at locks and sockets.
func (r record) obstacles() []string {
	all, err := criu.Processes(r.Process.PID)
	if err != nil {
		return nil // the process is gone: there is nothing to move
	}
	return append(criu.Obstacles(r.Process.PID, ghostBytes(r), r.jobFolders()...), sandbox.HiddenInUse(all, criu.NameOf)...)
}

// movableGuest returns a guest that runs here and is not being moved.
func (d *Driver) movableGuest(id fleet.GuestID) (*guest, error) {
	g, err := d.here(id)
	if err != nil {
		return nil, err
	}
	r := g.Remembered()
	if run := r.runs(); run != fleet.Running {
		return nil, fmt.Errorf("it does not run here: it is %s", run)
	}
	if r.Copy.saves() {
		return nil, errors.New("a checkpoint of it is being made")
	}
	if c := r.Copy; c != nil && !c.Cancelled {
		return nil, errors.New("it is being moved")
	}
	return g, nil
}

package agent

import (
	"context"
	"fmt"

	"pagurus/fleet"
	"pagurus/serve/agent/pump"
)

// run launches the program, or finds it running, and carries its streams
// until it ended and all it wrote has arrived.
func (a *Agent) run(ctx context.Context, w *work) (fleet.Report, error) {
	g := w.seat.guest
	if w.link == nil {
		return fleet.Report{}, fmt.Errorf("guests of kind %q have no link to run a program by", w.task.Guest.Kind)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ended := w.link.Ended(g)
	here, err := a.here(ctx, w)
	if err != nil {
		return fleet.Report{}, vague{err}
	}
	if !here {
		return fleet.Report{}, fmt.Errorf("running job %s in guest %s on %s: %w", w.task.Job.ID, g, a.Host, ErrAbsent)
	}
	go func() {
		select {
		case <-ended: // hold says so; this ends without a word
			cancel()
		case <-ctx.Done():
		}
	}()
	p := pump.Pump{Programs: a.inside(w.seat, w.link), Controller: a.Controller, Log: a.Log, Job: w.task.Job.ID}
	var exit fleet.Exit
	if err = p.Launch(ctx, w.task.Job); err == nil {
		if exit, err = p.Carry(ctx, w.task.Have); err != nil {
			err = vague{err}
		}
	}
	if ctx.Err() != nil {
		return fleet.Report{}, errSilent
	}
	if err != nil {
		return fleet.Report{}, fmt.Errorf("running job %s in guest %s: %w", p.Job, g, err)
	}
	return fleet.Report{Exit: &exit}, nil
}

package agent

import (
	"context"
	"fmt"

	"pagurus/fleet"
)

// run launches the program, or finds it running, and carries its streams until the program
// has ended and all its output has arrived.
func (a *Agent) run(ctx context.Context, w *taskRun) (fleet.Report, error) {
	return a.carry(ctx, w, func(ctx context.Context, p Pump) error { return p.Launch(ctx, w.task.Job) })
}

// end sends the program its ending signal and carries its streams like run. The signal has
// one effect, however often the order comes and wherever the guest moves. The guest itself
// kills the program when the grace period is over.
func (a *Agent) end(ctx context.Context, w *taskRun) (fleet.Report, error) {
	j := w.task.Job
	s := fleet.Signal{ID: "end", Number: fleet.Terminate, Ends: true}
	if j.Ending != nil {
		s.Grace = j.Ending.Grace
	}
	return a.carry(ctx, w, func(ctx context.Context, _ Pump) error {
		return a.guestAgentOf(w.slot, w.link).Signal(ctx, string(j.ID), s)
	})
}

// carry calls first, then carries the program's streams until it has ended and all its
// output has arrived.
func (a *Agent) carry(ctx context.Context, w *taskRun, first func(context.Context, Pump) error) (fleet.Report, error) {
	g := w.slot.guest
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
		return fleet.Report{AtFault: true}, fmt.Errorf("running job %s in guest %s on %s: %w%s", w.task.Job.ID, g, a.Host, ErrAbsent, a.lastWords(w))
	}
	go func() {
		select {
		case <-ended: // watchGuest reports it; end without a report
			cancel()
		case <-ctx.Done():
		}
	}()
	p := Pump{Programs: a.guestAgentOf(w.slot, w.link), Controller: a.Controller, Log: a.Log, Job: w.task.Job.ID, Incarnation: w.task.Job.Incarnation}
	var exit fleet.Exit
	if err = first(ctx, p); err == nil {
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

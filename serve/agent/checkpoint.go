package agent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"pagurus/fleet"
)

// checkpointer is the driver of a guest that is to be checkpointed, or made from a checkpoint.
func (a *Agent) checkpointer(w *taskRun) (Checkpointer, error) {
	if err := w.task.Order.Checkpoint.Check(); err != nil {
		return nil, err
	}
	if a.Vaults.Own == nil || a.Vaults.Staging == "" {
		return nil, errNoVault
	}
	d, can := w.driver.(Checkpointer)
	if !can {
		return nil, fmt.Errorf("host %s cannot checkpoint guests of kind %q", a.Host, w.task.Guest.Kind)
	}
	return d, nil
}

// arm prepares a checkpoint while the guest runs.
func (a *Agent) arm(ctx context.Context, w *taskRun) (fleet.Report, error) {
	d, err := a.checkpointer(w)
	if err != nil {
		return fleet.Report{}, err
	}
	if err := a.unstage(ctx, w); err != nil { // of an earlier one, or an earlier try
		return fleet.Report{}, vague{err}
	}
	if err := a.roomToStage(w.slot.guest); err != nil {
		return fleet.Report{}, err
	}
	g, s := w.slot.guest, &staged{Checkpoint: w.task.Order.Checkpoint, Kind: w.task.Guest.Kind, Stage: armed}
	if err = makeFolder(a.filesOf(g)); err == nil {
		err = a.writeStaged(g, *s)
	}
	if err == nil {
		err = d.Arm(ctx, g, a.filesOf(g))
	}
	if err != nil {
		return fleet.Report{}, a.giveUp(w, fmt.Errorf("preparing a checkpoint of guest %s: %w", g, err))
	}
	a.openFiles(ctx, w, s)
	a.readyFiles(w, s)
	a.mu.Lock()
	w.slot.staged = s
	a.mu.Unlock()
	a.keepListing(w, s)
	return fleet.Report{}, nil
}

// cut suspends an armed guest, until Continue or for a while.
func (a *Agent) cut(ctx context.Context, w *taskRun) (fleet.Report, error) {
	d, err := a.checkpointer(w)
	if err != nil {
		return fleet.Report{}, err
	}
	s, at, err := a.stagedOf(w)
	if err != nil {
		return fleet.Report{}, err
	}
	if at != armed { // by an earlier agent's try, which may have been killed in it
		return fleet.Report{}, a.giveUp(w, fmt.Errorf("guest %s was cut for %s before, and nobody knows when", w.slot.guest, s.Checkpoint))
	}
	if s.opened == nil && s.Files == nil { // an earlier agent prepared it
		a.openFiles(ctx, w, s)
	}
	a.listFiles(ctx, w, s)
	a.mu.Lock()
	s.CutAt = time.Now()
	a.mu.Unlock()
	_, err = a.noteStage(w.slot, s, armed, isCut) // before it is, for the next agent
	if err == nil {
		a.guardCut(w.slot, s)
		err = d.Cut(ctx, w.slot.guest)
	}
	if err != nil {
		return fleet.Report{}, a.giveUp(w, fmt.Errorf("suspending guest %s for %s: %w", w.slot.guest, s.Checkpoint, err))
	}
	a.seeFiles(ctx, w, s)
	a.handOver(w.slot, s)
	return fleet.Report{}, nil
}

// resumeCut lets a cut guest run on.
func (a *Agent) resumeCut(ctx context.Context, w *taskRun) (fleet.Report, error) {
	d, err := a.checkpointer(w)
	if err != nil {
		return fleet.Report{}, err
	}
	s, at, err := a.stagedOf(w)
	if err != nil {
		return fleet.Report{}, err
	}
	if at == continued { // and the report got lost
		return fleet.Report{}, nil
	}
	a.measureFiles(s)
	// From here on the guard does nothing: either it or this lets the guest run.
	in, err := a.noteStage(w.slot, s, isCut, continued)
	if !in {
		return fleet.Report{}, a.giveUp(w, fmt.Errorf("the cut of guest %s for %s is void: it ran on by itself after %s", w.slot.guest, s.Checkpoint, fleet.CutHold))
	}
	if err == nil {
		err = d.Continue(ctx, w.slot.guest)
	}
	if err != nil {
		return fleet.Report{}, a.giveUp(w, fmt.Errorf("letting guest %s run on: %w", w.slot.guest, err))
	}
	a.noteRun(w.slot.guest, fleet.Running, nil)
	a.beginSettling(w)
	return fleet.Report{}, nil
}

// save waits until all of a cut is written, and puts it into the vault.
func (a *Agent) save(ctx context.Context, w *taskRun) (fleet.Report, error) {
	d, err := a.checkpointer(w)
	if err != nil {
		return fleet.Report{}, err
	}
	s, at, err := a.stagedOf(w)
	if err != nil {
		return fleet.Report{}, err
	}
	if at != continued {
		return fleet.Report{}, fmt.Errorf("guest %s is not cut for %s, so there is nothing to save", w.slot.guest, s.Checkpoint)
	}
	if s.Saved == nil {
		saved, err := d.Saved(ctx, w.slot.guest)
		if errors.Is(err, ErrUnsure) { // the next try, or the next agent, goes on
			return fleet.Report{}, err
		}
		if err != nil {
			return fleet.Report{}, a.giveUp(w, fmt.Errorf("writing guest %s for %s: %w", w.slot.guest, s.Checkpoint, err))
		}
		s.Saved = &saved
		if err := a.writeStaged(w.slot.guest, *s); err != nil {
			a.Log.Warn("the next agent would ask the driver again", "cause", err)
		}
	}
	if err := a.writeFiles(ctx, w, s); err != nil {
		return fleet.Report{}, vague{err}
	}
	kept, err := a.deposit(ctx, w, a.filesOf(w.slot.guest))
	switch {
	case errors.Is(err, fleet.ErrNoRoom):
		return fleet.Report{}, a.giveUp(w, err)
	case err != nil:
		return fleet.Report{}, vague{err} // the next try sends what is missing
	}
	kept.Stop = s.Saved.Stop
	if err := w.point("kept"); err != nil {
		return fleet.Report{}, vague{err}
	}
	if err := a.unstage(ctx, w); err != nil {
		a.Log.Warn("the staging folder stays until the next checkpoint", "guest", w.slot.guest, "cause", err)
	}
	return fleet.Report{Kept: &kept}, nil
}

// drop ends a checkpoint that is under way: the guest runs, and nothing is staged.
func (a *Agent) drop(ctx context.Context, w *taskRun) (fleet.Report, error) {
	a.mu.Lock()
	other := w.slot.staged != nil && w.slot.staged.Checkpoint != w.task.Order.Checkpoint
	a.mu.Unlock()
	if other { // a later one of the same guest is under way
		return fleet.Report{}, nil
	}
	if err := a.unstage(ctx, w); err != nil {
		return fleet.Report{}, vague{err}
	}
	return fleet.Report{}, nil
}

// giveUp ends a checkpoint after an error. The error becomes vague if the guest may not run.
func (a *Agent) giveUp(w *taskRun, err error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(w.ctx), ownRunLimit)
	defer cancel()
	if undo := a.unstage(ctx, w); undo != nil {
		return vague{errors.Join(err, undo)}
	}
	return err
}

// restore makes a guest from its state in a vault. It is suspended until Activate.
func (a *Agent) restore(ctx context.Context, w *taskRun) (fleet.Report, error) {
	d, err := a.checkpointer(w)
	if err != nil {
		return fleet.Report{}, err
	}
	if err := errors.Join(a.freshen(ctx, w), a.fetch(ctx, w)); err != nil {
		return fleet.Report{}, err
	}
	a.hangUp(w.slot)
	a.deliver(w) // the guest may have left by the same port before
	folder := filepath.Join(a.stagingOf(w.slot.guest), restoredFolder)
	if err := makeFolder(folder); err != nil {
		return fleet.Report{}, vague{fmt.Errorf("making guest %s from %s: %w", w.slot.guest, w.task.Order.Checkpoint, err)}
	}
	defer func() { _ = os.RemoveAll(a.stagingOf(w.slot.guest)) }() // the next one makes it again
	if err := a.withdraw(ctx, w, folder); err != nil {
		err = fmt.Errorf("%s: %w", a.Host, err)
		if !errors.Is(err, fleet.ErrDamaged) && !errors.Is(err, fleet.ErrNotKept) {
			err = vague{err} // the checkpoint may be whole: it is tried again, here or elsewhere
		}
		return fleet.Report{}, err
	}
	err = a.putFilesBack(ctx, w, folder)
	if err == nil {
		err = d.Restore(ctx, a.lay(w.task), folder)
	}
	if err != nil {
		return a.broken(w), fmt.Errorf("%s: making guest %s from %s: %w", a.Host, w.slot.guest, w.task.Order.Checkpoint, err)
	}
	a.classify(w)
	return fleet.Report{}, nil
}

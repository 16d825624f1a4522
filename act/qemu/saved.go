package qemu

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path/filepath"

	"pagurus/act/host"
	"pagurus/act/qemu/qmp"
	"pagurus/fleet"
	"pagurus/internal/fault"
	"pagurus/internal/note"
)

// Saved waits until the folder has all of the guest as it was at the cut. After an error that wraps fleet.ErrUnsure
// call again; after any other there is no checkpoint, and the guest runs; but a call in the wrong order changes
// nothing.
func (d *Driver) Saved(ctx context.Context, id fleet.GuestID) (fleet.Saved, error) {
	s, err := d.saved(ctx, id)
	if err != nil {
		return fleet.Saved{}, fmt.Errorf("write a checkpoint of guest %s: %w", id, err)
	}
	return s, nil
}

func (d *Driver) saved(ctx context.Context, id fleet.GuestID) (fleet.Saved, error) {
	g, q, err := d.here(ctx, id)
	if err != nil {
		return fleet.Saved{}, err
	}
	events, stop := q.Subscribe()
	defer stop()
	for {
		done, s, err := g.trySaved(ctx, q)
		if done && err == nil {
			return fleet.Saved{Bytes: s.Bytes, Stop: s.Stop}, nil
		}
		if err == nil {
			err = g.wait(ctx, events, copyPollEvery)
		}
		switch {
		case err == nil:
		case g.Dead():
			return fleet.Saved{}, fmt.Errorf("%w: %w", fleet.ErrAbsent, err)
		case ctx.Err() != nil || errors.Is(err, host.ErrClosed) || d.life.Err() != nil: // the next agent goes on
			return fleet.Saved{}, fmt.Errorf("%w: %w", fleet.ErrUnsure, err)
		default:
			return fleet.Saved{}, err
		}
	}
}

// trySaved finds out whether all is written; then it completes the folder.
func (g *guest) trySaved(ctx context.Context, q *qmp.Client) (done bool, _ saving, err error) {
	g.streaming.Lock()
	defer g.streaming.Unlock()
	switch s := g.Remembered().Saving; {
	case s == nil:
		return false, saving{}, errNoSaving
	case s.Step == savingVoid:
		return false, saving{}, errors.New(s.Void)
	case s.Step == savingDone:
		return true, *s, nil
	case s.Step != savingOn:
		return false, saving{}, errors.Join(errNotCut, errors.New("or does not run on yet"))
	}
	info, err := queryMigrate(ctx, q)
	switch {
	case err != nil && ctx.Err() != nil, err == nil && info.underWay():
		return false, saving{}, err
	case err == nil && info.Status != stateCompleted:
		err = g.whyNotSaved(info)
	case err == nil && !g.Remembered().Saving.Writer.Gone():
		return false, saving{}, nil
	case err == nil:
		err = g.completeSave()
	}
	if err == nil || errors.Is(err, host.ErrClosed) {
		return err == nil, *g.Remembered().Saving, err
	}
	return false, saving{}, g.void(ctx, q, err)
}

// whyNotSaved says why QEMU has not written a guest to its end: the writer may know better.
func (g *guest) whyNotSaved(info migration) error {
	if said := tailOf(filepath.Join(g.Dir, writerLog)); said != "" {
		return errors.New(said)
	}
	return fmt.Errorf("QEMU does not write it: it is %s: %s", info.Status, info.Desc)
}

// completeSave describes what the writer has written.
func (g *guest) completeSave() error {
	said := host.OpenLog(g.Dir, writerLog)
	if said == nil {
		return errors.New("what was written has no description")
	}
	defer said.Close()
	text, err := io.ReadAll(io.LimitReader(said, 1<<10))
	if err != nil {
		return err
	}
	a := about{Format: aboutFormat, Make: g.Remembered().Make}
	if err := json.Unmarshal(text, &a.Written); err != nil || a.Bytes == 0 {
		return fmt.Errorf("it was not written to its end: %s", bytes.TrimSpace(text))
	}
	if err := note.Replace(filepath.Join(g.Remembered().Saving.Folder, aboutFile), a); err != nil {
		return err
	}
	if err := fault.Point("qemu.saved.before-note"); err != nil {
		return err
	}
	return g.Remember(func(r *record) { r.Saving.Step, r.Saving.Bytes = savingDone, a.Bytes })
}

// Disarm ends a checkpoint at any step; the guest runs. A guest without one is not an error, nor one that is not here.
// After an error call again.
func (d *Driver) Disarm(ctx context.Context, id fleet.GuestID) error {
	g, q, err := d.here(ctx, id)
	switch {
	case errors.Is(err, fleet.ErrAbsent):
		return nil
	case err == nil:
		err = g.disarm(ctx, q)
	}
	if err != nil && g != nil && g.Dead() {
		return nil
	}
	if err != nil {
		return fmt.Errorf("end the checkpoint of guest %s: %w", id, err)
	}
	return nil
}

func (g *guest) disarm(ctx context.Context, q *qmp.Client) error {
	g.streaming.Lock()
	defer g.streaming.Unlock()
	s := g.Remembered().Saving
	if s == nil {
		return nil
	}
	var err error
	switch {
	case s.Step == savingArmed:
		err = dropWriter(ctx, q, s.Writer)
	case s.underWay():
		err = g.unsave(ctx, q)
	}
	if err != nil {
		return err
	}
	return g.Remember(func(r *record) { r.Saving = nil })
}

// resumeSaving lets a guest run while a checkpoint of it is being made. If it is suspended for that, the checkpoint is
// void: others may have to wait for theirs.
func (d *Driver) resumeSaving(ctx context.Context, g *guest, q *qmp.Client) error {
	g.streaming.Lock()
	defer g.streaming.Unlock()
	if s := g.Remembered().Saving; s.halted() {
		cause := errors.New("it was told to run on before the order to do so after its cut")
		if err := g.void(ctx, q, cause); !errors.Is(err, cause) {
			return err
		}
	}
	if err := d.swap(g.ID, false); err != nil {
		return err
	}
	return g.goOn(ctx, q)
}

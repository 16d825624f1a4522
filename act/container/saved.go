package container

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"pagurus/act/container/sandbox"
	"pagurus/act/host"
	"pagurus/fleet"
	"pagurus/internal/fault"
)

// Continue lets a cut guest run on. The rest of it is written to the folder meanwhile. It is
// not an error if it has continued already. After an error call it again, or Disarm.
func (d *Driver) Continue(ctx context.Context, id fleet.GuestID) error {
	g, err := d.here(id)
	if err == nil {
		_, done := g.move(ctx)
		defer done()
		err = d.continueCut(g)
	}
	if err != nil {
		return fmt.Errorf("let guest %s continue after its cut: %w", id, err)
	}
	return nil
}

func (d *Driver) continueCut(g *guest) error {
	c := g.Remembered().Copy
	s := g.takeSaving()
	switch {
	case c != nil && c.Folder != "" && !c.saves(): // complete, or void: then it runs
		s.free()
		return nil
	case !c.saves():
		s.free()
		return c.notSaved()
	case s == nil:
		return errors.New("it was not cut")
	case s.done != nil:
		return g.keepSaving(s)
	case !c.Suspended:
		return errors.Join(errors.New("it was not cut"), g.keepSaving(s))
	}
	s.limit.Stop()
	if !s.ownCut() {
		err := fmt.Errorf("it ran on by itself after %s", guardHold)
		return errors.Join(err, d.void(g, s, err))
	}
	r := g.Remembered()
	s.about.NoteGrowth(r.Process.PID, r.writable())
	if err := d.thaw(g); err != nil {
		return errors.Join(err, g.keepSaving(s))
	}
	s.about.Stop = time.Since(s.out.Progress.SuspendedAt)
	queue := s.queue
	s.queue = nil
	err := d.atHost(queue.Release)
	queue.Close()
	if err != nil {
		d.config.Log.Warn("frames that were held for a guest were lost", "guest", g.ID, "cause", err)
	}
	if err := g.Remember(func(r *record) { r.Copy.Suspended, r.Copy.Continued = false, true }); err != nil {
		return errors.Join(err, d.void(g, s, err))
	}
	d.config.Log.Info("guest was cut", append([]any{"guest", g.ID, "stop", s.about.Stop.Round(100 * time.Microsecond)}, s.out.Stages()...)...)
	g.Mu.Lock()
	defer g.Mu.Unlock()
	if g.Released {
		s.free()
		return host.ErrClosed
	}
	s.done = make(chan struct{})
	g.saving, g.writing = s, s.done
	d.guests.Watches.Go(func() { d.finish(g, s) })
	return nil
}

// finish writes the rest of a checkpoint to its folder, while the guest runs.
func (d *Driver) finish(g *guest, s *saving) {
	defer close(s.done)
	folder := g.Remembered().Copy.Folder
	saved, err := d.writeRest(g, s, folder)
	s.out.Free()
	if err == nil {
		err = g.Remember(func(r *record) {
			if r.Copy.saves() {
				r.Copy.Saved, r.Copy.Cancelled = &saved, true
			}
		})
	}
	if failed := sandbox.ClearRoot(filepath.Join(g.Dir, imagesDir)); failed != nil && !g.Dead() {
		d.config.Log.Warn("what CRIU wrote for a guest's checkpoint stays in memory", "guest", g.ID, "cause", failed)
	}
	for _, what := range s.about.Grown() { // the rest says whoever asked for OpenFiles
		d.config.Log.Warn("a checkpoint does not have all of a guest's files as they were", "guest", g.ID, "what", what)
	}
	if err != nil {
		err = s.cause(err)
		d.config.Log.Warn("a guest's checkpoint could not be written", "guest", g.ID, "cause", err)
		if err := errors.Join(g.spoil(err), clearFolder(folder)); err != nil && !errors.Is(err, host.ErrClosed) {
			d.config.Log.Warn("what there is of a void checkpoint stays", "folder", folder, "cause", err)
		}
	}
}

func (d *Driver) writeRest(g *guest, s *saving, folder string) (saved fleet.Saved, err error) {
	if err := fault.Point("container.saved.before-write"); err != nil {
		return saved, err
	}
	if err := s.tape.Pour(); err != nil {
		return saved, err
	}
	if err := s.out.Images(filepath.Join(g.Dir, imagesDir)); err != nil {
		return saved, err
	}
	if err := s.out.Finish(); err != nil {
		return saved, err
	}
	r := g.Remembered()
	if err := errors.Join(g.writeFiles(g.life, writeLimit), s.about.Sync(r.writable())); err != nil {
		return saved, err
	}
	if s.about.Bytes, s.about.Sum, err = s.tape.Sync(); err != nil {
		return saved, err
	}
	if err := fault.Point("container.saved.before-about"); err != nil {
		return saved, err
	}
	if err := s.about.write(folder); err != nil {
		return saved, err
	}
	return fleet.Saved{Bytes: s.about.Bytes, Stop: s.about.Stop}, nil
}

// spoil records why a checkpoint will never be complete.
func (g *guest) spoil(cause error) error {
	return g.Remember(func(r *record) {
		if r.Copy.saves() {
			r.Copy.Cancelled, r.Copy.Void = true, cause.Error()
		}
	})
}

// Saved waits until the folder has all of the cut, on its disk. It may be called again. After
// an error the checkpoint is void, and the guest runs.
func (d *Driver) Saved(ctx context.Context, id fleet.GuestID) (fleet.Saved, error) {
	g, err := d.here(id)
	var saved fleet.Saved
	if err == nil {
		saved, err = d.saved(ctx, g)
	}
	if err != nil {
		return fleet.Saved{}, fmt.Errorf("write the checkpoint of guest %s: %w", id, err)
	}
	return saved, nil
}

func (d *Driver) saved(ctx context.Context, g *guest) (fleet.Saved, error) {
	g.Mu.Lock()
	s := g.saving
	g.Mu.Unlock()
	c := g.Remembered().Copy
	var cause error
	switch {
	case c != nil && c.Saved != nil:
		return *c.Saved, nil
	case !c.saves():
		return fleet.Saved{}, c.notSaved()
	case s == nil || s.done == nil:
		cause = errors.New("the guest was not cut, or has not continued")
	default:
		select {
		case <-s.done:
			if c := g.Remembered().Copy; c != nil && c.Saved != nil {
				return *c.Saved, nil
			}
			return fleet.Saved{}, g.Remembered().Copy.notSaved()
		case <-ctx.Done():
			cause = context.Cause(ctx)
		}
	}
	g.interrupt()
	_, done := g.move(context.Background())
	defer done()
	return fleet.Saved{}, errors.Join(cause, d.void(g, g.takeSaving(), cause))
}

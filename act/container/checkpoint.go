package container

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"pagurus/act/container/criu"
	"pagurus/act/container/memory"
	"pagurus/act/container/sandbox"
	"pagurus/act/container/thaw"
	"pagurus/act/container/transfer"
	"pagurus/act/host"
	"pagurus/act/host/port"
	"pagurus/fleet"
	"pagurus/internal/fault"
)

// A checkpoint is a copy of a guest to a file. Arm records the guest's files and memory in passes
// while it runs, as a copy to another host sends them. Cut suspends it, and records the rest and
// CRIU's images in memory, because no disk may be waited for then. After Continue they go to
// the file in the background.
//
// The guests of a job are all cut before one continues. From its cut on the frames for a guest
// are held in its port, so that nothing acknowledges what the cut does not have. When it
// continues it gets them. If it is restored, their senders, which were cut later, send them again.

// saving is a checkpoint under way.
type saving struct {
	out   *transfer.Sender
	tape  *transfer.Recording
	queue *port.FrameQueue // holds the frames for a suspended guest, or is about to; nil: none
	about about
	limit *time.Timer   // lets the guest run if it is not told to continue; nil: it was not cut
	guard *thaw.Guard   // likewise, if this process cannot; nil: nothing is suspended, or this process lets it run
	done  chan struct{} // closed when the folder has all, or never will; nil: the guest has not continued
}

// The limits of a checkpoint's passes.
const (
	armPasses = 6        // while the guest runs, until the rest is small
	restBytes = 16 << 20 // a rest that is small
	moreBytes = 64 << 20 // how much more than twice the first passes may follow while it waits for its cut
	cutLimit  = 2 * time.Second
)

// Arm prepares a checkpoint of a running guest into an empty folder. The guest runs on. It is
// not an error if it is armed for that folder already. After an error nothing is left of it.
func (d *Driver) Arm(ctx context.Context, id fleet.GuestID, folder string) error {
	g, err := d.here(id)
	if err == nil {
		err = d.armable(g, folder) // otherwise it would wait for the end of a copy
	}
	if err == nil {
		var done func()
		ctx, done = g.move(ctx)
		defer done()
		err = d.arm(ctx, g, folder)
	}
	if err != nil {
		return fmt.Errorf("prepare a checkpoint of guest %s: %w", id, err)
	}
	return nil
}

// armable returns why no checkpoint of a guest can be prepared now, or nil.
func (d *Driver) armable(g *guest, folder string) error {
	if c := g.Remembered().Copy; c.saves() && c.Folder == folder && !c.Suspended {
		return nil
	}
	_, err := d.movableGuest(g.ID)
	return err
}

func (d *Driver) arm(ctx context.Context, g *guest, folder string) error {
	if err := d.armable(g, folder); err != nil {
		return err
	}
	s := g.takeSaving()
	if s != nil && s.done == nil { // armed already
		return g.keepSaving(s)
	}
	s.free() // of an earlier checkpoint
	if why := unsavable(d.ability); why != "" {
		return errors.New(why)
	}
	if err := clearFolder(folder); err != nil { // before anything is changed
		return err
	}
	g.drop()
	if err := g.awaitMemory(ctx); err != nil { // as for a copy
		return err
	}
	s, err := d.beginSaving(ctx, g, folder)
	if err == nil {
		err = fault.Point("container.arm.after-passes")
	}
	if err == nil {
		err = g.keepSaving(s)
	}
	if err != nil {
		err = s.cause(err)
		return errors.Join(err, d.void(g, s, err))
	}
	return nil
}

// cause returns an error, or in its place that of the file that could not be written.
func (s *saving) cause(err error) error {
	if s != nil && s.tape != nil {
		return cmp.Or(s.tape.Failed(), err)
	}
	return err
}

// unsavable returns why no guest's checkpoint can be made with a kernel of this ability, or "".
func unsavable(can criu.Ability) string {
	if !can.Written {
		return memory.ErrUnsupported.Error()
	}
	return ""
}

// beginSaving records a guest that runs. After an error the caller frees s, if it is not nil.
func (d *Driver) beginSaving(ctx context.Context, g *guest, folder string) (s *saving, err error) {
	if err := clearFolder(folder); err != nil {
		return nil, err
	}
	// Who restores it may reach the files in another way.
	if err := g.Remember(func(r *record) { r.Copy = &copying{Folder: folder, Hides: true, Crosses: r.paths()} }); err != nil {
		return nil, err
	}
	r := g.Remembered()
	if err := g.askFiles(ctx, answerLimit); err != nil {
		return nil, err
	}
	if found := r.obstacles(); len(found) > 0 {
		return nil, errors.New(found[0])
	}
	file, err := os.OpenFile(filepath.Join(folder, stateFile), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	s = &saving{about: d.describe(r)}
	if s.tape, err = transfer.NewRecording(file); err != nil {
		return nil, errors.Join(err, file.Close())
	}
	s.out = transfer.NewSender(s.tape.Conn(), filepath.Join(g.Dir, storeDir), transfer.BeginTracking(ctx, r.Process.PID), nil)
	stop := context.AfterFunc(ctx, s.out.Close)
	defer stop()
	if r.Agent != "" {
		if err := s.out.GuestAgent(d.binaries.Path(r.Agent)); err != nil {
			return s, err
		}
	}
	for last, pass := int64(0), 0; pass < armPasses; pass++ {
		if err := s.out.BeginPass(ctx); err != nil {
			return s, err
		}
		left := s.out.Progress.RemainingBytes
		if pass > 0 && left <= restBytes || pass > 1 && left > last*3/4 {
			break
		}
		last = left
		if err := errors.Join(s.out.Pass(ctx, false), ctx.Err()); err != nil {
			return s, err
		}
	}
	if !s.out.Copied() {
		return s, memory.ErrUnsupported
	}
	s.out.MostBytes = 2*s.tape.Bytes() + moreBytes
	s.out.HoldCopy() // what the guest changes until its cut
	return s, g.writeFiles(ctx, writeLimit)
}

// keepSaving keeps a checkpoint until the next call.
func (g *guest) keepSaving(s *saving) error {
	g.Mu.Lock()
	defer g.Mu.Unlock()
	if g.Released {
		return host.ErrClosed
	}
	g.saving = s
	return nil
}

// takeSaving removes the checkpoint and returns it, so that it is freed exactly once. It
// returns nil if there is none.
func (g *guest) takeSaving() *saving {
	g.Mu.Lock()
	defer g.Mu.Unlock()
	s := g.saving
	g.saving = nil
	return s
}

// dropSaving ends a checkpoint that no call works on.
func (g *guest) dropSaving() {
	if s := g.takeSaving(); s != nil {
		s.free()
	}
}

// free frees what a checkpoint needs in memory. What it has written stays.
func (s *saving) free() {
	if s == nil {
		return
	}
	if s.limit != nil {
		s.limit.Stop()
	}
	if s.guard != nil {
		s.guard.Leave()
	}
	if s.done != nil { // the rest is being written, which ends now, and frees it
		s.out.Close()
		return
	}
	if s.out != nil {
		s.out.Free()
	}
	if s.queue != nil {
		s.queue.Close()
	}
}

// Cut suspends an armed guest at a moment at which it can be restored. It is not an error if
// it is cut already. After an error the guest runs, and the checkpoint is void.
func (d *Driver) Cut(ctx context.Context, id fleet.GuestID) error {
	g, err := d.here(id)
	if err == nil {
		var done func()
		ctx, done = g.move(ctx)
		defer done()
		err = d.cutSaving(ctx, g)
	}
	if err != nil {
		return fmt.Errorf("cut guest %s for its checkpoint: %w", id, err)
	}
	return nil
}

func (d *Driver) cutSaving(ctx context.Context, g *guest) error {
	c := g.Remembered().Copy
	s := g.takeSaving()
	switch {
	case !c.saves():
		s.free()
		return c.notSaved()
	case s == nil: // the agent that prepared it has died
	case s.done != nil:
		return errors.Join(errors.New("it was cut, and has continued"), g.keepSaving(s))
	case c.Suspended:
		return g.keepSaving(s)
	}
	err := error(nil)
	if s == nil {
		s, err = d.beginSaving(ctx, g, c.Folder)
	}
	if err == nil {
		err = d.cutNow(ctx, g, s)
	}
	if err == nil {
		err = fault.Point("container.cut.after-dump")
	}
	if err == nil {
		s.limit = time.AfterFunc(cutHold, func() { d.expire(g, s) })
		err = g.keepSaving(s)
	}
	if errors.Is(err, host.ErrClosed) { // the next agent lets it run
		s.free()
		return err
	}
	if err != nil {
		err = s.cause(err)
		return errors.Join(err, d.void(g, s, err))
	}
	return nil
}

// cutHold is how long a guest stays suspended without being told to continue; guardHold is how long
// it stays so if this process does nothing, which is longer. Only tests change them.
var (
	cutHold   = fleet.CutHold
	guardHold = fleet.CutHold + cutLimit + time.Second
)

// ownCut makes sure that only this process lets a cut guest run. false: it ran on by itself.
func (s *saving) ownCut() bool {
	if s == nil || s.guard == nil {
		return true
	}
	guard := s.guard
	s.guard = nil
	return guard.Claim()
}

// expire lets a guest run that was cut too long ago.
func (d *Driver) expire(g *guest, of *saving) {
	_, done := g.move(context.Background())
	defer done()
	s := g.takeSaving()
	if s == nil {
		return
	}
	if s != of || s.done != nil { // it has continued
		if g.keepSaving(s) != nil {
			s.free()
		}
		return
	}
	cause := fmt.Errorf("no order to go on came within %s of the cut", cutHold)
	d.config.Log.Warn("a guest's checkpoint is void", "guest", g.ID, "cause", cause)
	if err := d.void(g, s, cause); err != nil && !g.Dead() {
		d.config.Log.Error("a guest that was cut could not go on", "guest", g.ID, "cause", err)
	}
}

// notSaved says why there is no checkpoint to go on with.
func (c *copying) notSaved() error {
	if c == nil || c.Folder == "" {
		return errors.New("no checkpoint of it was prepared")
	}
	if c.Void != "" {
		return fmt.Errorf("its checkpoint is void: %s", c.Void)
	}
	return errors.New("its checkpoint is complete")
}

// cutNow suspends a guest and records the rest of it in memory.
func (d *Driver) cutNow(ctx context.Context, g *guest, s *saving) error {
	stop := context.AfterFunc(ctx, s.out.Close)
	defer stop()
	if err := s.out.LetGo(); err != nil {
		return err
	}
	linkable, err := g.unlink(ctx)
	if err != nil {
		return err
	}
	defer linkable() // while it is suspended no link is made anyway
	images := filepath.Join(g.Dir, imagesDir)
	if err := sandbox.NewMemory(images); err != nil {
		return err
	}
	if err := errors.Join(d.guardCut(g, s), d.prepareQueue(g, s)); err != nil {
		return err
	}
	point := dumpPoint{guest: g, out: s.out, images: images, limit: cutLimit, stays: true, lead: func(away bool) error { return d.holdFrames(g, s, away) }}
	if err := d.dumpSuspended(ctx, point); err != nil {
		return err
	}
	r := g.Remembered()
	s.about.NoteFiles(r.Process.PID, r.writable())
	s.out.Stage("files")
	return nil
}

// Disarm ends a checkpoint in any state. The guest runs, and what was written is removed unless
// Saved returned. It is not an error if no checkpoint was prepared, or if there is no such guest.
// After an error call it again.
func (d *Driver) Disarm(_ context.Context, id fleet.GuestID) error {
	g, err := d.here(id)
	if errors.Is(err, fleet.ErrAbsent) {
		return nil
	}
	if err == nil {
		err = d.disarm(g)
	}
	if err != nil {
		return fmt.Errorf("end the checkpoint of guest %s: %w", id, err)
	}
	return nil
}

func (d *Driver) disarm(g *guest) error {
	if c := g.Remembered().Copy; c == nil || c.Folder == "" {
		return nil
	}
	g.interrupt()
	_, done := g.move(context.Background())
	defer done()
	c := g.Remembered().Copy
	if c == nil || c.Folder == "" {
		return nil
	}
	err := d.void(g, g.takeSaving(), errors.New("it was ended"))
	if err == nil {
		err = g.Remember(func(r *record) { r.Copy = nil })
	}
	if g.Dead() { // everything of it is removed
		return nil
	}
	return err
}

// void ends a checkpoint, which s is if the caller has taken it. The guest runs. After an error
// call it again.
func (d *Driver) void(g *guest, s *saving, cause error) error {
	c := g.Remembered().Copy
	s.ownCut() // it runs from here on, whoever lets it
	if c != nil && c.Suspended {
		if err := d.thaw(g); err != nil {
			s.free()
			return err
		}
	}
	if s != nil && s.queue != nil {
		if err := d.atHost(s.queue.Release); err != nil {
			d.config.Log.Warn("frames that were held for a guest were lost", "guest", g.ID, "cause", err)
		}
	}
	s.free()
	g.Mu.Lock()
	writing := g.writing
	g.Mu.Unlock()
	if writing != nil {
		<-writing
	}
	if err := g.Remember(func(r *record) {
		if r.Copy != nil {
			r.Copy.Suspended = false
		}
	}); err != nil {
		return err
	}
	if err := g.spoil(cause); err != nil {
		return err
	}
	if c == nil {
		return nil
	}
	err := sandbox.ClearRoot(filepath.Join(g.Dir, imagesDir))
	if g.Dead() { // it is removed anyway
		err = nil
	}
	if c.Folder != "" && g.Remembered().Copy.Saved == nil {
		err = errors.Join(err, clearFolder(c.Folder))
	}
	return err
}

// abandon ends the checkpoint of an agent that died. Nobody knows whether all guests of the job
// were suspended at the same time, since this one may run before the others.
func (d *Driver) abandon(ctx context.Context, g *guest) error {
	r := g.Remembered()
	if r.Copy.Suspended {
		freezer, err := d.config.Cgroups.Freezer(g.ID)
		if err != nil {
			return err
		}
		if err := d.criu.Release(ctx, r.Process.PID, freezer); err != nil {
			return err
		}
		if err := d.atHost(r.Port.Free); err != nil {
			return err
		}
	}
	return d.void(g, nil, errors.New("the agent that made it was ended"))
}

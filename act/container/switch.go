package container

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"pagurus/act/container/criu"
	"pagurus/act/container/interrupted"
	"pagurus/act/container/kernelstate"
	"pagurus/act/container/memory"
	"pagurus/act/container/sandbox"
	"pagurus/act/container/transfer"
	"pagurus/fleet"
	"pagurus/internal/fault"
)

// Switch freezes a guest that was copied, sends what is left, and returns when
// the target has it whole. Called again it says the same again. After an error
// that wraps fleet.ErrUnsure it is to be called again; after any other the
// target surely has not the guest, and Resume lets it run on here.
//
// lead is called when the guest stands still at a moment at which it can be dumped:
// until then its kernel has to hear what it waits for.
func (d *Driver) Switch(ctx context.Context, t fleet.Task, lead func(away bool)) (fleet.Progress, error) {
	p, err := d.switchOver(ctx, t, lead)
	if err != nil {
		return fleet.Progress{}, fmt.Errorf("switch guest %s: %w", t.Guest.ID, err)
	}
	return p, nil
}

func (d *Driver) switchOver(ctx context.Context, t fleet.Task, lead func(bool)) (fleet.Progress, error) {
	g, err := d.here(t.Guest.ID)
	if err != nil {
		// An earlier call may have come to its end before the guest ended here.
		return fleet.Progress{}, fmt.Errorf("%w; %w", err, fleet.ErrUnsure)
	}
	ctx, done := g.move(ctx)
	defer done()
	r := g.remembered()
	switch c := r.Copy; {
	case c == nil || c.Migration != t.Order.Migration || !c.Good || c.Cancelled:
		return fleet.Progress{}, fmt.Errorf("there is no copy of migration %q under way", t.Order.Migration)
	case c.Left:
		lead(true)
		return c.Cost, nil
	case c.Asked:
		lead(true)
		return d.settled(ctx, g)
	}
	if err := d.handOver(ctx, g, lead); err != nil {
		if g.remembered().Copy.Asked {
			return fleet.Progress{}, fmt.Errorf("%w: %w", err, fleet.ErrUnsure)
		}
		return fleet.Progress{}, errors.Join(err, g.cancelCopy())
	}
	return g.remembered().Copy.Cost, nil
}

// handOver freezes the guest, sends the rest and has the target make it run.
// Only when Copy.Asked is remembered may the target have it.
func (d *Driver) handOver(ctx context.Context, g *guest, lead func(bool)) error {
	s, err := d.resumeSending(ctx, g)
	if err != nil {
		return err
	}
	defer s.Free()
	stop := context.AfterFunc(ctx, s.Close)
	defer stop()
	linkable, err := g.unlink(ctx)
	if err != nil {
		return err
	}
	defer linkable()
	images := filepath.Join(g.dir, imagesDir)
	defer func() {
		if !g.remembered().Copy.Left { // of one that has left Stop clears all away
			sandbox.ClearRoot(images)
		}
	}()
	if err := sandbox.NewMemory(images); err != nil {
		return err
	}
	if err := d.dumpSuspended(ctx, dumpPoint{g, s, images, lead}); err != nil {
		return err
	}
	if err := fault.Point("container.switch.after-dump"); err != nil {
		return err
	}
	if err := s.Images(images); err != nil {
		return err
	}
	if s.LazyBytes > 0 {
		if err := d.servePages(ctx, g); err != nil {
			return err
		}
	}
	s.Stage("send")
	return d.ask(g, s)
}

// What keeps a guest from being dumped at one moment, as a connection that is
// being made, is over as soon as its programs run again for a moment, or its peers
// have what it owes them.
const (
	transientLimit = 10 * time.Second // of trying: the host, and a gang, wait for the end of it
	transientFirst = 5 * time.Millisecond
	transientMost  = 200 * time.Millisecond // between two tries
)

// dumpPoint is what a guest is dumped with while it stands still.
type dumpPoint struct {
	guest  *guest
	out    *transfer.Sender
	images string // folder for what CRIU writes
	lead   func(away bool)
}

// dumpSuspended freezes the guest at a moment at which it can be dumped, and sends
// what only then holds still: what the target lacks of its files and memory, and
// the rest of it as images.
func (d *Driver) dumpSuspended(ctx context.Context, s dumpPoint) error {
	wait := transientFirst
	for begun := time.Now(); ; wait = min(2*wait, transientMost) {
		seen, err := d.tryDump(ctx, s)
		if err == nil || !errors.Is(err, criu.ErrTransient) {
			return err
		}
		if time.Since(begun) > transientLimit || ctx.Err() != nil {
			return errors.Join(fmt.Errorf("%w, in %s", err, time.Since(begun).Round(100*time.Millisecond)), ctx.Err())
		}
		s.lead(false)
		if err := d.thaw(s.guest); err != nil {
			return err
		}
		if err := sandbox.NewMemory(s.images); err != nil {
			return err
		}
		time.Sleep(wait)
		if !seen {
			continue
		}
		// What is written from now on nobody would see.
		if err := s.out.Track(ctx); err != nil {
			return err
		}
		if err := s.out.Pass(ctx, false); err != nil {
			return err
		}
	}
}

// tryDump tries it once. seen says that the last pass was made. After an error the
// guest stands still, unless it never came to that.
func (d *Driver) tryDump(ctx context.Context, s dumpPoint) (seen bool, err error) {
	r := s.guest.remembered()
	if found := criu.Obstacles(r.Process.PID, ghostBytes(r), r.Export); len(found) > 0 { // CRIU may take seconds to find them
		return false, errors.New(found[0])
	}
	dumping, err := d.prepareDump(s)
	if err != nil {
		return false, err
	}
	defer dumping.Close()
	waits := interrupted.NoteWaits(r.Process.PID)
	s.guest.mu.Lock()
	s.guest.waits = waits
	s.guest.mu.Unlock()
	s.out.NoteSuspended()
	if err := d.freeze(s.guest); err != nil {
		return false, err
	}
	if err := fault.Point("container.switch.after-freeze"); err != nil {
		return false, err
	}
	s.out.Stage("freeze")
	err = errors.Join(kernelstate.Vforks(r.Process.PID), kernelstate.Connections(r.Process.PID), kernelstate.Locks(r.Process.PID, r.Export), kernelstate.Reading(r.Process.PID, r.Export), kernelstate.Settled(r.Process.PID))
	if err != nil {
		return false, err
	}
	s.lead(true)
	if err := errors.Join(s.out.Pass(ctx, true), d.cut(s.guest)); err != nil {
		return true, err
	}
	s.out.Stage("rest")
	// Its kernel has not stood still: it took what came until it was led away.
	if err := errors.Join(kernelstate.Connections(r.Process.PID), kernelstate.NoteState(r.Process.PID, s.images)); err != nil {
		return true, err
	}
	waits.Again()
	if err = dumping.Leave(r.Export); err == nil {
		err = dumping.Do(ctx)
	}
	if err == nil {
		err = waits.Mend(s.images)
	}
	if err == nil {
		err = criu.Trust(s.images, r.Process.PID, r.Export) // the target has the very same
	}
	s.out.Stage("dump")
	return true, err
}

// ask has the target make the guest run there: the point of no return. From
// here on only the target's own word means that it has not got it.
func (d *Driver) ask(g *guest, s *transfer.Sender) error {
	s.Progress.RemainingBytes = s.LazyBytes
	if err := g.remember(func(r *record) { r.Copy.Asked, r.Copy.Cost = true, s.Progress }); err != nil {
		return err
	}
	if err := fault.Point("container.switch.before-ask"); err != nil {
		return err
	}
	a, err := s.Ask(func() error { return fault.Point("container.switch.after-ask") })
	if err != nil {
		return err
	}
	s.Stage("restore")
	d.config.Log.Info("guest switched", append([]any{"guest", g.id, "arrived", a.Arrived}, s.Stages()...)...)
	s.Progress.Downtime = time.Since(s.Progress.SuspendedAt)
	return g.conclude(a, s.Progress)
}

// conclude remembers what became of a guest after the target has said so.
func (g *guest) conclude(a transfer.Answer, cost fleet.Progress) error {
	if a.Arrived {
		if err := g.remember(func(r *record) { r.Copy.Left, r.Copy.Cost = true, cost }); err != nil {
			return err
		}
		r := g.remembered()
		go kernelstate.Release(r.Process.PID, r.Export) // nobody stands still for it
		return nil
	}
	if err := g.remember(func(r *record) { r.Copy.Asked, r.Copy.Cancelled = false, true }); err != nil {
		return err
	}
	if a.Failure == "" {
		a.Failure = "it was never told to"
	}
	return fmt.Errorf("the target could not make it run: %s", a.Failure)
}

// settled finds out what became of a switch whose end nobody heard of.
func (d *Driver) settled(ctx context.Context, g *guest) (fleet.Progress, error) {
	r := g.remembered()
	conn, a, err := d.greet(ctx, r, *r.Copy, transfer.Hello{Only: true})
	if err != nil {
		return fleet.Progress{}, fmt.Errorf("%w: %w", err, fleet.ErrUnsure)
	}
	conn.Close()
	cost := r.Copy.Cost
	cost.Downtime = time.Since(cost.SuspendedAt)
	if err := g.conclude(a, cost); err != nil {
		if g.remembered().Copy.Asked {
			err = fmt.Errorf("%w: %w", err, fleet.ErrUnsure)
		}
		return fleet.Progress{}, err
	}
	return g.remembered().Copy.Cost, nil
}

// resumeSending gives the copy that is ready to switch, which is the caller's
// then. If the agent that made it has died, it is made again, while the guest
// runs.
func (d *Driver) resumeSending(ctx context.Context, g *guest) (*transfer.Sender, error) {
	if s, err := g.takeCopy(); err != nil {
		s.Free()
		return nil, err
	} else if s != nil {
		return s, nil
	}
	c := *g.remembered().Copy
	s, err := d.open(ctx, g, c, nil)
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, s.Close)
	defer stop()
	if !c.Suspended {
		s.Progress.Rounds++
		err = s.Pass(ctx, false)
	}
	if err != nil {
		s.Free()
		return nil, err
	}
	return s, nil
}

// freeze lets the guest stand still.
func (d *Driver) freeze(g *guest) error {
	if err := g.remember(func(r *record) { r.Copy.Suspended = true }); err != nil {
		return err
	}
	return d.config.Cgroups.Freeze(g.id)
}

// cut lets nothing of a guest that stands still leave this host any more, so that
// nobody is told that something arrived after it was dumped. What it sent last has
// left by then: it would be sent again only after a second.
func (d *Driver) cut(g *guest) error { return d.atHost(g.remembered().Port.Cut) }

// release makes sure that a guest whose agent died while it switched stands still
// and is held by no CRIU.
func (d *Driver) release(ctx context.Context, g *guest) error {
	freezer, err := d.config.Cgroups.Freezer(g.id)
	if err != nil {
		return err
	}
	if err := d.criu.Release(ctx, g.remembered().Process.PID, freezer); err != nil {
		return err
	}
	return errors.Join(d.freeze(g), d.cut(g))
}

// thaw is the way back.
func (d *Driver) thaw(g *guest) error {
	r := g.remembered()
	if err := d.atHost(r.Port.Mend); err != nil {
		return err
	}
	return d.goOn(g)
}

// goOn lets a guest that was suspended run where it is, and its programs wait for what
// they waited for.
func (d *Driver) goOn(g *guest) error {
	g.mu.Lock()
	pid, waits := g.record.Process.PID, g.waits
	g.waits = nil
	g.mu.Unlock()
	return interrupted.Continue(pid, waits, func() error { return d.config.Cgroups.Thaw(g.id) })
}

// prepareDump starts what writes the guest's processes to images, which they
// survive, when they are frozen.
func (d *Driver) prepareDump(s dumpPoint) (*criu.Dumping, error) {
	freezer, err := d.config.Cgroups.Freezer(s.guest.id)
	if err != nil {
		return nil, err
	}
	r := s.guest.remembered()
	mounts := map[string]string{}
	for _, m := range d.mounts(r) {
		mounts[m.at] = m.name
	}
	return d.criu.PrepareDump(criu.DumpSpec{
		PID: r.Process.PID, Images: s.images, Mounts: mounts, Running: true, Freezer: freezer, GhostBytes: ghostBytes(r), Copied: s.out.Copied(),
	})
}

// ghostBytes is the largest deleted file that is taken along: any that can be.
func ghostBytes(r record) int64 { return min(r.Need.MemoryBytes, 1<<32-1) }

// Resume lets a paused guest run: a target that has it whole, or a source
// whose switch surely failed; a copy still under way is called off. A guest
// that runs is no error. A source whose guest is, or may be, with the target is
// refused: both would run.
func (d *Driver) Resume(ctx context.Context, id fleet.GuestID) error {
	err := d.resume(ctx, id)
	if err != nil {
		return fmt.Errorf("resume guest %s: %w", id, err)
	}
	return nil
}

func (d *Driver) resume(ctx context.Context, id fleet.GuestID) error {
	g, err := d.here(id)
	if err != nil {
		return err
	}
	if g.remembered().Target {
		return d.arriveAt(g)
	}
	if c := g.remembered().Copy; c != nil && c.Left {
		return errors.New("it is with the target of a migration that cannot be undone")
	}
	if err := d.rouse(g); err != nil {
		return err
	}
	g.interrupt()
	ctx, done := g.move(ctx)
	defer done()
	c := g.remembered().Copy
	if c != nil && c.Asked && !c.Left {
		if _, err := d.settled(ctx, g); err == nil || g.remembered().Copy.Asked {
			return errors.Join(errors.New("it may be with the target of its migration"), err)
		}
	}
	if c == nil {
		return nil
	}
	if c.Left {
		return errors.New("it is with the target of a migration that cannot be undone")
	}
	if err := g.cancelCopy(); err != nil {
		return err
	}
	if !c.Suspended {
		return nil
	}
	if err := c.end(); err != nil { // before it changes what was owed
		return err
	}
	if err := d.thaw(g); err != nil {
		return err
	}
	return g.remember(func(r *record) { r.Copy.Suspended = false })
}

// arriveAt lets a target run that has the guest whole.
func (d *Driver) arriveAt(g *guest) error {
	r := g.remembered()
	g.mu.Lock()
	t := g.target
	g.mu.Unlock()
	switch {
	case t != nil && t.making.Load():
		return errors.New("it is still being made of what has come")
	case !r.Arrived:
		return fmt.Errorf("%w: %s", fleet.ErrNotWhole, cmp.Or(r.Failure, "the rest has not come"))
	}
	if err := fault.Point("container.resume.before"); err != nil {
		return err
	}
	// It runs before what waited for it is let go: that takes the kernel some ten
	// milliseconds, and the first of it comes at once.
	err := d.atHost(func() error {
		err := r.Port.Mend()
		if err == nil && t == nil { // what an earlier agent held is lost with it
			err = r.Port.Free()
		}
		return err
	})
	if err == nil {
		var failed error
		failed, err = memory.Calls(r.Calls, func() error { return d.config.Cgroups.Thaw(g.id) })
		if failed != nil {
			d.config.Log.Warn("programs of a guest have lost what only they can set (personality)", "guest", g.id, "error", failed)
		}
	}
	ran := time.Now()
	if err == nil && t != nil {
		err = d.atHost(t.frameQueue.Release)
	}
	if err != nil {
		return err
	}
	if err := g.remember(func(r *record) { r.Target, r.RanAt, r.Calls = false, ran, nil }); err != nil {
		return err
	}
	if t != nil {
		t.close()
	}
	return nil
}

// RanAgain is when a guest that has come here went on; zero: there is none.
func (d *Driver) RanAgain(id fleet.GuestID) time.Time {
	g, err := d.here(id)
	if err != nil {
		return time.Time{}
	}
	return g.remembered().RanAt
}

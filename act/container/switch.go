package container

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"pagurus/act/container/criu"
	"pagurus/act/container/proc"
	"pagurus/act/container/rootfs"
	"pagurus/fleet"
	"pagurus/internal/fault"
)

// restoreLimit is how long a target may take to make a guest of what it has.
const restoreLimit = time.Minute

// Switch freezes a guest that was copied, sends what is left, and returns when
// the target has it whole. Called again it says the same again. After an error
// that wraps fleet.ErrUnsure it is to be called again; after any other the
// target surely has not the guest, and Resume lets it run on here.
func (d *Driver) Switch(ctx context.Context, t fleet.Task) (fleet.Progress, error) {
	p, err := d.switchOver(ctx, t)
	if err != nil {
		return fleet.Progress{}, fmt.Errorf("switch guest %s: %w", t.Guest.ID, err)
	}
	return p, nil
}

func (d *Driver) switchOver(ctx context.Context, t fleet.Task) (fleet.Progress, error) {
	g, err := d.here(t.Guest.ID)
	if err != nil {
		// An earlier call may have come to its end before the guest ended here.
		return fleet.Progress{}, fmt.Errorf("%w; %w", err, fleet.ErrUnsure)
	}
	ctx, done := g.move(ctx)
	defer done()
	r := g.remembered()
	switch c := r.Copy; {
	case c == nil || c.Migration != t.Order.Migration || !c.Good || c.Off:
		return fleet.Progress{}, fmt.Errorf("there is no copy of migration %q under way", t.Order.Migration)
	case c.Left:
		return c.Cost, nil
	case c.Asked:
		return d.settled(ctx, g)
	}
	if err := d.handOver(ctx, g); err != nil {
		if g.remembered().Copy.Asked {
			return fleet.Progress{}, fmt.Errorf("%w: %w", err, fleet.ErrUnsure)
		}
		return fleet.Progress{}, errors.Join(err, g.callOff())
	}
	return g.remembered().Copy.Cost, nil
}

// handOver freezes the guest, sends the rest and has the target make it run.
// Only when Copy.Asked is remembered may the target have it.
func (d *Driver) handOver(ctx context.Context, g *guest) error {
	s, err := d.resumeSending(ctx, g)
	if err != nil {
		return err
	}
	defer s.free()
	stop := context.AfterFunc(ctx, s.close)
	defer stop()
	linkable, err := g.unlink(ctx)
	if err != nil {
		return err
	}
	defer linkable()
	s.progress.PausedAt = time.Now()
	s.stages.begin()
	images := filepath.Join(g.dir, imagesDir)
	defer rootfs.Clear(images)
	if err := d.dumpStill(ctx, g, s, images); err != nil {
		return err
	}
	if err := fault.Point("container.switch.after-dump"); err != nil {
		return err
	}
	if err := s.images(images); err != nil {
		return err
	}
	if err := s.sync(); err != nil {
		return err
	}
	s.stages.done("send")
	return d.ask(g, s)
}

// What keeps a guest from being dumped at one moment, as a connection that is
// being made, is over as soon as its programs run again for a moment.
const (
	dumpTries   = 20
	passingTime = 5 * time.Millisecond
)

// dumpStill freezes the guest at a moment at which it can be dumped, and sends
// what only then holds still: what the target lacks of its files and memory, and
// the rest of it as images in a folder.
func (d *Driver) dumpStill(ctx context.Context, g *guest, s *sending, images string) error {
	for try := 1; ; try++ {
		if err := d.freeze(g); err != nil {
			return err
		}
		if err := fault.Point("container.switch.after-freeze"); err != nil {
			return err
		}
		s.stages.done("freeze")
		early, err := proc.Connecting(g.remembered().Process.PID)
		if err == nil && early && try < dumpTries {
			err = criu.ErrPassing
		} else if err == nil {
			early = false
			if err = s.pass(ctx, g, true); err == nil {
				s.stages.done("rest")
				err = d.dump(ctx, g, s, images)
				s.stages.done("dump")
			}
		}
		if err == nil || !errors.Is(err, criu.ErrPassing) || try >= dumpTries {
			return err
		}
		if err := d.thaw(g); err != nil {
			return err
		}
		time.Sleep(passingTime)
		if early {
			continue
		}
		// What is written from now on nobody would see.
		if err := s.track(ctx, g); err != nil {
			return err
		}
		if err := s.pass(ctx, g, false); err != nil {
			return err
		}
	}
}

// ask has the target make the guest run there: the point of no return. From
// here on only the target's own word means that it has not got it.
func (d *Driver) ask(g *guest, s *sending) error {
	s.progress.RemainingBytes, s.progress.SentBytes = 0, s.conn.Sent()
	if err := g.remember(func(r *record) { r.Copy.Asked, r.Copy.Cost = true, s.progress }); err != nil {
		return err
	}
	if err := fault.Point("container.switch.before-ask"); err != nil {
		return err
	}
	err := s.conn.Send(sayRestore)
	if err == nil {
		err = s.conn.Flush()
	}
	var a answer
	if err == nil {
		if err = fault.Point("container.switch.after-ask"); err == nil {
			a, err = hear(s.conn, restoreLimit)
		}
	}
	if err != nil {
		return err
	}
	s.stages.done("restore")
	d.config.Log.Info("guest switched", append([]any{"guest", g.id, "arrived", a.Arrived}, s.stages.all...)...)
	s.progress.Downtime = time.Since(s.progress.PausedAt)
	s.progress.Elapsed = time.Since(s.begun)
	return g.conclude(a, s.progress)
}

// conclude remembers what became of a guest after the target has said so.
func (g *guest) conclude(a answer, cost fleet.Progress) error {
	if a.Arrived {
		return g.remember(func(r *record) { r.Copy.Left, r.Copy.Cost = true, cost })
	}
	if err := g.remember(func(r *record) { r.Copy.Asked, r.Copy.Off = false, true }); err != nil {
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
	conn, a, err := d.reach(ctx, r, *r.Copy, true)
	if err != nil {
		return fleet.Progress{}, fmt.Errorf("%w: %w", err, fleet.ErrUnsure)
	}
	conn.Close()
	cost := r.Copy.Cost
	cost.Downtime = time.Since(cost.PausedAt)
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
func (d *Driver) resumeSending(ctx context.Context, g *guest) (*sending, error) {
	if s := g.take(); s != nil && s.failed != nil {
		s.free()
		return nil, s.failed
	} else if s != nil {
		return s, nil
	}
	c := *g.remembered().Copy
	s, err := d.open(ctx, g, c, nil)
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, s.close)
	defer stop()
	if !c.Frozen {
		s.progress.Rounds++
		err = s.pass(ctx, g, false)
	}
	if err != nil {
		s.free()
		return nil, err
	}
	return s, nil
}

// freeze lets the guest stand still, and nothing of it leave this host.
func (d *Driver) freeze(g *guest) error {
	r := g.remembered()
	if err := g.remember(func(r *record) { r.Copy.Frozen = true }); err != nil {
		return err
	}
	if err := d.atHost(r.Port.Cut); err != nil {
		return err
	}
	return d.config.Cgroups.Freeze(g.id)
}

// thaw is the way back.
func (d *Driver) thaw(g *guest) error {
	r := g.remembered()
	if err := d.atHost(r.Port.Mend); err != nil {
		return err
	}
	return d.config.Cgroups.Thaw(g.id)
}

// dump writes the frozen guest's processes to images, which it survives.
func (d *Driver) dump(ctx context.Context, g *guest, s *sending, images string) error {
	if err := rootfs.Clear(images); err != nil {
		return err
	}
	if err := rootfs.MountMemory(images); err != nil {
		return err
	}
	freezer, err := d.config.Cgroups.Freezer(g.id)
	if err != nil {
		return err
	}
	r := g.remembered()
	mounts := map[string]string{}
	for _, m := range d.mounts(r) {
		mounts[m.at] = m.name
	}
	return d.atHost(func() error {
		return d.criu.Dump(ctx, criu.DumpSpec{
			PID: r.Process.PID, Images: images, Mounts: mounts, Running: true, Freezer: freezer, GhostBytes: ghostBytes(r),
			Copied: s.memory != nil,
		})
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
	if err := g.callOff(); err != nil {
		return err
	}
	if !c.Frozen {
		return nil
	}
	if err := d.thaw(g); err != nil {
		return err
	}
	return g.remember(func(r *record) { r.Copy.Frozen = false })
}

// arriveAt lets a target run that has the guest whole.
func (d *Driver) arriveAt(g *guest) error {
	r := g.remembered()
	if !r.Arrived {
		if r.Failure != "" {
			return fmt.Errorf("it has not arrived: %s", r.Failure)
		}
		return errors.New("it has not arrived whole")
	}
	if err := fault.Point("container.resume.before"); err != nil {
		return err
	}
	g.mu.Lock()
	t := g.target
	g.mu.Unlock()
	err := d.atHost(func() error {
		if err := r.Port.Mend(); err != nil {
			return err
		}
		if t == nil { // what an earlier agent held is lost with it
			return r.Port.Free()
		}
		return t.hold.Release()
	})
	if err != nil {
		return err
	}
	if err := d.config.Cgroups.Thaw(g.id); err != nil {
		return err
	}
	if err := g.remember(func(r *record) { r.Target = false }); err != nil {
		return err
	}
	if t != nil {
		t.close()
	}
	return nil
}

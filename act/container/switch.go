package container

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"pagurus/act/container/criu"
	"pagurus/act/container/interrupted"
	"pagurus/act/container/kernelstate"
	"pagurus/act/container/sandbox"
	"pagurus/act/container/transfer"
	"pagurus/fleet"
	"pagurus/internal/fault"
)

// Switch suspends a copied guest, sends the rest, and returns when the target has the
// whole guest. A repeated call returns the same result. After an error that wraps
// fleet.ErrUnsure call Switch again. After any other error the target certainly does not
// have the guest, and Resume lets it run here.
//
// lead(true) is called once the guest is suspended at a moment at which it can be dumped.
// Until then the guest's kernel must receive the frames that it waits for.
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
		// An earlier call may have completed before the guest ended here.
		return fleet.Progress{}, fmt.Errorf("%w; %w", err, fleet.ErrUnsure)
	}
	ctx, done := g.move(ctx)
	defer done()
	r := g.Remembered()
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
		if g.Remembered().Copy.Asked {
			return fleet.Progress{}, fmt.Errorf("%w: %w", err, fleet.ErrUnsure)
		}
		return fleet.Progress{}, errors.Join(err, g.cancelCopy())
	}
	return g.Remembered().Copy.Cost, nil
}

// handOver suspends the guest, sends the rest and makes the target resume it. The target
// can have the guest only if Copy.Asked is recorded.
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
	images := filepath.Join(g.Dir, imagesDir)
	defer func() {
		if !g.Remembered().Copy.Left { // if it has left, Stop removes everything
			sandbox.ClearRoot(images)
		}
	}()
	if err := sandbox.NewMemory(images); err != nil {
		return err
	}
	led := func(away bool) error { lead(away); return nil }
	if err := d.dumpSuspended(ctx, dumpPoint{guest: g, out: s, images: images, limit: transientLimit, lead: led}); err != nil {
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

// A transient obstacle, such as a connection that is being made, ends when the guest's programs
// run again for a moment. Or it ends when the guest's peers have received the data that it still
// had to send.
const (
	transientLimit = 10 * time.Second // of all tries together: the host, and the guest's gang, wait for the end
	transientFirst = 5 * time.Millisecond
	transientMost  = 200 * time.Millisecond // the longest wait between two tries
)

// dumpPoint holds what is needed to dump a suspended guest.
type dumpPoint struct {
	guest  *guest
	out    *transfer.Sender
	images string                // folder for what CRIU writes
	limit  time.Duration         // of all tries together
	lead   func(away bool) error // frames for the guest no longer reach it, or do again
	stays  bool                  // the guest goes on here: what it has written to files need not be elsewhere, and what its kernel sends meanwhile does no harm
}

// dumpSuspended suspends the guest at a moment at which it can be dumped. It then sends the
// missing files and memory, and dumps the rest of the guest into CRIU's images.
func (d *Driver) dumpSuspended(ctx context.Context, s dumpPoint) error {
	wait := transientFirst
	for begun := time.Now(); ; wait = min(2*wait, transientMost) {
		seen, err := d.tryDump(ctx, s)
		if err == nil || !errors.Is(err, criu.ErrTransient) {
			return err
		}
		if time.Since(begun) > s.limit || ctx.Err() != nil {
			return errors.Join(fmt.Errorf("%w, in %s", err, time.Since(begun).Round(100*time.Millisecond)), ctx.Err())
		}
		if err := errors.Join(s.lead(false), d.thaw(s.guest)); err != nil {
			return err
		}
		if err := sandbox.NewMemory(s.images); err != nil {
			return err
		}
		time.Sleep(wait)
		if !seen {
			continue
		}
		// After the last pass writes are no longer tracked, so tracking starts again.
		if err := s.out.Track(ctx); err != nil {
			return err
		}
		if err := s.out.Pass(ctx, false); err != nil {
			return err
		}
	}
}

// tryDump tries once to dump the guest. seen reports that the last pass was made. After
// an error the guest is suspended, unless the error came before that.
func (d *Driver) tryDump(ctx context.Context, s dumpPoint) (seen bool, err error) {
	r := s.guest.Remembered()
	if err := s.settleFiles(ctx); err != nil { // most of it, while the guest runs
		return false, err
	}
	if found := r.obstacles(); len(found) > 0 { // CRIU may take seconds to find them
		return false, errors.New(found[0])
	}
	dumping, err := d.prepareDump(s)
	if err != nil {
		return false, err
	}
	defer dumping.Close()
	waits := interrupted.NoteWaits(r.Process.PID)
	s.guest.Mu.Lock()
	s.guest.waits = waits
	s.guest.Mu.Unlock()
	s.out.NoteSuspended()
	if err := d.suspendForSwitch(s.guest); err != nil {
		return false, err
	}
	if err := fault.Point("container.switch.after-freeze"); err != nil {
		return false, err
	}
	s.out.Stage("freeze")
	err = errors.Join(kernelstate.Vforks(r.Process.PID), kernelstate.Connections(r.Process.PID), r.fileState(), kernelstate.Settled(r.Process.PID))
	if err != nil {
		return false, err
	}
	if err := s.settleFiles(ctx); err != nil {
		return false, err
	}
	if err := s.lead(true); err != nil {
		return false, err
	}
	err = s.out.Pass(ctx, true)
	if !s.stays {
		err = errors.Join(err, d.cut(s.guest))
	}
	if err != nil {
		return true, err
	}
	s.out.Stage("rest")
	// Frames for the guest changed its kernel's connections until they were led away, so
	// their state is recorded only now.
	if err := errors.Join(kernelstate.Connections(r.Process.PID), kernelstate.NoteState(r.Process.PID, s.images)); err != nil {
		return true, err
	}
	waits.Again()
	err = dumping.Leave(r.jobFolders())
	if len(dumping.Kept) > 0 {
		err = errors.Join(err, s.guest.Remember(func(r *record) { r.Copy.Kept = dumping.Kept }))
	}
	if err == nil {
		err = dumping.Do(ctx)
	}
	if err == nil {
		err = waits.Mend(func(thread int, alter func(*unix.PtraceRegs) bool) error {
			return criu.ChangeRegisters(s.images, thread, alter)
		})
	}
	if err == nil {
		err = criu.Trust(s.images, r.Process.PID, r.jobFolders()) // for files that the target also has
	}
	if err == nil {
		err = criu.NameLate(s.images)
	}
	s.out.Stage("dump")
	return true, err
}

// settleFiles makes the file systems of a guest's directories write what it has written.
func (s dumpPoint) settleFiles(ctx context.Context) error {
	if s.stays {
		return nil
	}
	return s.guest.writeFiles(ctx, writeLimit)
}

// ask makes the target resume the guest. This is the point of no return: from here on
// only the target's own answer proves that it does not have the guest.
func (d *Driver) ask(g *guest, s *transfer.Sender) error {
	s.Progress.RemainingBytes = s.LazyBytes
	if err := g.Remember(func(r *record) { r.Copy.Asked, r.Copy.Cost = true, s.Progress }); err != nil {
		return err
	}
	if err := fault.Point("container.switch.before-ask"); err != nil {
		return err
	}
	a, err := s.Ask(g.Remembered().Need.MemoryBytes, func() error { return fault.Point("container.switch.after-ask") })
	if err != nil {
		return err
	}
	s.Stage("restore")
	d.config.Log.Info("guest switched", append([]any{"guest", g.ID, "arrived", a.Arrived}, s.Stages()...)...)
	s.Progress.Downtime = time.Since(s.Progress.SuspendedAt)
	return g.conclude(a, s.Progress)
}

// conclude records the outcome of a switch that the target has reported.
func (g *guest) conclude(a transfer.Answer, cost fleet.Progress) error {
	if a.Arrived {
		if err := g.Remember(func(r *record) { r.Copy.Left, r.Copy.Cost = true, cost }); err != nil {
			return err
		}
		r := g.Remembered()
		go kernelstate.Release(r.Process.PID, r.paths()...) // the guest's blackout does not include this
		return nil
	}
	if err := g.Remember(func(r *record) { r.Copy.Asked, r.Copy.Cancelled = false, true }); err != nil {
		return err
	}
	if a.Failure == "" {
		a.Failure = "it was never told to"
	}
	return fmt.Errorf("the target could not make it run: %s", a.Failure)
}

// settled asks the target for the outcome of a switch that an earlier call did not learn.
func (d *Driver) settled(ctx context.Context, g *guest) (fleet.Progress, error) {
	r := g.Remembered()
	conn, a, err := d.greet(ctx, r, *r.Copy, transfer.Hello{Only: true})
	if err != nil {
		return fleet.Progress{}, fmt.Errorf("%w: %w", err, fleet.ErrUnsure)
	}
	conn.Close()
	cost := r.Copy.Cost
	cost.Downtime = time.Since(cost.SuspendedAt)
	if err := g.conclude(a, cost); err != nil {
		if g.Remembered().Copy.Asked {
			err = fmt.Errorf("%w: %w", err, fleet.ErrUnsure)
		}
		return fleet.Progress{}, err
	}
	return g.Remembered().Copy.Cost, nil
}

// resumeSending returns the copy that is ready to switch; the caller must free it. If the
// agent that made the copy has died, resumeSending makes it again, and sends a pass first
// if the guest is not yet suspended.
func (d *Driver) resumeSending(ctx context.Context, g *guest) (*transfer.Sender, error) {
	if s, err := g.takeCopy(); err != nil {
		s.Free()
		return nil, err
	} else if s != nil {
		return s, nil
	}
	c := *g.Remembered().Copy
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

// suspendForSwitch records that the guest is suspended and then freezes it.
func (d *Driver) suspendForSwitch(g *guest) error {
	if err := g.Remember(func(r *record) { r.Copy.Suspended = true }); err != nil {
		return err
	}
	return d.config.Cgroups.Freeze(g.ID)
}

// cut keeps everything that a suspended guest's kernel sends on this host, so that no
// peer is told that data arrived after the dump. The guest's last frames have left by
// then; otherwise they would be sent again only after a second.
func (d *Driver) cut(g *guest) error { return d.atHost(g.Remembered().Port.Cut) }

// release makes sure that a guest whose agent died during a switch is suspended and not
// held by any CRIU process.
func (d *Driver) release(ctx context.Context, g *guest) error {
	freezer, err := d.config.Cgroups.Freezer(g.ID)
	if err != nil {
		return err
	}
	if err := d.criu.Release(ctx, g.Remembered().Process.PID, freezer); err != nil {
		return err
	}
	return errors.Join(d.suspendForSwitch(g), d.cut(g))
}

// thaw undoes cut and suspendForSwitch.
func (d *Driver) thaw(g *guest) error {
	r := g.Remembered()
	if c := r.Copy; c != nil && len(c.Kept) > 0 {
		if err := r.forgetNames(c.Kept); err != nil {
			d.config.Log.Warn("a guest that did not move leaves names in its files", "guest", g.ID, "cause", err)
		}
		if err := g.Remember(func(r *record) { r.Copy.Kept = nil }); err != nil {
			return err
		}
	}
	if err := d.atHost(r.Port.Mend); err != nil {
		return err
	}
	return d.goOn(g)
}

// goOn makes a suspended guest continue here. Its programs' waits continue.
func (d *Driver) goOn(g *guest) error {
	g.Mu.Lock()
	pid, waits := g.Record.Process.PID, g.waits
	g.waits = nil
	g.Mu.Unlock()
	return interrupted.Continue(pid, waits, func() error { return d.config.Cgroups.Thaw(g.ID) })
}

// prepareDump starts the CRIU process that will write the guest's processes to images
// once they are frozen. The processes survive the dump.
func (d *Driver) prepareDump(s dumpPoint) (*criu.Dumping, error) {
	freezer, err := d.config.Cgroups.Freezer(s.guest.ID)
	if err != nil {
		return nil, err
	}
	r := s.guest.Remembered()
	mounts := map[string]string{}
	for _, m := range d.mounts(r) {
		mounts[m.at] = m.name
	}
	var skip []string
	if r.Copy.Hides {
		skip = sandbox.HiddenHere()
	}
	return d.criu.PrepareDump(criu.DumpSpec{
		PID: r.Process.PID, Images: s.images, Mounts: mounts, Skip: skip, Running: true, Freezer: freezer, GhostBytes: ghostBytes(r), Copied: s.out.Copied(),
	})
}

// ghostBytes returns the largest size of a deleted file that is moved with the guest: the
// guest's memory, but less than 4 GiB.
func ghostBytes(r record) int64 { return min(r.Need.MemoryBytes, 1<<32-1) }

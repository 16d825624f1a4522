package container

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"

	"pagurus/act/container/framing"
	"pagurus/act/container/transfer"
	"pagurus/act/host"
	"pagurus/fleet"
	"pagurus/internal/fault"
)

// Copy sends a guest's state to Task.Listen while the guest runs. It returns when little
// is left to send. A repeated call for the same migration continues the copy, or starts
// again if the agent that started it has died. After an error the copy is cancelled and
// the guest keeps running.
func (d *Driver) Copy(ctx context.Context, t fleet.Task, progress func(fleet.Progress)) error {
	if d.config.Converged == nil {
		return fmt.Errorf("copy guest %s: nothing decides when a copy is good enough", t.Guest.ID)
	}
	g, err := d.here(t.Guest.ID)
	if err != nil {
		return fmt.Errorf("copy guest %s: %w", t.Guest.ID, err)
	}
	ctx, done := g.move(ctx)
	defer done()
	if err := d.copy(ctx, g, t, progress); err != nil {
		return fmt.Errorf("copy guest %s: %w", t.Guest.ID, err)
	}
	return nil
}

func (d *Driver) copy(ctx context.Context, g *guest, t fleet.Task, progress func(fleet.Progress)) error {
	order := copying{Migration: t.Order.Migration, Listen: t.Listen, Limits: t.Limits}
	if _, err := framing.ParsePlace(order.Listen); err != nil {
		return err
	}
	if c := g.Remembered().Copy; c != nil && c.Migration == order.Migration && c.Listen == order.Listen {
		if c.Cancelled {
			return errors.New("the copy was cancelled")
		}
		if c.Asked || c.Left || c.Suspended {
			return nil // and it has switched since, or is about to
		}
		if s, err := g.takeCopy(); err != nil {
			s.Free() // start again
		} else if s != nil {
			progress(s.Progress)
			return g.keepCopy(s, c.Limits)
		}
	}
	if g.Remembered().Copy.saves() {
		return errors.New("a checkpoint of it is being made")
	}
	if run := g.Remembered().runs(); run != fleet.Running {
		return fmt.Errorf("it does not run here: it is %s", run)
	}
	g.drop()
	// If the guest has just arrived, the processes that put its memory in place would
	// interfere with tracking its writes.
	if err := g.awaitMemory(ctx); err != nil {
		return err
	}
	if err := g.Remember(func(r *record) { r.Copy = &order }); err != nil {
		return err
	}
	err := fault.Point("container.copy.after-begin")
	var s *transfer.Sender
	if err == nil {
		s, err = d.rounds(ctx, g, order, progress)
	}
	if err == nil {
		err = g.Remember(func(r *record) { r.Copy.Good = true })
	}
	if err != nil {
		if s != nil {
			s.Free()
		}
		return errors.Join(err, g.cancelCopy())
	}
	return g.keepCopy(s, order.Limits)
}

// cancelCopy records that the copy will not go on. If the agent itself is ending,
// cancelCopy records nothing, because the next agent continues the copy.
func (g *guest) cancelCopy() error {
	err := g.Remember(func(r *record) {
		if r.Copy != nil {
			r.Copy.Cancelled = true
		}
	})
	if errors.Is(err, host.ErrClosed) {
		return nil
	}
	return err
}

// takeCopy removes the copy that is ready to switch and returns it, so that it is freed
// exactly once. It returns nil if there is none. If it returns an error the copy cannot
// be used.
func (g *guest) takeCopy() (*transfer.Sender, error) {
	g.Mu.Lock()
	s := g.out
	g.out = nil
	g.Mu.Unlock()
	if s == nil {
		return nil, nil
	}
	return s, s.LetGo()
}

// drop ends a copy that is ready to switch, if there is one.
func (g *guest) drop() {
	if s, _ := g.takeCopy(); s != nil {
		s.Free()
	}
}

// keepCopy keeps a copy that is ready to switch. If the guest waits for others of its
// gang, further passes keep the remaining data small.
func (g *guest) keepCopy(s *transfer.Sender, l fleet.Limits) error {
	g.Mu.Lock()
	defer g.Mu.Unlock()
	if g.Released {
		s.Free()
		return host.ErrClosed
	}
	g.out = s
	if l.AwaitGang && l.Mode != fleet.StopAndCopy {
		s.HoldCopy()
	}
	return nil
}

// reach connects to a guest's target that has not received the guest yet, and sends the
// hello h.
func (d *Driver) reach(ctx context.Context, r record, c copying, h transfer.Hello) (conn *framing.Conn, a transfer.Answer, err error) {
	conn, a, err = d.greet(ctx, r, c, h)
	if err == nil && (a.Arrived || a.Failure != "") {
		err = errors.Join(fmt.Errorf("the target does not take it: %s", a.Failure), conn.Close())
	}
	return conn, a, err
}

// greet connects to a guest's target and returns the target's answer to the hello.
func (d *Driver) greet(ctx context.Context, r record, c copying, h transfer.Hello) (conn *framing.Conn, a transfer.Answer, err error) {
	place, err := framing.ParsePlace(c.Listen)
	if err != nil {
		return nil, a, err
	}
	if place.Address, err = d.Toward(place.Address); err != nil {
		return nil, a, err
	}
	err = d.atHost(func() (err error) {
		conn, err = framing.Dial(ctx, place)
		return err
	})
	if err != nil {
		return nil, a, err
	}
	if a, err = transfer.Greet(conn, transfer.Hello{
		Protocol: fleet.Protocol(), Guest: r.Guest, Migration: c.Migration, Gen: r.Gen, Word: place.Word, Agent: r.Agent, Only: h.Only, PageServer: h.PageServer,
	}); err != nil {
		return nil, a, errors.Join(fmt.Errorf("greet the target: %w", err), conn.Close())
	}
	return conn, a, nil
}

// open starts a copy.
func (d *Driver) open(ctx context.Context, g *guest, c copying, tell func(fleet.Progress)) (*transfer.Sender, error) {
	r := g.Remembered()
	tracking := transfer.BeginTracking(ctx, r.Process.PID)
	conn, a, err := d.reach(ctx, r, c, transfer.Hello{})
	if err == nil {
		if err = g.Remember(func(now *record) {
			if now.Copy != nil {
				now.Copy.Crosses, now.Copy.Hides = r.crosses(a.Folders), a.Hides
			}
		}); err != nil {
			conn.Close()
		}
	}
	if err != nil {
		tracking.Drop()
		return nil, err
	}
	conn.Limit(d.bandwidth(c.Limits))
	s := transfer.NewSender(conn, filepath.Join(g.Dir, storeDir), tracking, tell)
	s.Progress.TotalBytes, s.PostCopy = r.Need.MemoryBytes, c.Limits.Mode == fleet.PostCopy
	if a.Lacks {
		stop := context.AfterFunc(ctx, s.Close) // ends a send that hangs
		defer stop()
		if err := s.GuestAgent(d.binaries.Path(r.Agent)); err != nil {
			s.Free()
			return nil, err
		}
	}
	return s, nil
}

// rounds sends the guest in passes until little enough is left. After an error the caller
// frees s, if it is not nil.
func (d *Driver) rounds(ctx context.Context, g *guest, c copying, tell func(fleet.Progress)) (s *transfer.Sender, err error) {
	if s, err = d.open(ctx, g, c, tell); err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, s.Close) // ends a send that hangs
	defer stop()
	var seen []fleet.Progress
	for {
		if err := s.BeginPass(ctx); err != nil {
			return s, errors.Join(err, ctx.Err())
		}
		seen = append(seen, s.Progress)
		good, err := d.config.Converged(c.Limits, seen)
		if err == nil && good { // the guest is suspended next, and frames for it then go to the target
			err = s.Sync()
		}
		if err != nil || good {
			s.Tell()
			return s, errors.Join(err, ctx.Err())
		}
		if err := s.Pass(ctx, false); err != nil {
			return s, errors.Join(err, ctx.Err())
		}
	}
}

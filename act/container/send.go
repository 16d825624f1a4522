package container

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"

	"pagurus/act/container/framing"
	"pagurus/act/container/transfer"
	"pagurus/fleet"
	"pagurus/internal/fault"
)

// Copy sends what a guest has to Task.Listen while it runs, and returns when
// what is left is small. Called again for the same migration it goes on, or
// begins anew if the agent that began it has died. After an error the copy is
// called off and the guest runs on.
func (d *Driver) Copy(ctx context.Context, t fleet.Task, progress func(fleet.Progress)) error {
	if d.config.Converged == nil {
		return fmt.Errorf("copy guest %s: nobody was named to judge when a copy is good enough", t.Guest.ID)
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
	if c := g.remembered().Copy; c != nil && c.Migration == order.Migration && c.Listen == order.Listen {
		if c.Cancelled {
			return errors.New("the copy was cancelled")
		}
		if c.Asked || c.Left || c.Suspended {
			return nil // and it switched since, or is about to
		}
		if s, err := g.takeCopy(); err != nil {
			s.Free() // it begins anew
		} else if s != nil {
			progress(s.Progress)
			return g.keepCopy(s, c.Limits)
		}
	}
	if run := g.remembered().runs(); run != fleet.Running {
		return fmt.Errorf("it does not run here: it is %s", run)
	}
	g.drop()
	// What puts the memory of one that has just come in its place would be in
	// the way of seeing what is written to it.
	if err := g.awaitMemory(ctx); err != nil {
		return err
	}
	if err := g.remember(func(r *record) { r.Copy = &order }); err != nil {
		return err
	}
	err := fault.Point("container.copy.after-begin")
	var s *transfer.Sender
	if err == nil {
		s, err = d.rounds(ctx, g, order, progress)
	}
	if err == nil {
		err = g.remember(func(r *record) { r.Copy.Good = true })
	}
	if err != nil {
		if s != nil {
			s.Free()
		}
		return errors.Join(err, g.cancelCopy())
	}
	return g.keepCopy(s, order.Limits)
}

// cancelCopy notes that nothing more comes of a copy, unless the agent itself ends
// and the next one goes on with it.
func (g *guest) cancelCopy() error {
	err := g.remember(func(r *record) {
		if r.Copy != nil {
			r.Copy.Cancelled = true
		}
	})
	if errors.Is(err, errClosed) {
		return nil
	}
	return err
}

// takeCopy gives the copy that is ready to switch to whoever switches or ends it. With
// an error it is of no use; nil: there is none.
func (g *guest) takeCopy() (*transfer.Sender, error) {
	g.mu.Lock()
	s := g.out
	g.out = nil
	g.mu.Unlock()
	if s == nil {
		return nil, nil
	}
	return s, s.LetGo()
}

// drop ends a copy that is ready to switch.
func (g *guest) drop() {
	if s, _ := g.takeCopy(); s != nil {
		s.Free()
	}
}

// keepCopy keeps a copy that is ready to switch. If others are waited for, what is
// left of it is kept small meanwhile.
func (g *guest) keepCopy(s *transfer.Sender, l fleet.Limits) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.released {
		s.Free()
		return errClosed
	}
	g.out = s
	if l.AwaitGang && l.Mode != fleet.StopAndCopy {
		s.HoldCopy()
	}
	return nil
}

// reach connects to a guest's target, which has not got it yet, with the hello h. lacks
// says that the target lacks the guest agent.
func (d *Driver) reach(ctx context.Context, r record, c copying, h transfer.Hello) (conn *framing.Conn, lacks bool, err error) {
	conn, a, err := d.greet(ctx, r, c, h)
	if err == nil && (a.Arrived || a.Failure != "") {
		err = errors.Join(fmt.Errorf("the target does not take it: %s", a.Failure), conn.Close())
	}
	return conn, a.Lacks, err
}

// greet connects to a guest's target, and gives what it says of itself.
func (d *Driver) greet(ctx context.Context, r record, c copying, h transfer.Hello) (conn *framing.Conn, a transfer.Answer, err error) {
	place, err := framing.ParsePlace(c.Listen)
	if err != nil {
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
		Version: framing.Version, Guest: r.Guest, Migration: c.Migration, Gen: r.Gen, Word: place.Word, Agent: r.Agent, Only: h.Only, PageServer: h.PageServer,
	}); err != nil {
		return nil, a, errors.Join(fmt.Errorf("greet the target: %w", err), conn.Close())
	}
	return conn, a, nil
}

// open begins a copy.
func (d *Driver) open(ctx context.Context, g *guest, c copying, tell func(fleet.Progress)) (*transfer.Sender, error) {
	r := g.remembered()
	conn, lacks, err := d.reach(ctx, r, c, transfer.Hello{})
	if err != nil {
		return nil, err
	}
	conn.Limit(d.bandwidth(c.Limits))
	s := transfer.NewSender(ctx, conn, filepath.Join(g.dir, storeDir), r.Process.PID, tell)
	s.Progress.TotalBytes, s.PostCopy = r.Need.MemoryBytes, c.Limits.Mode == fleet.PostCopy
	if lacks {
		stop := context.AfterFunc(ctx, s.Close) // ends a send that hangs
		defer stop()
		if err := s.GuestAgent(d.binaries.Path(r.Agent)); err != nil {
			s.Free()
			return nil, err
		}
	}
	return s, nil
}

// rounds sends the guest pass by pass until what is left is little enough. With
// an error the copy, if there is one, is for the caller to free.
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
		if err == nil && good { // it stands still next, and what comes for it goes to the target
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

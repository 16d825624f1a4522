package container

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"pagurus/act/container/debt"
	"pagurus/act/container/haul"
	"pagurus/act/container/pages"
	"pagurus/act/container/proc"
	"pagurus/fleet"
	"pagurus/internal/fault"
)

// By post-copy a guest runs at its target while memory that it changed last is owed: a
// process at the source hands it out of the guest that stands still there, and one at
// the target fetches what is touched, and the rest by and by. Both outlive the agents.

// The files that they leave their word in, in the guest's folder at either host.
const (
	tallyFile   = "lent"    // what was handed out
	verdictFile = "fetched" // whether all came
)

// gatherEvery is how often is looked whether all has come.
const gatherEvery = 20 * time.Millisecond

// unable says why guests cannot go, or come, by post-copy here; empty: they can.
func (d *Driver) unable() string {
	switch {
	case !d.ability.Faults:
		return "the kernel has no userfaultfd"
	case !d.ability.Written:
		return pages.ErrUnsupported.Error()
	case !d.ability.Lazy:
		return "CRIU cannot restore processes before their memory has come"
	}
	return ""
}

// lend has a guest that stands still hand out what its target is owed.
func (d *Driver) lend(ctx context.Context, g *guest) (err error) {
	r := g.remembered()
	if err := r.Copy.end(); err != nil { // one that an earlier agent began
		return err
	}
	conn, err := d.reach(ctx, r, *r.Copy, haul.Hello{Debt: true})
	if err != nil {
		return err
	}
	defer conn.Close()
	file, err := conn.File()
	if err != nil {
		return err
	}
	defer file.Close()
	tally, err := os.Create(filepath.Join(g.dir, tallyFile))
	if err != nil {
		return err
	}
	defer tally.Close()
	pid, err := debt.Lend(file, tally, d.bandwidth(r.Copy.Limits), proc.Family(r.Process.PID))
	if err != nil {
		return err
	}
	lender, err := proc.Find(pid)
	if err != nil {
		return fmt.Errorf("find the process that hands out its memory: %w", err)
	}
	return g.remember(func(r *record) { r.Copy.Lender = lender })
}

// Pushed says at the source what has been sent so far, and what the Switch cost.
func (d *Driver) Pushed(_ context.Context, id fleet.GuestID) (fleet.Progress, error) {
	wrap := func(err error) error { return fmt.Errorf("ask what was sent of guest %s: %w", id, err) }
	g, err := d.here(id)
	if err != nil {
		return fleet.Progress{}, wrap(err)
	}
	c := g.remembered().Copy
	if c == nil || !c.Left {
		return fleet.Progress{}, wrap(errors.New("it has not left"))
	}
	p := c.Cost
	lent, err := debt.ReadTally(filepath.Join(g.dir, tallyFile))
	if err := ignoreAbsent(err); err != nil {
		return p, wrap(err)
	}
	p.LateBytes, p.SentBytes, p.CopiedBytes = lent.Bytes, p.SentBytes+lent.Bytes, p.CopiedBytes+lent.Bytes
	p.RemainingBytes = max(0, p.RemainingBytes-lent.Bytes)
	if lent.All { // nobody wants what the guest has let go of meanwhile
		p.RemainingBytes = 0
	}
	return p, nil
}

// Gather waits at the target until all memory of a guest is there. One that came
// otherwise has it. After an error that wraps fleet.ErrUnsure call again; after any
// other some of it never comes, and the guest is lost.
func (d *Driver) Gather(ctx context.Context, id fleet.GuestID) error {
	g, err := d.here(id)
	if err == nil {
		err = fault.Point("container.gather.before")
	}
	if err == nil && g.remembered().Late {
		err = g.fetched(ctx)
	}
	if err != nil {
		return fmt.Errorf("gather guest %s: %w", id, err)
	}
	return nil
}

// fetched waits until all that is owed of a guest has come.
func (g *guest) fetched(ctx context.Context) error {
	for {
		over := g.remembered().Keeper.Gone() // asked first: its verdict is the last that it does
		said, err := os.ReadFile(filepath.Join(g.dir, verdictFile))
		switch verdict := string(said); {
		case g.dead():
			return fleet.ErrAbsent
		case err != nil:
			return err
		case verdict == pages.Fetched:
			return nil
		case verdict != "":
			return fmt.Errorf("some of its memory never comes: %s", verdict)
		case over:
			return errors.New("some of its memory never comes: what fetched it has ended")
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", ctx.Err(), fleet.ErrUnsure)
		case <-time.After(gatherEvery):
		}
	}
}

package container

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"pagurus/act/container/memory"
	"pagurus/act/container/sandbox"
	"pagurus/act/container/transfer"
	"pagurus/act/host"
	"pagurus/fleet"
	"pagurus/internal/fault"
)

// By post-copy a guest runs at its target while memory that it changed last is owed: a
// process at the source hands it out of the guest that stands still there, and one at
// the target fetches what is touched, and the rest by and by. Both outlive the agents.

// The files that they leave their word in, in the guest's folder at either host.
const (
	tallyFile   = "page-server" // what was handed out
	verdictFile = "fetched"     // whether all came, also of one that came by pre-copy
)

// unable says why guests cannot go, or come, by post-copy here; empty: they can.
func (d *Driver) unable() string {
	switch {
	case !d.ability.Faults:
		return "the kernel has no userfaultfd"
	case !d.ability.Written:
		return memory.ErrUnsupported.Error()
	case !d.ability.Lazy:
		return "CRIU cannot restore processes before their memory has come"
	}
	return ""
}

// servePages has a guest that stands still hand out what its target is owed.
func (d *Driver) servePages(ctx context.Context, g *guest) (err error) {
	r := g.remembered()
	if err := r.Copy.end(); err != nil { // one that an earlier agent began
		return err
	}
	conn, _, err := d.reach(ctx, r, *r.Copy, transfer.Hello{PageServer: true})
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
	pid, err := memory.ServePages(file, tally, d.bandwidth(r.Copy.Limits), host.Family(r.Process.PID))
	if err != nil {
		return err
	}
	lender, err := host.Find(pid)
	if err != nil {
		return fmt.Errorf("find the page server: %w", err)
	}
	host.Spare(pid)
	return g.remember(func(r *record) { r.Copy.PageServer = lender })
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
	lent, err := memory.ReadTally(filepath.Join(g.dir, tallyFile))
	if err := ignoreAbsent(err); err != nil {
		return p, wrap(err)
	}
	p.PostCopyBytes, p.SentBytes, p.CopiedBytes = lent.Bytes, p.SentBytes+lent.Bytes, p.CopiedBytes+lent.Bytes
	p.RemainingBytes = max(0, p.RemainingBytes-lent.Bytes)
	if lent.All { // nobody wants what the guest has let go of meanwhile
		p.RemainingBytes = 0
	}
	return p, nil
}

// FetchRemaining waits at the target until all memory of a guest is there. One that came
// otherwise has it. After an error that wraps fleet.ErrUnsure call again; after any
// other some of it never comes, and the guest is lost.
func (d *Driver) FetchRemaining(ctx context.Context, id fleet.GuestID) error {
	g, err := d.here(id)
	if err == nil {
		err = fault.Point("container.fetch.before")
	}
	if err == nil && g.remembered().PostCopy {
		err = g.fetched(ctx)
	}
	if err != nil {
		return fmt.Errorf("fetch the memory of guest %s: %w", id, err)
	}
	return nil
}

// fetched waits until all that is owed of a guest has come and is in its place.
func (g *guest) fetched(ctx context.Context) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	defer context.AfterFunc(g.life, stop)()
	err := g.awaitMemory(ctx)
	switch {
	case g.dead():
		return fleet.ErrAbsent
	case err != nil && ctx.Err() != nil:
		return fmt.Errorf("%w: %w", err, fleet.ErrUnsure)
	}
	return err
}

// awaitMemory waits until all memory of a guest is in its place.
func (g *guest) awaitMemory(ctx context.Context) error { return g.lazyFill().Await(ctx) }

func (g *guest) lazyFill() memory.LazyFill {
	r := g.remembered()
	return memory.LazyFill{LazyPager: r.LazyPager, PageProxy: r.PageProxy, Verdict: filepath.Join(g.dir, verdictFile)}
}

// endPostCopy clears away what CRIU needed when all memory of a guest is in its place. One of
// which some never comes is ended, as what it waits for holds it for ever; of one that
// came by post-copy Gather tells that, and somebody ends it.
func (d *Driver) endPostCopy(g *guest) {
	err := g.awaitMemory(g.life)
	if errors.Is(err, memory.ErrLost) && !g.remembered().PostCopy {
		d.config.Log.Error("guest lost", "guest", g.id, "error", err)
		g.mu.Lock()
		g.lost = err.Error()
		g.mu.Unlock()
		err = d.kill(g.remembered())
	}
	if err == nil && g.life.Err() == nil && g.lossCause() == "" {
		err = sandbox.ClearRoot(filepath.Join(g.dir, imagesDir))
	}
	if err != nil && g.life.Err() == nil { // else the next agent does it
		d.config.Log.Warn("see to the memory of a guest that came", "guest", g.id, "error", err)
	}
}

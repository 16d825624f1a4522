package container

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"pagurus/act/container/criu"
	"pagurus/act/container/memory"
	"pagurus/act/container/sandbox"
	"pagurus/act/container/transfer"
	"pagurus/act/host"
	"pagurus/fleet"
	"pagurus/internal/fault"
)

// In post-copy a guest runs at its target while the memory that it changed last is still
// at the source. A page server at the source sends these pages out of the suspended
// guest. A page proxy at the target fetches pages when they are touched, and the rest one
// by one. Both processes outlive the agents.

// The files in the guest's folder in which these processes leave their results.
const (
	tallyFile   = "page-server" // page server: what it has sent
	verdictFile = "fetched"     // page proxy: whether all memory has arrived; also written after pre-copy
)

// unable returns why post-copy is impossible with a kernel and a CRIU of this ability, or "" if it is possible.
func unable(can criu.Ability) string {
	switch {
	case !can.Faults:
		return "the kernel has no userfaultfd"
	case !can.Written:
		return memory.ErrUnsupported.Error()
	case !can.Lazy:
		return "CRIU cannot restore processes before their memory has come"
	}
	return ""
}

// servePages starts a page server for the lazy pages of a suspended guest.
func (d *Driver) servePages(ctx context.Context, g *guest) (err error) {
	r := g.Remembered()
	if err := r.Copy.end(); err != nil { // a page server that an earlier agent started
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
	tally, err := os.Create(filepath.Join(g.Dir, tallyFile))
	if err != nil {
		return err
	}
	defer tally.Close()
	pid, err := memory.ServePages(file, tally, d.bandwidth(r.Copy.Limits), host.Family(r.Process.PID))
	if err != nil {
		return err
	}
	server, err := host.Find(pid)
	if err != nil {
		return fmt.Errorf("find the page server: %w", err)
	}
	host.Spare(pid)
	return g.Remember(func(r *record) { r.Copy.PageServer = server })
}

// Pushed returns at the source how much was sent so far, and the cost of the switch.
func (d *Driver) Pushed(_ context.Context, id fleet.GuestID) (fleet.Progress, error) {
	wrap := func(err error) error { return fmt.Errorf("ask how much was sent of guest %s: %w", id, err) }
	g, err := d.here(id)
	if err != nil {
		return fleet.Progress{}, wrap(err)
	}
	c := g.Remembered().Copy
	if c == nil || !c.Left {
		return fleet.Progress{}, wrap(errors.New("it has not left"))
	}
	p := c.Cost
	fetched, err := memory.ReadTally(filepath.Join(g.Dir, tallyFile))
	if err := ignoreAbsent(err); err != nil {
		return p, wrap(err)
	}
	p.PostCopyBytes, p.SentBytes, p.CopiedBytes = fetched.Bytes, p.SentBytes+fetched.Bytes, p.CopiedBytes+fetched.Bytes
	p.RemainingBytes = max(0, p.RemainingBytes-fetched.Bytes)
	if fetched.All { // the target needs no more: the guest has freed the other pages
		p.RemainingBytes = 0
	}
	return p, nil
}

// FetchRemaining waits at the target until all memory of a guest has arrived. A guest
// that did not come by post-copy has all its memory already. After an error that wraps
// fleet.ErrUnsure call it again. After any other error some memory never arrives, and the
// guest is lost.
func (d *Driver) FetchRemaining(ctx context.Context, id fleet.GuestID) error {
	g, err := d.here(id)
	if err == nil {
		err = fault.Point("container.fetch.before")
	}
	if err == nil && g.Remembered().PostCopy {
		err = g.fetched(ctx)
	}
	if err != nil {
		return fmt.Errorf("fetch the memory of guest %s: %w", id, err)
	}
	return nil
}

// fetched waits until all lazy pages of a guest are in place.
func (g *guest) fetched(ctx context.Context) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	defer context.AfterFunc(g.life, stop)()
	err := g.awaitMemory(ctx)
	switch {
	case g.Dead():
		return fleet.ErrAbsent
	case err != nil && ctx.Err() != nil:
		return fmt.Errorf("%w: %w", err, fleet.ErrUnsure)
	}
	return err
}

// awaitMemory waits until all memory of a guest is in place.
func (g *guest) awaitMemory(ctx context.Context) error { return g.lazyFill().Await(ctx) }

func (g *guest) lazyFill() memory.LazyFill {
	r := g.Remembered()
	return memory.LazyFill{LazyPager: r.LazyPager, PageProxy: r.PageProxy, Verdict: filepath.Join(g.Dir, verdictFile)}
}

// endPostCopy removes what CRIU needed, once all memory of a guest is in place. If some
// memory never arrives, the processes that touch it would wait forever. Then endPostCopy
// ends the guest, unless it came by post-copy: FetchRemaining reports the loss of such a
// guest, and its caller ends it.
func (d *Driver) endPostCopy(g *guest) {
	err := g.awaitMemory(g.life)
	if errors.Is(err, memory.ErrLost) && !g.Remembered().PostCopy {
		d.config.Log.Error("guest lost", "guest", g.ID, "cause", err)
		g.Mu.Lock()
		g.lost = err.Error()
		g.Mu.Unlock()
		err = d.kill(g.Remembered())
	}
	if err == nil && g.life.Err() == nil && g.lossCause() == "" {
		err = sandbox.ClearRoot(filepath.Join(g.Dir, imagesDir))
	}
	if err != nil && g.life.Err() == nil { // otherwise the next agent does it
		d.config.Log.Warn("what held memory for a guest that came could not be ended", "guest", g.ID, "cause", err)
	}
}

package container

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"pagurus/act/container/criu"
	"pagurus/act/container/framing"
	"pagurus/act/container/kernelstate"
	"pagurus/act/container/memory"
	"pagurus/act/container/port"
	"pagurus/act/container/sandbox"
	"pagurus/act/container/transfer"
	"pagurus/act/host"
	"pagurus/fleet"
	"pagurus/internal/fault"
)

// Receive makes a place for a guest and says where it is taken in. Called
// again for the same migration it says the same. After an error no trace is
// left, but for a guest that is here already: it is not touched.
func (d *Driver) Receive(ctx context.Context, t fleet.Task) (string, error) {
	id := t.Guest.ID
	release, g, err := d.claim(ctx, id)
	if err != nil {
		return "", fmt.Errorf("receive guest %s: %w", id, err)
	}
	defer release()
	if g != nil {
		r := g.remembered()
		switch {
		case !r.Target:
			return "", fmt.Errorf("receive guest %s: it is here already", id)
		case r.Incoming == t.Order.Migration:
			return r.Listen, nil
		}
		// It may hold all there is of the guest: only Stop may destroy it.
		return "", fmt.Errorf("receive guest %s: it is here as the target of migration %s", id, r.Incoming)
	}
	listen, err := d.receive(ctx, t)
	if err != nil {
		return "", fmt.Errorf("receive guest %s: %w", id, errors.Join(err, d.destroy(id)))
	}
	return listen, nil
}

func (d *Driver) receive(ctx context.Context, t fleet.Task) (string, error) {
	anchored := sync.OnceValues(sandbox.NewAnchor)
	go anchored() // meanwhile
	r, err := d.furnish(ctx, t)
	r.Target, r.Incoming = true, t.Order.Migration
	var in *target
	if err == nil {
		in, err = d.ready(ctx, r)
	}
	defer func() {
		if in != nil && in.guest == nil { // it never came to that
			in.close()
		}
	}()
	anchor, failed := anchored()
	if failed != nil {
		return "", errors.Join(err, failed)
	}
	defer anchor.Release() // it ends with this process until it is told to stay
	if err != nil {
		return "", errors.Join(err, anchor.Kill())
	}
	g, err := d.occupy(r, anchor.PID)
	if err != nil {
		return "", errors.Join(err, anchor.Kill())
	}
	if err := anchor.Stay(); err != nil {
		return "", err
	}
	if err := fault.Point("container.start.after-spawn"); err != nil {
		return "", err
	}
	if err := in.expect(g); err != nil {
		return "", err
	}
	if err := fault.Point("container.receive.after-listen"); err != nil {
		return "", err
	}
	return g.remembered().Listen, g.remember(func(r *record) { r.Complete = true })
}

// target takes one guest in.
type target struct {
	driver     *Driver
	guest      *guest
	listener   *transfer.Listener
	frameQueue *port.FrameQueue
	plugged    func() error        // waits until the guest's link is in its network
	making     atomic.Bool         // all of it has come, and CRIU makes it
	lazyFill   *memory.PendingFill // puts its memory in its place; nil: nobody has to
	place      host.Process        // what holds its place until it has arrived
	handle     *os.File            // of that
}

// vacate ends what an earlier agent had half restored: of a guest that has not
// arrived nothing but its place is left.
func (d *Driver) vacate(r record) error {
	if err := d.killBut(r, r.Process.PID); err != nil {
		return err
	}
	return errors.Join(r.LazyPager.End(), r.PageProxy.End())
}

// ready cuts a guest's link, since nothing may be said from here before it runs here,
// and has what comes for it wait, which must meet no kernel without its sockets. It
// listens for the guest: where an earlier agent did, if one did.
func (d *Driver) ready(ctx context.Context, r record) (*target, error) {
	t := &target{driver: d}
	err := d.atHost(func() (err error) {
		if !r.Arrived { // else it may run already
			err = r.Port.Cut()
		}
		if err == nil {
			t.listener, err = transfer.Listen(ctx, d.config.Address, r.Listen, transfer.Hello{Guest: r.Guest, Migration: r.Incoming}, d.config.Log)
		}
		if err == nil {
			t.frameQueue, err = r.Port.QueueFrames()
		}
		return errors.Join(err, fault.Point("container.receive.after-cut"))
	})
	if err != nil {
		t.close()
		return nil, err
	}
	return t, nil
}

// expect lets the guest come. After an error the target is closed.
func (t *target) expect(g *guest) error {
	d := t.driver
	t.guest = g
	err := g.remember(func(r *record) { r.Listen = t.listener.Place.String() })
	g.mu.Lock()
	switch {
	case err != nil:
	case g.released:
		err = errClosed
	case !g.record.Arrived:
		t.plugged, err = g.record.Port.AttachMeanwhile(g.network, d.atHost)
	}
	if err == nil {
		g.target = t
	}
	g.mu.Unlock()
	if err != nil {
		t.close()
		return err
	}
	d.watches.Go(func() { t.listener.Serve(t.serve) })
	return nil
}

// close ends the listening. Frames that are held are dropped, and the link is in one
// place when it returns.
func (t *target) close() {
	if t.listener != nil {
		t.listener.Close()
	}
	if t.plugged != nil {
		_ = t.plugged() // who needs it has been told
	}
	if t.frameQueue != nil {
		t.frameQueue.Close()
	}
}

// serve serves one connection.
func (t *target) serve(c *framing.Conn, h transfer.Hello) error {
	r := t.guest.remembered()
	over, lacks := r.Arrived || r.Failure != "" || h.Only, false
	if !over {
		var err error
		if lacks, err = t.needs(h.Agent); err != nil {
			return err
		}
	}
	if err := transfer.Reply(c, transfer.Answer{Arrived: r.Arrived, Failure: r.Failure, Lacks: lacks}); err != nil || over {
		return err
	}
	in, restoring, err := t.open(lacks)
	if err == nil {
		defer in.Close()
		defer restoring.Close()
		if err = in.Receive(c); err == nil {
			return t.arrive(c, in, restoring)
		}
	}
	if err != nil && !framing.Over(err) {
		err = errors.Join(err, transfer.Reply(c, transfer.Answer{Failure: err.Error()}))
		c.Drain()
	}
	return err
}

// needs notes which guest agent the guest runs, so that it stays here, and says whether
// it has to come first.
func (t *target) needs(agent string) (lacks bool, err error) {
	t.driver.images.Lock() // a sweep either knows of it, or is over
	defer t.driver.images.Unlock()
	if lacks, err = t.driver.binaries.Lacks(agent); err == nil && agent != t.guest.remembered().Agent {
		err = t.guest.remember(func(r *record) { r.Agent = agent })
	}
	return lacks, err
}

// open begins anew: what an earlier connection brought is not what the source
// thinks that is here. The CRIU that will make the guest waits for it. lacks says that
// the guest agent has to come, too.
func (t *target) open(lacks bool) (*transfer.Receiver, *criu.Restoring, error) {
	dir := t.guest.dir
	r := t.guest.remembered()
	files, images := filepath.Join(dir, storeDir), filepath.Join(dir, imagesDir)
	for _, path := range []string{filepath.Join(dir, rootDir), files} {
		if err := sandbox.ClearRoot(path); err != nil {
			return nil, nil, err
		}
	}
	if err := sandbox.MountStore(files, r.Need.MemoryBytes); err != nil {
		return nil, nil, err
	}
	if err := sandbox.EmptyDir(files); err != nil {
		return nil, nil, err
	}
	if err := sandbox.NewMemory(images); err != nil {
		return nil, nil, err
	}
	restoring, err := t.maker(r, images)
	if err != nil {
		return nil, nil, err
	}
	in, err := transfer.NewReceiver(files, images, t.plugged)
	if err == nil && lacks {
		var part *sandbox.Part
		if part, err = t.driver.binaries.ReceiveBinary(r.Agent); err == nil {
			in.Agent = part
		} else {
			in.Close()
		}
	}
	if err != nil {
		restoring.Close()
	}
	return in, restoring, err
}

// maker starts what makes the guest.
func (t *target) maker(r record, images string) (*criu.Restoring, error) {
	mounts := map[string]string{}
	for _, m := range t.driver.mounts(r) {
		mounts[m.name] = m.from
	}
	return t.driver.criu.PrepareRestore(criu.RestoreSpec{
		Images: images, Root: filepath.Join(t.guest.dir, rootDir), Netns: fmt.Sprintf("/proc/%d/ns/net", r.Process.PID), Mounts: mounts,
		Made: t.made, Resuming: t.adoptProcesses, Failing: t.failing,
	})
}

// arrive makes the guest of what has come and tells how that went. A guest that
// cannot be made is none for good: the source goes on with its own.
func (t *target) arrive(c *framing.Conn, in *transfer.Receiver, restoring *criu.Restoring) error {
	g, begun := t.guest, time.Now()
	g.mu.Lock()
	t.place, t.handle = g.record.Process, g.handle
	g.mu.Unlock()
	t.making.Store(true)
	err := t.restore(in, restoring)
	t.making.Store(false)
	t.driver.config.Log.Info("guest received", "guest", g.id, "took", time.Since(begun).Round(time.Millisecond), "error", err)
	if err == nil {
		return transfer.Reply(c, transfer.Answer{Arrived: true})
	}
	return errors.Join(t.refuse(err, false), transfer.Reply(c, transfer.Answer{Failure: err.Error()}))
}

// refuse notes why a target will never have its guest, also if this driver is
// about to be closed: the next has to know. It may have been noted as arrived
// before CRIU failed; what held its place does so again. With whole that is so only if it
// could be noted.
func (t *target) refuse(cause error, whole bool) error {
	g := t.guest
	g.mu.Lock()
	defer g.mu.Unlock()
	r := g.record
	r.Process, r.Place, r.Arrived, r.Failure = t.place, host.Process{}, false, cause.Error()
	err := writeRecord(g.dir, r)
	if err != nil && whole {
		return err
	}
	if g.handle != t.handle {
		g.handle.Close()
		g.handle = t.handle
	}
	if g.released {
		t.handle.Close()
	}
	g.record = r
	return err
}

// failing takes back that the guest has arrived, before anything of it is ended: whoever
// comes after this agent would believe it. Frozen, nothing could end.
func (t *target) failing(pid int, cause error) error {
	r := t.guest.remembered()
	if r.Arrived {
		_, unfed := t.guest.lazyFill().CheckFill()
		whole := r.Process.Lives() && unfed == nil
		if err := t.refuse(cause, whole); err != nil && whole {
			return err
		}
	}
	if pid > 0 { // before CRIU, which lets go of all when it ends: with the first all others die
		_ = unix.Kill(pid, unix.SIGKILL)
	}
	_ = errors.Join(fault.Point("container.restore.refused"), t.driver.killBut(r, t.place.PID)) // restore does it again, and tells
	return nil
}

// postCopyBytes is how much memory a guest has at least that is let run before CRIU
// has put it all in its place: of less, that takes no longer than to watch over it.
const postCopyBytes = 32 << 20

// restore makes the guest of what has come, and lets it stand still. After an
// error nothing of it is here but its place.
func (t *target) restore(in *transfer.Receiver, restoring *criu.Restoring) error {
	d, g := t.driver, t.guest
	r := g.remembered()
	root, images := filepath.Join(g.dir, rootDir), filepath.Join(g.dir, imagesDir)
	if err := sandbox.MountRoot(r.Image, filepath.Join(g.dir, storeDir), root); err != nil {
		return err
	}
	if err := t.remember(in, images); err != nil {
		return err
	}
	if r.Files != "" {
		if err := restoring.OpenLeftOut(r.Files); err != nil {
			return errors.Join(err, t.endLazyFill())
		}
	}
	life, enough := context.WithTimeout(g.life, criu.RestoreLimit(r.Need.MemoryBytes)) // the source goes on then
	defer enough()
	go d.config.Cgroups.Hasten(life)
	restoring.Lazy = t.lazyFill != nil
	_, err := restoring.Do(life)
	enough()
	if err != nil && g.remembered().Arrived {
		d.config.Log.Warn("CRIU failed when a guest was whole, which cannot be taken back", "guest", g.id, "error", err)
		err = nil
	}
	if err != nil {
		return errors.Join(err, d.killBut(r, t.place.PID), t.endLazyFill())
	}
	d.watches.Go(func() { // the source need not wait for it
		if err := t.place.End(); err != nil {
			d.config.Log.Warn("end what held a guest's place", "guest", g.id, "error", err)
		}
		d.endPostCopy(g)
	})
	return nil
}

// endLazyFill ends what puts the guest's memory in its place, if anything does.
func (t *target) endLazyFill() error {
	if t.lazyFill == nil {
		return nil
	}
	return t.lazyFill.End()
}

// remember puts the guest's memory where CRIU takes it from: among its images, or,
// of a large guest or one of which some is owed, into the hands of processes that outlive
// this one, as the guest does, and that put it in its place when it is touched, and all
// of it by and by.
func (t *target) remember(in *transfer.Receiver, images string) error {
	d, g := t.driver, t.guest
	defer in.Close()
	owed := in.Memory.LazyBytes()
	if t.lazyFill = nil; g.remembered().LazyPager.PID != 0 { // of a try before an agent died
		if err := g.remember(func(r *record) { r.LazyPager, r.PageProxy, r.PostCopy = host.Process{}, host.Process{}, false }); err != nil {
			return err
		}
	}
	if owed == 0 && (!d.ability.Lazy || !d.ability.Faults || in.Memory.HeldBytes() <= postCopyBytes) {
		return in.Memory.Complete(images)
	}
	var rest *os.File
	if owed > 0 {
		if rest = t.listener.PageConn(); rest == nil {
			return errors.New("the source kept lazy pages and has not said how to fetch them")
		}
	}
	b, err := memory.StartFill(g.life, memory.FillOrder{
		Store: in.Memory, Criu: d.criu, Images: images, Rest: rest, Verdict: filepath.Join(g.dir, verdictFile),
	})
	if err != nil {
		return err
	}
	if err := g.remember(func(r *record) { r.LazyPager, r.PageProxy, r.PostCopy = b.LazyPager, b.PageProxy, owed > 0 }); err != nil {
		return errors.Join(err, b.End())
	}
	t.lazyFill = b
	return nil
}

// made: if what puts the guest's memory in its place is killed from now on, nobody finds
// zeros there.
func (t *target) made(pid int) error {
	if t.lazyFill == nil {
		return nil
	}
	return t.lazyFill.HoldUffds(pid)
}

// adoptProcesses takes the restored processes over while they stand still. They do not
// run on when CRIU lets go of them: they are frozen. What is remembered here is
// the point of no return: the guest is whole here.
func (t *target) adoptProcesses(pid int) error {
	d, g := t.driver, t.guest
	r := g.remembered()
	all, err := criu.Processes(pid)
	if err != nil {
		return err
	}
	deliver := func(packet []byte) error {
		return d.atHost(func() error { return r.Port.Deliver(packet) })
	}
	rest, err := kernelstate.Restore(pid, filepath.Join(g.dir, imagesDir), deliver)
	if err != nil {
		return err
	}
	for _, what := range rest.Said {
		d.config.Log.Warn("guest came to a host that lacks something", "guest", g.id, "what", what)
	}
	if err := d.config.Cgroups.Contain(g.id, r.Need, all...); err != nil {
		return err
	}
	if err := d.config.Cgroups.Freeze(g.id); err != nil {
		return err
	}
	process, err := host.Find(pid)
	if err == nil {
		_, err = g.lazyFill().CheckFill() // its source still has it
	}
	if err != nil {
		return err
	}
	if err := fault.Point("container.restore.before-arrived"); err != nil {
		return err
	}
	handle, err := process.Watch()
	if err != nil {
		return err
	}
	return errors.Join(g.arrived(process, handle, rest.Calls), fault.Point("container.restore.after-arrived"))
}

// arrived makes the restored first process the guest's. Its threads have calls to make
// before they go on.
func (g *guest) arrived(p host.Process, handle *os.File, calls []memory.Call) error {
	if err := g.remember(func(r *record) { r.Place, r.Process, r.Arrived, r.Calls = r.Process, p, true, calls }); err != nil {
		return errors.Join(err, handle.Close())
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.handle = handle // the watch finds it when the place holder ends
	return nil
}

package container

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"pagurus/act/container/criu"
	"pagurus/act/container/framing"
	"pagurus/act/container/kernelstate"
	"pagurus/act/container/memory"
	"pagurus/act/container/sandbox"
	"pagurus/act/container/transfer"
	"pagurus/act/host"
	"pagurus/act/host/port"
	"pagurus/fleet"
	"pagurus/internal/fault"
)

// Receive makes a place for a guest and returns the address where it is received. A
// repeated call for the same migration returns the same address. After an error nothing
// of the guest is left, unless it was here already: then it is not touched.
func (d *Driver) Receive(ctx context.Context, t fleet.Task) (string, error) {
	return d.guests.Receive(ctx, t, func() (string, error) { return d.receive(ctx, t) })
}

func (d *Driver) receive(ctx context.Context, t fleet.Task) (string, error) {
	in, err := d.makePlace(ctx, t, func(r *record) error { r.Incoming = t.Order.Migration; return nil })
	if err != nil {
		return "", err
	}
	if err := fault.Point("container.receive.after-listen"); err != nil {
		return "", err
	}
	return in.guest.Remembered().Listen, in.guest.Remember(func(r *record) { r.Complete = true })
}

// target receives one guest.
type target struct {
	driver     *Driver
	guest      *guest
	listener   *transfer.Listener // nil: it comes from a checkpoint
	frameQueue *port.FrameQueue
	attached   func() error        // waits until the guest's link is in its network
	making     atomic.Bool         // everything has arrived, and CRIU is restoring the guest
	lazyFill   *memory.PendingFill // puts the guest's memory in place; nil: not needed
	completed  chan struct{}       // closed when the guest's memory is in CRIU's images, or cannot be; nil: it does not go there
	incomplete error               // why it cannot be
	place      host.Process        // holds the guest's place until it has arrived
	handle     *os.File            // pidfd of place
}

// vacate ends the partly restored processes of a guest that has not arrived, left by an earlier
// agent. Only the process that holds its place is left.
func (d *Driver) vacate(r record) error {
	if err := d.killBut(r, r.Process.PID); err != nil {
		return err
	}
	return errors.Join(r.LazyPager.End(), r.PageProxy.End())
}

// ready cuts a guest's link, because nothing may be sent from here before the guest runs
// here. It holds the frames for the guest, which must not reach a kernel that lacks the
// guest's sockets. It then listens for the guest, at an earlier agent's address if there
// was one.
func (d *Driver) ready(ctx context.Context, r record) (*target, error) {
	t := &target{driver: d}
	err := d.atHost(func() (err error) {
		if !r.Arrived { // otherwise it may run already
			err = r.Port.Cut()
		}
		if err == nil && !r.Restored {
			t.listener, err = transfer.Listen(ctx, d.Here(), r.Listen, transfer.Hello{Guest: r.Guest, Migration: r.Incoming}, d.config.Log)
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

// expect starts to accept connections for the guest. After an error the target is closed.
func (t *target) expect(g *guest) error {
	d := t.driver
	t.guest = g
	err := error(nil)
	if t.listener != nil {
		err = g.Remember(func(r *record) { r.Listen = t.listener.Place.String() })
	}
	g.Mu.Lock()
	switch {
	case err != nil:
	case g.Released:
		err = host.ErrClosed
	case !g.Record.Arrived:
		t.attached, err = g.Record.Port.AttachMeanwhile(g.network, d.atHost)
	}
	if err == nil {
		g.target = t
	}
	g.Mu.Unlock()
	if err != nil {
		t.close()
		return err
	}
	if t.listener != nil {
		d.guests.Watches.Go(func() { t.listener.Serve(t.serve) })
	}
	return nil
}

// close stops listening. When it returns the held frames are dropped, and the guest's
// link is in one place.
func (t *target) close() {
	if t.listener != nil {
		t.listener.Close()
	}
	if t.attached != nil {
		_ = t.attached() // its error was reported to the callers that need it
	}
	if t.frameQueue != nil {
		t.frameQueue.Close()
	}
}

// serve handles one connection from the source.
func (t *target) serve(c *framing.Conn, h transfer.Hello) error {
	r := t.guest.Remembered()
	over, lacks := r.Arrived || r.Failure != "" || h.Only, false
	if !over {
		var err error
		if lacks, err = t.needs(h.Agent); err != nil {
			return err
		}
	}
	if err := transfer.Reply(c, transfer.Answer{Arrived: r.Arrived, Failure: r.Failure, Lacks: lacks, Hides: true, Folders: r.identities()}); err != nil || over {
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

// needs records which guest agent the guest runs, so that its file is kept here. lacks
// reports that this host lacks that guest agent, so that it must be sent first.
func (t *target) needs(agent string) (lacks bool, err error) {
	t.driver.images.Lock() // so that a sweep either sees the record or has finished
	defer t.driver.images.Unlock()
	if lacks, err = t.driver.binaries.Lacks(agent); err == nil && agent != t.guest.Remembered().Agent {
		err = t.guest.Remember(func(r *record) { r.Agent = agent })
	}
	return lacks, err
}

// open prepares to receive from the beginning: data of an earlier connection is removed, because
// the source does not know of it. It starts the CRIU that will restore the guest. lacks means
// that the guest agent will be sent, too.
func (t *target) open(lacks bool) (*transfer.Receiver, *criu.Restoring, error) {
	dir := t.guest.Dir
	r := t.guest.Remembered()
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
	in, err := transfer.NewReceiver(files, images, t.attached)
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

// maker starts the CRIU process that will restore the guest.
func (t *target) maker(r record, images string) (*criu.Restoring, error) {
	mounts := map[string]string{}
	for _, m := range t.driver.mounts(r) {
		mounts[m.name] = m.from
	}
	return t.driver.criu.PrepareRestore(criu.RestoreSpec{
		Images: images, Once: true, Root: filepath.Join(t.guest.Dir, rootDir), Netns: fmt.Sprintf("/proc/%d/ns/net", r.Process.PID), Mounts: mounts,
		Filling: t.filling, Made: t.made, Resuming: t.adoptProcesses, Failing: t.failing,
	})
}

// arrive restores the guest from the received data and sends the result to the source. A guest
// that cannot be restored will never run here, and the source resumes its own.
func (t *target) arrive(c *framing.Conn, in *transfer.Receiver, restoring *criu.Restoring) error {
	err := t.build(in, restoring)
	if err == nil {
		return transfer.Reply(c, transfer.Answer{Arrived: true})
	}
	return errors.Join(t.refuse(err, false), transfer.Reply(c, transfer.Answer{Failure: err.Error()}))
}

// build restores the guest from the received data.
func (t *target) build(in *transfer.Receiver, restoring *criu.Restoring) error {
	g, begun := t.guest, time.Now()
	g.Mu.Lock()
	t.place, t.handle = g.Record.Process, g.handle
	g.Mu.Unlock()
	t.making.Store(true)
	err := t.restore(in, restoring)
	t.making.Store(false)
	if took := time.Since(begun).Round(time.Millisecond); err != nil {
		t.driver.config.Log.Warn("guest could not be restored", "guest", g.ID, "took", took, "cause", err)
	} else {
		t.driver.config.Log.Info("guest received", "guest", g.ID, "took", took)
	}
	return err
}

// refuse records why a target will never have its guest. It does so even if this driver
// is about to be closed, because the next driver must know. The record may already say
// that the guest arrived; then refuse makes the place holder the first process again. If
// whole is true and the record cannot be written, refuse changes nothing.
func (t *target) refuse(cause error, whole bool) error {
	g := t.guest
	g.Mu.Lock()
	defer g.Mu.Unlock()
	r := g.Record
	r.Process, r.Place, r.Arrived, r.Failure = t.place, host.Process{}, false, cause.Error()
	err := host.WriteRecord(g.Dir, r)
	if err != nil && whole {
		return err
	}
	if g.handle != t.handle {
		g.handle.Close()
		g.handle = t.handle
	}
	if g.Released {
		t.handle.Close()
	}
	g.Record = r
	return err
}

// failing withdraws the record that the guest has arrived, before anything of the guest
// is ended: a later agent would believe the record. While the guest is frozen none of its
// processes can end.
func (t *target) failing(pid int, cause error) error {
	r := t.guest.Remembered()
	if r.Arrived {
		_, unfed := t.guest.lazyFill().CheckFill()
		whole := r.Process.Lives() && unfed == nil
		if err := t.refuse(cause, whole); err != nil && whole {
			return err
		}
	}
	if pid > 0 { // before CRIU, which detaches from all processes when it ends: if the first process dies, all others die
		_ = unix.Kill(pid, unix.SIGKILL)
	}
	_ = errors.Join(fault.Point("container.restore.refused"), t.driver.killBut(r, t.place.PID)) // restore does this again and reports the error
	return nil
}

// postCopyBytes is the least memory, in bytes, of a guest that is resumed before all of
// its memory is in place. For less memory, putting it all in place takes no longer than
// starting and watching the processes for lazy fill.
const postCopyBytes = 32 << 20

// restore restores the guest from the received data and leaves it suspended. After an error only
// the process that holds its place is left.
func (t *target) restore(in *transfer.Receiver, restoring *criu.Restoring) error {
	d, g := t.driver, t.guest
	r := g.Remembered()
	root, images := filepath.Join(g.Dir, rootDir), filepath.Join(g.Dir, imagesDir)
	if err := sandbox.MountRoot(r.Image, filepath.Join(g.Dir, storeDir), root); err != nil {
		return err
	}
	filters, err := criu.Filters(images)
	if err == nil {
		err = sandbox.Known(filters)
	}
	if err != nil {
		return err
	}
	defer func() { _ = t.filling(0) }() // nothing may write to the images later
	if err := t.remember(in, images); err != nil {
		return err
	}
	if err := restoring.OpenLeftOut(r.sharedFolders()); err != nil {
		return errors.Join(err, t.endLazyFill())
	}
	if err := g.Remember(func(r *record) { r.Kept = restoring.Kept }); err != nil {
		return errors.Join(err, t.endLazyFill())
	}
	life, enough := context.WithTimeout(g.life, fleet.RestoreLimit(r.Need.MemoryBytes)) // the source is then told that it failed, and resumes the guest
	defer enough()
	go d.config.Cgroups.Hasten(life)
	restoring.Lazy = t.lazyFill != nil
	_, err = restoring.Do(life)
	enough()
	if err != nil && g.Remembered().Arrived {
		d.config.Log.Warn("CRIU failed when a guest was whole, which cannot be taken back", "guest", g.ID, "cause", err)
		err = nil
	}
	if err != nil {
		return errors.Join(err, d.killBut(r, t.place.PID), t.endLazyFill())
	}
	d.forgetKept(g)
	d.guests.Watches.Go(func() { // the source need not wait for it
		if err := t.place.End(); err != nil {
			d.config.Log.Warn("the process that held a guest's place could not be ended", "guest", g.ID, "cause", err)
		}
		d.endPostCopy(g)
	})
	return nil
}

// endLazyFill ends lazy fill, if it was started.
func (t *target) endLazyFill() error {
	if t.lazyFill == nil {
		return nil
	}
	return t.lazyFill.End()
}

// remember puts the guest's memory where CRIU reads it. A small guest without lazy pages gets
// its memory in CRIU's images, while CRIU makes namespaces. Otherwise the memory goes to a lazy
// pager and a page proxy, which outlive this process, as the guest does. They put pages in place
// when they are touched, and all others in the background.
func (t *target) remember(in *transfer.Receiver, images string) error {
	d, g := t.driver, t.guest
	lazy := in.Memory.LazyBytes()
	if t.lazyFill, t.completed = nil, nil; g.Remembered().LazyPager.PID != 0 { // left by a try before an agent died
		if err := g.Remember(func(r *record) { r.LazyPager, r.PageProxy, r.PostCopy = host.Process{}, host.Process{}, false }); err != nil {
			in.Close()
			return err
		}
	}
	if lazy == 0 && (!d.ability.Lazy || !d.ability.Faults || in.Memory.HeldBytes() <= postCopyBytes) {
		done := make(chan struct{})
		t.completed = done
		go func() {
			defer close(done)
			defer in.Close()
			t.incomplete = in.Memory.Complete(images)
		}()
		return nil
	}
	defer in.Close()
	var rest *os.File
	if lazy > 0 {
		if t.listener != nil {
			rest = t.listener.PageConn()
		}
		if rest == nil {
			return errors.New("the source kept lazy pages and has not said how to fetch them")
		}
	}
	b, err := memory.StartFill(g.life, memory.FillOrder{
		Store: in.Memory, Images: images, Rest: rest, Verdict: filepath.Join(g.Dir, verdictFile),
		Pager: func(ctx context.Context, images string, socket, own *os.File) (memory.Pager, error) {
			return d.criu.StartLazyPager(ctx, images, socket, own)
		},
	})
	if err != nil {
		return err
	}
	if err := g.Remember(func(r *record) { r.LazyPager, r.PageProxy, r.PostCopy = b.LazyPager, b.PageProxy, lazy > 0 }); err != nil {
		return errors.Join(err, b.End())
	}
	t.lazyFill = b
	return nil
}

// filling waits until the images have the guest's memory.
func (t *target) filling(int) error {
	if t.completed == nil {
		return nil
	}
	<-t.completed
	return t.incomplete
}

// made ensures that the guest's processes never read zeros in place of their memory, even
// if the lazy pager is killed from now on.
func (t *target) made(pid int) error {
	if t.lazyFill == nil {
		return nil
	}
	return t.lazyFill.HoldUffds(pid)
}

// adoptProcesses takes over the restored processes while they are suspended. They are
// frozen, so they stay suspended when CRIU detaches from them. The record written here is
// the point of no return: the whole guest is here.
func (t *target) adoptProcesses(pid int) error {
	d, g := t.driver, t.guest
	r := g.Remembered()
	all, err := criu.Processes(pid)
	if err != nil {
		return err
	}
	deliver := func(packet []byte) error {
		return d.atHost(func() error { return r.Port.Deliver(packet) })
	}
	err = sandbox.Confined(all)
	if err == nil { // else pid may be in other namespaces than a container's
		err = sandbox.Hide(pid)
	}
	if err != nil {
		return err
	}
	rest, err := kernelstate.Restore(pid, filepath.Join(g.Dir, imagesDir), deliver)
	if err != nil {
		return err
	}
	for _, what := range rest.Said {
		d.config.Log.Warn("guest came to a host that lacks something", "guest", g.ID, "what", what)
	}
	if err := d.config.Cgroups.Contain(g.ID, r.Need, all...); err != nil {
		return err
	}
	if err := d.config.Cgroups.Freeze(g.ID); err != nil {
		return err
	}
	process, err := host.Find(pid)
	if err == nil {
		_, err = g.lazyFill().CheckFill() // otherwise the source still has the guest
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

// arrived makes the restored first process the guest's. calls are the system calls that
// the guest's threads must make before they continue.
func (g *guest) arrived(p host.Process, handle *os.File, calls []memory.Call) error {
	if err := g.Remember(func(r *record) { r.Place, r.Process, r.Arrived, r.Calls = r.Process, p, true, calls }); err != nil {
		return errors.Join(err, handle.Close())
	}
	g.Mu.Lock()
	defer g.Mu.Unlock()
	g.handle = handle // the watch finds it when the place holder ends
	return nil
}

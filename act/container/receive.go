package container

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"pagurus/act/container/criu"
	"pagurus/act/container/jail"
	"pagurus/act/container/pages"
	"pagurus/act/container/plug"
	"pagurus/act/container/proc"
	"pagurus/act/container/rootfs"
	"pagurus/act/container/tree"
	"pagurus/act/container/wire"
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
	r, err := d.furnish(ctx, t)
	if err != nil {
		return "", err
	}
	anchor, err := jail.NewAnchor()
	if err != nil {
		return "", err
	}
	defer anchor.Release()
	r.Target, r.Incoming = true, t.Order.Migration
	g, err := d.occupy(r, anchor.PID)
	if err != nil {
		return "", errors.Join(err, anchor.Kill())
	}
	if err := fault.Point("container.start.after-spawn"); err != nil {
		return "", err
	}
	// Nothing may be said from here before the guest runs here, and what comes
	// for it must meet no kernel without its sockets.
	if err := d.atHost(func() error { return errors.Join(r.Port.Cut(), r.Port.Take(g.network)) }); err != nil {
		return "", err
	}
	if err := d.expect(ctx, g); err != nil {
		return "", err
	}
	if err := fault.Point("container.receive.after-listen"); err != nil {
		return "", err
	}
	return g.remembered().Listen, g.remember(func(r *record) { r.Complete = true })
}

// target takes one guest in.
type target struct {
	driver   *Driver
	guest    *guest
	word     string
	listener net.Listener
	hold     *plug.Held

	taking sync.Mutex // one connection is served at a time

	mu     sync.Mutex // guards what follows
	conn   *wire.Conn // the one being served
	closed bool
}

// vacate ends what an earlier agent had half restored: of a guest that has not
// arrived nothing but its place is left.
func (d *Driver) vacate(r record) error {
	members, err := d.config.Cgroups.Members(r.Guest)
	if err != nil {
		return err
	}
	for _, pid := range proc.Beside(r.Process.PID) { // not all of them were in the group yet
		if pid != r.Process.PID {
			members = append(members, pid)
		}
	}
	for _, pid := range members {
		if err := unix.Kill(pid, unix.SIGKILL); err != nil && !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("kill process %d: %w", pid, err)
		}
	}
	return d.config.Cgroups.Thaw(r.Guest)
}

// expect begins to listen for a guest: where an earlier agent did, if one did.
func (d *Driver) expect(ctx context.Context, g *guest) error {
	t := &target{driver: d, guest: g, word: rand.Text()}
	r := g.remembered()
	address := netip.AddrPortFrom(d.config.Address, 0)
	if r.Listen != "" {
		p, err := wire.ParsePlace(r.Listen)
		if err != nil {
			return err
		}
		t.word, address = p.Word, p.Address
	}
	err := d.atHost(func() (err error) {
		var config net.ListenConfig
		if t.listener, err = config.Listen(ctx, "tcp", address.String()); err != nil {
			return fmt.Errorf("listen for the guest: %w", err)
		}
		t.hold, err = r.Port.Hold()
		return err
	})
	if err != nil {
		t.close()
		return err
	}
	at, err := netip.ParseAddrPort(t.listener.Addr().String())
	if err == nil {
		place := wire.Place{Address: netip.AddrPortFrom(d.config.Address, at.Port()), Word: t.word}
		err = g.remember(func(r *record) { r.Listen = place.String() })
	}
	if err != nil {
		t.close()
		return err
	}
	g.mu.Lock()
	g.target = t
	released := g.released
	g.mu.Unlock()
	if released {
		t.close()
		return errClosed
	}
	d.watches.Go(t.accept)
	return nil
}

// close ends the listening. Frames that are held are dropped.
func (t *target) close() {
	t.mu.Lock()
	t.closed = true
	conn := t.conn
	t.mu.Unlock()
	if t.listener != nil {
		t.listener.Close()
	}
	if conn != nil {
		conn.Close()
	}
	if t.hold != nil {
		t.hold.Close()
	}
}

// helloLimit is how long somebody who connects may take to say who he is, and
// acceptPause keeps a listener that is out of descriptors from spinning.
const (
	helloLimit  = 10 * time.Second
	acceptPause = 100 * time.Millisecond
)

func (t *target) accept() {
	var all sync.WaitGroup
	defer all.Wait()
	for {
		raw, err := t.listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			time.Sleep(acceptPause)
			continue
		}
		all.Go(func() {
			c := wire.New(raw)
			defer c.Close()
			if err := t.serve(c); err != nil && !wire.Over(err) {
				t.driver.config.Log.Warn("take a guest in", "guest", t.guest.id, "from", raw.RemoteAddr(), "error", err)
			}
		})
	}
}

// greet finds out whether who has connected is the guest's source.
func (t *target) greet(c *wire.Conn) (h hello, err error) {
	kind, content, err := c.Receive(helloLimit)
	if err != nil {
		return h, err
	}
	if kind != sayHello {
		return h, errors.New("somebody connected who is no host")
	}
	if err := parse(content, &h); err != nil {
		return h, err
	}
	r := t.guest.remembered()
	if h.Word != t.word || h.Guest != r.Guest || h.Migration != r.Incoming {
		return h, errors.New("somebody connected who means another guest")
	}
	if h.Version != wire.Version {
		err := fmt.Errorf("the source speaks version %d and the target %d: both hosts need the same version of pagurus", h.Version, wire.Version)
		return h, errors.Join(err, sendJSON(c, sayAnswer, answer{Failure: err.Error()}))
	}
	return h, nil
}

// serve serves one connection. A new one ends the one before.
func (t *target) serve(c *wire.Conn) error {
	h, err := t.greet(c)
	if err != nil {
		return err
	}
	t.mu.Lock()
	if t.conn != nil {
		t.conn.Close()
	}
	t.conn = c
	closed := t.closed
	t.mu.Unlock()
	if closed {
		return errClosed
	}
	t.taking.Lock()
	defer t.taking.Unlock()
	r := t.guest.remembered()
	if err := sendJSON(c, sayAnswer, answer{Arrived: r.Arrived, Failure: r.Failure}); err != nil {
		return err
	}
	if r.Arrived || r.Failure != "" || h.Only {
		return nil
	}
	in, err := t.open()
	if err == nil {
		err = t.take(c, in)
		in.close()
	}
	if err != nil && !wire.Over(err) {
		return errors.Join(err, sendJSON(c, sayAnswer, answer{Failure: err.Error()}))
	}
	return err
}

// intake is what has come of a guest.
type intake struct {
	images string
	tree   *tree.Target
	memory *pages.Store
	image  *os.File // that content is of
}

// open begins anew: what an earlier connection brought is not what the source
// thinks that is here.
func (t *target) open() (in *intake, err error) {
	dir := t.guest.dir
	r := t.guest.remembered()
	in = &intake{images: filepath.Join(dir, imagesDir), memory: pages.NewStore()}
	for _, path := range []string{filepath.Join(dir, rootDir), filepath.Join(dir, storeDir), in.images} {
		if err := rootfs.Clear(path); err != nil {
			return nil, err
		}
	}
	if err := rootfs.MountStore(filepath.Join(dir, storeDir), r.Need.MemoryBytes); err != nil {
		return nil, err
	}
	if err := rootfs.Empty(filepath.Join(dir, storeDir)); err != nil {
		return nil, err
	}
	if err := rootfs.MountMemory(in.images); err != nil {
		return nil, err
	}
	in.tree, err = tree.NewTarget(filepath.Join(dir, storeDir))
	return in, err
}

func (in *intake) close() {
	in.tree.Close()
	in.memory.Close()
	if in.image != nil {
		in.image.Close()
	}
}

// take takes messages until the guest has arrived, or not.
func (t *target) take(c *wire.Conn, in *intake) error {
	for {
		kind, content, err := c.Receive(0)
		if err != nil {
			return err
		}
		switch kind {
		case sayTree:
			err = in.tree.Take(content)
		case sayPiece:
			err = in.piece(content)
		case sayImage:
			err = in.begin(string(content))
		case sayContent:
			err = in.fill(content)
		case saySync:
			err = sendJSON(c, sayAnswer, answer{})
		case sayRestore:
			return t.arrive(c, in)
		default:
			err = fmt.Errorf("the source says something of the unknown kind %q", kind)
		}
		if err != nil {
			return err
		}
	}
}

func (in *intake) piece(content []byte) error {
	p, memory, err := parsePiece(content)
	if err != nil {
		return err
	}
	return in.memory.Put(p, memory)
}

// begin makes a file for CRIU.
func (in *intake) begin(name string) (err error) {
	if err := imageName(name); err != nil {
		return err
	}
	if in.image != nil {
		if err := in.image.Close(); err != nil {
			return err
		}
	}
	in.image, err = os.OpenFile(filepath.Join(in.images, name), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	return err
}

func (in *intake) fill(content []byte) error {
	if in.image == nil {
		return errors.New("content came before the name of what it is of")
	}
	_, err := in.image.Write(content)
	return err
}

// arrive makes the guest of what has come and tells how that went. A guest that
// cannot be made is none for good: the source goes on with its own.
func (t *target) arrive(c *wire.Conn, in *intake) error {
	var took stages
	took.begin()
	err := in.memory.Complete(in.images)
	in.close()
	took.done("complete")
	if err == nil {
		err = t.restore(in.images)
		took.done("restore")
		t.driver.config.Log.Info("guest received", append([]any{"guest", t.guest.id}, took.all...)...)
	}
	r := t.guest.remembered()
	if err != nil && !r.Arrived {
		t.driver.config.Log.Warn("restore a guest", "guest", t.guest.id, "error", err)
		if err := t.guest.remember(func(r *record) { r.Failure = err.Error() }); err != nil {
			return err
		}
		r = t.guest.remembered()
	}
	return sendJSON(c, sayAnswer, answer{Arrived: r.Arrived, Failure: r.Failure})
}

func (t *target) restore(images string) error {
	d, g := t.driver, t.guest
	r := g.remembered()
	root := filepath.Join(g.dir, rootDir)
	if err := rootfs.MountRoot(r.Image, filepath.Join(g.dir, storeDir), root); err != nil {
		return err
	}
	mounts := map[string]string{}
	for _, m := range d.mounts(r) {
		mounts[m.name] = m.from
	}
	place := r.Process
	err := d.atHost(func() error {
		_, err := d.criu.Restore(g.life, criu.RestoreSpec{
			Images: images, Root: root, Netns: fmt.Sprintf("/proc/%d/ns/net", place.PID), Mounts: mounts,
			Resuming: func(pid int) error { return t.settle(pid) },
		})
		return err
	})
	if err != nil {
		return err
	}
	return errors.Join(place.End(), rootfs.Clear(images))
}

// settle takes the restored processes over while they stand still. They do not
// run on when CRIU lets go of them: they are frozen. What is remembered here is
// the point of no return: the guest is whole here.
func (t *target) settle(pid int) (err error) {
	d, g := t.driver, t.guest
	r := g.remembered()
	all, err := criu.Processes(pid)
	if err != nil {
		return err
	}
	// Frozen, they could not be killed.
	defer func() {
		if err != nil {
			err = errors.Join(err, d.config.Cgroups.Thaw(g.id))
		}
	}()
	for i, p := range all {
		if err := d.config.Cgroups.Contain(g.id, p, r.Need); err != nil {
			return err
		}
		if i == 0 { // there must be a group to be frozen
			if err := d.config.Cgroups.Freeze(g.id); err != nil {
				return err
			}
		}
	}
	process, err := proc.Find(pid)
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
	return g.arrived(process, handle)
}

// arrived makes the restored first process the guest's.
func (g *guest) arrived(p proc.Process, handle *os.File) error {
	if err := g.remember(func(r *record) { r.Place, r.Process, r.Arrived = r.Process, p, true }); err != nil {
		return errors.Join(err, handle.Close())
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.handle = handle // the watch finds it when the place holder ends
	return nil
}

package qemu

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"pagurus/act/host"
	"pagurus/act/qemu/qmp"
	"pagurus/fleet"
	"pagurus/internal/fault"
)

// Limits for waiting for a process.
const (
	startLimit = 45 * time.Second // QEMU opens its sockets within a second, on a busy host within a few, on emulated machines in 20; the guest runs meanwhile
	brief      = 5 * time.Millisecond
)

// Start boots a guest and returns when QEMU runs it. If the guest runs already, Start does
// nothing. After an error nothing of the guest is left, unless it is here as the target of a
// migration: then it is not touched.
func (d *Driver) Start(ctx context.Context, t fleet.Task) error {
	d.making.RLock()
	defer d.making.RUnlock()
	release, g, err := d.claim(ctx, t.Guest.ID)
	if err != nil {
		return fmt.Errorf("start guest %s: %w", t.Guest.ID, err)
	}
	defer release()
	if g != nil {
		if r := g.remembered(); r.Target {
			return fmt.Errorf("start guest %s: it is here as the target of migration %s", t.Guest.ID, r.Incoming)
		}
		return nil
	}
	if g, err = d.create(ctx, t); err == nil {
		err = g.remember(func(r *record) { r.Complete = true })
	}
	if err != nil {
		return fmt.Errorf("start guest %s: %w", t.Guest.ID, errors.Join(err, d.destroy(t.Guest.ID)))
	}
	return nil
}

// Receive makes an empty guest that waits for state and returns the address where it is
// received. A repeated call for the same migration returns the same address. After an error
// nothing of the guest is left, unless it was here already: then it is not touched.
func (d *Driver) Receive(ctx context.Context, t fleet.Task) (string, error) {
	d.making.RLock()
	defer d.making.RUnlock()
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
		// It may be all there is of the guest: only Stop may destroy it.
		return "", fmt.Errorf("receive guest %s: it is here as the target of migration %s", id, r.Incoming)
	}
	listen := ""
	m, _, err := d.machine(ctx, t)
	m.incoming = true
	if err == nil {
		g, err = d.boot(ctx, t, m)
	}
	if err == nil {
		listen, err = d.listen(ctx, g, t.Limits)
	}
	if err == nil { // as at the source: a link that breaks wakes the guest agent just when it arrives
		_, err = d.Link(ctx, id)
	}
	if err == nil {
		err = fault.Point("qemu.receive.after-listen")
	}
	if err == nil {
		err = g.remember(func(r *record) { r.Complete, r.Listen = true, listen })
	}
	if err != nil {
		return "", fmt.Errorf("receive guest %s: %w", id, errors.Join(err, d.destroy(id)))
	}
	return listen, nil
}

// listen prepares QEMU to receive state, and returns the address.
func (d *Driver) listen(ctx context.Context, g *guest, l fleet.Limits) (string, error) {
	q, err := g.monitor(ctx)
	if err != nil {
		return "", err
	}
	if err := prepareStream(ctx, q.Do, wayOf(l)); err != nil {
		return "", err
	}
	return d.await(ctx, q)
}

// await has QEMU wait for state on a port of its choice, and returns the address.
func (d *Driver) await(ctx context.Context, q *qmp.Client) (string, error) {
	uri := "tcp:" + net.JoinHostPort(d.Here().String(), "0")
	if err := q.Do(ctx, "migrate-incoming", map[string]any{"uri": uri}, nil); err != nil {
		return "", err
	}
	info, err := queryMigrate(ctx, q)
	if err != nil {
		return "", err
	}
	for _, a := range info.Sockets {
		if _, err := strconv.ParseUint(a.Port, 10, 16); err == nil && a.Type == "inet" {
			return net.JoinHostPort(a.Host, a.Port), nil
		}
	}
	return "", errors.New("qemu does not say where it listens")
}

// claim takes the guest's lock, and finds the guest if it is here. It removes the remains
// of one that is not.
func (d *Driver) claim(ctx context.Context, id fleet.GuestID) (release func(), _ *guest, err error) {
	return d.guests.Claim(ctx, id, (*guest).lives, d.destroy)
}

// boot makes a guest's folder and a QEMU in it. After an error the caller destroys the
// rest.
func (d *Driver) boot(ctx context.Context, t fleet.Task, m machine) (_ *guest, err error) {
	dir := d.dir(m.guest)
	if err := d.makeFolder(dir); err != nil {
		return nil, err
	}
	r := record{Guest: m.guest, Gen: t.Guest.Gen, StartedAt: time.Now(), Target: m.incoming, Layout: m.tuned.At(), Accelerator: m.accelerator}
	if m.incoming {
		r.Incoming, r.PostCopy = t.Order.Migration, t.Limits.Mode == fleet.PostCopy
	}
	if err := writeRecord(dir, r); err != nil {
		return nil, err
	}
	if r.Process, err = d.spawn(t, m); err != nil {
		return nil, err
	}
	if err := fault.Point("qemu.start.after-spawn"); err != nil {
		return nil, err
	}
	if err := writeRecord(dir, r); err != nil {
		return nil, err
	}
	handle, err := r.Process.Watch()
	if errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("qemu ended at once: %s", words(dir))
	}
	if err != nil {
		return nil, err
	}
	g, err := d.attach(r, handle)
	if err != nil {
		return nil, err
	}
	if d.config.Cgroups != nil {
		if err := d.config.Cgroups.Place(m.guest, r.Process.PID, m.cpus); err != nil {
			return nil, err
		}
	}
	return g, d.greet(ctx, g, m.tuned)
}

// greet waits until QEMU answers, and pins a tuned guest's CPUs.
func (d *Driver) greet(ctx context.Context, g *guest, t *tunedGuest) error {
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	for {
		q, err := g.monitor(ctx)
		if err == nil {
			_, err = vmStatus(ctx, q)
		}
		if err == nil {
			return t.Pin(ctx, g.remembered().Process.PID, q.Do)
		}
		select {
		case <-g.died:
			<-g.ended
			return fmt.Errorf("qemu ended at once: %s", d.LastWords(g.id))
		case <-ctx.Done():
			return fmt.Errorf("wait for qemu to answer: %w", err)
		case <-time.After(brief):
		}
	}
}

// machine returns what determines a guest's command line, and its image's folder.
func (d *Driver) machine(ctx context.Context, t fleet.Task) (m machine, folder string, err error) {
	need := t.Guest.Need
	if need.CPUs < 1 || need.MemoryBytes < mebi {
		return m, "", fmt.Errorf("a guest needs at least one CPU and some memory, not %d and %d bytes", need.CPUs, need.MemoryBytes)
	}
	folder, err = d.config.ImageFolder(ctx, t.Guest.Image)
	if err != nil {
		return m, "", err
	}
	if folder, err = filepath.Abs(folder); err != nil {
		return m, "", err
	}
	loaded, err := d.initrds.Make(folder, d.config.GuestAgent)
	if err != nil {
		return m, "", err
	}
	can := d.able()
	m = machine{
		guest: t.Guest.ID, byHand: d.config.ByHand, accelerator: can.Accelerator, cpus: need.CPUs, memoryBytes: need.MemoryBytes,
		uneven: Loses(can.Accelerator == Emulation, can.Version, t.Guest.Shape),
		kernel: filepath.Join(folder, "vmlinuz"), initrd: loaded, root: filepath.Join(folder, "root.img"),
		mac: t.Job.Subnet.GuestMAC(t.Guest.Index), tap: firstFile,
	}
	if s := t.Guest.Shape; s != nil {
		m.tuned = &tunedGuest{Shape: *s, MemoryBytes: wholeMemory(m), More: odd(m)}
		if t.Layout != nil {
			m.tuned.Layout = *t.Layout
		}
		if m.uneven {
			m.tuned.Small()
		}
	}
	return m, folder, nil
}

// makeFolder makes a guest's folder: QEMU may create files in it, but cannot change
// root's.
func (d *Driver) makeFolder(dir string) error {
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	if err := os.Chown(dir, 0, int(d.account.GID)); err != nil {
		return err
	}
	return unix.Chmod(dir, unix.S_ISVTX|0o770)
}

// firstFile is a child's number for the first inherited file after the three standard
// ones.
const firstFile = 3

func (d *Driver) spawn(t fleet.Task, m machine) (host.Process, error) {
	tap, err := openTap(d.config.Tap(t.Job.Subnet, t.Guest.Index))
	if err != nil {
		return host.Process{}, err
	}
	defer tap.Close()
	pages := m.tuned.Reserve() // before args, which depend on the pages available
	defer closeAll(pages)
	dir := d.dir(m.guest)
	log, err := os.OpenFile(filepath.Join(dir, ownLog), os.O_CREATE|os.O_EXCL|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return host.Process{}, err
	}
	defer log.Close()
	files := slices.Concat([]*os.File{tap}, m.files(), pages)
	if d.vhost && m.accelerator == Hardware {
		vhost, err := openVhost(vhostDevice)
		if err != nil {
			return host.Process{}, fmt.Errorf("plug into %s: %w", vhostDevice, err)
		}
		defer vhost.Close()
		m.vhost = firstFile + len(files)
		files = append(files, vhost)
	}
	return host.Spawn(d.account, dir, append([]string{d.binary}, args(m)...), log, files...)
}

// Stop ends a guest at once and removes all of it. A missing guest is not an error. After an
// error call Stop again.
func (d *Driver) Stop(ctx context.Context, id fleet.GuestID) error {
	return d.guests.Stop(ctx, id, "qemu.stop.before", d.destroy)
}

// destroy removes all of a guest, whatever exists. It takes no context: stopping half-way
// would be worse than waiting.
func (d *Driver) destroy(id fleet.GuestID) error {
	g, err := d.guests.Find(id)
	if err != nil {
		return err
	}
	if g == nil {
		return d.wipe(id)
	}
	g.mu.Lock()
	g.stopped = true
	g.mu.Unlock()
	if err := host.Kill(g.handle); err != nil && !g.dead() {
		return fmt.Errorf("kill qemu: %w", err)
	}
	select {
	case <-g.ended:
		return g.left
	case <-time.After(host.DeathLimit):
		return fmt.Errorf("process %d was killed and does not end", g.remembered().Process.PID)
	}
}

// wipe removes the remains of a guest that is not watched.
func (d *Driver) wipe(id fleet.GuestID) error {
	dir := d.dir(id)
	for _, p := range host.ProcessesIn(d.account, dir) {
		if err := p.End(); err != nil {
			return err
		}
	}
	if d.config.Cgroups != nil {
		if err := d.config.Cgroups.Remove(id); err != nil {
			return err
		}
	}
	return os.RemoveAll(dir)
}

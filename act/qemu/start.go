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
	"pagurus/act/host/initrd"
	"pagurus/act/host/jail"
	"pagurus/act/host/passage"
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
	return d.guests.Start(ctx, t, func() error {
		g, err := d.create(ctx, t)
		if err == nil {
			err = g.Remember(func(r *record) { r.Complete = true })
		}
		if err == nil {
			d.pairOn(g)
		}
		return err
	})
}

// Receive makes an empty guest that waits for state and returns the address where it is
// received. A repeated call for the same migration returns the same address. After an error
// nothing of the guest is left, unless it was here already: then it is not touched.
func (d *Driver) Receive(ctx context.Context, t fleet.Task) (string, error) {
	d.making.RLock()
	defer d.making.RUnlock()
	return d.guests.Receive(ctx, t, func() (string, error) { return d.receive(ctx, t) })
}

func (d *Driver) receive(ctx context.Context, t fleet.Task) (listen string, err error) {
	var g *guest
	m, _, err := d.machine(ctx, t)
	m.incoming = true
	if err == nil {
		g, err = d.boot(ctx, t, m)
	}
	if err == nil {
		d.keepStill(g.ID)
		listen, err = d.listen(ctx, g, t)
	}
	if err == nil { // as at the source: a link that breaks wakes the guest agent just when it arrives
		_, err = d.Link(ctx, t.Guest.ID)
	}
	if err == nil {
		err = fault.Point("qemu.receive.after-listen")
	}
	if err == nil {
		err = g.Remember(func(r *record) { r.Complete, r.Listen = true, listen })
	}
	return listen, err
}

// await has QEMU wait for state on a port of its choice, and returns the address. Only a QEMU that has a
// network can: see Config.ByHand.
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

// boot makes a guest's folder and a QEMU in it. After an error the caller destroys the
// rest.
func (d *Driver) boot(ctx context.Context, t fleet.Task, m machine) (_ *guest, err error) {
	dir := d.dir(m.guest)
	uid, err := d.makeFolder(dir)
	if err != nil {
		return nil, err
	}
	m.uid = uid
	if m.device, err = d.takeDevice(t.Guest, m.incoming); err != nil {
		return nil, err
	}
	r := record{
		Record: host.Record{Guest: m.guest, Gen: t.Guest.Gen, StartedAt: time.Now(), Target: m.incoming || m.restored, Restored: m.restored},
		Layout: m.tuned.At(), Accelerator: m.accelerator, Make: d.makesOf(t, m),
	}
	if m.device != nil {
		r.Device = m.device.Address
	}
	r.Pair = m.pair.on(m.device)
	if m.incoming {
		r.Incoming, r.PostCopy = t.Order.Migration, t.Limits.Mode == fleet.PostCopy
	}
	if err := host.WriteRecord(dir, r); err != nil {
		return nil, err
	}
	first, err := d.spawn(ctx, t, m)
	if err != nil {
		return nil, err
	}
	r.Process = first.Process
	var g *guest
	if err = fault.Point("qemu.start.after-spawn"); err == nil {
		err = host.WriteRecord(dir, r)
	}
	if err == nil {
		g, err = d.watchFirst(r)
	}
	if err != nil {
		return nil, errors.Join(err, first.Kill())
	}
	if err = d.confine(m, r.Process.PID); err == nil {
		err = first.Enter()
	}
	if err != nil {
		return nil, errors.Join(err, d.guests.Destroy(m.guest), first.Kill())
	}
	return g, d.greet(ctx, g, m.tuned)
}

// watchFirst begins to watch a guest by its first process.
func (d *Driver) watchFirst(r record) (*guest, error) {
	handle, err := r.Process.Watch()
	if err != nil {
		return nil, err
	}
	return d.attach(r, handle)
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
			return t.Pin(ctx, g.Remembered().Process.PID, q.Do)
		}
		select {
		case <-g.Died:
			<-g.Ended
			return fmt.Errorf("qemu ended at once: %s", d.LastWords(g.ID))
		case <-ctx.Done():
			return fmt.Errorf("wait for qemu to answer: %w", err)
		case <-time.After(brief):
		}
	}
}

// machine returns what determines a guest's command line, and its image's folder.
func (d *Driver) machine(ctx context.Context, t fleet.Task) (m machine, folder string, err error) {
	need := t.Guest.Need
	if reason := fleet.RefusedCPU(t.Guest.CPU); reason != "" {
		return m, "", errors.New(reason)
	}
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
	words, _, err := initrd.Words(folder)
	if err != nil {
		return m, "", err
	}
	can := d.able()
	m = machine{
		guest: t.Guest.ID, byHand: d.config.ByHand, accelerator: can.Accelerator, cpu: t.Guest.CPU, cpus: need.CPUs, memoryBytes: need.MemoryBytes,
		uneven: Loses(can.Accelerator == Emulation, can.Version, t.Guest.Shape),
		kernel: filepath.Join(folder, "vmlinuz"), words: words, initrd: loaded, root: filepath.Join(folder, "root.img"),
		mac: t.Job.Subnet.GuestMAC(t.Guest.Index), tap: firstFile,
	}
	if need.Device == fleet.NetFunction {
		m.pair = &pairing{MAC: m.mac, VLAN: t.Job.VLAN}
	}
	if s := t.Guest.Shape; s != nil {
		m.tuned = &tunedGuest{Shape: *s, MemoryBytes: wholeMemory(m), More: odd(m)}
		if t.Layout != nil {
			m.tuned.Layout = *t.Layout
		}
		if m.uneven {
			m.tuned.Small()
		}
		m.keeps = can.Accelerator == Hardware && m.tuned.keeps(d.config.Kept)
	}
	return m, folder, nil
}

// makeFolder makes a guest's folder and gives the guest a user ID, which is the folder's group: QEMU
// may create files in it, but cannot change root's, and nobody else sees any. Whoever
// removes the folder gives the ID back, and later agents find it there.
func (d *Driver) makeFolder(dir string) (uid uint32, err error) {
	d.giving.Lock()
	defer d.giving.Unlock()
	used, err := d.uidsInUse()
	if err == nil {
		uid, err = d.config.UIDs.Free(used)
	}
	if err == nil {
		err = os.Mkdir(dir, 0o700)
	}
	if err == nil {
		err = os.Chown(dir, 0, int(uid))
	}
	if err == nil {
		err = unix.Chmod(dir, unix.S_ISVTX|0o770)
	}
	return uid, err
}

// uidsInUse are the user IDs of the guests that have a folder here, and of all processes: an earlier agent gave guests numbers otherwise, and
// another agent of this machine, or somebody whom nobody told about the range, may have one.
func (d *Driver) uidsInUse() (map[uint32]bool, error) {
	entries, err := os.ReadDir(d.dir(""))
	if err != nil {
		return nil, err
	}
	used, err := host.Users()
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		if uid, ok := uidOf(filepath.Join(d.dir(""), e.Name())); ok {
			used[uid] = true
		}
	}
	return used, nil
}

// uidOf returns the user ID of the guest with this folder. A folder that has none yet has no process.
func uidOf(dir string) (uid uint32, ok bool) {
	var st unix.Stat_t
	if unix.Lstat(dir, &st) != nil {
		return 0, false
	}
	return st.Gid, st.Gid != 0
}

// firstFile is a child's number for the first inherited file after the three standard
// ones.
const firstFile = 3

// spawn starts the first process of a guest's jail, which waits.
func (d *Driver) spawn(ctx context.Context, t fleet.Task, m machine) (*jail.First, error) {
	tap, err := openTap(d.config.Tap(t.Job.Subnet, t.Guest.Index))
	if err != nil {
		return nil, err
	}
	defer tap.Close()
	pages := m.tuned.Reserve() // before args, which depend on the pages available
	defer closeAll(pages)
	dir := d.dir(m.guest)
	log, err := os.OpenFile(filepath.Join(dir, ownLog), os.O_CREATE|os.O_EXCL|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	files := slices.Concat([]*os.File{tap}, m.files(), pages)
	if d.vhost && m.accelerator == Hardware {
		vhost, err := openVhost(vhostDevice)
		if err != nil {
			return nil, fmt.Errorf("plug into %s: %w", vhostDevice, err)
		}
		defer vhost.Close()
		m.vhost = firstFile + len(files)
		files = append(files, vhost)
	}
	j, err := d.jail(ctx, m)
	if err != nil {
		return nil, err
	}
	return d.config.Begin(d.config.Shim, j, log, files...)
}

// Stop ends a guest at once and removes all of it. A missing guest is not an error. After an
// error call Stop again.
func (d *Driver) Stop(ctx context.Context, id fleet.GuestID) error {
	return d.guests.Stop(ctx, id, "qemu.stop.before")
}

// kill ends a guest's process.
func (g *guest) kill() error {
	if err := host.Kill(g.handle); err != nil && !g.Dead() {
		return fmt.Errorf("kill qemu: %w", err)
	}
	return nil
}

// wipe removes the remains of a guest that is not watched.
func (d *Driver) wipe(id fleet.GuestID) error {
	dir := d.dir(id)
	if uid, ok := uidOf(dir); ok {
		if uid == d.account.GID { // an agent started it that had one account for all guests
			uid = d.account.UID
		}
		of := func(pid int, user uint32) bool {
			return user == uid || user == 0 && (jail.IsFirst(pid) || passage.IsRelay(pid))
		}
		for _, p := range host.ProcessesIn(dir, of) {
			if err := p.End(); err != nil {
				return err
			}
		}
	}
	if d.config.Cgroups != nil {
		if err := d.config.Cgroups.Remove(id); err != nil {
			return err
		}
	}
	if err := d.returnDevice(id); err != nil {
		return err
	}
	return os.RemoveAll(dir)
}

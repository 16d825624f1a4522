package qemu

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"pagurus/act/host"
	"pagurus/fleet"
	"pagurus/internal/fault"
)

// snapshotLimit is the time for booting and saving a guest on a busy host.
const snapshotLimit = 2 * time.Minute

// loadLimit is the time for reading a file of some hundred MiB on a busy host.
const loadLimit = time.Minute

// fromSnapshot reports whether this host's guests start from snapshots. Under KVM a boot
// takes about as long as loading one.
func (d *Driver) fromSnapshot() bool {
	return d.config.Snapshots > 0 && d.able().Accelerator == Emulation
}

// create makes a running guest, from a snapshot of a guest of the same make, or by
// booting it. The first guest of a make is saved as the snapshot. If a snapshot fails,
// the guest boots. After an error the caller destroys the rest.
func (d *Driver) create(ctx context.Context, t fleet.Task) (*guest, error) {
	if why := d.able().noCPU; why != "" {
		return nil, errors.New(why)
	}
	m, folder, err := d.machine(ctx, t)
	if err != nil {
		return nil, err
	}
	if !d.fromSnapshot() || m.tuned != nil || t.Guest.Need.Device != "" { // shapes are rarely equal, and a device has a state of its own
		return d.boot(ctx, t, m)
	}
	kept, name := openSnapshots(filepath.Join(folder, "booted"), d.config.Snapshots), d.makeOf(m)
	g, err := d.wake(ctx, t, m, kept, name)
	if g != nil || err != nil {
		return g, err
	}
	draft, err := kept.Draft(name)
	if err != nil {
		d.spare(m.guest, err)
		return d.boot(ctx, t, m)
	}
	first := m
	first.warm = true
	if g, err = d.boot(ctx, t, first); err != nil {
		return nil, errors.Join(err, draft.Drop())
	}
	if err := d.save(ctx, g, draft); err != nil {
		d.spare(m.guest, err)
		if !errors.Is(err, errSpent) {
			return g, nil
		}
	}
	// It is suspended. The guest that continues is made like all others.
	if err := d.guests.Destroy(m.guest); err != nil {
		return nil, err
	}
	if g, err = d.wake(ctx, t, m, kept, name); g != nil || err != nil {
		return g, err
	}
	return d.boot(ctx, t, m)
}

// spare logs why there is no snapshot, unless another agent is making it.
func (d *Driver) spare(id fleet.GuestID, err error) {
	if !errors.Is(err, errSnapshotBusy) {
		d.config.Log.Warn("no snapshot was made; the next guest boots, too", "guest", id, "cause", err)
	}
}

// wake makes a guest from a snapshot. It is nil if there is none, or none that
// is any good.
func (d *Driver) wake(ctx context.Context, t fleet.Task, m machine, kept snapshots, name string) (*guest, error) {
	m.state = kept.Find(name)
	if m.state == nil {
		return nil, nil
	}
	defer m.state.Close()
	g, err := d.boot(ctx, t, m)
	if err == nil {
		err = d.load(ctx, g)
	}
	if err == nil {
		return g, nil
	}
	if ctx.Err() != nil || errors.Is(err, host.ErrNoUID) {
		return nil, err // not the snapshot's fault
	}
	d.config.Log.Warn("a guest does not start from its snapshot and boots", "guest", m.guest, "cause", err)
	return nil, errors.Join(kept.Remove(name), d.guests.Destroy(m.guest))
}

func (d *Driver) load(ctx context.Context, g *guest) error {
	ctx, cancel := context.WithTimeout(ctx, loadLimit)
	defer cancel()
	q, err := g.monitor(ctx)
	if err == nil {
		err = loadSnapshot(ctx, q.Do, firstFile+1)
	}
	if err == nil {
		err = q.Do(ctx, "cont", nil, nil)
	}
	return err
}

// errSpent: the guest was stopped to be saved, and must be destroyed.
var errSpent = errors.New("the guest was stopped")

// save saves a guest that has booted, before its first use. After an error the guest runs
// on unchanged, unless it wraps errSpent; after success it is spent as well.
func (d *Driver) save(ctx context.Context, g *guest, draft *snapshotDraft) error {
	ctx, cancel := context.WithTimeout(ctx, snapshotLimit)
	defer cancel()
	q, err := g.monitor(ctx)
	if err == nil {
		err = waitBooted(ctx, q.Do, linkChardev)
	}
	if err == nil {
		err = fault.Point("qemu.start.before-save")
	}
	if err != nil {
		return errors.Join(err, draft.Drop())
	}
	if err := saveSnapshot(ctx, q.Do, g.Dir, g.uid(), draft); err != nil {
		return errors.Join(errSpent, err, draft.Drop())
	}
	if err := draft.KeepSnapshot(); err != nil {
		return errors.Join(errSpent, err)
	}
	return nil
}

// makeOf identifies guests that can start from each other's snapshot: QEMU and all its
// arguments, except those that name the guest.
func (d *Driver) makeOf(m machine) string {
	m.guest, m.mac, m.initrd = "any", "any", filepath.Base(m.initrd)
	return fmt.Sprintf("%x", sha256.Sum256([]byte(d.able().Version+"\x00"+strings.Join(args(m), "\x00"))))[:32]
}

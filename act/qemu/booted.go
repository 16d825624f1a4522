package qemu

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"pagurus/fleet"
	"pagurus/internal/fault"
)

// snapshotLimit is how long a guest that is to be saved may take to boot on a
// busy host, and to be saved.
const snapshotLimit = 2 * time.Minute

// loadLimit is for reading a file of some hundred MiB on a busy host.
const loadLimit = time.Minute

// fromSnapshot reports whether guests of this host start from snapshots. Under
// KVM they boot in about the time that loading one takes.
func (d *Driver) fromSnapshot() bool {
	return d.config.Snapshots > 0 && d.ability.Accelerator == Emulation
}

// create makes a guest that runs: from the snapshot of one of the same make that
// has booted, which is made at the first, or by booting it. Whatever is wrong
// with a snapshot, the guest boots. After an error the caller destroys what is
// there.
func (d *Driver) create(ctx context.Context, t fleet.Task) (*guest, error) {
	m, folder, err := d.machine(ctx, t)
	if err != nil {
		return nil, err
	}
	if !d.fromSnapshot() || m.tuned != nil { // hardly two are of one shape
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
	// It is suspended: the one that lives on is made like all others.
	if err := d.destroy(m.guest); err != nil {
		return nil, err
	}
	if g, err = d.wake(ctx, t, m, kept, name); g != nil || err != nil {
		return g, err
	}
	return d.boot(ctx, t, m)
}

// spare says why there is no snapshot. That somebody else makes it is no news.
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
	d.config.Log.Warn("a guest does not start from its snapshot and boots", "guest", m.guest, "cause", err)
	if ctx.Err() != nil {
		return nil, err // that is no fault of the snapshot's
	}
	return nil, errors.Join(kept.Remove(name), d.destroy(m.guest))
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

// errSpent: the guest was stopped to be saved and has nothing to do any more.
var errSpent = errors.New("the guest was stopped")

// save keeps a guest that has booted and nobody has spoken to. After an error
// the guest runs as if nothing had been, unless it wraps errSpent; after success
// it is spent as well.
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
	if err := saveSnapshot(ctx, q.Do, g.dir, int(d.account.GID), draft); err != nil {
		return errors.Join(errSpent, err, draft.Drop())
	}
	if err := draft.KeepSnapshot(); err != nil {
		return errors.Join(errSpent, err)
	}
	return nil
}

// makeOf names what two guests must have in common for one to start from the
// other's snapshot: QEMU and all it is told, but for whose guest it is.
func (d *Driver) makeOf(m machine) string {
	m.guest, m.mac, m.initrd = "any", "any", filepath.Base(m.initrd)
	return fmt.Sprintf("%x", sha256.Sum256([]byte(d.ability.Version+"\x00"+strings.Join(args(m), "\x00"))))[:32]
}

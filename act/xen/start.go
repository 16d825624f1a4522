package xen

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"pagurus/act/host"
	"pagurus/act/host/initrd"
	"pagurus/act/host/passage"
	"pagurus/act/xen/bus"
	"pagurus/fleet"
	"pagurus/internal/fault"
	"pagurus/internal/note"
	"pagurus/internal/pause"
)

// Start boots a guest and returns when Xen runs it. If the guest runs already, Start does
// nothing. After an error nothing of the guest is left, unless it is here as the target of a
// migration: then it is not touched.
func (d *Driver) Start(ctx context.Context, t fleet.Task) error {
	return d.guests.Start(ctx, t, func() error {
		g, err := d.create(ctx, t, nil)
		if err == nil {
			_, err = g.await(ctx, running)
		}
		if err == nil {
			err = g.Remember(func(r *record) { r.Complete = true })
		}
		return err
	})
}

// Receive makes a warden that waits for a guest and returns the address where it is
// received. A repeated call for the same migration returns the same address. After an error
// nothing of the guest is left, unless it was here already: then it is not touched.
func (d *Driver) Receive(ctx context.Context, t fleet.Task) (string, error) {
	return d.guests.Receive(ctx, t, func() (string, error) {
		move := passage.Move{Guest: t.Guest.ID, Gen: t.Order.Gen, Migration: t.Order.Migration, From: t.Order.Peer}
		g, err := d.create(ctx, t, &incoming{Address: d.Here(), Move: move})
		if err != nil {
			return "", err
		}
		s, err := g.await(ctx, waiting)
		if err == nil {
			err = fault.Point("xen.receive.after-listen")
		}
		if err == nil {
			err = g.Remember(func(r *record) { r.Complete, r.Listen = true, s.Place })
		}
		return s.Place, err
	})
}

// create makes a guest's folder and its warden. After an error the caller destroys what is there.
func (d *Driver) create(ctx context.Context, t fleet.Task, in *incoming) (*guest, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	dir := d.dir(t.Guest.ID)
	s, err := d.spec(ctx, t)
	if err != nil {
		return nil, err
	}
	s.Incoming = in
	r := record{Record: host.Record{Guest: t.Guest.ID, Gen: t.Guest.Gen, StartedAt: time.Now(), Target: in != nil}, Need: t.Guest.Need}
	if in != nil {
		r.Incoming = t.Order.Migration
	}
	if err = os.Mkdir(dir, 0o700); err == nil {
		err = host.WriteRecord(dir, r)
	}
	if err == nil {
		err = note.Replace(filepath.Join(dir, specFile), s)
	}
	if err != nil {
		return nil, err
	}
	return d.spawn(dir, r)
}

// spec is what a guest's warden has to make.
func (d *Driver) spec(ctx context.Context, t fleet.Task) (s spec, err error) {
	need := t.Guest.Need
	if need.CPUs < 1 || need.MemoryBytes < mebi {
		return s, fmt.Errorf("a guest needs at least one CPU and some memory, not %d and %d bytes", need.CPUs, need.MemoryBytes)
	}
	if t.Guest.Shape != nil {
		return s, errors.New("a guest of Xen has no shape of its own yet: leave --shape out, or use --kind vm")
	}
	folder, err := d.config.ImageFolder(ctx, t.Guest.Image)
	if err != nil {
		return s, err
	}
	if folder, err = filepath.Abs(folder); err != nil {
		return s, err
	}
	words, own, err := initrd.Words(folder)
	if err == nil && !own { // a kernel of a user's own has what it needs built in
		err = boots(folder)
	}
	if err != nil {
		return s, err
	}
	loaded, err := d.initrds.Make(folder, d.config.GuestAgent)
	if err != nil {
		return s, err
	}
	dir := d.dir(t.Guest.ID)
	s = spec{
		Domain: d.domain(t.Guest.ID), CPUs: need.CPUs, MemoryBytes: need.MemoryBytes, Tools: d.tools,
		LinkScript: filepath.Join(dir, linkName), DiskScript: filepath.Join(dir, diskName),
		Kernel: filepath.Join(folder, "vmlinuz"), Words: words, Initrd: loaded, Root: filepath.Join(folder, "root.img"),
	}
	s.Port = d.config.Port(t.Job.Subnet, t.Guest.Index)
	s.Share, err = d.shares.beginGuest(t)
	return s, err
}

// spawn starts a guest's warden, notes it, and lets it begin.
func (d *Driver) spawn(dir string, r record) (*guest, error) {
	log, err := os.OpenFile(filepath.Join(dir, ownLog), os.O_CREATE|os.O_EXCL|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	c := exec.Command(d.config.Shim)
	c.Args, c.Dir, c.Env = []string{wardenName}, dir, []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL=C"}
	c.Stdout, c.Stderr = log, log
	c.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	in, err := c.StdinPipe()
	if err != nil {
		return nil, err
	}
	defer in.Close()
	if err := c.Start(); err != nil {
		return nil, err
	}
	// It is reaped by whoever watches it.
	r.Process, err = host.Find(c.Process.Pid)
	if err == nil {
		err = fault.Point("xen.start.after-spawn")
	}
	if err == nil {
		err = host.WriteRecord(dir, r)
	}
	var handle *os.File
	if err == nil {
		handle, err = r.Process.Watch()
	}
	var g *guest
	if err == nil {
		g, err = d.attach(r, handle)
	}
	if err == nil {
		_, err = io.WriteString(in, begins)
	}
	if err != nil && g == nil {
		err = errors.Join(err, c.Process.Kill(), c.Wait())
	}
	return g, err
}

const stageEvery = 50 * time.Millisecond

// await waits until the guest has come to a stage.
func (g *guest) await(ctx context.Context, want stage) (status, error) {
	for {
		s, err := g.tell(ctx, question{Ask: askStatus}) // not ask: the log that is read below goes with the rest of the guest
		switch {
		case g.Dead():
			f := host.OpenLog(g.Dir, ownLog)
			defer f.Close()
			said := ""
			if f != nil {
				said = host.Tail(f)
			}
			return s, fmt.Errorf("its warden has ended: %s", said)
		case err == nil && s.Stage == want:
			return s, nil
		case err == nil && s.Stage == broken:
			return s, errors.New(s.Why)
		}
		if err := pause.For(ctx, stageEvery); err != nil {
			return s, err
		}
	}
}

// Stop ends a guest at once and removes all of it. A missing guest is not an error. After an
// error call Stop again.
func (d *Driver) Stop(ctx context.Context, id fleet.GuestID) error {
	return d.guests.Stop(ctx, id, "xen.stop.before")
}

// errStays: a guest's domain may run on, as long as xenstored does not.
var errStays = errors.New("its domain was not destroyed")

// wipe removes the remains of a guest that is not watched: first its processes, for they would go on with the domain, then that, and
// its folder at last. Without xenstored it leaves all, as the minder, which goes on trying to destroy the domain; the error is errStays then.
func (d *Driver) wipe(id fleet.GuestID) error {
	dir := d.dir(id)
	if _, err := os.Lstat(dir); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	store, err := bus.OpenStore()
	if err != nil {
		return fmt.Errorf("%w: %w", errStays, err)
	}
	defer store.Close()
	if err = endThoseIn(dir); err == nil {
		err = d.tools.destroy(d.domain(id))
	}
	if err != nil {
		return fmt.Errorf("%w: %w", errStays, err)
	}
	if err := bus.SweepConsoles(store); err != nil {
		return err
	}
	d.shares.forget(id)
	return os.RemoveAll(dir)
}

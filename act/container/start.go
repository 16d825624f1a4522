package container

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"pagurus/act/container/criu"
	"pagurus/act/container/sandbox"
	"pagurus/act/host"
	"pagurus/act/host/port"
	"pagurus/fleet"
	"pagurus/internal/fault"
)

// Start makes a guest and returns when its first process runs. If the guest was started
// before and still runs, Start does nothing. After an error nothing of the guest is left,
// unless it is here as the target of a migration: then it is not touched.
func (d *Driver) Start(ctx context.Context, t fleet.Task) error {
	return d.guests.Start(ctx, t, func() error { return d.start(ctx, t) })
}

func (d *Driver) start(ctx context.Context, t fleet.Task) error {
	r, err := d.furnish(ctx, t)
	if err != nil {
		return err
	}
	dir := d.dir(r.Guest)
	store := filepath.Join(dir, storeDir)
	r.Agent = d.binaries.Own
	if err := sandbox.MountRoot(r.Image, store, filepath.Join(dir, rootDir)); err != nil {
		return err
	}
	p, err := sandbox.NewProcess()
	if err != nil {
		return err
	}
	defer p.Release()
	g, err := d.occupy(r, p.PID)
	if err != nil {
		return errors.Join(err, p.Kill())
	}
	if err := fault.Point("container.start.after-spawn"); err != nil {
		return err
	}
	if err := d.config.Cgroups.Contain(r.Guest, r.Need, p.PID); err != nil {
		return err
	}
	if err := d.atHost(func() error { return r.Port.Attach(g.network) }); err != nil {
		return err
	}
	if err := p.Run(d.cell(r)); err != nil {
		return fmt.Errorf("make its first process: %w", err)
	}
	return g.Remember(func(r *record) { r.Complete = true })
}

// furnish makes a guest's folder with everything but the root, and writes its record.
// After an error the caller destroys what is there.
func (d *Driver) furnish(ctx context.Context, t fleet.Task) (r record, err error) {
	need := t.Guest.Need
	if need.CPUs < 1 || need.MemoryBytes < 1<<20 {
		return r, fmt.Errorf("a guest needs at least one CPU and some memory, not %d and %d bytes", need.CPUs, need.MemoryBytes)
	}
	r = record{
		Record:   host.Record{Guest: t.Guest.ID, Gen: t.Guest.Gen, StartedAt: time.Now()},
		Hostname: fleet.GuestName(t.Guest.Index), Need: need, UID: t.Job.Spec.UID,
		Port: port.Port{Subnet: t.Job.Subnet, Index: t.Guest.Index, Guests: t.Job.Spec.MostGuests(), Out: t.Job.Spec.Outward(), MTU: t.Job.NetworkMTU()},
	}
	folder, err := d.config.ImageFolder(ctx, t.Guest.Image)
	if err != nil {
		return r, err
	}
	if folder, err = filepath.Abs(folder); err != nil {
		return r, err
	}
	r.Image = d.imageDir(filepath.Base(folder))
	files, err := d.openFiles(ctx, t)
	if err != nil {
		return r, err
	}
	defer closeFiles(files)
	r.Folders = d.folders(r.Guest, t.Job.Spec.UID, files)
	dir := d.dir(r.Guest)
	if err := os.Mkdir(dir, 0o700); err != nil {
		return r, err
	}
	d.images.Lock()
	defer d.images.Unlock()
	if err := host.WriteRecord(dir, r); err != nil { // from now on the record, too, keeps the image
		return r, err
	}
	if err := sandbox.MountImage(filepath.Join(folder, "root.img"), r.Image); err != nil {
		return r, err
	}
	for i, f := range files {
		if err := sandbox.HoldFiles(f.Dir, r.Folders[i].From); err != nil {
			return r, err
		}
	}
	return r, sandbox.MountStore(filepath.Join(dir, storeDir), need.MemoryBytes)
}

// shown is a folder of the host that a guest sees.
type shown struct {
	name, from, at    string // name: its name for CRIU
	devices, readOnly bool
}

// mounts returns the folders of this host that a guest sees.
func (d *Driver) mounts(r record) []shown {
	store := filepath.Join(d.dir(r.Guest), storeDir)
	all := []shown{
		{name: sandbox.Devices, at: "/dev", devices: true, readOnly: true},
		{name: sandbox.Shm, at: "/dev/shm"}, {name: sandbox.Run, at: "/run"}, {name: sandbox.Temp, at: "/tmp"},
	}
	for i := range all {
		all[i].from = filepath.Join(store, all[i].name)
	}
	if r.Agent != "" {
		all = append(all, shown{name: "agent", from: d.binaries.Path(r.Agent), at: sandbox.AgentPath, readOnly: true})
	}
	for i, f := range r.Folders {
		name := "job"
		if i > 0 {
			name += strconv.Itoa(i)
		}
		all = append(all, shown{name: name, from: f.From, at: f.At, readOnly: f.ReadOnly})
	}
	return all
}

func (d *Driver) cell(r record) sandbox.Cell {
	c := sandbox.Cell{
		Root: filepath.Join(d.dir(r.Guest), rootDir), Hostname: r.Hostname, Program: sandbox.AgentPath, Console: sandbox.Console, Hide: sandbox.Hidden,
		Env: []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/", "TERM=linux", "container=pagurus"},
	}
	for _, m := range d.mounts(r) {
		c.Mounts = append(c.Mounts, sandbox.Mount{From: m.from, At: m.at, ReadOnly: m.readOnly, Devices: m.devices, Programs: !m.devices})
	}
	return c
}

// occupy records a guest's first process and starts to watch it.
func (d *Driver) occupy(r record, pid int) (*guest, error) {
	var err error
	if r.Process, err = host.Find(pid); err != nil {
		return nil, err
	}
	if err := host.WriteRecord(d.dir(r.Guest), r); err != nil {
		return nil, err
	}
	handle, err := r.Process.Watch()
	if err != nil {
		return nil, err
	}
	return d.attach(r, handle)
}

// Stop ends a guest at once and removes every trace of it. While the guest ends, nothing
// that its programs or its kernel would send leaves this host. A missing guest is not an
// error. After an error call Stop again.
func (d *Driver) Stop(ctx context.Context, id fleet.GuestID) error {
	return d.guests.Stop(ctx, id, "container.stop.before")
}

// end ends all that a guest's calls do, and its processes.
func (d *Driver) end(g *guest) error {
	g.kill()
	g.interrupt()
	return errors.Join(d.kill(g.Remembered()), fault.Point("container.stop.after-kill"))
}

// kill ends all processes of a guest. They execute nothing more, and their connections do
// not tell their peers about the end, because the same guest may run elsewhere.
func (d *Driver) kill(r record) error {
	if err := d.atHost(r.Port.Cut); err != nil {
		d.config.Log.Debug("the link of a guest that ends could not be cut", "guest", r.Guest, "cause", err)
	}
	return d.killBut(r, 0)
}

// killBut kills everything that belongs to a guest except the process spared: the
// processes in its group, their descendants, and what a broken-off restore has left in
// its network or on its files.
func (d *Driver) killBut(r record, spared int) error {
	looked := host.Ticks()
	all, err := d.config.Cgroups.Members(r.Guest)
	if err != nil {
		return err
	}
	if handle, err := r.Process.Watch(); err == nil { // its PID has not been reused
		all = slices.Concat(all, host.Family(r.Process.PID), host.Beside(r.Process.PID))
		handle.Close()
	}
	contained := d.contained()
	all = append(all, host.Rooted(filepath.Join(d.dir(r.Guest), storeDir, sandbox.Files), contained)...)
	all = append(all, host.With(criu.Setting(filepath.Join(d.dir(r.Guest), imagesDir)), contained)...)
	if err := host.KillAll(all, spared, looked); err != nil {
		return err
	}
	// Frozen processes handle no signals. When thawed, they handle SIGKILL before
	// anything else.
	return d.config.Cgroups.Thaw(r.Guest)
}

// contained returns the processes of all guests' groups. There may be thousands of them, and their
// programs decide how long the kernel takes to tell about them.
func (d *Driver) contained() map[int]bool {
	all := map[int]bool{}
	guests, _ := os.ReadDir(d.dir("")) // without it only more is examined
	for _, g := range guests {
		pids, _ := d.config.Cgroups.Members(fleet.GuestID(g.Name()))
		for _, pid := range pids {
			all[pid] = true
		}
	}
	return all
}

// wipe removes what is left of a guest that the driver does not watch.
func (d *Driver) wipe(id fleet.GuestID) error {
	dir := d.dir(id)
	r, err := readRecord(dir)
	if err != nil {
		if err := ignoreAbsent(err); err != nil {
			d.config.Log.Warn("a guest's record cannot be read", "guest", id, "cause", err)
		}
		r = record{Record: host.Record{Guest: id}}
	}
	g, _ := d.guests.Find(id)
	if err == nil {
		network, err := r.Process.Network() // before the process ends: the link disappears with the last process in the namespace
		if err != nil {
			return err
		}
		defer network.Close() // does nothing if network is nil
		if network == nil && g != nil {
			network = g.network
		}
		if err := errors.Join(d.kill(r), d.atHost(func() error { return r.Port.Return(network) })); err != nil {
			return err
		}
		if err := errors.Join(r.Process.End(), r.Place.End(), r.LazyPager.End(), r.PageProxy.End(), r.Copy.end()); err != nil {
			return err
		}
	}
	if err := d.config.Cgroups.Remove(id); err != nil {
		return err
	}
	if err := d.releaseFolders(id); err != nil {
		return err
	}
	if err := sandbox.ClearRoot(dir); err != nil {
		return err
	}
	return d.sweepImages()
}

// Package container runs guests as Linux containers and moves them with CRIU
// while they run. Driver satisfies agent.Driver, agent.Linker and agent.Teller.
//
// It knows nothing of hosts, phases, placement, nor how the job's network is
// made: it does as it is told, as often as it is told. A container has processes, mounts,
// names and a network of its own; its root is the image with a layer in memory
// on top, which moves with it, and its first process is the guest agent. Its
// processes outlive the driver. What must be known to find them again is in the
// guest's folder (guest.json).
//
// Its tests run the drivers' contract suite, and real MPI jobs, against the
// kernel and a real CRIU.
package container

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"pagurus/act/container/criu"
	"pagurus/act/container/sandbox"
	"pagurus/act/host"
	"pagurus/fleet"
	"pagurus/internal/thread"
)

// Config is what a driver has to know of its host.
type Config struct {
	Run          string                                              // folder for what lives as long as the host is up
	GuestAgent   string                                              // the guest agent's binary, static
	Address      netip.Addr                                          // where state is taken in
	MaxBandwidth int64                                               // bytes a second of one copy; 0: no limit
	Cgroups      Cgroups                                             // must be given
	ImageFolder  func(context.Context, fleet.Digest) (string, error) // where an image's files are
	Files        func(context.Context, fleet.Task) (*os.File, error) // the directory of the job's files, opened as the job's user could; nil, or no answer: guests see none
	Converged    func(fleet.Limits, []fleet.Progress) (bool, error)  // whether a copy is good enough, asked as each pass begins; nil: nothing is copied
	Log          *slog.Logger                                        // nil: slog.Default
}

// Cgroups puts guests in groups of processes, one a guest.
type Cgroups interface {
	// Contain moves processes to the guest's group, which is held to what the
	// guest needs; without memory it may use what there is.
	Contain(guest fleet.GuestID, need fleet.Resources, pids ...int) error
	// Hasten has that go without delay until the context ends.
	Hasten(ctx context.Context)
	// Freeze stops all processes of the group, and those that come into it,
	// until Thaw. It returns when they stand still.
	Freeze(fleet.GuestID) error
	// Thaw lets them run. A group that is not there is no error.
	Thaw(fleet.GuestID) error
	// Freezer is the folder by which the kernel is told to do so.
	Freezer(fleet.GuestID) (string, error)
	// Members are the processes of the group; none if it is not there.
	Members(fleet.GuestID) ([]int, error)
	// Remove removes the guest's group. One that is not there is no error.
	Remove(fleet.GuestID) error
}

// Driver runs the guests of one host.
type Driver struct {
	config  Config
	criu    criu.Criu
	ability criu.Ability
	visible sandbox.Processor // what programs find
	network *os.File          // namespace that the driver was opened in, the host's
	watches sync.WaitGroup    // one a guest, and one a target

	locks    host.Locks
	images   sync.Mutex // held while one is mounted or looked after
	binaries *sandbox.BinaryCache

	mu     sync.Mutex // guards what follows
	closed bool
	guests map[fleet.GuestID]*guest
	said   map[fleet.GuestID]string // by those that ended by themselves
}

// saidKept bounds what is remembered of guests that ended by themselves.
const saidKept = 256

var errClosed = errors.New("the driver was closed")

// Open prepares the host, finds out whether containers can be moved here, and
// finds again the guests that run. What an earlier agent left half-made is
// destroyed. The network namespace that it is called in is the host's.
func Open(ctx context.Context, c Config) (*Driver, error) {
	d := &Driver{
		config: c, guests: map[fleet.GuestID]*guest{}, said: map[fleet.GuestID]string{},
	}
	if err := d.prepare(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("open the container driver: %w", err), d.Close())
	}
	entries, err := os.ReadDir(d.dir(""))
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open the container driver: %w", err), d.Close())
	}
	for _, e := range entries {
		if err := d.adopt(ctx, fleet.GuestID(e.Name())); err != nil {
			return nil, errors.Join(fmt.Errorf("open the container driver: %w", err), d.Close())
		}
	}
	sandbox.SweepYards()
	return d, d.sweepImages()
}

func (d *Driver) prepare(ctx context.Context) (err error) {
	if os.Geteuid() != 0 {
		return errors.New("it needs root: to make namespaces and mounts")
	}
	if d.config.Cgroups == nil {
		return errors.New("it needs control groups: without them no guest can be stopped to be moved")
	}
	if d.config.Log == nil {
		d.config.Log = slog.Default()
	}
	if d.config.Run, err = filepath.Abs(d.config.Run); err != nil {
		return err
	}
	for _, dir := range []string{d.dir(""), d.imageDir(""), d.filesDir("")} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return err
		}
	}
	// Mounts are found by paths without links.
	if d.config.Run, err = filepath.EvalSymlinks(d.config.Run); err != nil {
		return err
	}
	if d.binaries, err = sandbox.OpenBinaryCache(filepath.Join(d.config.Run, "container-agents"), d.config.GuestAgent); err != nil {
		return err
	}
	if d.network, err = os.Open("/proc/thread-self/ns/net"); err != nil {
		return fmt.Errorf("look at the host's network: %w", err)
	}
	if d.criu, err = criu.Find(ctx); err != nil {
		return err
	}
	if err := d.criu.Warm(ctx); err != nil {
		d.config.Log.Warn("containers have a slightly longer downtime when they move", "error", err)
	}
	if d.visible, err = sandbox.ReadProcessor(); err != nil {
		return err
	}
	return d.atHost(func() (err error) {
		d.ability, err = d.criu.Probe(ctx, d.config.Run)
		return err
	})
}

// adopt takes a guest over from an earlier agent, or clears away what is left
// of it.
func (d *Driver) adopt(ctx context.Context, id fleet.GuestID) error {
	if id.Check() != nil {
		return nil // not ours
	}
	r, err := readRecord(d.dir(id))
	if err == nil && r.Complete && r.Guest == id {
		handle, err := r.Process.Watch()
		if err == nil {
			if err := r.Place.End(); err != nil { // that agent may not have come to it
				return errors.Join(err, handle.Close())
			}
			g, err := d.attach(r, handle)
			if err != nil {
				return err
			}
			switch {
			case r.Target:
				if !r.Arrived {
					err = d.vacate(r)
				}
				if err == nil { // also of one that arrived: its source may not have heard of it
					var t *target
					if t, err = d.ready(ctx, r); err == nil {
						err = t.expect(g)
					}
				}
			case r.Copy != nil && r.Copy.Suspended && !r.Copy.Left:
				err = d.release(ctx, g)
			}
			if err != nil { // as when its network is gone: it must not keep the host from all others
				d.config.Log.Warn("take a guest over from an earlier agent", "guest", id, "error", err)
			} else if r.Arrived {
				d.watches.Go(func() { d.endPostCopy(g) })
			}
			return nil
		}
		if !errors.Is(err, os.ErrNotExist) {
			return err
		}
		d.noteEnd(id, "")
	}
	return d.wipe(id)
}

// Close lets go of all guests; they run on. Calls under way end with errors.
func (d *Driver) Close() error {
	d.mu.Lock()
	d.closed = true
	var all []*guest
	for _, g := range d.guests {
		all = append(all, g)
	}
	d.mu.Unlock()
	for _, g := range all {
		g.release()
	}
	d.watches.Wait()
	if d.network != nil {
		d.network.Close()
	}
	left, err := os.ReadDir(d.dir(""))
	return d.binaries.Close(len(left) == 0 && ignoreAbsent(err) == nil)
}

// Abilities says what the driver can do on this host.
func (d *Driver) Abilities() fleet.Abilities {
	why := d.unable()
	return fleet.Abilities{
		Live: true, Version: d.criu.Version, CPU: d.visible.Registers(), Processor: strings.Join(d.visible.Flags, " "),
		PostCopy: why == "", NoPostCopy: why,
	}
}

// Ended returns a channel that is closed when the guest is no longer on this
// host. Nothing is left of it by then.
func (d *Driver) Ended(id fleet.GuestID) <-chan struct{} {
	d.mu.Lock()
	defer d.mu.Unlock()
	if g, ok := d.guests[id]; ok {
		return g.ended
	}
	over := make(chan struct{})
	close(over)
	return over
}

// Inspect says what is so on this host.
func (d *Driver) Inspect(context.Context) (map[fleet.GuestID]fleet.GuestFacts, error) {
	d.mu.Lock()
	if d.closed {
		d.mu.Unlock()
		return nil, errClosed
	}
	var all []*guest
	for _, g := range d.guests {
		all = append(all, g)
	}
	d.mu.Unlock()
	out := map[fleet.GuestID]fleet.GuestFacts{}
	for _, g := range all {
		if facts, ok := g.inspect(); ok {
			out[g.id] = facts
		}
	}
	return out, nil
}

// dir is a guest's folder, or of "" the folder of them all.
func (d *Driver) dir(id fleet.GuestID) string {
	return filepath.Join(d.config.Run, "containers", string(id))
}

// imageDir is where an image is mounted, or of "" the folder of them all.
func (d *Driver) imageDir(name string) string {
	return filepath.Join(d.config.Run, "container-images", name)
}

// sweepImages takes images off that no guest has, and guest agents that no guest runs.
func (d *Driver) sweepImages() error {
	d.images.Lock()
	defer d.images.Unlock()
	used := map[string]bool{}
	guests, err := os.ReadDir(d.dir(""))
	if err != nil {
		return err
	}
	for _, g := range guests {
		r, err := readRecord(d.dir(fleet.GuestID(g.Name())))
		if ignoreAbsent(err) != nil {
			return nil // it may need any of them
		}
		used[r.Image], used[r.Agent] = true, true
	}
	if err := sandbox.SweepRoots(d.imageDir(""), func(dir string) bool { return used[dir] }); err != nil {
		return fmt.Errorf("take off images that no guest has: %w", err)
	}
	return d.binaries.KeepOnly(func(agent string) bool { return used[agent] })
}

// here finds a guest that was started or received to the end.
func (d *Driver) here(id fleet.GuestID) (*guest, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil, errClosed
	}
	g, ok := d.guests[id]
	if !ok || !g.remembered().Complete || g.dead() {
		return nil, fleet.ErrAbsent
	}
	return g, nil
}

// atHost runs f in the host's network, whose the agent's own may not be.
func (d *Driver) atHost(f func() error) error { return thread.In(d.network, f) }

// bandwidth is what a copy may use, in bytes a second; 0 is all.
func (d *Driver) bandwidth(l fleet.Limits) int64 {
	if l.BytesPerSecond > 0 && d.config.MaxBandwidth > 0 {
		return min(l.BytesPerSecond, d.config.MaxBandwidth)
	}
	return cmp.Or(l.BytesPerSecond, d.config.MaxBandwidth)
}

// filesDir is where a guest's job's files are held on to. It is not below the
// guest's folder: what is below that is removed with it.
func (d *Driver) filesDir(id fleet.GuestID) string {
	return filepath.Join(d.config.Run, "container-files", string(id))
}

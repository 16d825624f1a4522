// Package container runs guests as Linux containers, moves running guests with CRIU, and makes
// checkpoints of them. Driver implements agent.Driver, agent.Linker, agent.Teller and
// agent.Checkpointer.
//
// The package does not know hosts, phases or placement, or how the job's network is made.
// It carries out each call, and a call may be repeated. A container has processes,
// mounts, names and a network of its own. Its root is the image with a layer in memory on
// top. The layer moves with the guest. The first process is the guest agent. The
// container's processes outlive the driver. The guest's folder holds what a later driver
// needs to find them again (guest.json).
//
// The tests run the drivers' contract suite and real MPI jobs against the kernel and a
// real CRIU.
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
	"pagurus/act/container/memory"
	"pagurus/act/container/sandbox"
	"pagurus/act/container/shim"
	"pagurus/act/host"
	"pagurus/fleet"
	"pagurus/internal/thread"
)

// Config is what a driver must know about its host.
type Config struct {
	Run          string                                              // folder for what lives as long as the host is up
	GuestAgent   string                                              // path of the guest agent's static binary
	Address      netip.Addr                                          // address at which guests are received
	MaxBandwidth int64                                               // limit of one copy, in bytes per second; 0: no limit
	Cgroups      Cgroups                                             // required
	ImageFolder  func(context.Context, fleet.Digest) (string, error) // returns the folder that holds an image's files
	Files        func(context.Context, fleet.Task) ([]Files, error)  // opens the job's directories with the job's user's rights, its own first; the caller closes them; if Files is nil or returns none, guests see no files
	Converged    func(fleet.Limits, []fleet.Progress) (bool, error)  // reports whether a copy may switch; called when each pass begins; nil: nothing is copied
	OOMKills     func(fleet.GuestID) int                             // returns how many of a guest's processes the kernel killed because its memory was used up; nil: unknown
	TasksRefused func(fleet.GuestID) (times, most int)               // returns how often a guest could not start a process because it had the most that it may have; nil: unknown
	Swap         func(guest fleet.GuestID, on bool) error            // lets a guest's memory be swapped out when the host is short of memory, or ends that; nil: nothing
	Log          *slog.Logger                                        // nil: slog.Default
}

// Cgroups puts guests into control groups, one per guest.
type Cgroups interface {
	// Contain moves processes to the guest's group and limits the group to what the guest
	// needs. If need names no memory, memory is not limited.
	Contain(guest fleet.GuestID, need fleet.Resources, pids ...int) error
	// Hasten makes these calls run without delay until the context ends.
	Hasten(ctx context.Context)
	// Freeze stops all processes of the group, and those that join it later, until Thaw.
	// It returns when they are frozen.
	Freeze(fleet.GuestID) error
	// Thaw lets the group's processes run. It is not an error if the group does not
	// exist.
	Thaw(fleet.GuestID) error
	// Freezer returns the folder through which the kernel freezes the group.
	Freezer(fleet.GuestID) (string, error)
	// Members returns the processes of the group. It returns none if the group does not
	// exist.
	Members(fleet.GuestID) ([]int, error)
	// Remove removes the guest's group. It is not an error if the group does not exist.
	Remove(fleet.GuestID) error
}

// Driver runs the guests of one host.
type Driver struct {
	config  Config
	criu    criu.Criu
	ability criu.Ability
	visible sandbox.Processor // the processor that programs find
	network *os.File          // network namespace in which the driver was opened: the host's

	images   sync.Mutex // held while an image is mounted or searched for
	binaries *sandbox.BinaryCache

	host.Address // at which guests are received
	guests       host.Guests[*guest]
}

// Open prepares the host, finds out whether containers can be moved here, and finds the
// running guests again. It destroys what an earlier agent left incomplete. Call it in the
// host's network namespace.
func Open(ctx context.Context, c Config) (*Driver, error) {
	d := &Driver{config: c}
	d.guests.Kill, d.guests.Wipe = d.end, d.wipe
	d.Readdress(c.Address)
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
	if err := shim.Check(); err != nil {
		return err
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
	for _, dir := range []string{d.dir(""), d.imageDir(""), d.filesDir("", 0)} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return err
		}
	}
	// The kernel lists mounts by paths without symbolic links.
	if d.config.Run, err = filepath.EvalSymlinks(d.config.Run); err != nil {
		return err
	}
	d.guests.Kept.Dir = filepath.Join(d.config.Run, host.RemainsFolder)
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
		d.config.Log.Warn("containers have a slightly longer downtime when they move", "cause", err)
	}
	if d.visible, err = sandbox.ReadProcessor(); err != nil {
		return err
	}
	return d.atHost(func() (err error) {
		d.ability, err = d.criu.Probe(ctx, d.config.Run)
		return err
	})
}

// adopt takes over a guest from an earlier agent, or removes what is left of it.
func (d *Driver) adopt(ctx context.Context, id fleet.GuestID) error {
	if id.Check() != nil {
		return nil // not ours
	}
	r, err := readRecord(d.dir(id))
	if errors.Is(err, host.ErrNewer) {
		return err // the guest is not ours to touch
	}
	if err == nil && r.Complete && r.Guest == id {
		handle, err := r.Process.Watch()
		if err == nil {
			if err := r.Place.End(); err != nil { // that agent may have died before it ended this process
				return errors.Join(err, handle.Close())
			}
			g, err := d.attach(r, handle)
			if host.IsGone(err) { // its process has just ended
				d.noteEnd(id, host.Exit{}, "")
				return d.wipe(id)
			}
			if err != nil {
				return err
			}
			switch {
			case r.Target:
				if !r.Arrived {
					err = d.vacate(r)
				}
				if err == nil { // also for a guest that has arrived: its source may not have heard of it
					var t *target
					if t, err = d.ready(ctx, r); err == nil {
						err = t.expect(g)
					}
				}
			case r.Copy.saves() && (r.Copy.Suspended || r.Copy.Continued):
				err = d.abandon(ctx, g)
			case r.Copy.saves(): // prepared: Cut begins again
			case r.Copy != nil && r.Copy.Suspended && !r.Copy.Left:
				err = d.release(ctx, g)
			}
			if err != nil { // for example if its network is gone; one guest must not make the host useless to the others
				d.config.Log.Warn("a guest of an earlier agent could not be taken over", "guest", id, "cause", err)
			} else if r.Arrived {
				d.guests.Watches.Go(func() {
					d.forgetKept(g)
					d.endPostCopy(g)
				})
			}
			return nil
		}
		if !errors.Is(err, os.ErrNotExist) {
			return err
		}
		d.noteEnd(id, host.Exit{}, "") // while no agent was here
	}
	return d.wipe(id)
}

// Close releases all guests; they keep running. Calls under way end with errors.
func (d *Driver) Close() error {
	d.guests.Close((*guest).release)
	if d.network != nil {
		d.network.Close()
	}
	left, err := os.ReadDir(d.dir(""))
	return d.binaries.Close(len(left) == 0 && ignoreAbsent(err) == nil)
}

// Abilities returns what the driver can do on this host.
func (d *Driver) Abilities() fleet.Abilities {
	a := abilities(d.ability)
	a.Version, a.CPU, a.Processor = d.criu.Version, d.visible.Registers(), strings.Join(d.visible.Flags, " ")
	return a
}

// AtBest returns what the driver can do on a host that has everything.
func AtBest() fleet.Abilities {
	return abilities(criu.Ability{Lazy: true, Faults: true, Written: true})
}

// abilities are what can be done with a kernel and a CRIU of this ability.
func abilities(can criu.Ability) fleet.Abilities {
	a := fleet.Abilities{Live: true, NoPostCopy: unable(can), NoCheckpoint: unsavable(can)}
	a.PostCopy, a.Checkpoint = a.NoPostCopy == "", a.NoCheckpoint == ""
	if !can.Written {
		a.NoRounds = memory.ErrUnsupported.Error()
	}
	return a
}

// Ended returns a channel that is closed when the guest is no longer on this host. By
// then nothing of the guest is left.
func (d *Driver) Ended(id fleet.GuestID) <-chan struct{} { return d.guests.Ended(id) }

// Inspect returns the facts about every guest on this host.
func (d *Driver) Inspect(context.Context) (map[fleet.GuestID]fleet.GuestFacts, error) {
	all, err := d.guests.All()
	if err != nil {
		return nil, err
	}
	out := map[fleet.GuestID]fleet.GuestFacts{}
	for id, g := range all {
		if facts, ok := g.inspect(); ok {
			out[id] = facts
		}
	}
	return out, nil
}

// dir returns a guest's folder, or for "" the folder that holds all of them.
func (d *Driver) dir(id fleet.GuestID) string {
	return filepath.Join(d.config.Run, "containers", string(id))
}

// imageDir returns where an image is mounted, or for "" the folder that holds all of
// them.
func (d *Driver) imageDir(name string) string {
	return filepath.Join(d.config.Run, "container-images", name)
}

// sweepImages unmounts images that no guest uses and removes guest agents that no guest
// runs.
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

// here finds a guest whose Start or Receive has completed.
func (d *Driver) here(id fleet.GuestID) (*guest, error) {
	g, err := d.guests.Find(id)
	if err != nil {
		return nil, err
	}
	if g == nil || !g.Lives() {
		return nil, fleet.ErrAbsent
	}
	return g, nil
}

// atHost runs f in the host's network namespace. The agent's own may be another.
func (d *Driver) atHost(f func() error) error { return thread.In(d.network, f) }

// bandwidth returns the limit of a copy, in bytes per second; 0 means no limit.
func (d *Driver) bandwidth(l fleet.Limits) int64 {
	if l.BytesPerSecond > 0 && d.config.MaxBandwidth > 0 {
		return min(l.BytesPerSecond, d.config.MaxBandwidth)
	}
	return cmp.Or(l.BytesPerSecond, d.config.MaxBandwidth)
}

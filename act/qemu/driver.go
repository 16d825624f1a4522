// Package qemu runs guests as QEMU virtual machines and moves them while they run. Driver
// implements agent.Driver, agent.Linker and agent.Teller.
//
// The package does not know hosts, phases, placement or the job's network. Its calls can be
// repeated. Every guest is an unprivileged process in a session and a control group of its
// own, and outlives the driver. A new driver finds the guest by its folder (guest.json) and by
// asking QEMU.
//
// The tests run the drivers' contract suite with a real QEMU and a real kernel.
package qemu

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"pagurus/act/host"
	"pagurus/act/host/initrd"
	"pagurus/act/host/jail"
	"pagurus/act/qemu/qmp"
	"pagurus/fleet"
)

// Config is the driver's configuration.
type Config struct {
	Run          string                                              // folder for state that lasts until the next boot
	User         string                                              // the account that tries what QEMU can do; empty: "pagurus"
	UIDs         host.UIDs                                           // of the guests' QEMUs, one each; zero: host.UsualUIDs
	GuestAgent   string                                              // the guest agent's binary, static
	Shim         string                                              // path of pagurus-shim, which jails QEMU
	Address      netip.Addr                                          // where state is received
	Accelerator  string                                              // "kvm": without a trial boot; "tcg"; empty: the probe decides
	CPU          string                                              // the CPU that guests which start here get, as Abilities.Model says; empty: fleet.HostCPU
	Binary       string                                              // QEMU; empty: qemu-system-x86_64 from the path
	Kept         fleet.CPUSet                                        // tuned guests keep these CPUs also while they are idle: see tunedGuest.keeps
	Snapshots    int                                                 // number of snapshots kept with each image to start guests from; 0: all boot
	MaxBandwidth int64                                               // bytes a second for one copy; 0: no limit
	Cgroups      Cgroups                                             // nil: none
	OOMKills     func(fleet.GuestID) int                             // returns how many of a guest's processes the kernel killed because its memory was used up; nil: unknown
	ImageFolder  func(context.Context, fleet.Digest) (string, error) // returns the folder of an image's files
	Tap          func(fleet.Subnet, int) string                      // name of guest i's tap; nil: Subnet.TapName
	Converged    func(fleet.Limits, []fleet.Progress) (bool, error)  // whether a copy has converged, called as each pass begins; nil: nothing is copied
	ByHand       bool                                                // guests move by SendByHand, and only so
	Begin        Begin                                               // how QEMU is started; nil: in its jail. Only who measures what the jail costs has another
	Log          *slog.Logger                                        // nil: slog.Default
}

// Begin starts a guest's QEMU, whose jail is j, with the descriptors that it inherits, as jail.Start does. After an error
// no process runs.
type Begin func(shim string, j jail.Jail, log *os.File, files ...*os.File) (*jail.First, error)

// Cgroups puts each guest's processes into a control group.
type Cgroups interface {
	// Confine moves a process to the guest's group, which is held to these CPUs, so much memory and
	// so many threads.
	Confine(guest fleet.GuestID, need fleet.Resources, tasks, pid int) error
	// Swap lets the guest's memory be swapped out, as suits one that is suspended, or ends that.
	Swap(guest fleet.GuestID, on bool) error
	// Remove removes the guest's control group. It is not an error if the group does not exist.
	Remove(guest fleet.GuestID) error
}

// Driver runs the guests of one host.
type Driver struct {
	config  Config
	binary  string
	account host.Account
	packs   bool // see packs
	vhost   bool // vhost-net works here
	initrds *initrd.Store
	needs   needs
	devices atomic.Pointer[Devices] // of this host; nil: guests have none
	life    context.Context         // ends with Close
	end     context.CancelFunc

	giving  sync.Mutex   // held while a guest gets its user ID
	making  sync.RWMutex // read-locked while a guest is made, locked while the accelerator changes
	knowing sync.Mutex   // guards ability
	ability Ability

	still        still
	host.Address // where state is received
	guests       host.Guests[*guest]
}

// Open prepares the host, finds out what QEMU can do there, and finds the running guests
// again. It destroys what an earlier agent left incomplete.
func Open(ctx context.Context, c Config) (*Driver, error) {
	d := &Driver{config: c}
	d.guests.Kill, d.guests.Wipe = (*guest).kill, d.wipe
	d.Readdress(c.Address)
	d.life, d.end = context.WithCancel(context.WithoutCancel(ctx))
	if err := d.prepare(ctx); err != nil {
		d.end()
		return nil, fmt.Errorf("open the qemu driver: %w", err)
	}
	entries, err := os.ReadDir(d.dir(""))
	if err != nil {
		return nil, fmt.Errorf("open the qemu driver: %w", err)
	}
	for _, e := range entries {
		if err := d.adopt(ctx, fleet.GuestID(e.Name())); err != nil {
			d.Close()
			return nil, fmt.Errorf("open the qemu driver: %w", err)
		}
	}
	d.letFloat()
	if err := d.agree(); err != nil {
		d.Close()
		return nil, fmt.Errorf("open the qemu driver: %w", err)
	}
	return d, nil
}

func (d *Driver) prepare(ctx context.Context) (err error) {
	if os.Geteuid() != 0 {
		return errors.New("it needs root: to give guests a user and a cgroup of their own")
	}
	if d.config.Log == nil {
		d.config.Log = slog.Default()
	}
	if d.config.User == "" {
		d.config.User = "pagurus"
	}
	if d.config.UIDs == (host.UIDs{}) {
		d.config.UIDs = host.UsualUIDs
	}
	if d.config.Binary == "" {
		d.config.Binary = "qemu-system-x86_64"
	}
	if d.config.Begin == nil {
		d.config.Begin = jail.Start
	}
	if d.config.Tap == nil {
		d.config.Tap = fleet.Subnet.TapName
	}
	if d.config.Run, err = filepath.Abs(d.config.Run); err != nil {
		return err
	}
	if d.binary, err = exec.LookPath(d.config.Binary); err != nil {
		return fmt.Errorf("%w; install it with: apt-get install qemu-system-x86", err)
	}
	if d.account, err = host.FindAccount(d.config.User); err != nil {
		return err
	}
	for _, dir := range []string{d.config.Run, d.dir(""), filepath.Join(d.config.Run, "initrd")} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	// Symbolic links are resolved because QEMU is found by its working directory.
	if d.config.Run, err = filepath.EvalSymlinks(d.config.Run); err != nil {
		return err
	}
	if d.initrds, err = initrd.Open(filepath.Join(d.config.Run, "initrd")); err != nil {
		return err
	}
	if d.config.Shim == "" {
		return errors.New("pagurus-shim is not beside this program, and guests are jailed by it: install Pagurus again")
	}
	if err := jail.Supported(); err != nil {
		return err
	}
	if d.config.Accelerator == Emulation {
		d.ability.Accelerator, d.ability.Trouble = Emulation, "it is told to be, by `--accelerator emulation`"
		if d.ability.Version, err = versionOf(ctx, d.binary); err != nil {
			return err
		}
		d.ability.NoPostCopy, d.ability.NoSaving = d.tryPostCopy(ctx), d.trySaving(ctx, d.ability.Version)
		d.ability.Saves = d.ability.NoSaving == ""
	} else if d.ability, err = d.probe(ctx); err != nil {
		return err
	}
	if d.ability, err = d.withCPU(ctx, d.trial(nil), d.ability); err != nil {
		if here, _ := os.ReadDir(d.dir("")); len(here) == 0 { // guests that run here need their driver all the same
			return err
		}
		d.config.Log.Warn("virtual machines do not start here until this is mended", "cause", err)
	}
	d.guests.Kept.Dir = filepath.Join(d.config.Run, host.RemainsFolder)
	d.vhost = tryVhost(vhostDevice)
	d.packs = packs(d.binary, d.ability.Version)
	return nil
}

// adopt takes over a guest from an earlier agent, or removes its remains.
func (d *Driver) adopt(ctx context.Context, id fleet.GuestID) error {
	return host.Adopt(&d.guests, d.dir(id), func(r record, handle *os.File) error {
		g, err := d.attach(r, handle)
		if err == nil {
			d.holdOn(g)
			d.listenOn(ctx, g)
			d.holdCut(g)
			d.pairOn(g)
		}
		return err
	}, func() { d.noteEnd(id, host.Exit{}, "") })
}

// Close releases all guests; they keep running. Calls in progress end with errors.
func (d *Driver) Close() error {
	d.end()
	d.guests.Close((*guest).release)
	return nil
}

// Abilities returns what the driver can do on this host.
func (d *Driver) Abilities() fleet.Abilities {
	now := d.able()
	can := abilities(now, d.packs, d.vhost)
	if can.Accelerator == Hardware {
		can.Model, can.Lacks = cmp.Or(d.config.CPU, fleet.HostCPU), now.lacks
	}
	return can
}

// AtBest returns what the driver can do with an accelerator on a host that has everything.
func AtBest(accelerator string) fleet.Abilities {
	const packing, vhost = true, true
	return abilities(Ability{Accelerator: accelerator, Version: newestTried, Saves: true}, packing, vhost)
}

// newestTried is the newest QEMU with which guests were moved.
const newestTried = "10.0"

// abilities are what can be done with a QEMU of this ability: packing: it sends memory compressed; vhost:
// the kernel has vhost-net.
func abilities(can Ability, packing, vhost bool) fleet.Abilities {
	return postCopy(can, fleet.Abilities{
		Live: true, Accelerator: can.Accelerator, Version: can.Version, CPU: seenCPU(can), Emulated: can.Trouble,
		Checkpoint: can.Saves, NoCheckpoint: can.NoSaving,
		Compress: packing, VhostNet: vhost && can.Accelerator == Hardware,
	})
}

// Slow returns, for people to read, why guests are emulated. It is empty if they are not.
func (d *Driver) Slow() string { return d.able().Trouble }

// Ended returns a channel that is closed when the guest is no longer on this host. By then
// nothing of the guest is left.
func (d *Driver) Ended(id fleet.GuestID) <-chan struct{} { return d.guests.Ended(id) }

// inspectLimit: a QEMU that writes a guest's last memory does not answer.
const inspectLimit = time.Second

// Inspect returns the facts about every guest on this host. If a QEMU does not answer, they
// are the last ones that are known.
func (d *Driver) Inspect(ctx context.Context) (map[fleet.GuestID]fleet.GuestFacts, error) {
	ctx, cancel := context.WithTimeout(ctx, inspectLimit)
	defer cancel()
	var wait sync.WaitGroup
	var mu sync.Mutex
	out := map[fleet.GuestID]fleet.GuestFacts{}
	all, err := d.guests.All()
	if err != nil {
		return nil, err
	}
	for id, g := range all {
		wait.Go(func() {
			facts, ok := g.inspect(ctx)
			mu.Lock()
			defer mu.Unlock()
			if ok {
				out[id] = facts
			}
		})
	}
	wait.Wait()
	return out, nil
}

// dir is a guest's folder; for "" the parent of them all.
func (d *Driver) dir(id fleet.GuestID) string {
	return filepath.Join(d.config.Run, "guests", string(id))
}

// here finds a guest that was completely started or received.
func (d *Driver) here(ctx context.Context, id fleet.GuestID) (*guest, *qmp.Client, error) {
	g, _ := d.guests.Find(id)
	if g == nil || !g.Lives() {
		return nil, nil, fleet.ErrAbsent
	}
	q, err := g.monitor(ctx)
	if err != nil && g.Dead() {
		err = fleet.ErrAbsent
	}
	return g, q, err
}

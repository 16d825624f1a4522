package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"

	"pagurus/act/cgroup"
	"pagurus/act/container"
	"pagurus/act/container/sandbox"
	"pagurus/act/container/shim"
	"pagurus/act/daemon"
	"pagurus/act/fence"
	"pagurus/act/gateway"
	"pagurus/act/guestlink"
	acthost "pagurus/act/host"
	"pagurus/act/image"
	"pagurus/act/isolate"
	"pagurus/act/machine"
	"pagurus/act/numa"
	"pagurus/act/overlay"
	"pagurus/act/owner"
	"pagurus/act/qemu"
	"pagurus/act/share"
	"pagurus/act/siterelay"
	"pagurus/act/wireguard"
	"pagurus/act/xen"
	"pagurus/cmd/roles"
	"pagurus/decide/cost"
	"pagurus/fleet"
	"pagurus/internal/fault"
	"pagurus/serve/agent"
	"pagurus/serve/monitor"
	"pagurus/serve/wire"
)

// Only here drivers meet the interfaces that they satisfy.
var (
	_ agent.Driver        = (*qemu.Driver)(nil)
	_ agent.Linker        = (*qemu.Driver)(nil)
	_ agent.Teller        = (*qemu.Driver)(nil)
	_ agent.Profiler      = (*qemu.Driver)(nil)
	_ agent.PostCopier    = (*qemu.Driver)(nil)
	_ agent.Reclaimer     = (*qemu.Driver)(nil)
	_ agent.Checkpointer  = (*qemu.Driver)(nil)
	_ agent.Driver        = (*container.Driver)(nil)
	_ agent.Linker        = (*container.Driver)(nil)
	_ agent.Teller        = (*container.Driver)(nil)
	_ agent.Profiler      = (*container.Driver)(nil)
	_ agent.Examiner      = (*container.Driver)(nil)
	_ agent.PostCopier    = (*container.Driver)(nil)
	_ agent.Reclaimer     = (*container.Driver)(nil)
	_ agent.ResumeTimer   = (*container.Driver)(nil)
	_ agent.Checkpointer  = (*container.Driver)(nil)
	_ agent.Driver        = (*xen.Driver)(nil)
	_ agent.Linker        = (*xen.Driver)(nil)
	_ agent.Teller        = (*xen.Driver)(nil)
	_ agent.Reclaimer     = (*xen.Driver)(nil)
	_ agent.Overlay       = (*overlay.Overlay)(nil)
	_ agent.Encryption    = (*encryption)(nil)
	_ agent.Shares        = (*share.Shares)(nil)
	_ agent.Gateways      = (*gateway.Gateways)(nil)
	_ agent.Clients       = (*share.Clients)(nil)
	_ agent.Images        = (*image.Store)(nil)
	_ agent.Scratcher     = (*container.Driver)(nil)
	_ agent.Lease         = (*fence.Fence)(nil)
	_ agent.GuestAgent    = (*guestlink.Client)(nil)
	_ monitor.Sensors     = (*owner.Sensors)(nil)
	_ agent.IsolationHost = (*isolate.Host)(nil)
	_ agent.Vault         = vaultOf{}
)

// memoryReserve is what a host keeps for itself, but at most half of its memory, unless a
// flag sets the guests' memory.
const memoryReserve = 1 << 30

// host is everything of one host that an agent controls.
type host struct {
	flags        roles.Agent
	machine      machine.Machine
	speed        *fleet.Speed // as the agent began
	vm           *qemu.Driver
	vmErr        string // why vm is nil
	container    *container.Driver
	processor    string // the CPU features that programs of containers can see
	containerErr string // why container is nil
	xen          *xen.Driver
	xenErr       string // why xen is nil on a Xen host; empty: it is not, or this is none
	room         int64  // what a small host has for guests, in bytes
	unlimited    string // why guests' memory has no limit here; empty: it has
	network      *overlay.Overlay
	guard        *encryption
	shares       *share.Shares
	gates        *gateway.Gateways
	images       *image.Store
	vaults       *vaults
	groups       *cgroup.Groups
	sensors      *owner.Sensors
	clients      *share.Clients
	noClient     string // why this host's kernel cannot mount jobs' files
	common       *sharedWatch
	lock         *daemon.Lock
	fence        *fence.Fence
	log          *slog.Logger
	made         numa.Reader
	devices      machine.DeviceReader
	power        *machine.PowerMeter

	in    acthost.Address   // where guests and checkpoints are received; not valid: at
	calls func() netip.Addr // from where the controller is called; nil: the address is fixed
	mu    sync.Mutex
	at    netip.Addr // the host's address; unless traffic is encrypted, guests are received and tunnels end there
}

// openHost opens the host's drivers. A kind of guest that cannot run here is not an error:
// the host reports it to the controller.
func openHost(ctx context.Context, f roles.Agent, log *slog.Logger) (opened *host, err error) {
	h := &host{flags: f, power: machine.NewPowerMeter(), log: log} // not the result, which is nil after an error
	h.made.First = f.FirstCore
	for _, dir := range []string{f.RunDir, f.StateDir} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return nil, fmt.Errorf("making the host's folders: %w", err)
		}
	}
	if h.lock, err = daemon.HoldLock(filepath.Join(f.RunDir, "agent.lock"), "an agent"); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, h.close())
		}
	}()
	address, err := netip.ParseAddr(f.Address)
	if err != nil {
		return nil, fmt.Errorf("--address %q is not an IP address", f.Address)
	}
	h.at = address
	if h.machine, err = machine.Facts(); err != nil {
		return nil, err
	}
	h.speed = machine.Speed(address)
	h.made.May = h.usable
	if h.images, err = image.Open(f.ImageDir); err != nil {
		return nil, err
	}
	h.vaults = openVaults(f, log)
	if err = h.openGroups(); err != nil {
		return nil, err
	}
	if err = h.openNetwork(address); err != nil {
		return nil, err
	}
	if h.shares, err = share.Open(share.Config{Run: f.RunDir, State: f.StateDir, Shim: shim.Program()}); err != nil {
		return nil, err
	}
	if h.clients, err = share.OpenClients(f.RunDir); err != nil {
		return nil, err
	}
	h.noClient, h.common = machine.NoNFSClient(), watchShared(f.Shared)
	guest, err := roles.Beside(roles.GuestProgram)
	if err != nil {
		return nil, err
	}
	ctx, stop := context.WithTimeout(ctx, roles.OpenLimit)
	defer stop()
	if h.openDomains(ctx, guest, address, log) {
		return h, nil
	}
	if err := grantUserfault(); err != nil {
		log.Warn("guests cannot come here by post-copy", "cause", err)
	}
	if err := h.openContainers(ctx, guest, address, log); err != nil {
		h.containerErr = err.Error()
		log.Warn("no containers here", "cause", err)
	}
	h.openMachines(ctx, guest, address, log)
	h.measureRoom(log)
	return h, nil
}

// openMachines opens the driver of virtual machines. After an error, or if the agent shall be small, there is none.
func (h *host) openMachines(ctx context.Context, guest string, address netip.Addr, log *slog.Logger) {
	f := h.flags
	if f.Small {
		h.vmErr = "its agent runs containers only: " + fleet.SmallFlag + " = true"
		return
	}
	vm, err := qemu.Open(ctx, qemu.Config{
		Run: f.RunDir, UIDs: f.UIDs, Shim: shim.Program(), GuestAgent: guest, Address: address, Accelerator: fleet.AcceleratorOf(f.Accelerator), CPU: f.CPU, Cgroups: h.groups, OOMKills: h.groups.OOMKills,
		Snapshots: f.Snapshots, MaxBandwidth: f.Bandwidth, Kept: h.kept(log),
		ImageFolder: h.images.Ensure, Converged: agent.Converged, Log: log,
	})
	if err != nil {
		h.vmErr = err.Error()
		log.Warn("no vm guests here", "cause", err)
		return
	}
	h.vm = vm
}

// kept are the CPUs that tuned guests keep while these are idle.
func (h *host) kept(log *slog.Logger) fleet.CPUSet {
	if !h.flags.Exitless {
		return nil
	}
	if b := (isolate.Boot{}).State(); b != nil && len(b.Tickless) > 0 {
		return b.Tickless
	}
	log.Warn("--exitless has no effect: this kernel has no tickless CPUs; prepare them with pagurus isolate --boot, and boot again")
	return nil
}

// usable are the CPUs that guests may use now: those that this process may use, and the
// isolated ones, which it may not. If the isolated ones are unknown, isolation reports that.
func (h *host) usable() fleet.CPUSet {
	own, err := machine.CPUs()
	if err != nil {
		own = h.machine.CPUs
	}
	kept, _ := h.isolation().Now()
	all := append(kept.Minus(own), own...)
	slices.Sort(all)
	return all
}

// openContainers opens the driver of containers. After an error there is none.
func (h *host) openContainers(ctx context.Context, guest string, address netip.Addr, log *slog.Logger) error {
	if err := fault.Point("host.containers.before-open"); err != nil {
		return err
	}
	p, err := sandbox.ReadProcessor()
	if err != nil {
		return err
	}
	h.processor = strings.Join(p.Flags, " ")
	h.container, err = container.Open(ctx, container.Config{
		Run: h.flags.RunDir, GuestAgent: guest, Address: address, Cgroups: h.groups, MaxBandwidth: h.flags.Bandwidth,
		ImageFolder: h.images.Ensure, Files: h.files, Converged: agent.Converged, OOMKills: h.groups.OOMKills, TasksRefused: h.groups.TasksRefused, Swap: h.groups.Swap, Log: log,
	})
	return err
}

// openNetwork opens what leads to other hosts.
func (h *host) openNetwork(address netip.Addr) (err error) {
	if h.network, err = overlay.Open(overlay.Config{Host: fleet.HostID(h.flags.Name), Address: address, Card: h.flags.Card}); err != nil {
		return err
	}
	if h.guard, err = openEncryption(h.flags, h.log, h.readdress); err != nil {
		return err
	}
	h.gates, err = gateway.Open(gateway.Config{
		Run: h.flags.RunDir, Program: shim.Daemon(), UIDs: h.flags.UIDs, Allowed: h.flags.Internet, BytesPerSecond: h.flags.InternetBandwidth,
	})
	return err
}

// openGroups opens the control groups that guests share, what stops the guests when the lease ends, and the owner's sensors.
func (h *host) openGroups() (err error) {
	f := h.flags
	if h.groups, err = cgroup.Open(f.Group, f.CPUs); err != nil {
		return err
	}
	if h.unlimited = cgroup.Unlimited(); h.unlimited != "" {
		h.log.Warn("guests' memory is not limited here", "cause", h.unlimited)
	}
	if h.fence, err = fence.Open(fence.Config{Run: f.RunDir, Group: h.groups.Folder(), Program: shim.Program(), Length: f.Lease, Log: h.log}); err != nil {
		return err
	}
	h.sensors, err = owner.Open(owner.Config{
		Scope: owner.Scope(f.OwnerCPU), Group: f.Group, Used: h.groups.Used, Run: f.RunDir, Programs: ours(),
	})
	return err
}

// ours are Pagurus's programs, whose CPU use is not the owner's.
func ours() []string {
	var all []string
	if shim.Check() == nil {
		all = append(all, shim.Program(), shim.Daemon())
	}
	for _, name := range []string{roles.ClientProgram, roles.AgentProgram, roles.ControllerProgram} {
		if path, err := roles.Beside(name); err == nil { // not every machine has every program
			all = append(all, path)
		}
	}
	return all
}

// close closes everything; guests, networks and shares stay.
func (h *host) close() error {
	var errs []error
	for _, d := range h.drivers() {
		errs = append(errs, d.Close())
	}
	if h.common != nil {
		h.common.close()
	}
	if h.vaults != nil {
		errs = append(errs, h.vaults.close())
	}
	if h.shares != nil {
		errs = append(errs, h.shares.Close())
	}
	if h.network != nil {
		errs = append(errs, h.network.Close())
	}
	if h.guard != nil {
		errs = append(errs, h.guard.close())
	}
	if h.sensors != nil {
		errs = append(errs, h.sensors.Close())
	}
	if h.lock != nil {
		errs = append(errs, h.lock.Release())
	}
	return errors.Join(errs...)
}

// agent makes the host's agent.
func (h *host) agent(client *wire.Client, alive func(), log *slog.Logger) *agent.Agent {
	drivers := map[fleet.Kind]agent.Driver{}
	for kind, d := range h.drivers() {
		drivers[kind] = d
	}
	h.images.FetchWith(client.FetchImageFile)
	h.images.BoundFetched(h.roomForImages, roles.DiskReserve)
	held := classes{h.groups, h.capacity().CPUs, h.xen}
	a := agent.New(agent.Config{
		Host: fleet.HostID(h.flags.Name), Run: h.flags.RunDir, Drivers: drivers,
		GuestAgent: func(id fleet.GuestID, l agent.Linker) agent.GuestAgent {
			return guestlink.New(func(ctx context.Context) (io.ReadWriteCloser, error) { return l.Link(ctx, id) })
		},
		Owner: monitor.New(monitor.Config{
			Sensors: h.sensors, Guests: held, CPUs: len(h.usable()), File: filepath.Join(h.flags.RunDir, ownerFile), LocalFile: filepath.Join(h.flags.RunDir, ownerLocalFile), Log: log,
		}),
		OwnerSocket: agent.OwnerSocket{Path: filepath.Join(h.flags.RunDir, ownerSocket), Owns: h.owns},
		Lease:       h.fence, Classes: held, Slicer: held, Slices: h.slicePolicy(h.xen != nil), Isolation: h.keepIsolated(log),
		Health: monitor.NewHealth(monitor.HealthConfig{
			Policy: h.flags.Health, Counters: machine.Counters, Check: h.flags.HealthCheck, Every: h.flags.HealthEvery,
			File: filepath.Join(h.flags.RunDir, healthFile), Log: log,
		}),
		Notices:    h.watchNotices(log),
		Encryption: h.guard, Overlay: h.network, Shares: h.shares, Gateways: h.gates, Clients: h.clients, Images: h.images, Vaults: h.vaults.forAgent(client, jobFiles{h}, &h.in), Controller: agent.Remote(client),
		Facts: h.facts, Drops: cost.Drops, Scratch: h.flags.Scratch, Limit: h.flags.CPUs, Alive: alive, Log: log,
	})
	h.sensors.Holding(a.Held)
	return a
}

// healthFile keeps what was counted of the machine's health since it was booted.
const healthFile = "health.json"

// isolationFile records the machine's settings before CPUs were isolated.
const isolationFile = "isolation.log"

func (h *host) isolation() *isolate.Host {
	return isolate.New(isolate.Config{UndoLog: filepath.Join(h.flags.RunDir, isolationFile), Group: h.flags.Group})
}

// keepIsolated makes what isolates CPUs, if this host may isolate CPUs.
func (h *host) keepIsolated(log *slog.Logger) *agent.Isolation {
	if why := isolate.Foreign(); why != "" {
		return agent.NewIsolation(nil, why, log)
	}
	return agent.NewIsolation(h.isolation(), "", log)
}

// facts are the facts that the agent does not change.
func (h *host) facts() fleet.Facts {
	f := fleet.Facts{
		Version: version, Protocol: fleet.Protocol(), Machine: h.machine.ID, Address: h.address().String(), Boot: machine.Boot(), Site: h.flags.Site,
		Capacity:  h.capacity(),
		Abilities: map[fleet.Kind]fleet.Abilities{fleet.VM: {Trouble: h.vmErr}, fleet.Container: {Trouble: h.containerErr}},
		Topology:  h.made.Last(), Speed: h.speed, WireGuard: h.guard.facts(), Internet: h.gates.Outlet(), Power: h.power.Power(), Boots: isolate.Boot{}.State(), Devices: h.devices.Last(),
	}
	var troubles []string
	f.Shared, troubles = h.common.last()
	f.Troubles = append(append(h.shares.Troubles(), troubles...), h.vaults.troubles()...)
	h.mu.Lock()
	f.Vault = h.vaults.facts(h.in.Here(), h.at)
	h.mu.Unlock()
	if h.unlimited != "" {
		f.Troubles = append(f.Troubles, h.unlimited)
	}
	if h.vm != nil {
		f.Abilities[fleet.VM] = h.vm.Abilities()
	}
	if h.container != nil {
		able := withFiles(h.container.Abilities(), h.noClient)
		able.Processor = h.processor
		f.Abilities[fleet.Container] = able
	}
	if h.xen != nil {
		f.Abilities[fleet.Xen] = h.xen.Abilities()
	} else if h.xenErr != "" {
		f.Abilities[fleet.Xen] = fleet.Abilities{Trouble: h.xenErr}
	}
	return f
}

// withFiles adds whether guests have files of other machines, which their host mounts; noClient: why it cannot.
func withFiles(a fleet.Abilities, noClient string) fleet.Abilities {
	a.Files, a.NoFiles = noClient == "", noClient
	return a
}

// kept are the files in a host's run folder that the next agent needs.
var kept = []string{"guests", "containers", "domains", "ended", "container-images", "container-agents", "container-files", share.ClientsFolder, "initrd", "xen-initrd", "shares", "ledger", "cluster", "accelerator.json", ownerFile, ownerLocalFile, wireguard.LogFile, siterelay.LogFile}

// sweep removes everything of Pagurus from the host: guests, file servers, networks, control
// groups, and the files about its cluster. After an error it goes on, but keeps those files.
func (h *host) sweep(ctx context.Context) error {
	var errs []error
	for _, d := range h.drivers() {
		guests, err := d.Inspect(ctx)
		errs = append(errs, err)
		for id := range guests {
			errs = append(errs, d.Stop(ctx, id))
		}
	}
	errs = append(errs, h.fence.Remove(), returnFaults(), h.isolation().Off())
	if err := errors.Join(append(errs, h.clients.KeepClients(ctx, nil), h.shares.Apply(ctx, nil), h.gates.Remove(), h.network.Clear(ctx), h.guard.sweep(), h.groups.Close())...); err != nil {
		return err
	}
	errs = append(errs, discard(filepath.Join(h.flags.StateDir, stagingFolder)))
	for _, name := range kept {
		errs = append(errs, discard(filepath.Join(h.flags.RunDir, name)))
	}
	return errors.Join(errs...)
}

// discard removes a folder or file. A mount point stays, empty.
func discard(path string) error {
	err := os.RemoveAll(path)
	if !errors.Is(err, syscall.EBUSY) {
		return err
	}
	if left, e := os.ReadDir(path); e != nil || len(left) > 0 {
		return err
	}
	return nil
}

// grantUserfault allows post-copy here: QEMU, which is not root, may then handle guests'
// page faults. It lasts until the host is swept or reboots.
func grantUserfault() error {
	gid, err := machine.GuestGroup()
	if err == nil {
		err = qemu.GrantUserfault(gid)
	}
	return err
}

// returnFaults undoes grantUserfault.
func returnFaults() error {
	gid, err := machine.GuestGroup()
	if err != nil {
		return nil // without the group nothing was granted
	}
	return qemu.RevokeUserfault(gid)
}

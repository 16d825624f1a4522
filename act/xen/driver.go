// Package xen runs guests as domains of a Xen host (PVH: a Linux kernel of their own, without a QEMU), and moves them while they run. Driver
// implements agent.Driver, agent.Linker, agent.Teller and agent.Reclaimer.
//
// Each guest has a warden, a process in dom0 that makes its domain by xl and has its consoles (warden.go). The agent asks it over a
// socket. A warden outlives the agent and ends with its domain, and the domain is destroyed when its warden has ended, so a domain
// without a warden is never taken for a guest. outgoing.go and receive.go carry libxl's stream to another
// host; saver.go splits it into a copy and a switch.
//
// The package does not know hosts, phases or placement. Its tests run the drivers' contract suite on an emulated Xen host.
package xen

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"time"

	"pagurus/act/host"
	"pagurus/act/host/initrd"
	"pagurus/act/host/port"
	"pagurus/fleet"
)

// Config is the driver's configuration.
type Config struct {
	Run          string                                              // folder for state that lasts until the next boot
	GuestAgent   string                                              // the guest agent's binary, static
	Shim         string                                              // path of pagurus-daemon, which becomes the wardens
	Address      netip.Addr                                          // where guests are received
	Prefix       string                                              // that the names of domains begin with; empty: "pagurus-"
	MaxBandwidth int64                                               // bytes a second for one copy; 0: no limit
	ImageFolder  func(context.Context, fleet.Digest) (string, error) // returns the folder of an image's files
	Port         func(fleet.Subnet, int) Port                        // a guest's place on its job's network; nil: the one that the overlay makes
	Converged    func(fleet.Limits, []fleet.Progress) (bool, error)  // whether a copy may switch; called when each round begins; nil: nothing is copied
	Slice        time.Duration                                       // of Xen's scheduler, for all domains; 0: as it is
	Log          *slog.Logger                                        // nil: slog.Default
}

// Port is where a guest's link is plugged in.
type Port struct {
	Peer      string `json:"peer"`      // the link in dom0 whose other end is a port of the job's bridge
	Interface string `json:"interface"` // the name of the guest's link in dom0
	MAC       string `json:"mac"`       // in the guest

	Place *port.Port `json:"place,omitempty"` // the port, where frames wait for a guest that moves here; nil: they do not
}

// OverlayPort is the place that the overlay makes.
func OverlayPort(s fleet.Subnet, i int) Port {
	return Port{Peer: s.PortPeerName(i), Interface: s.VifName(i), MAC: s.GuestMAC(i), Place: &port.Port{Subnet: s, Index: i}}
}

// Driver runs the guests of one host.
type Driver struct {
	config  Config
	tools   tools
	about   about
	initrds *initrd.Store
	shares  shares
	life    context.Context // ends with Close
	closes  context.CancelFunc

	host.Address // where guests are received
	guests       host.Guests[*guest]

	listing sync.Mutex
	listed  []domain
	asked   time.Time
}

// Open prepares the host and finds the running guests again. It destroys what an earlier agent left incomplete. On a host
// without Xen it says so.
func Open(ctx context.Context, c Config) (*Driver, error) {
	d := &Driver{config: c}
	d.guests.Kill, d.guests.Wipe = d.end, d.wipe
	d.Readdress(c.Address)
	d.life, d.closes = context.WithCancel(context.WithoutCancel(ctx))
	if err := d.prepare(ctx); err != nil {
		d.closes()
		return nil, fmt.Errorf("open the xen driver: %w", err)
	}
	entries, err := os.ReadDir(d.dir(""))
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open the xen driver: %w", err), d.Close())
	}
	for _, e := range entries {
		if err := d.adopt(fleet.GuestID(e.Name())); err != nil {
			return nil, errors.Join(fmt.Errorf("open the xen driver: %w", err), d.Close())
		}
	}
	return d, nil
}

func (d *Driver) prepare(ctx context.Context) (err error) {
	if os.Geteuid() != 0 {
		return errors.New("it needs root: to make domains")
	}
	if d.tools, err = findTools(); err != nil {
		return err
	}
	if d.config.Shim == "" {
		return errors.New("pagurus-daemon is not beside this program, and it keeps guests: install Pagurus again")
	}
	if d.config.Log == nil {
		d.config.Log = slog.Default()
	}
	if d.config.Prefix == "" {
		d.config.Prefix = "pagurus-"
	}
	if d.config.Port == nil {
		d.config.Port = OverlayPort
	}
	if d.config.Run, err = filepath.Abs(d.config.Run); err != nil {
		return err
	}
	for _, dir := range []string{d.dir(""), filepath.Join(d.config.Run, "xen-initrd")} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return err
		}
	}
	if d.config.Run, err = filepath.EvalSymlinks(d.config.Run); err != nil { // a guest's processes are found by their folder
		return err
	}
	if d.initrds, err = initrd.Open(filepath.Join(d.config.Run, "xen-initrd")); err != nil {
		return err
	}
	d.guests.Kept.Dir = filepath.Join(d.config.Run, host.RemainsFolder)
	if d.about, err = d.tools.about(ctx); err == nil {
		if err := d.tools.favourFirst(ctx); err != nil { // as with a scheduler that has no weights
			d.config.Log.Warn("the first domain has no more weight than guests", "cause", err)
		}
	}
	if err == nil && d.config.Slice > 0 {
		err, d.shares.slice = d.tools.slice(ctx, d.config.Slice), d.config.Slice
	}
	return err
}

// adopt takes over a guest from an earlier agent, or removes its remains.
func (d *Driver) adopt(id fleet.GuestID) error {
	return host.Adopt(&d.guests, d.dir(id), func(r record, handle *os.File) error {
		_, err := d.attach(r, handle)
		return err
	}, func() { d.noteEnd(id, host.Exit{}) })
}

// Close releases all guests; they keep running. Calls in progress end with errors.
func (d *Driver) Close() error {
	d.closes()
	d.guests.Close((*guest).release)
	return nil
}

// Abilities returns what the driver can do on this host.
func (d *Driver) Abilities() fleet.Abilities {
	a := AtBest()
	a.Version, a.CPU = d.about.version, d.about.cpu
	return a
}

// AtBest returns what the driver can do on every Xen host, as agents open it.
func AtBest() fleet.Abilities {
	return fleet.Abilities{
		Live:         true,
		NoPostCopy:   "Xen's tools cannot run a guest whose memory is still at another host",
		NoCheckpoint: "Xen's tools stop a guest for as long as all of its memory takes to be written",
	}
}

// Ended returns a channel that is closed when the guest is no longer on this host. By then nothing of the guest is left.
func (d *Driver) Ended(id fleet.GuestID) <-chan struct{} { return d.guests.Ended(id) }

// dir is a guest's folder; for "" the parent of them all.
func (d *Driver) dir(id fleet.GuestID) string {
	return filepath.Join(d.config.Run, "domains", string(id))
}

// domain is the name of a guest's domain.
func (d *Driver) domain(id fleet.GuestID) string { return d.config.Prefix + string(id) }

// here finds a guest that was completely started or received.
func (d *Driver) here(id fleet.GuestID) (*guest, error) {
	g, err := d.guests.Find(id)
	if err != nil {
		return nil, err
	}
	if g != nil && g.Dead() {
		return nil, g.absent(d.life)
	}
	if g == nil || !g.Lives() {
		return nil, fleet.ErrAbsent
	}
	return g, nil
}

// listFor is how long an answer of xl list counts: it takes a tenth of a second of processor time.
const listFor = 300 * time.Millisecond

// listLimit is how long xl list may take: it waits for xenstored.
const listLimit = 30 * time.Second

// list gives all domains, as they were a moment ago.
func (d *Driver) list(ctx context.Context) ([]domain, error) {
	d.listing.Lock()
	defer d.listing.Unlock()
	if time.Since(d.asked) < listFor {
		return d.listed, nil
	}
	ctx, stop := context.WithTimeout(ctx, listLimit)
	defer stop()
	all, err := d.tools.list(ctx)
	if err == nil {
		d.listed, d.asked = all, time.Now()
	}
	return all, err
}

// Inspect returns the facts about every guest on this host.
func (d *Driver) Inspect(ctx context.Context) (map[fleet.GuestID]fleet.GuestFacts, error) {
	all, err := d.guests.All()
	if err != nil {
		return nil, err
	}
	var domains []domain
	if len(all) > 0 {
		if domains, err = d.list(ctx); err != nil {
			return nil, fmt.Errorf("look at the guests: %w", err)
		}
	}
	out := map[fleet.GuestID]fleet.GuestFacts{}
	for id, g := range all {
		if facts, ok := g.inspect(ctx, domains, d.domain(id)); ok {
			out[id] = facts
		}
	}
	return out, nil
}

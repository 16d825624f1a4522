// Package overlay makes the kernel's links, forwarding tables and neighbour tables match
// the networks of the jobs on this host. Each network has a bridge, a VXLAN tunnel to the
// other hosts, a TAP link for each virtual machine, a pair of links for each container,
// and one to the job's file server. Nothing is learnt or flooded: the controller provides
// all addresses. No frame of a guest reaches the host itself or another job, and none comes from a host without a part
// of the job (gate.go).
//
// It must not know why a network is as it is, how a guest runs, or when it moves: callers
// say when to forward frames. It works in the network namespace in which it is opened.
// Its tests use the kernel, with namespaces as hosts.
package overlay

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"pagurus/fleet"
)

// DefaultPort is VXLAN's UDP port (RFC 7348).
const DefaultPort = 4789

// Config identifies this host.
type Config struct {
	Host    fleet.HostID // endpoints with this host are local
	Address netip.Addr   // where this host's tunnels end; one that is link-local has its link as its zone
	Port    uint16       // UDP port of the tunnels; 0: DefaultPort
	Card    string       // the interface whose VLANs may be jobs' networks; empty: none

	led map[ledFrames]bool // those that virtual functions of the card have; read before each change
}

// ledFrames are those that a card leads to a virtual function.
type ledFrames struct {
	mac  string
	vlan uint16
}

// Overlay is one host's part of the jobs' networks.
type Overlay struct {
	config   Config
	mu       sync.Mutex
	kernel   *kernel
	networks []fleet.Network // that were applied last
	applied  bool            // some were
}

// Open connects to the kernel. It changes nothing.
func Open(c Config) (*Overlay, error) {
	if c.Port == 0 {
		c.Port = DefaultPort
	}
	if c.Host == "" || !usable(c.Address) {
		return nil, fmt.Errorf("an overlay needs a host's name and address, not %q and %q", c.Host, c.Address)
	}
	k, err := openKernel()
	if err != nil {
		return nil, err
	}
	return &Overlay{config: c, kernel: k}, nil
}

// Apply makes the kernel's tables match the networks, and removes all others. A repeated
// call changes nothing. After an error everything possible is done, and a later Apply
// does the rest.
func (o *Overlay) Apply(ctx context.Context, networks []fleet.Network) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.networks, o.applied = networks, true
	return o.apply(ctx)
}

// Steered has this host's own frames for guests go by the card or by the bridge's ports, as the card's virtual functions have the guests' addresses
// now: a guest takes none from its port while it uses a function. Before the first Apply, and after an error, the next Apply does it.
func (o *Overlay) Steered(ctx context.Context) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.applied { // what an earlier agent made stays
		return nil
	}
	return o.apply(ctx)
}

// apply makes the networks that were asked for last. o.mu is held.
func (o *Overlay) apply(ctx context.Context) error {
	networks := o.networks
	var unread error
	if slices.ContainsFunc(networks, func(n fleet.Network) bool { return n.VLAN != 0 }) && o.config.Card != "" {
		led, err := o.kernel.led(o.config.Card)
		if unread = err; err == nil { // else as it was: other networks must not wait for a card
			o.config.led = led
		}
	}
	want, wrong := Want(o.config, networks)
	wrong = errors.Join(unread, wrong)
	if len(want.Links) > 0 {
		wrong = errors.Join(wrong, o.kernel.untrack(o.config.Port)) // before there are frames
	}
	return errors.Join(wrong, o.applyState(ctx, want))
}

// usable reports whether tunnels can end at an address. Inside WireGuard it is a link-local one: the
// kernel takes frames for it from that link alone (VXLAN_F_IPV6_LINKLOCAL in the kernel's
// drivers/net/vxlan). In clear it is any other of either family.
func usable(a netip.Addr) bool {
	return a.IsValid() && !a.Is4In6() && (a.Is4() || a.IsLinkLocalUnicast() == (a.Zone() != ""))
}

// Readdress sets this host's address. The next Apply makes the tunnels again, from there.
func (o *Overlay) Readdress(to netip.Addr) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.config.Address = to
}

// taken says what to do if another program has the tunnels' port, or the kernel has no VLANs.
func (o *Overlay) taken(c Change, err error) error {
	if c.Verb == addLink && c.Link.Kind == vlanKind && errors.Is(err, unix.EOPNOTSUPP) {
		return fmt.Errorf("this kernel has no VLANs, which are its module 8021q: %w", err)
	}
	if c.Link.Kind != tunnelKind || !errors.Is(err, unix.EADDRINUSE) {
		return err
	}
	return fmt.Errorf("UDP port %d is taken (%w): `ss -ulnp sport = :%d` says by which program, `ip -d link show type vxlan` by which link; end it, guests here have no network until then", o.config.Port, err, o.config.Port)
}

// Clear removes everything of Pagurus from this host's network.
func (o *Overlay) Clear(ctx context.Context) error {
	err := o.Apply(ctx, nil)
	o.mu.Lock()
	defer o.mu.Unlock()
	return errors.Join(err, o.kernel.track())
}

// Read returns the kernel's present state.
func (o *Overlay) Read() (State, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.kernel.read(o.config.Address.Zone())
}

// Close leaves the networks in place for the next Open.
func (o *Overlay) Close() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.kernel.close()
}

// settlings is how often the wanted and the actual state are compared. One pass is
// enough; the second is for links that disappeared meanwhile, such as those of a file
// server that died.
const settlings = 3

func (o *Overlay) applyState(ctx context.Context, want State) error {
	var failed []error
	for range settlings {
		have, err := o.kernel.read(o.config.Address.Zone())
		if err != nil {
			return err
		}
		changes := Diff(have, want)
		if len(changes) == 0 {
			return nil
		}
		failed = nil
		open := false // the link to other hosts, for anyone
		for _, c := range changes {
			if err := ctx.Err(); err != nil {
				return fmt.Errorf("setting up jobs' networks: %w", err)
			}
			if open && c.Link.Kind == tunnelKind {
				continue
			}
			if err := o.kernel.apply(c); err != nil {
				failed = append(failed, fmt.Errorf("%s: %w", c, o.taken(c, err)))
				open = open || c.Verb == setGateIn
			}
		}
	}
	have, err := o.kernel.read(o.config.Address.Zone())
	if err != nil {
		return err
	}
	if rest := Diff(have, want); len(rest) > 0 && len(failed) == 0 {
		return fmt.Errorf("jobs' networks do not become as wanted: %d changes remain, the first: %s", len(rest), rest[0])
	}
	return errors.Join(failed...)
}

package wireguard

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	"golang.zx2c4.com/wireguard/wgctrl"
	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"pagurus/fleet"
)

// keepEvery is how often something is sent to a peer behind NAT: most forget a port that is silent for half a minute. Agents' checks
// do it more often, and this while there is no agent.
const keepEvery = 20 * time.Second

// kernelType is the kernel's type of its own WireGuard links.
const kernelType = "wireguard"

// read returns the device's state. A TUN link whose process does not answer is no device.
func (d *Device) read() (State, error) {
	link, err := d.links.LinkByName(d.name)
	if errors.As(err, new(netlink.LinkNotFoundError)) {
		return State{}, nil
	}
	if err != nil {
		return State{}, fmt.Errorf("looking for %s: %w", d.name, err)
	}
	if protection(link) == fleet.KernelWireGuard {
		if err := d.reachKernel(); err != nil {
			return State{}, err
		}
	}
	has, err := d.tool.Device(d.name)
	if err != nil && protection(link) == fleet.UserWireGuard {
		return State{}, nil
	}
	if err != nil {
		return State{}, fmt.Errorf("reading %s: %w", d.name, err)
	}
	s := State{
		There: true, Up: link.Attrs().Flags&net.FlagUp != 0, MTU: link.Attrs().MTU,
		Key: has.PublicKey.String(), Port: uint16(has.ListenPort), Peers: map[string]Peer{},
	}
	addresses, err := d.links.AddrList(link, unix.AF_INET6)
	if err != nil {
		return State{}, fmt.Errorf("reading the address of %s: %w", d.name, err)
	}
	if len(addresses) == 1 { // with another one beside it, all are set again
		s.Address, _ = netip.AddrFromSlice(addresses[0].IP)
	}
	for _, p := range has.Peers {
		s.Peers[p.PublicKey.String()] = known(p)
	}
	return s, nil
}

// reachKernel has wgctrl look for the kernel's module again, unless it has found it. The first
// device loads the module.
func (d *Device) reachKernel() error {
	if _, err := d.tool.Device(d.name); !errors.Is(err, fs.ErrNotExist) {
		return nil // of other errors read tells
	}
	tool, err := wgctrl.New()
	if err != nil {
		return fmt.Errorf("opening the configuration of WireGuard: %w", err)
	}
	err = d.tool.Close()
	d.tool = tool
	return err
}

// known is a peer as the device has it. One that may send from other addresses than one is none
// that is ever wanted.
func known(p wgtypes.Peer) (out Peer) {
	if len(p.AllowedIPs) == 1 {
		if ones, bits := p.AllowedIPs[0].Mask.Size(); ones == bits {
			out.Address, _ = netip.AddrFromSlice(p.AllowedIPs[0].IP)
		}
	}
	out.Keep = p.PersistentKeepaliveInterval > 0
	if p.Endpoint != nil {
		at := p.Endpoint.AddrPort()
		out.Endpoint = netip.AddrPortFrom(at.Addr().Unmap(), at.Port()).String()
	}
	return out
}

// apply makes one change.
func (d *Device) apply(ctx context.Context, c Change, want State, kernelOnly bool) error {
	switch c.Verb {
	case makeDevice:
		return d.makeDevice(ctx, want, kernelOnly)
	case setKey:
		private, port := d.key.private(), int(want.Port)
		return d.tool.ConfigureDevice(d.name, wgtypes.Config{PrivateKey: &private, ListenPort: &port})
	case setLink:
		return d.setLink(want)
	case setPeer:
		return d.configurePeer(c, false)
	case removePeer:
		return d.configurePeer(c, true)
	}
	return errors.New("unknown change")
}

func (d *Device) configurePeer(c Change, remove bool) error {
	key, err := wgtypes.ParseKey(c.Key)
	if err != nil {
		return err
	}
	p := wgtypes.PeerConfig{PublicKey: key, Remove: remove}
	if !remove {
		p.ReplaceAllowedIPs = true
		var keep time.Duration
		if c.Peer.Keep {
			keep = keepEvery
		}
		p.PersistentKeepaliveInterval = &keep
		p.AllowedIPs = []net.IPNet{{IP: c.Peer.Address.AsSlice(), Mask: net.CIDRMask(128, 128)}}
		if at, err := netip.ParseAddrPort(c.Peer.Endpoint); err == nil {
			p.Endpoint = net.UDPAddrFromAddrPort(at)
		}
	}
	return d.tool.ConfigureDevice(d.name, wgtypes.Config{Peers: []wgtypes.PeerConfig{p}})
}

// makeDevice makes a device that is down. What is left of an earlier one goes before.
func (d *Device) makeDevice(ctx context.Context, want State, kernelOnly bool) error {
	if err := d.remove(); err != nil {
		return err
	}
	if err := portFree(want.Port); err != nil {
		return err
	}
	why := errors.New("the kernel's is not to be used")
	if !d.config.GoOnly {
		attrs := netlink.NewLinkAttrs()
		attrs.Name, attrs.MTU = d.name, want.MTU
		if why = d.links.LinkAdd(&netlink.Wireguard{LinkAttrs: attrs}); why == nil {
			return d.reachKernel()
		}
	}
	if kernelOnly {
		return fmt.Errorf("this host's kernel has no WireGuard (%w), and the cluster wants it: install the kernel's module wireguard here, or start the controller with --%s %s", why, fleet.EncryptionFlag, fleet.AutoEncryption)
	}
	return d.start(ctx, want.MTU)
}

// portFree says what to do if another program has the port. wireguard-go would only log it.
func portFree(port uint16) error {
	c, err := net.ListenUDP("udp", &net.UDPAddr{Port: int(port)})
	if errors.Is(err, unix.EADDRINUSE) {
		return fmt.Errorf("UDP port %d is taken, which WireGuard needs: `ss -ulnp sport = :%d` says by which program; end it, or give this host another port with --%s", port, port, fleet.WireGuardPortFlag)
	}
	if err != nil {
		return fmt.Errorf("trying UDP port %d: %w", port, err)
	}
	return c.Close()
}

// setLink gives the device its address and MTU and sets it up.
func (d *Device) setLink(want State) error {
	link, err := d.links.LinkByName(d.name)
	if err != nil {
		return fmt.Errorf("looking for %s: %w", d.name, err)
	}
	// Hardened machines switch IPv6 off for all links; this one needs it, and reaches nobody but
	// peers.
	switch err := os.WriteFile("/proc/sys/net/ipv6/conf/"+d.name+"/disable_ipv6", []byte("0"), 0); {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("this host's kernel has no IPv6, which the addresses of encrypted links need: remove ipv6.disable=1 from its command line, or start the controller with --%s %s", fleet.EncryptionFlag, fleet.NoEncryption)
	case err != nil:
		return err
	}
	// A peer must not give this host routes, addresses or hop limits.
	for _, name := range []string{"accept_ra", "autoconf", "accept_redirects"} {
		if err := os.WriteFile("/proc/sys/net/ipv6/conf/"+d.name+"/"+name, []byte("0"), 0); err != nil {
			return fmt.Errorf("ignoring peers' advertisements: %w", err)
		}
	}
	const addrGenNone = 1 // IN6_ADDR_GEN_MODE_NONE: no address but ours
	if err := d.links.LinkSetIP6AddrGenMode(link, addrGenNone); err != nil {
		return fmt.Errorf("keeping other addresses off: %w", err)
	}
	if err := d.links.LinkSetMTU(link, want.MTU); err != nil {
		return fmt.Errorf("setting the MTU: %w", err)
	}
	if err := d.address(link, want.Address); err != nil {
		return err
	}
	if err := d.links.LinkSetUp(link); err != nil {
		return fmt.Errorf("setting it up: %w", err)
	}
	return nil
}

// address makes the link's address the only one.
func (d *Device) address(link netlink.Link, want netip.Addr) error {
	has, err := d.links.AddrList(link, unix.AF_INET6)
	if err != nil {
		return fmt.Errorf("reading its address: %w", err)
	}
	for _, a := range has {
		if at, _ := netip.AddrFromSlice(a.IP); at != want {
			if err := d.links.AddrDel(link, &a); err != nil {
				return fmt.Errorf("removing its address %s: %w", at, err)
			}
		}
	}
	const prefixBits = 64
	ours := &netlink.Addr{IPNet: &net.IPNet{IP: want.AsSlice(), Mask: net.CIDRMask(prefixBits, 128)}, Flags: unix.IFA_F_NODAD}
	if err := d.links.AddrReplace(link, ours); err != nil {
		return fmt.Errorf("giving it the address %s: %w", want, err)
	}
	return nil
}

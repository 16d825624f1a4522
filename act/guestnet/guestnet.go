// Package guestnet connects a guest to its job's network, from inside. It knows nothing
// of hosts or of how frames travel. It uses ioctls and one netlink message: a netlink
// library would be a noticeable part of the guest agent for five calls. Its tests are
// those of the guest agent, in real guests, and those of package port, which does the
// same to a container from outside.
package guestnet

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"

	"pagurus/fleet"
)

// withSocket runs do with a socket for interface ioctls.
func withSocket(do func(fd int) error) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return do(fd)
}

// Up brings an interface up.
func Up(name string) error {
	return withSocket(func(fd int) error {
		r, err := unix.NewIfreq(name)
		if err != nil {
			return err
		}
		if err := unix.IoctlIfreq(fd, unix.SIOCGIFFLAGS, r); err != nil {
			return err
		}
		r.SetUint16(r.Uint16() | unix.IFF_UP)
		return unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, r)
	})
}

// findInterface returns the name of the interface for a hardware address. It may not have
// the address yet if the guest was started from another's snapshot.
func findInterface(mac string) (string, error) {
	paths, err := filepath.Glob("/sys/class/net/*/device")
	if err != nil {
		return "", err
	}
	paths = slices.DeleteFunc(paths, isHalf)
	if len(paths) == 0 {
		// A container's interface has no device, and gets its address from the host.
		if link, err := net.InterfaceByName("eth0"); err == nil && strings.EqualFold(link.HardwareAddr.String(), mac) {
			return link.Name, nil
		}
	}
	name, has, err := choose(paths, mac)
	if err != nil || has {
		return name, err
	}
	address, err := net.ParseMAC(mac)
	if err != nil {
		return "", err
	}
	return name, withSocket(func(fd int) error { return setMAC(fd, name, address) })
}

// choose returns the interface that has a hardware address, or else the only one that there is: a guest may have a card of its host beside the
// job's. Interfaces are given by their files "device".
func choose(paths []string, mac string) (name string, has bool, err error) {
	if len(paths) > 1 {
		paths = slices.DeleteFunc(slices.Clone(paths), func(path string) bool { return !hasAddress(path, mac) })
	}
	if len(paths) != 1 {
		return "", false, fmt.Errorf("%d network interfaces of the guest may be the job's, whose address is %s", len(paths), mac)
	}
	return filepath.Base(filepath.Dir(paths[0])), hasAddress(paths[0], mac), nil
}

// hasAddress reports whether an interface, by its file "device", has a hardware address.
func hasAddress(path, mac string) bool {
	text, err := os.ReadFile(filepath.Join(filepath.Dir(path), "address"))
	return err == nil && strings.EqualFold(strings.TrimSpace(string(text)), mac)
}

// isHalf reports whether an interface, by its file "device", is one of the halves of a card. Such a card has an interface of its own, which
// Linux's net_failover makes.
func isHalf(path string) bool {
	_, err := os.Stat(filepath.Join(filepath.Dir(path), "master"))
	return err == nil
}

// ifreqMAC is struct ifreq of netdevice(7) with a hardware address.
type ifreqMAC struct {
	name     [unix.IFNAMSIZ]byte
	hardware struct {
		family uint16
		data   [14]byte
	}
	_ [8]byte
}

func setMAC(fd int, name string, mac net.HardwareAddr) error {
	var r ifreqMAC
	copy(r.name[:len(r.name)-1], name)
	r.hardware.family = arpEther
	copy(r.hardware.data[:], mac)
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCSIFHWADDR, uintptr(unsafe.Pointer(&r)))
	if errno != 0 {
		return fmt.Errorf("giving %s the address %s: %w", name, mac, errno)
	}
	return nil
}

// Join gives the guest its address on the job's network, and every neighbour a fixed
// hardware address, because the network carries no broadcasts.
func Join(s fleet.Setup) error {
	name, err := findInterface(s.MAC)
	if err != nil {
		return err
	}
	// IPv6 is unused, and its announcements are broadcasts, too.
	os.WriteFile("/proc/sys/net/ipv6/conf/"+name+"/disable_ipv6", []byte("1"), 0)
	err = withSocket(func(fd int) error {
		if s.MTU > 0 {
			if err := setUint32(fd, unix.SIOCSIFMTU, name, uint32(s.MTU)); err != nil {
				return fmt.Errorf("setting the MTU of %s to %d: %w", name, s.MTU, err)
			}
		}
		if err := setAddr(fd, unix.SIOCSIFADDR, name, s.Addr); err != nil {
			return fmt.Errorf("giving %s the address %s: %w", name, s.Addr, err)
		}
		mask := net.CIDRMask(s.Prefix, 32)
		if mask == nil {
			return fmt.Errorf("network prefix of %d bits makes no sense", s.Prefix)
		}
		addr, _ := netip.AddrFromSlice(mask)
		if err := setAddr(fd, unix.SIOCSIFNETMASK, name, addr); err != nil {
			return fmt.Errorf("setting the network mask of %s: %w", name, err)
		}
		return nil
	})
	if err != nil {
		return err
	}
	if err := Up(name); err != nil {
		return fmt.Errorf("bringing %s up: %w", name, err)
	}
	_ = shortenTimeout(name, s.Addr, s.Prefix)
	err = withSocket(func(fd int) error {
		for _, n := range neighbours(s) {
			if err := setNeighbour(fd, name, n); err != nil {
				return fmt.Errorf("fixing the hardware address of %s: %w", n.Addr, err)
			}
		}
		return nil
	})
	if err == nil && s.Gateway.IsValid() {
		err = leadOut(name, s.Gateway)
	}
	return err
}

// neighbours are the other guests and the file server, whose hardware address follows
// from the subnet.
func neighbours(s fleet.Setup) (all []fleet.Peer) {
	for _, p := range s.Peers {
		if p.Addr != s.Addr {
			all = append(all, p)
		}
	}
	if subnet, ok := subnetOf(s.Share); ok && subnet.ShareAddr() == s.Share {
		all = append(all, fleet.Peer{Addr: s.Share, MAC: subnet.ShareMAC()})
	}
	if subnet, ok := subnetOf(s.Gateway); ok && subnet.GatewayAddr() == s.Gateway {
		all = append(all, fleet.Peer{Addr: s.Gateway, MAC: subnet.GatewayMAC()})
	}
	return all
}

// subnetOf is the network that has an address, if it is one of a job's network.
func subnetOf(a netip.Addr) (fleet.Subnet, bool) {
	if !a.Is4() {
		return 0, false
	}
	b := a.As4()
	return fleet.Subnet(int(b[1]&0x7f)<<8 | int(b[2])), true
}

func setUint32(fd int, request uint, name string, v uint32) error {
	r, err := unix.NewIfreq(name)
	if err != nil {
		return err
	}
	r.SetUint32(v)
	return unix.IoctlIfreq(fd, request, r)
}

func setAddr(fd int, request uint, name string, a netip.Addr) error {
	r, err := unix.NewIfreq(name)
	if err != nil {
		return err
	}
	if !a.Is4() {
		return fmt.Errorf("%s is not an IPv4 address", a)
	}
	if err := r.SetInet4Addr(a.AsSlice()); err != nil {
		return err
	}
	return unix.IoctlIfreq(fd, request, r)
}

// arpreq is struct arpreq of arp(7), which x/sys lacks.
type arpreq struct {
	protocol unix.RawSockaddrInet4
	hardware struct {
		family uint16
		data   [14]byte
	}
	flags  int32
	mask   unix.RawSockaddrInet4
	device [16]byte
}

// Flags of arp(7).
const (
	arpComplete  = 0x02
	arpPermanent = 0x04
	arpEther     = 1
)

func setNeighbour(fd int, device string, p fleet.Peer) error {
	mac, err := net.ParseMAC(p.MAC)
	if err != nil {
		return err
	}
	if !p.Addr.Is4() {
		return fmt.Errorf("%s is not an IPv4 address", p.Addr)
	}
	var r arpreq
	r.protocol.Family = unix.AF_INET
	r.protocol.Addr = p.Addr.As4()
	r.hardware.family = arpEther
	copy(r.hardware.data[:], mac)
	r.flags = arpComplete | arpPermanent
	copy(r.device[:len(r.device)-1], device)
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCSARP, uintptr(unsafe.Pointer(&r)))
	if errno != 0 {
		return errno
	}
	return nil
}

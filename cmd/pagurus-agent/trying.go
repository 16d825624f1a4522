// This file tries the parts of Pagurus on this machine that the presence of files does not
// prove: a job's network between two hosts, and the server of a job's files. It works in
// network namespaces without names, so the machine's own network is not touched.
//
// It knows nothing else about the machine, nor how to fix it. Its tests run on the machine
// itself, with and without the requirements.

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"pagurus/act/container/shim"
	"pagurus/act/overlay"
	"pagurus/act/share"
	"pagurus/fleet"
	"pagurus/internal/thread"
)

// limit bounds each trial: on an idle machine one takes a tenth of a second.
const limit = 20 * time.Second

// The trial job. Its subnet number is arbitrary, since its namespaces have no other.
const (
	job    fleet.JobID  = "probe"
	subnet fleet.Subnet = 1
)

// place is one host of two, with one guest of the job.
type place struct {
	name    fleet.HostID
	address netip.Addr
	index   int      // of its guest
	host    *os.File // its network
	guest   *os.File
	overlay *overlay.Overlay
}

// testbed is two hosts that reach each other.
type testbed [2]*place

// Network tries whether guests of two hosts reach each other through a job's network:
// bridges, a VXLAN tunnel, and the links of two containers. It leaves nothing behind, even
// if this process is killed meanwhile.
func Network(ctx context.Context) (err error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	s, err := open(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	return s.exchange(ctx)
}

// Files tries whether a guest of one host can read a file of the job from the file server on
// another. The server's files are in folder, which is left empty.
func Files(ctx context.Context, folder string) (err error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	files := filepath.Join(folder, "files")
	const name, text = "marker", "a file of the job's\n"
	if err := os.Mkdir(files, 0o755); err != nil {
		return err
	}
	defer func() {
		err = errors.Join(err, os.RemoveAll(files), os.RemoveAll(filepath.Join(folder, "shares")), os.RemoveAll(filepath.Join(folder, share.SecretFile)))
	}()
	if err := os.WriteFile(filepath.Join(files, name), []byte(text), 0o644); err != nil {
		return err
	}
	s, err := open(ctx, &fleet.Share{Export: files})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	shares, err := share.Open(share.Config{Run: folder, Shim: shim.Program()})
	if err != nil {
		return err
	}
	serve := func(ctx context.Context, all ...fleet.Network) error {
		return thread.In(s[0].host, func() error { return shares.Apply(ctx, all) })
	}
	defer func() {
		end, cancel := context.WithTimeout(context.WithoutCancel(ctx), limit)
		defer cancel()
		err = errors.Join(err, serve(end), shares.Close())
	}()
	n := s.network(s[0], &fleet.Share{Export: files})
	if err := serve(ctx, n); err != nil {
		return err
	}
	var got []byte
	err = thread.In(s[1].guest, func() (err error) { got, err = share.Read(ctx, n, name); return err })
	if err != nil {
		return fmt.Errorf("reading a file over the job's network: %w", err)
	}
	if string(got) != text {
		return fmt.Errorf("a file that was read over the job's network has %d bytes instead of %d", len(got), len(text))
	}
	return nil
}

// open makes the hosts and their networks. After an error nothing is left.
func open(ctx context.Context, files *fleet.Share) (s testbed, err error) {
	for i := range s {
		s[i] = &place{name: fleet.HostID(fmt.Sprintf("host%d", i)), index: i, address: netip.AddrFrom4([4]byte{198, 18, 0, byte(1 + i)})}
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.close())
		}
	}()
	for _, p := range s {
		for _, of := range []**os.File{&p.host, &p.guest} {
			if *of, err = namespace(); err != nil {
				return s, err
			}
		}
	}
	if err := s.join(); err != nil {
		return s, fmt.Errorf("joining two hosts by a pair of links (veth): %w", err)
	}
	for _, p := range s {
		var served *fleet.Share
		if p == s[0] {
			served = files
		}
		err := thread.In(p.host, func() (err error) {
			if p.overlay, err = overlay.Open(overlay.Config{Host: p.name, Address: p.address}); err != nil {
				return err
			}
			return p.overlay.Apply(ctx, []fleet.Network{s.network(p, served)})
		})
		if err != nil {
			return s, fmt.Errorf("making a job's network: %w", err)
		}
		if err := p.plug(); err != nil {
			return s, fmt.Errorf("plugging a guest in: %w", err)
		}
	}
	return s, nil
}

// close closes the networks, which then end.
func (s testbed) close() (err error) {
	for _, p := range s {
		if p.overlay != nil {
			err = errors.Join(err, p.overlay.Close())
		}
		for _, f := range []*os.File{p.host, p.guest} {
			if f != nil {
				err = errors.Join(err, f.Close())
			}
		}
	}
	return err
}

// namespace makes a network that exists while its file is open.
func namespace() (f *os.File, err error) {
	err = thread.Own(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("making a network namespace: %w", err)
		}
		f, err = os.Open("/proc/thread-self/ns/net")
		return err
	})
	return f, err
}

// join makes the links between the hosts.
func (s testbed) join() error {
	const first, second = "near", "far"
	pair := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: first}, PeerName: second, PeerNamespace: netlink.NsFd(s[1].host.Fd())}
	if err := thread.In(s[0].host, func() error { return netlink.LinkAdd(pair) }); err != nil {
		return err
	}
	return errors.Join(address(s[0].host, first, netip.PrefixFrom(s[0].address, 24), ""), address(s[1].host, second, netip.PrefixFrom(s[1].address, 24), ""))
}

// network is the job's network as a host gets it.
func (s testbed) network(p *place, files *fleet.Share) fleet.Network {
	n := fleet.Network{Job: job, Subnet: subnet, Share: files}
	for _, other := range s {
		guest := fleet.GuestID(fmt.Sprintf("%sg%d", job, other.index))
		n.Endpoints = append(n.Endpoints, fleet.Endpoint{Addr: subnet.GuestAddr(other.index), MAC: subnet.GuestMAC(other.index),
			Host: other.name, VTEP: other.address.String(), Guest: guest})
		if other == p {
			n.Ports = append(n.Ports, fleet.Port{Guest: guest, Index: other.index, MAC: subnet.GuestMAC(other.index), Kind: fleet.Container})
		}
	}
	n.Endpoints = append(n.Endpoints, fleet.Endpoint{Addr: subnet.ShareAddr(), MAC: subnet.ShareMAC(), Host: s[0].name, VTEP: s[0].address.String()})
	return n
}

// plug gives the guest its end of the links, as in a container.
func (p *place) plug() error {
	name := subnet.PortPeerName(p.index)
	err := thread.In(p.host, func() error {
		link, err := netlink.LinkByName(name)
		if err != nil {
			return err
		}
		return netlink.LinkSetNsFd(link, int(p.guest.Fd()))
	})
	if err != nil {
		return err
	}
	return address(p.guest, name, netip.PrefixFrom(subnet.GuestAddr(p.index), fleet.SubnetPrefixBits), subnet.GuestMAC(p.index))
}

// address gives a link in a network its address and sets it up.
func address(network *os.File, name string, at netip.Prefix, mac string) error {
	h, err := netlink.NewHandleAt(netns.NsHandle(network.Fd()))
	if err != nil {
		return err
	}
	defer h.Close()
	link, err := h.LinkByName(name)
	if err != nil {
		return err
	}
	if hardware, err := net.ParseMAC(mac); err == nil {
		if err := h.LinkSetHardwareAddr(link, hardware); err != nil {
			return err
		}
	}
	ip := &net.IPNet{IP: at.Addr().AsSlice(), Mask: net.CIDRMask(at.Bits(), 32)}
	return errors.Join(h.AddrReplace(link, &netlink.Addr{IPNet: ip}), h.LinkSetUp(link))
}

// exchange sends a message from one guest to the other.
func (s testbed) exchange(ctx context.Context) error {
	const text = "from guest to guest"
	var l net.Listener
	at := netip.AddrPortFrom(subnet.GuestAddr(0), 7)
	err := thread.In(s[0].guest, func() (err error) {
		l, err = net.Listen("tcp4", at.String())
		return err
	})
	if err != nil {
		return err
	}
	defer l.Close()
	stop := context.AfterFunc(ctx, func() { l.Close() })
	defer stop()
	sent := make(chan error, 1)
	go func() {
		sent <- thread.In(s[1].guest, func() error {
			c, err := (&net.Dialer{}).DialContext(ctx, "tcp4", at.String())
			if err != nil {
				return fmt.Errorf("what one guest sends does not reach the other on another host: %w", err)
			}
			_, err = io.WriteString(c, text)
			return errors.Join(err, c.Close())
		})
	}()
	c, err := l.Accept()
	if err != nil {
		return errors.Join(<-sent, ctx.Err())
	}
	defer c.Close()
	if end, ok := ctx.Deadline(); ok {
		if err := c.SetDeadline(end); err != nil {
			return err
		}
	}
	got, err := io.ReadAll(c)
	if err = errors.Join(err, <-sent); err == nil && string(got) != text {
		err = fmt.Errorf("of %d bytes that one guest sends %d reach the other", len(text), len(got))
	}
	return err
}

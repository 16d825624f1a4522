package main

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"pagurus/act/daemon"
)

// The lab's network: a bridge in the machine's own network and a pair of links
// from it to each host's namespace. 198.18.0.0/15 is set aside for
// measurements between networks (RFC 2544), so it is nobody's office.
const (
	labBridge    = "pglab0"
	labPort      = "pglab" // and the host's number: the bridge's end of a host's link
	labUplink    = "eth0"  // the host's end
	labNamespace = "pagurus-lab-"
	labPrefix    = 24
	labMaxHosts  = 64
)

// labController is the controller's address on the lab's network.
var labController = netip.AddrFrom4([4]byte{198, 18, 0, 254})

// labAddr is the address of host n, counted from 1.
func labAddr(n int) netip.Addr { return netip.AddrFrom4([4]byte{198, 18, 0, byte(n)}) }

// fileServer is the program that serves jobs' files. It is in a namespace
// without a name, so it is known by the folder it was given.
const fileServer = "ganesha.nfsd"

// serves reports whether a process is a file server of the lab.
func serves(pid int) bool {
	exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid))
	if err != nil || filepath.Base(exe) != fileServer {
		return false
	}
	line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	return err == nil && strings.Contains(string(line), "\x00"+labRun+"/")
}

// residents lists the processes that live in the lab's networks, and its file
// servers.
func residents() ([]daemon.Process, error) {
	inside := daemon.Residents(daemon.Namespaces(labNamespace))
	return daemon.Processes(func(pid int) bool { return inside(pid) || serves(pid) })
}

// ensureBridge makes the lab's bridge with the controller's address.
func ensureBridge() error {
	_, err := netlink.LinkByName(labBridge)
	if errors.As(err, new(netlink.LinkNotFoundError)) {
		attrs := netlink.NewLinkAttrs()
		attrs.Name = labBridge
		err = netlink.LinkAdd(&netlink.Bridge{LinkAttrs: attrs})
	}
	if err == nil {
		err = addressed(labBridge, labController)
	}
	if err != nil {
		return fmt.Errorf("making the lab's bridge %s: %w", labBridge, err)
	}
	return nil
}

// addressed gives a link its address and sets it up.
func addressed(name string, addr netip.Addr) error {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	ip := &netlink.Addr{IPNet: &net.IPNet{IP: addr.AsSlice(), Mask: net.CIDRMask(labPrefix, 32)}}
	if err := netlink.AddrReplace(link, ip); err != nil {
		return fmt.Errorf("giving %s the address %s: %w", name, addr, err)
	}
	return netlink.LinkSetUp(link)
}

// ensureUplink joins host n's namespace to the bridge.
func ensureUplink(n int, namespace daemon.Namespace) error {
	port := labPort + strconv.Itoa(n)
	err := func() error {
		if _, err := netlink.LinkByName(port); errors.As(err, new(netlink.LinkNotFoundError)) {
			if err := addPair(port, namespace); err != nil {
				return err
			}
		} else if err != nil {
			return err
		}
		link, err := netlink.LinkByName(port)
		if err != nil {
			return err
		}
		bridge, err := netlink.LinkByName(labBridge)
		if err != nil {
			return err
		}
		if err := netlink.LinkSetMaster(link, bridge); err != nil {
			return err
		}
		if err := netlink.LinkSetUp(link); err != nil {
			return err
		}
		return namespace.Do(func() error {
			lo, err := netlink.LinkByName("lo")
			if err != nil {
				return err
			}
			if err := netlink.LinkSetUp(lo); err != nil {
				return err
			}
			return addressed(labUplink, labAddr(n))
		})
	}()
	if err != nil {
		return fmt.Errorf("joining %s to the lab's network: %w", namespace, err)
	}
	return nil
}

func addPair(port string, namespace daemon.Namespace) error {
	ns, err := namespace.Open()
	if err != nil {
		return err
	}
	defer func() { _ = ns.Close() }()
	attrs := netlink.NewLinkAttrs()
	attrs.Name = port
	return netlink.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: labUplink, PeerNamespace: netlink.NsFd(ns.Fd())})
}

// listTries is how often links are listed anew that changed meanwhile.
const listTries = 10

// removeLabLinks removes the bridge and the links to it.
func removeLabLinks() error {
	links, err := netlink.LinkList()
	for try := 1; errors.Is(err, netlink.ErrDumpInterrupted) && try < listTries; try++ {
		links, err = netlink.LinkList()
	}
	if err != nil {
		return fmt.Errorf("listing links: %w", err)
	}
	var errs []error
	for _, l := range links {
		number, ours := strings.CutPrefix(l.Attrs().Name, labPort)
		if _, err := strconv.Atoi(number); !ours || err != nil {
			continue
		}
		if err := netlink.LinkDel(l); err != nil && !errors.Is(err, unix.ENODEV) && !errors.As(err, new(netlink.LinkNotFoundError)) {
			errs = append(errs, fmt.Errorf("removing link %s: %w", l.Attrs().Name, err))
		}
	}
	return errors.Join(errs...)
}

package main

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// The lab's network: a bridge in the machine's own network and a pair of links
// from it to each host's namespace. 198.18.0.0/15 is set aside for
// measurements between networks (RFC 2544), so it is nobody's office.
const (
	labBridge       = "pglab0"
	labPort         = "pglab" // and the host's number: the bridge's end of a host's link
	labUplink       = "eth0"  // the host's end
	labNamespace    = "pagurus-lab-"
	namespaceFolder = "/run/netns"
	labPrefix       = 24
	labMaxHosts     = 64
)

// labController is the controller's address on the lab's network.
var labController = netip.AddrFrom4([4]byte{198, 18, 0, 254})

// labAddr is the address of host n, counted from 1.
func labAddr(n int) netip.Addr { return netip.AddrFrom4([4]byte{198, 18, 0, byte(n)}) }

// inNamespace runs f with the network of a namespace. Programs and sockets
// that f opens belong to it also later.
func inNamespace(name string, f func() error) error {
	if name == "" {
		return f()
	}
	done := make(chan error, 1)
	go func() {
		// Never unlocked: the thread ends with the goroutine, so that no
		// other goroutine ever runs in the wrong network.
		runtime.LockOSThread()
		done <- func() error {
			ns, err := os.Open(filepath.Join(namespaceFolder, name))
			if err != nil {
				return fmt.Errorf("entering namespace %s: %w", name, err)
			}
			err = unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET)
			if err := errors.Join(err, ns.Close()); err != nil {
				return fmt.Errorf("entering namespace %s: %w", name, err)
			}
			return f()
		}()
	}()
	return <-done
}

// ensureNamespace makes a named network namespace. `ip` does it, so that it and
// every other tool agree on how /run/netns is mounted.
func ensureNamespace(name string) error {
	if isNamespace(filepath.Join(namespaceFolder, name)) {
		return nil
	}
	// A name without a namespace is left by a reboot or a crash.
	if err := removeNamespace(name); err != nil {
		return err
	}
	if out, err := exec.Command("ip", "netns", "add", name).CombinedOutput(); err != nil {
		return fmt.Errorf("making namespace %s: %w: %s", name, err, strings.TrimSpace(string(out)))
	}
	return nil
}

func isNamespace(path string) bool {
	var st unix.Statfs_t
	return unix.Statfs(path, &st) == nil && st.Type == unix.NSFS_MAGIC
}

// removeNamespace takes the name away; the namespace itself ends with the last
// process in it.
func removeNamespace(name string) error {
	path := filepath.Join(namespaceFolder, name)
	for isNamespace(path) {
		if err := unix.Unmount(path, unix.MNT_DETACH); err != nil {
			return fmt.Errorf("removing namespace %s: %w", name, err)
		}
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("removing namespace %s: %w", name, err)
	}
	return nil
}

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

// residents lists the processes whose network is one of the namespaces, and
// the file servers of the lab.
func residents(names []string) ([]process, error) {
	ours := map[string]bool{}
	for _, name := range names {
		var st unix.Stat_t
		if path := filepath.Join(namespaceFolder, name); isNamespace(path) && unix.Stat(path, &st) == nil {
			ours[fmt.Sprintf("net:[%d]", st.Ino)] = true
		}
	}
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	var found []process
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		p, err := processOf(pid)
		if err != nil {
			continue // gone meanwhile
		}
		if link, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/net", pid)); err == nil && (ours[link] || serves(pid)) && p.alive() {
			found = append(found, p)
		}
	}
	return found, nil
}

// labNamespaces lists the namespaces with a lab host's name, and those that
// belong to a host: the file servers' have the host's name in front.
func labNamespaces() []string {
	entries, err := os.ReadDir(namespaceFolder)
	if err != nil {
		return nil
	}
	var names []string
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), labNamespace) {
			names = append(names, e.Name())
		}
	}
	return names
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
func ensureUplink(n int, namespace string) error {
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
		return inNamespace(namespace, func() error {
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

func addPair(port, namespace string) error {
	ns, err := os.Open(filepath.Join(namespaceFolder, namespace))
	if err != nil {
		return err
	}
	defer func() { _ = ns.Close() }()
	attrs := netlink.NewLinkAttrs()
	attrs.Name = port
	return netlink.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: labUplink, PeerNamespace: netlink.NsFd(ns.Fd())})
}

// removeLabLinks removes the bridge and the links to it.
func removeLabLinks() error {
	links, err := netlink.LinkList()
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

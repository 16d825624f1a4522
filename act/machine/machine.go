// Package machine describes this machine: its processors, memory, identity and address.
// It also checks Pagurus's requirements, with a repair command for each that is missing.
//
// It must not know what guests are; the driver tries whether one really runs. Its tests
// use this machine, with programs made for the test, and without the required ones.
package machine

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/user"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"pagurus/fleet"
	"pagurus/internal/thread"
)

// Machine is what does not change while the machine is up.
type Machine struct {
	ID          string       // processes with the same ID see the same files
	Kernel      string       // release
	CPUs        fleet.CPUSet // available to this process
	MemoryBytes int64
	Address     netip.Addr // for connections from other machines; not valid if it has none
}

// Facts describes this machine. The address is that of this process's network namespace.
func Facts() (Machine, error) {
	id, err := ID()
	if err != nil {
		return Machine{}, err
	}
	m := Machine{ID: id, Address: address()}
	if m.CPUs, err = CPUs(); err != nil {
		return Machine{}, err
	}
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return Machine{}, fmt.Errorf("ask for the kernel's release: %w", err)
	}
	m.Kernel = unix.ByteSliceToString(u.Release[:])
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err != nil {
		return Machine{}, fmt.Errorf("ask for the memory: %w", err)
	}
	m.MemoryBytes = int64(info.Totalram) * int64(info.Unit)
	return m, nil
}

// CPUs are those available to this process now; taskset(1), a service manager or isolated
// CPUs may change them.
func CPUs() (fleet.CPUSet, error) { return thread.CPUs(0) }

// idFiles have this machine's identity: from its installation, or else from the kernel
// for this boot.
var idFiles = []string{"/etc/machine-id", "/var/lib/dbus/machine-id", bootFile}

// ID identifies this machine. It needs no privileges, because an ordinary user's command
// must get the same result as the agent.
func ID() (string, error) {
	for _, path := range idFiles {
		text, err := os.ReadFile(path)
		id := strings.TrimSpace(string(text))
		if err == nil && id != "" && id != "uninitialized" { // systemd's value at the first boot
			return id, nil
		}
	}
	return "", fmt.Errorf("this machine has no identity: none of %s says one; `systemd-machine-id-setup` makes one", strings.Join(idFiles, ", "))
}

// Boot names this boot of the machine; empty: the kernel does not say.
func Boot() string {
	text, err := os.ReadFile(bootFile)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(text))
}

// bootFile is the only place that says that a machine was rebooted.
const bootFile = "/proc/sys/kernel/random/boot_id"

// outside are addresses that nobody has (RFC 5737, RFC 3849), and so are reached by the routes to the Internet. A
// machine that has both families is called by IPv4, as more others can.
var outside = []string{"192.0.2.1:9", "[2001:db8:ffff:ffff::1]:9"}

// address is the source address for the Internet, or, without a route there, the first
// that is not loopback. Routes go first: a bridge of containers has an address of IPv4 on machines
// that have only IPv6.
func address() netip.Addr {
	for _, to := range outside {
		if a, err := netip.ParseAddr(Towards(to)); err == nil && a.IsGlobalUnicast() {
			return a
		}
	}
	all := addresses()
	for _, v4 := range []bool{true, false} {
		if i := slices.IndexFunc(all, func(a netip.Addr) bool { return a.Is4() == v4 && a.IsGlobalUnicast() }); i >= 0 {
			return all[i]
		}
	}
	return netip.Addr{}
}

// addresses are all that this machine has.
func addresses() (out []netip.Addr) {
	all, err := net.InterfaceAddrs()
	if err != nil {
		return nil
	}
	for _, a := range all {
		if p, err := netip.ParsePrefix(a.String()); err == nil {
			out = append(out, p.Addr())
		}
	}
	return out
}

// Has reports whether an address is this machine's.
func Has(a netip.Addr) bool { return slices.Contains(addresses(), a.WithZone("")) }

// errNotRoot is why mending is refused.
var errNotRoot = errors.New("fixing needs root: run `sudo pagurus doctor --fix`")

// GuestGroup is the group of GuestUser.
func GuestGroup() (uint32, error) {
	u, err := user.Lookup(GuestUser)
	if err != nil {
		return 0, fmt.Errorf("find the user that guests run as: %w", err)
	}
	gid, err := strconv.ParseUint(u.Gid, 10, 32)
	if err != nil {
		return 0, fmt.Errorf("user %s: %w", GuestUser, err)
	}
	return uint32(gid), nil
}

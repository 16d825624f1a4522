// Package machine says what the machine it runs on is and has: its processors,
// memory, identity and address, and which of the things Pagurus needs are
// there, with the command that mends each that is not.
//
// It must not know what guests are; whether one really runs here is tried by
// the driver that would run it. Its tests run against this machine, with paths
// that lead to programs made for the test, and without what is looked for.
package machine

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/user"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"pagurus/fleet"
	"pagurus/internal/thread"
)

// Machine is what does not change while the machine is up.
type Machine struct {
	ID          string       // two processes with the same see the same files
	Kernel      string       // release
	CPUs        fleet.CPUSet // that this process may use
	MemoryBytes int64
	Address     netip.Addr // others reach this machine at; not valid if it has none
}

// Facts looks at this machine, or at the network namespace this process is in
// where it comes to the address.
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

// CPUs are those that this process may use now: taskset(1), a service manager or quiet
// cores may change them.
func CPUs() (fleet.CPUSet, error) { return thread.CPUs(os.Getpid()) }

// idFiles hold this machine's identity: what installation gave it, or, where
// it was given none, what the kernel gives it for as long as it is up.
var idFiles = []string{"/etc/machine-id", "/var/lib/dbus/machine-id", "/proc/sys/kernel/random/boot_id"}

// ID says which machine this is. It needs no rights, because an ordinary
// user's command has to come to the same answer as the agent.
func ID() (string, error) {
	for _, path := range idFiles {
		text, err := os.ReadFile(path)
		id := strings.TrimSpace(string(text))
		if err == nil && id != "" && id != "uninitialized" { // systemd's word on a first boot
			return id, nil
		}
	}
	return "", fmt.Errorf("this machine has no identity: none of %s says one; `systemd-machine-id-setup` makes one", strings.Join(idFiles, ", "))
}

// address is the one from which this machine would talk to the world, or, in
// a network that does not lead there, its first one that is not loopback.
func address() netip.Addr {
	// Connecting a datagram socket sends nothing; it asks the routing table.
	if c, err := net.Dial("udp4", "192.0.2.1:9"); err == nil {
		defer c.Close()
		if a, err := netip.ParseAddrPort(c.LocalAddr().String()); err == nil {
			return a.Addr()
		}
	}
	all, err := net.InterfaceAddrs()
	if err != nil {
		return netip.Addr{}
	}
	for _, a := range all {
		p, err := netip.ParsePrefix(a.String())
		if err == nil && p.Addr().Is4() && p.Addr().IsGlobalUnicast() {
			return p.Addr()
		}
	}
	return netip.Addr{}
}

// errNotRoot is why mending is refused.
var errNotRoot = errors.New("fixing needs root: run `sudo pagurus doctor --fix`")

// GuestGroup is the group of the user that guests run as.
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

package machine

import (
	"cmp"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"pagurus/fleet"
)

// named is the address of the device that a guest asks for. Of the card's virtual functions it is the one that the guest has, or the
// first that is free.
func (d *DeviceLoans) named(guest fleet.GuestID, want fleet.Passthrough, all []fleet.Device) (string, error) {
	if want != fleet.NetFunction {
		for _, o := range all {
			if o.ForNet && o.Address == want.Address() {
				return "", fmt.Errorf("this host keeps it for guests with --%s %s", fleet.DeviceFlag, fleet.NetFunction)
			}
		}
		return want.Address(), nil
	}
	free := ""
	for _, o := range all {
		switch l, err := d.loanOf(o.Address); {
		case !o.ForNet || o.Of == "":
		case err == nil && l.Guest == guest:
			return o.Address, nil
		case errors.Is(err, fs.ErrNotExist):
			if free == "" && o.Trouble == "" {
				free = o.Address
			}
		case err != nil:
			return "", err
		}
	}
	if free == "" {
		return "", fleet.ErrNoFunction
	}
	return free, nil
}

// frames are those that a card leads to a virtual function; zero: none.
type frames struct {
	MAC  net.HardwareAddr // nil: no address
	VLAN uint16           // 0: none
}

// Lead has frames for a hardware address of a VLAN reach the guest by the virtual function that it has, or by the host's bridge. Which VLAN
// the function is on stays until it is given back, so that its guest reaches no other.
func (d *DeviceLoans) Lead(guest fleet.GuestID, mac string, vlan uint16, byFunction bool) error {
	if d.Steered != nil {
		defer d.Steered()
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	f := frames{VLAN: vlan}
	if byFunction {
		var err error
		if f.MAC, err = net.ParseMAC(mac); err != nil || vlan == 0 {
			return fmt.Errorf("a virtual function needs a hardware address and a VLAN, not %q and %d", mac, vlan)
		}
	}
	return d.each(func(address string, l loan) error {
		if l.Guest != guest || !l.Net {
			return nil
		}
		return d.steer(address, f)
	})
}

// Drives reports whether a driver of the guest has begun to use the device that it has: then the host has interrupts for it.
func (d *DeviceLoans) Drives(guest fleet.GuestID) (does bool, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	interrupts, err := os.ReadFile(cmp.Or(d.interrupts, "/proc/interrupts"))
	if err != nil {
		return false, err
	}
	err = d.each(func(address string, l loan) error {
		does = does || l.Guest == guest && signals(string(interrupts), address)
		return nil
	})
	return does, err
}

// signals reports whether the kernel's list of interrupts has one of a device that a guest has, as "vfio-msix[0](0000:01:10.0)".
func signals(interrupts, address string) bool {
	for line := range strings.Lines(interrupts) {
		if strings.Contains(line, "vfio-msi") && strings.Contains(line, "("+address+")") {
			return true
		}
	}
	return false
}

// steer tells a card which frames are for one of its virtual functions. A function that is gone gets none.
func (d *DeviceLoans) steer(address string, f frames) error {
	function := readFunction(filepath.Join(d.tree(), "bus/pci/devices", address))
	if function.card == "" {
		return nil
	}
	card := readFunction(filepath.Join(d.tree(), "bus/pci/devices", function.card))
	if card.face == "" {
		return nil // the card has no driver, and so no functions
	}
	number, err := d.numberOf(function)
	if err != nil {
		return err
	}
	set := d.filter
	if set == nil {
		set = setFrames
	}
	if err := set(card.face, number, f); err != nil {
		return fmt.Errorf("tell %s which frames are for its virtual function %d: %w", card.face, number, err)
	}
	return nil
}

// numberOf is a virtual function's number among those of its card.
func (d *DeviceLoans) numberOf(f function) (int, error) {
	links, _ := filepath.Glob(filepath.Join(d.tree(), "bus/pci/devices", f.card, "virtfn*")) // the pattern is well formed
	for _, link := range links {
		var number int
		if to, err := os.Readlink(link); err == nil && filepath.Base(to) == f.address {
			if _, err := fmt.Sscanf(filepath.Base(link), "virtfn%d", &number); err == nil {
				return number, nil
			}
		}
	}
	return 0, fmt.Errorf("%s is no virtual function of %s", f.address, f.card)
}

// setFrames is the kernel's way. A function never has an address on another network than its own: the VLAN comes before the address, and goes
// after it. The card drops what a function sends from another address, where it can.
func setFrames(card string, function int, f frames) error {
	link, err := netlink.LinkByName(card)
	if err != nil {
		return err
	}
	vlan := func() error {
		if err := netlink.LinkSetVfVlan(link, function, int(f.VLAN)); err != nil {
			return fmt.Errorf("VLAN %d: %w", f.VLAN, err)
		}
		return nil
	}
	if f.MAC == nil {
		if err := errors.Join(forgetAddress(link, function), vlan()); err != nil {
			return err
		}
	} else {
		if err := vlan(); err != nil {
			return err
		}
		if err := netlink.LinkSetVfHardwareAddr(link, function, f.MAC); err != nil {
			return fmt.Errorf("address %s: %w", f.MAC, err)
		}
	}
	if err := netlink.LinkSetVfSpoofchk(link, function, true); err != nil && !errors.Is(err, unix.EOPNOTSUPP) {
		return fmt.Errorf("checks of senders: %w", err)
	}
	return nil
}

// forgetAddress leaves a function without an address. Some cards refuse that: there it gets one that nobody has.
func forgetAddress(link netlink.Link, function int) error {
	none := make(net.HardwareAddr, 6)
	err := netlink.LinkSetVfHardwareAddr(link, function, none)
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EADDRNOTAVAIL) {
		_, _ = rand.Read(none)   // never fails
		none[0] = none[0]&^1 | 2 // a local address of one card
		err = netlink.LinkSetVfHardwareAddr(link, function, none)
	}
	if err != nil {
		return fmt.Errorf("address %s: %w", none, err)
	}
	return nil
}

package qemu

import (
	"errors"
	"fmt"
	"path/filepath"

	"pagurus/act/host/jail"
	"pagurus/fleet"
)

// Devices gives devices of this host to guests.
type Devices interface {
	// TakeDevice gives a guest a device, which no other has until ReturnDevice. A second call gives the same one. After an error the
	// device is as it was.
	TakeDevice(fleet.GuestID, fleet.Passthrough) (fleet.Device, error)
	// ReturnDevice takes the guest's device back, and gives it to the driver that had it. No process of the guest may have it open. A
	// guest that has none is not an error. After an error call again.
	ReturnDevice(fleet.GuestID) error
	// Borrowers are the guests that have one.
	Borrowers() ([]fleet.GuestID, error)
	// Lead has frames for a hardware address of a VLAN reach the guest by the function that it has, or by the host's bridge.
	Lead(guest fleet.GuestID, mac string, vlan uint16, byFunction bool) error
	// Drives reports whether a driver of the guest has begun to use the device that it has.
	Drives(fleet.GuestID) (bool, error)
}

// LendDevices has guests get devices of this host from now on, and takes back what those have that are no longer here. It comes
// before the first Start.
func (d *Driver) LendDevices(from Devices) error {
	d.devices.Store(&from)
	all, err := from.Borrowers()
	for _, id := range all {
		if g, _ := d.guests.Find(id); g == nil {
			err = errors.Join(err, from.ReturnDevice(id))
		}
	}
	return err
}

// passedArgs has the guest find the device from its first moment on. The port is there because the driver of some devices
// expects to be on PCI Express. The function of a pair is plugged into it later: see pairOn.
func passedArgs(m machine) []string {
	port := []string{"-device", "pcie-root-port,id=" + passedPort + ",chassis=1"}
	if m.pair != nil {
		return port
	}
	return append(port, "-device", "vfio-pci,bus="+passedPort+",host="+m.device.Address)
}

// passedPort is QEMU's name of the port for a device of the host.
const passedPort = "passed"

// takeDevice has the host give the guest the device that it needs; nil: it needs none, or arrives and can do without.
func (d *Driver) takeDevice(g fleet.Guest, arrives bool) (*fleet.Device, error) {
	if g.Need.Device == "" {
		return nil, nil
	}
	from := d.devices.Load()
	if from == nil {
		return nil, errors.New("guests have no devices of this host")
	}
	dev, err := (*from).TakeDevice(g.ID, g.Need.Device)
	if arrives && errors.Is(err, fleet.ErrNoFunction) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("give the guest the device %s: %w", g.Need.Device.Address(), err)
	}
	return &dev, nil
}

// returnDevice takes a guest's device back.
func (d *Driver) returnDevice(id fleet.GuestID) error {
	if from := d.devices.Load(); from != nil {
		return (*from).ReturnDevice(id)
	}
	return nil // LendDevices takes it back
}

// pinnedMore is what QEMU pins beside the guest's memory: its firmware, and what cards show of their own.
const pinnedMore = 1 << 30

// admit gives a jail what QEMU needs for a device: the kernel pins all of the guest's memory, where the device may write.
func admit(j *jail.Jail, m machine) error {
	if m.device.Group == "" {
		return nil // an emulated card, of tests
	}
	for _, path := range []string{"/dev/vfio/vfio", filepath.Join("/dev/vfio", m.device.Group)} {
		dev, err := jail.DeviceAt(path)
		if err != nil {
			return err
		}
		j.Devices = append(j.Devices, dev)
	}
	j.Files = append(j.Files, jail.File{Path: filepath.Join("/sys/bus/pci/devices", m.device.Address)})
	j.Locked = uint64(wholeMemory(m)) + pinnedMore
	return nil
}

package fleet

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// DeviceKind says what a device is for.
type DeviceKind string

// The kinds of devices that hosts list.
const (
	NetDevice   DeviceKind = "net" // a network card, or a virtual function of one
	GPUDevice   DeviceKind = "gpu" // a display controller or another accelerator
	OtherDevice DeviceKind = "pci" // another one that is reserved for guests: it is bound to vfio-pci, or the agent may take it
)

// Device is a PCI function of a host that could be given to one guest alone.
type Device struct {
	Address   string     `json:"address"` // on the bus, as 0000:03:10.0
	Kind      DeviceKind `json:"kind"`
	ID        string     `json:"id"`                  // vendor and device, as 8086:1520
	Driver    string     `json:"driver,omitempty"`    // of the host's kernel; empty: none
	Interface string     `json:"interface,omitempty"` // of the host, that it is now
	Of        string     `json:"of,omitempty"`        // the card of which it is a virtual function
	Functions int        `json:"functions,omitempty"` // how many virtual functions it has now
	Most      int        `json:"most,omitempty"`      // how many it could have; 0: it is no card with virtual functions
	Group     string     `json:"group,omitempty"`     // its IOMMU group; empty: it has none
	Trouble   string     `json:"trouble,omitempty"`   // why no guest could have it as it is, for people; empty: one could
	Guest     GuestID    `json:"guest,omitempty"`     // that has it now; empty: none
	ForNet    bool       `json:"for_net,omitempty"`   // it is the card of the agent's --device-net, or a virtual function of that
}

// Passthrough is a device of its host that a guest has for itself: a word for a PCI function, as pci:0000:03:10.0;
// empty: none.
type Passthrough string

// NetFunction is a virtual function of its host's card, any that is free, beside the virtio card that every guest has: so the guest
// still moves.
const NetFunction Passthrough = "net"

// DriverWord comes before a module in an image's list of modules, if only guests that have a device of their host load it.
const DriverWord = "device "

// GuestDeviceWord on a guest's kernel's command line says that the guest has a device of its host.
const GuestDeviceWord = "pagurus.device"

// passedPCI begins the word for a PCI function.
const passedPCI = "pci:"

// pciAddress matches a function's address. The first part is left out where it is 0000.
var pciAddress = regexp.MustCompile(`^(?:([0-9a-f]{4}):)?([0-9a-f]{2}:[01][0-9a-f]\.[0-7])$`)

// ParsePCI gives a PCI function's address in its long form. false: it is no address.
func ParsePCI(word string) (string, bool) {
	m := pciAddress.FindStringSubmatch(strings.ToLower(word))
	if m == nil {
		return "", false
	}
	if m[1] == "" {
		m[1] = "0000"
	}
	return m[1] + ":" + m[2], true
}

// ParsePassthrough reads what a person wrote. The error says what to write instead.
func ParsePassthrough(word string) (Passthrough, error) {
	if word == "" || word == string(NetFunction) {
		return Passthrough(word), nil
	}
	rest, isPCI := strings.CutPrefix(word, passedPCI)
	address, isAddress := ParsePCI(rest)
	switch {
	case isPCI && isAddress:
		return Passthrough(passedPCI + address), nil
	case isPCI:
		return "", fmt.Errorf("%q is not the address of a PCI function: write one like pci:0000:03:10.0, as `pagurus host ls --json` lists them", rest)
	}
	return "", fmt.Errorf("%q is no device that a guest can have: write %s, or pci: and an address, like pci:0000:03:10.0; `pagurus host ls --json` lists the devices of hosts", word, NetFunction)
}

// Passthrough is the word by which a guest asks for the device.
func (d Device) Passthrough() Passthrough { return Passthrough(passedPCI + d.Address) }

// Address is the PCI function's address on the bus of the guest's host.
func (p Passthrough) Address() string { return strings.TrimPrefix(string(p), passedPCI) }

// Refused says why no guest can have it, as it comes in a request; empty: one can, or it is none.
func (p Passthrough) Refused() string {
	read, err := ParsePassthrough(string(p))
	switch {
	case err != nil:
		return err.Error()
	case read != p:
		return fmt.Sprintf("the device %q has to be written as %s", string(p), read)
	}
	return ""
}

// Holds says what keeps a guest with the device where it is, for people; empty: nothing, there is none.
func (p Passthrough) Holds() string {
	if p == "" || p == NetFunction {
		return ""
	}
	return fmt.Sprintf("it has its host's device %s for itself, which cannot go with it", p.Address())
}

// Kept says why a guest with the device cannot be written to a checkpoint, for people; empty: it can, or there is none.
func (p Passthrough) Kept() string {
	if p == NetFunction {
		return "it has a virtual function of its host's card, whose state nothing can save"
	}
	return p.Holds()
}

// NetFunctions says whether the host has a card for NetFunction, and how many virtual functions of it guests may have.
func (f Facts) NetFunctions() (card bool, functions int) {
	for _, d := range f.Devices {
		switch {
		case d.ForNet && d.Of == "":
			card = true
		case d.ForNet && d.Trouble == "":
			functions++
		}
	}
	return card, functions
}

// OnVirtio reports whether a guest that asks for a virtual function has none of its host's. One that cannot use what it has keeps it, if QEMU does.
func (f Facts) OnVirtio(id GuestID) bool {
	return f.Guests[id].Standby != "" && !slices.ContainsFunc(f.Devices, func(d Device) bool { return d.Guest == id })
}

// VLANs is a range of VLANs, both ends included; zero: none.
type VLANs struct{ First, Last uint16 }

// mostVLAN is the highest number of a VLAN.
const mostVLAN = 4094

// ParseVLANs reads a range like 100-199, or one number.
func ParseVLANs(word string) (v VLANs, err error) {
	if word == "" {
		return v, nil
	}
	first, last, isRange := strings.Cut(word, "-")
	if !isRange {
		last = first
	}
	a, errA := strconv.ParseUint(first, 10, 16)
	b, errB := strconv.ParseUint(last, 10, 16)
	if errA != nil || errB != nil || a < 1 || b > mostVLAN || a > b {
		return v, fmt.Errorf("%q is no range of VLANs: write two numbers from 1 to %d, the lower first, like 100-199", word, mostVLAN)
	}
	return VLANs{uint16(a), uint16(b)}, nil
}

// FindDevice returns the host's device that a guest asks for by its address. false: the host has none.
func (f Facts) FindDevice(p Passthrough) (Device, bool) {
	i := slices.IndexFunc(f.Devices, func(d Device) bool { return d.Address == p.Address() })
	if p == "" || i < 0 {
		return Device{}, false
	}
	return f.Devices[i], true
}

// refusedDevice says why guests as a job has them cannot have the device that it asks for.
func refusedDevice(s JobSpec) string {
	switch p := s.Need.Device; {
	case p == "":
		return ""
	case p.Refused() != "":
		return "--" + DeviceFlag + ": " + p.Refused()
	case s.Kind == Auto || s.Kind != "" && !s.Kind.Traits().Passes:
		return "--" + DeviceFlag + " is for virtual machines: containers have no devices of their own; give --kind " + string(VM)
	case p == NetFunction && s.Outward():
		return "--" + DeviceFlag + " " + string(NetFunction) + " puts the job's network on a VLAN, which leads to no other network: leave out --" + NetFlag
	case s.Checkpoint != nil:
		return "a guest that has a device of its host cannot be written to a checkpoint: leave out --" + CheckpointFlag + " or --" + DeviceFlag
	}
	return ""
}

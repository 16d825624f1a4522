package machine

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"pagurus/fleet"
)

// vfio is the kernel's driver of devices that are given to guests.
const vfio = "vfio-pci"

// The classes of PCI functions that matter here, as the first byte of the kernel's number.
const (
	classNetwork     = 0x02
	classDisplay     = 0x03
	classBridge      = 0x06
	classAccelerator = 0x12
)

// devicesStay is how long a list of devices is kept: they come and go rarely, and the bus may have hundreds.
const devicesStay = 30 * time.Second

// DeviceReader reads this machine's devices at intervals. Its zero value is ready.
type DeviceReader struct {
	Loans *DeviceLoans // what guests may have, and have; nil: nothing is lent but what is bound to vfio-pci

	mu   sync.Mutex
	last []fleet.Device
	at   time.Time
}

// Last are the devices that a guest could have for itself, of the last half minute, which guests have them, and why they could
// not have them as they are.
func (r *DeviceReader) Last() []fleet.Device {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.at.IsZero() || time.Since(r.at) > devicesStay || r.Loans.changedSince(r.at) {
		r.at = time.Now()
		r.last = r.Loans.devices()
	}
	return r.last
}

// functionsIn are all functions on the PCI bus below a place where the kernel's tree of devices is mounted.
func functionsIn(sys string) []function {
	all, _ := filepath.Glob(filepath.Join(sys, "bus/pci/devices/*")) // the pattern is well formed; without a bus there are none
	functions := make([]function, 0, len(all))
	for _, path := range all {
		functions = append(functions, readFunction(path))
	}
	return functions
}

// devicesIn lists the devices; some may be taken from the host's drivers, as all virtual functions of a card may.
func devicesIn(sys string, lending []string, card string) (out []fleet.Device) {
	functions := functionsIn(sys)
	at := addressOf(card, functions)
	for _, f := range functions {
		f.lent = slices.Contains(lending, f.address) || at != "" && f.card == at
		kind := f.kind()
		if kind == "" {
			continue
		}
		out = append(out, fleet.Device{
			Address: f.address, Kind: kind, ID: f.id, Driver: f.driver, Interface: f.face, Of: f.card, Functions: f.has, Most: f.most, Group: f.group,
			Trouble: f.trouble(functions), ForNet: at != "" && (f.address == at || f.card == at),
		})
	}
	return out
}

// addressOf is the function that is an interface of the host; empty: none is.
func addressOf(face string, functions []function) string {
	i := slices.IndexFunc(functions, func(f function) bool { return f.face == face })
	if face == "" || i < 0 {
		return ""
	}
	return functions[i].address
}

// function is a function on the PCI bus.
type function struct {
	address, id, driver, face, card, group string
	class, has, most                       int
	lent                                   bool // the agent may take it from the host's drivers
}

func readFunction(path string) function {
	number := func(name string) int {
		n, err := strconv.ParseInt(readWord(path, name), 0, 32)
		if err != nil {
			return 0
		}
		return int(n)
	}
	link := func(name string) string {
		to, err := os.Readlink(filepath.Join(path, name))
		if err != nil {
			return ""
		}
		return filepath.Base(to)
	}
	f := function{address: filepath.Base(path), driver: link("driver"), card: link("physfn"), group: link("iommu_group"), has: number("sriov_numvfs"), most: number("sriov_totalvfs"), class: number("class") >> 16}
	f.id = strings.TrimPrefix(readWord(path, "vendor"), "0x") + ":" + strings.TrimPrefix(readWord(path, "device"), "0x")
	if faces, err := os.ReadDir(filepath.Join(path, "net")); err == nil && len(faces) > 0 {
		f.face = faces[0].Name()
	}
	return f
}

func readWord(folder, name string) string {
	text, err := os.ReadFile(filepath.Join(folder, name))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(text))
}

// kind says what the function is for; empty: it is not listed. Virtio's devices are this machine's own, if it is a virtual
// one.
func (f function) kind() fleet.DeviceKind {
	const virtio = "1af4:"
	switch {
	case strings.HasPrefix(f.id, virtio) && f.driver != vfio && !f.lent:
	case f.class == classNetwork:
		return fleet.NetDevice
	case f.class == classDisplay, f.class == classAccelerator:
		return fleet.GPUDevice
	case f.driver == vfio, f.lent:
		return fleet.OtherDevice
	}
	return ""
}

// trouble says why no guest could have the function as it is; empty: one could.
func (f function) trouble(all []function) string {
	switch with := f.companions(all); {
	case f.has > 0:
		return fmt.Sprintf("it is the card of %d virtual functions", f.has)
	case f.group == "":
		return "it is in no IOMMU group: switch the IOMMU on in the firmware, and with intel_iommu=on on the kernel's command line"
	case len(with) > 0:
		return fmt.Sprintf("it shares IOMMU group %s with %s, and a guest gets all of a group or nothing", f.group, strings.Join(with, ", "))
	case f.lent, f.driver == vfio:
		return ""
	case f.driver == "":
		return fmt.Sprintf("no driver has it: name it in the agent's --%s, or bind it with `driverctl set-override %s %s`", fleet.LendFlag, f.address, vfio)
	default:
		return fmt.Sprintf("the host uses it, with the driver %s: name it in the agent's --%s, or take it away with `driverctl set-override %s %s`", f.driver, fleet.LendFlag, f.address, vfio)
	}
}

// companions are the other functions of the IOMMU group, but for bridges, which the kernel keeps. Also those that are bound to
// vfio-pci count: they would have to go to the same guest.
func (f function) companions(all []function) (out []string) {
	for _, o := range all {
		if o.group == f.group && o.address != f.address && o.class != classBridge {
			out = append(out, o.address)
		}
	}
	slices.Sort(out)
	return out
}

package machine

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"pagurus/fleet"
)

// DeviceLoans gives this machine's devices to guests, and takes them back.
type DeviceLoans struct {
	Run     string   // folder with a file for each device that a guest has; it must not outlive a boot
	Lending []string // addresses of those that may be taken from the host's drivers; others have to be bound to vfio-pci
	Card    string   // the interface of the card whose virtual functions are for any guest that asks for one; empty: none

	Steered func() // called when frames have another way than before; nil: nobody wants to know

	sys        string                                          // where the kernel's tree of devices is; empty: /sys
	interrupts string                                          // the kernel's list of them; empty: /proc/interrupts
	files      string                                          // where its files of IOMMU groups are; empty: /dev/vfio
	filter     func(card string, function int, f frames) error // nil: the kernel's
	mu         sync.Mutex
	changed    time.Time
}

// devices are the machine's devices, with who has them.
func (d *DeviceLoans) devices() []fleet.Device {
	if d == nil {
		return devicesIn("/sys", nil, "")
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	all := devicesIn(d.tree(), d.Lending, d.Card)
	for i := range all {
		if l, err := d.loanOf(all[i].Address); err == nil {
			all[i].Guest = l.Guest
		}
	}
	return all
}

func (d *DeviceLoans) changedSince(at time.Time) bool {
	if d == nil {
		return false
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.changed.After(at)
}

func (d *DeviceLoans) tree() string { return cmp.Or(d.sys, "/sys") }

// Borrowers are the guests that have a device, by what is written.
func (d *DeviceLoans) Borrowers() (out []fleet.GuestID, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	err = d.each(func(_ string, l loan) error {
		out = append(out, l.Guest)
		return nil
	})
	return out, err
}

// loan is what is written of a device that a guest has.
type loan struct {
	Guest  fleet.GuestID `json:"guest"`
	Driver string        `json:"driver"`        // that had it before, and gets it back; empty: none
	Net    bool          `json:"net,omitempty"` // any of the card's would have done
}

// loanEnds ends the name of a device's file.
const loanEnds = ".json"

// TakeDevice gives a guest a device, which no other has until ReturnDevice. A second call gives the same one. After an error the device
// is as it was.
func (d *DeviceLoans) TakeDevice(guest fleet.GuestID, want fleet.Passthrough) (fleet.Device, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.changed = time.Now()
	all := devicesIn(d.tree(), d.Lending, d.Card)
	address, err := d.named(guest, want, all)
	if err != nil {
		return fleet.Device{}, err
	}
	had, err := d.loanOf(address)
	if err == nil && had.Guest != guest {
		return fleet.Device{}, fmt.Errorf("guest %s has it", had.Guest)
	}
	again := err == nil
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fleet.Device{}, err
	}
	i := slices.IndexFunc(all, func(o fleet.Device) bool { return o.Address == address })
	switch {
	case i < 0:
		return fleet.Device{}, errors.New("this host does not have it any more")
	case all[i].Trouble != "":
		return fleet.Device{}, errors.New(all[i].Trouble)
	}
	if !again {
		had = loan{Guest: guest, Driver: all[i].Driver, Net: want == fleet.NetFunction}
		if err := d.noteLoan(address, had); err != nil {
			return fleet.Device{}, err
		}
	}
	if err := d.bind(all[i]); err != nil {
		return fleet.Device{}, errors.Join(err, d.endLoan(address, had))
	}
	return all[i], nil
}

// ReturnDevice takes the guest's devices back, and gives them to the drivers that had them. No process of the guest may have them open. A guest
// that has none is not an error. After an error call again.
func (d *DeviceLoans) ReturnDevice(guest fleet.GuestID) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.each(func(address string, l loan) error {
		if l.Guest != guest {
			return nil
		}
		d.changed = time.Now()
		return d.endLoan(address, l)
	})
}

// each calls a function for every device that a guest has. After an error it goes on.
func (d *DeviceLoans) each(do func(address string, l loan) error) error {
	entries, err := os.ReadDir(d.Run)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	errs := []error{err}
	for _, e := range entries {
		address, isLoan := strings.CutSuffix(e.Name(), loanEnds)
		if !isLoan {
			continue
		}
		l, err := d.loanOf(address)
		if err == nil {
			err = do(address, l)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

func (d *DeviceLoans) loanPath(address string) string { return filepath.Join(d.Run, address+loanEnds) }

// loanOf reads who has a device. The error is fs.ErrNotExist where nobody has.
func (d *DeviceLoans) loanOf(address string) (l loan, err error) {
	text, err := os.ReadFile(d.loanPath(address))
	if err == nil {
		err = json.Unmarshal(text, &l)
	}
	return l, err
}

// noteLoan writes who has a device, before the device is taken from its driver: so a later agent gives it back.
func (d *DeviceLoans) noteLoan(address string, l loan) error {
	text, err := json.Marshal(l)
	if err == nil {
		err = os.MkdirAll(d.Run, 0o700)
	}
	if err != nil {
		return err
	}
	draft := d.loanPath(address) + ".new"
	if err := os.WriteFile(draft, text, 0o600); err != nil {
		return err
	}
	return os.Rename(draft, d.loanPath(address))
}

// endLoan gives a device back and forgets who had it. One that is gone has nothing to be given back to.
func (d *DeviceLoans) endLoan(address string, l loan) error {
	var err error
	if l.Net { // before its host's driver has it again, for which the job's network is not
		err = d.steer(address, frames{})
	}
	if err = errors.Join(err, d.unbind(address, l.Driver)); err != nil {
		return fmt.Errorf("give the device %s back to the host: %w", address, err)
	}
	if err := os.Remove(d.loanPath(address)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	_ = os.Remove(d.Run) // fails while another guest has a device
	return nil
}

// appears is how long the kernel may take to make a device's file.
const appears = 5 * time.Second

// bind has vfio-pci drive a device.
func (d *DeviceLoans) bind(dev fleet.Device) error {
	if dev.Driver != vfio {
		if _, err := os.Stat(filepath.Join(d.tree(), "bus/pci/drivers", vfio)); err != nil {
			if out, err := exec.Command("modprobe", vfio).CombinedOutput(); err != nil {
				return fmt.Errorf("load the kernel's module %s: %w: %s", vfio, err, strings.TrimSpace(string(out)))
			}
		}
		if err := d.drive(dev.Address, vfio); err != nil {
			return err
		}
		if now := d.driverOf(dev.Address); now != vfio {
			return fmt.Errorf("the kernel does not give it to %s: %s has it", vfio, orNobody(now))
		}
	}
	file := filepath.Join(cmp.Or(d.files, "/dev/vfio"), dev.Group)
	for deadline := time.Now().Add(appears); ; time.Sleep(10 * time.Millisecond) {
		_, err := os.Stat(file)
		if err == nil {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("the kernel does not show its IOMMU group: %w", err)
		}
	}
}

// unbind gives a device back to the driver that had it; empty: to none.
func (d *DeviceLoans) unbind(address, driver string) error {
	switch now := d.driverOf(address); {
	case driver == vfio: // it was reserved for guests before, and stays so
		return nil
	case driver == "" && now == vfio:
		return errors.Join(d.write(address, "bus/pci/drivers", vfio, "unbind"), d.write("", "bus/pci/devices", address, "driver_override"))
	}
	return d.drive(address, "")
}

// drive takes a device from its driver and has the kernel look for one: the named one, or any if it is empty.
func (d *DeviceLoans) drive(address, driver string) error {
	if err := d.write(driver, "bus/pci/devices", address, "driver_override"); err != nil {
		return err
	}
	if now := d.driverOf(address); now == vfio || now != "" && driver == vfio {
		if err := d.write(address, "bus/pci/drivers", now, "unbind"); err != nil {
			return err
		}
	}
	return d.write(address, "bus/pci/drivers_probe")
}

// write writes a line for the kernel. A device that is gone is not an error.
func (d *DeviceLoans) write(text string, path ...string) error {
	err := os.WriteFile(filepath.Join(d.tree(), filepath.Join(path...)), []byte(text+"\n"), 0)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV) {
		return nil
	}
	return err
}

func (d *DeviceLoans) driverOf(address string) string {
	return readFunction(filepath.Join(d.tree(), "bus/pci/devices", address)).driver
}

func orNobody(driver string) string {
	if driver == "" {
		return "nobody"
	}
	return driver
}

package machine

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"pagurus/fleet"
)

// What is reserved for guests goes to one guest after another, also after the agent began again. What is not there, or cannot
// be given away, is refused with the reason. How a device leaves the driver of the host is tried in the machine lab.
func TestDevicesAreLent(t *testing.T) {
	sys := pci(t, map[string]map[string]string{
		"0000:01:10.0": {"vendor": "0x8086", "device": "0x10ca", "class": "0x020000", "driver@": "vfio-pci", "iommu_group@": "5"},
		"0000:01:10.2": {"vendor": "0x8086", "device": "0x10ca", "class": "0x020000", "driver@": "igbvf", "iommu_group@": "6"},
		"0000:02:00.0": {"vendor": "0x8086", "device": "0x10ca", "class": "0x020000", "driver@": "vfio-pci"},
	})
	files, run := t.TempDir(), filepath.Join(t.TempDir(), "devices")
	if err := os.WriteFile(filepath.Join(files, "5"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	open := func() *DeviceLoans { return &DeviceLoans{Run: run, sys: sys, files: files} }
	take := func(guest fleet.GuestID, want fleet.Passthrough, trouble string) {
		t.Helper()
		got, err := open().TakeDevice(guest, want)
		if trouble == "" && (err != nil || got.Address != want.Address() || got.Group != "5") || trouble != "" && (err == nil || !strings.Contains(err.Error(), trouble)) {
			t.Errorf("%s takes %s: %+v, %v; want %q", guest, want, got, err, trouble)
		}
	}
	free := func(want fleet.GuestID) {
		t.Helper()
		if now := open().devices()[0]; now.Guest != want {
			t.Errorf("guest %q has %s, want %q", now.Guest, now.Address, want)
		}
	}
	free("")
	take("j1g0", "pci:0000:01:10.0", "")
	take("j1g0", "pci:0000:01:10.0", "")
	free("j1g0")
	take("j2g0", "pci:0000:01:10.0", "guest j1g0 has it")
	take("j2g0", "pci:0000:01:10.2", "the host uses it, with the driver igbvf")
	take("j2g0", "pci:0000:02:00.0", "in no IOMMU group")
	take("j2g0", "pci:0000:09:00.0", "does not have it any more")
	if all, err := open().Borrowers(); err != nil || len(all) != 1 || all[0] != "j1g0" {
		t.Errorf("%v have devices, %v", all, err)
	}
	d := open()
	for _, guest := range []fleet.GuestID{"j2g0", "j1g0", "j1g0"} {
		if err := d.ReturnDevice(guest); err != nil {
			t.Errorf("%s returns: %v", guest, err)
		}
	}
	free("")
	take("j2g0", "pci:0000:01:10.0", "")
	if left, err := os.ReadDir(run); err != nil || len(left) != 1 {
		t.Errorf("there are %v, %v", left, err)
	}
}

// A device that a driver of the host has may be given where the agent is told so.
func TestLendingIsAgreedTo(t *testing.T) {
	sys := pci(t, map[string]map[string]string{
		"0000:01:10.2": {"vendor": "0x8086", "device": "0x10ca", "class": "0x020000", "driver@": "igbvf", "iommu_group@": "6"},
		"0000:05:00.0": {"vendor": "0x144d", "device": "0xa808", "class": "0x010802", "driver@": "nvme", "iommu_group@": "7"},
		"0000:05:00.1": {"vendor": "0x144d", "device": "0xa808", "class": "0x010802", "iommu_group@": "8"},
		"0000:06:00.0": {"vendor": "0x144d", "device": "0xa808", "class": "0x010802", "driver@": "nvme"},
	})
	got := devicesIn(sys, []string{"0000:01:10.2", "0000:05:00.0", "0000:05:00.1", "0000:06:00.0", "0000:07:00.0"}, "")
	for i, trouble := range []string{"", "", "", "in no IOMMU group"} {
		if (got[i].Trouble == "") != (trouble == "") || !strings.Contains(got[i].Trouble, trouble) {
			t.Errorf("%s: %q, want %q", got[i].Address, got[i].Trouble, trouble)
		}
	}
	if len(got) != 4 || got[1].Kind != fleet.OtherDevice {
		t.Errorf("there are %+v", got)
	}
}

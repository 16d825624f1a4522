package machine

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"pagurus/fleet"
)

// Guests get the free functions of a card one after another, each the same when it asks again. The card leads frames to it once it is
// told so, and no longer when the function is given back.
func TestFunctionsAreLent(t *testing.T) {
	function := func(group string) map[string]string {
		return map[string]string{"vendor": "0x8086", "device": "0x10ca", "class": "0x020000", "driver@": vfio, "iommu_group@": group, "physfn@": "0000:01:00.0"}
	}
	sys := pci(t, map[string]map[string]string{
		"0000:01:00.0": {"vendor": "0x8086", "device": "0x10c9", "class": "0x020000", "driver@": "igb", "iommu_group@": "4", "sriov_totalvfs": "7", "sriov_numvfs": "3", "net/ens1/": "",
			"virtfn0@": "0000:01:10.0", "virtfn1@": "0000:01:10.2", "virtfn2@": "0000:01:10.4"},
		"0000:01:10.0": function("5"), "0000:01:10.2": function(""), "0000:01:10.4": function("7"),
		"0000:02:10.0": {"vendor": "0x8086", "device": "0x10ca", "class": "0x020000", "driver@": vfio, "iommu_group@": "9", "physfn@": "0000:02:00.0"},
	})
	if err := os.Remove(filepath.Join(sys, "bus/pci/devices/0000:01:10.2/iommu_group")); err != nil {
		t.Fatal(err)
	}
	files, run := t.TempDir(), filepath.Join(t.TempDir(), "devices")
	for _, group := range []string{"5", "7"} {
		if err := os.WriteFile(filepath.Join(files, group), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var told []string
	d := &DeviceLoans{Run: run, Card: "ens1", sys: sys, files: files, filter: func(card string, function int, f frames) error {
		told = append(told, fmt.Sprintf("%s %d %s %d", card, function, f.MAC, f.VLAN))
		return nil
	}}
	take := func(guest fleet.GuestID, want fleet.Passthrough, address string) {
		t.Helper()
		if got, err := d.TakeDevice(guest, want); err != nil || got.Address != address {
			t.Errorf("%s gets %s, %v; want %s", guest, got.Address, err, address)
		}
	}
	take("j1g0", fleet.NetFunction, "0000:01:10.0")
	take("j1g1", fleet.NetFunction, "0000:01:10.4")
	take("j1g0", fleet.NetFunction, "0000:01:10.0")
	if _, err := d.TakeDevice("j2g0", fleet.NetFunction); !errors.Is(err, fleet.ErrNoFunction) {
		t.Errorf("a third gets %v", err)
	}
	if _, err := d.TakeDevice("j2g0", "pci:0000:01:10.0"); err == nil || !strings.Contains(err.Error(), "keeps it for guests") {
		t.Errorf("by its address it is given: %v", err)
	}
	for _, by := range []bool{true, false} {
		if err := d.Lead("j1g1", "02:70:67:00:01:02", 101, by); err != nil {
			t.Error(err)
		}
	}
	if err := d.Lead("j1g1", "nonsense", 101, true); err == nil {
		t.Error("nonsense is an address")
	}
	d.interrupts = filepath.Join(t.TempDir(), "interrupts")
	for text, want := range map[string]bool{"": false, " 24: 0 0 IR-PCI-MSIX-0000:01:10.4 0-edge vfio-msix[0](0000:01:10.4)\n": true, " 24: 7 vfio-msix[0](0000:01:10.0)\n 25: 8 igbvf(0000:01:10.4)\n": false} {
		if err := os.WriteFile(d.interrupts, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if does, err := d.Drives("j1g1"); err != nil || does != want {
			t.Errorf("by %q it is driven: %v, %v", text, does, err)
		}
	}
	if err := d.ReturnDevice("j1g1"); err != nil {
		t.Error(err)
	}
	if want := []string{"ens1 2 02:70:67:00:01:02 101", "ens1 2  101", "ens1 2  0"}; !slices.Equal(told, want) {
		t.Errorf("the card was told %q, want %q", told, want)
	}
	take("j2g0", fleet.NetFunction, "0000:01:10.4")
	card, functions := fleet.Facts{Devices: d.devices()}.NetFunctions()
	if !card || functions != 2 {
		t.Errorf("it tells of a card: %v, and %d functions", card, functions)
	}
}

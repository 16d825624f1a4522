package machine

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"pagurus/fleet"
)

// pci makes the files that the kernel shows of functions on the PCI bus: address, then names with contents; a name with @ is
// a link, one with / a folder.
func pci(t *testing.T, functions map[string]map[string]string) string {
	t.Helper()
	sys := t.TempDir()
	for address, files := range functions {
		dir := filepath.Join(sys, "bus/pci/devices", address)
		for name, text := range files {
			path := filepath.Join(dir, strings.Trim(name, "@/"))
			err := os.MkdirAll(filepath.Dir(path), 0o755)
			switch {
			case err != nil:
			case strings.HasSuffix(name, "@"):
				err = os.Symlink("../x/"+text, path)
			case strings.HasSuffix(name, "/"):
				err = os.MkdirAll(path, 0o755)
			default:
				err = os.WriteFile(path, []byte(text+"\n"), 0o644)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	return sys
}

// A card with two virtual functions, of which one is reserved for guests, as an emulated igb behind an emulated IOMMU
// shows them; and what cannot be given away.
func TestDevicesAreListed(t *testing.T) {
	sys := pci(t, map[string]map[string]string{
		"0000:00:02.0": {"vendor": "0x1af4", "device": "0x1041", "class": "0x020000", "driver@": "virtio-pci", "iommu_group@": "1"},
		"0000:00:03.0": {"vendor": "0x8086", "device": "0x3420", "class": "0x060400", "driver@": "pcieport", "iommu_group@": "4"},
		"0000:01:00.0": {"vendor": "0x8086", "device": "0x10c9", "class": "0x020000", "driver@": "igb", "iommu_group@": "4", "sriov_totalvfs": "7", "sriov_numvfs": "2", "net/ens1/": ""},
		"0000:01:10.0": {"vendor": "0x8086", "device": "0x10ca", "class": "0x020000", "driver@": "vfio-pci", "iommu_group@": "5", "physfn@": "0000:01:00.0"},
		"0000:01:10.2": {"vendor": "0x8086", "device": "0x10ca", "class": "0x020000", "driver@": "igbvf", "iommu_group@": "6", "physfn@": "0000:01:00.0", "net/ens1v1/": ""},
		"0000:02:00.0": {"vendor": "0x10de", "device": "0x20b0", "class": "0x030200", "iommu_group@": "7"},
		"0000:02:00.1": {"vendor": "0x10de", "device": "0x10f1", "class": "0x040300", "driver@": "snd_hda_intel", "iommu_group@": "7"},
		"0000:03:00.0": {"vendor": "0x1234", "device": "0x1111", "class": "0x120000"},
		"0000:04:00.0": {"vendor": "0x144d", "device": "0xa808", "class": "0x010802", "driver@": "vfio-pci", "iommu_group@": "9"},
		"0000:05:00.0": {"vendor": "0x144d", "device": "0xa808", "class": "0x010802", "driver@": "nvme", "iommu_group@": "10"},
		"0000:06:00.0": {"class": "rubbish"},
	})
	want := []struct {
		is      fleet.Device
		trouble string
	}{
		{fleet.Device{Address: "0000:01:00.0", Kind: fleet.NetDevice, ID: "8086:10c9", Driver: "igb", Interface: "ens1", Functions: 2, Most: 7, Group: "4"}, "the card of 2 virtual functions"},
		{fleet.Device{Address: "0000:01:10.0", Kind: fleet.NetDevice, ID: "8086:10ca", Driver: "vfio-pci", Of: "0000:01:00.0", Group: "5"}, ""},
		{fleet.Device{Address: "0000:01:10.2", Kind: fleet.NetDevice, ID: "8086:10ca", Driver: "igbvf", Interface: "ens1v1", Of: "0000:01:00.0", Group: "6"}, "the host uses it, with the driver igbvf"},
		{fleet.Device{Address: "0000:02:00.0", Kind: fleet.GPUDevice, ID: "10de:20b0", Group: "7"}, "shares IOMMU group 7 with 0000:02:00.1"},
		{fleet.Device{Address: "0000:03:00.0", Kind: fleet.GPUDevice, ID: "1234:1111"}, "in no IOMMU group"},
		{fleet.Device{Address: "0000:04:00.0", Kind: fleet.OtherDevice, ID: "144d:a808", Driver: "vfio-pci", Group: "9"}, ""},
	}
	got := devicesIn(sys, nil, "")
	if len(got) != len(want) {
		t.Fatalf("there are %d devices: %+v", len(got), got)
	}
	for i, w := range want {
		said := got[i].Trouble
		if got[i].Trouble = ""; got[i] != w.is || !strings.Contains(said, w.trouble) || (said == "") != (w.trouble == "") {
			t.Errorf("got %+v (%s), want %+v (%s)", got[i], said, w.is, w.trouble)
		}
	}
	if none := devicesIn(t.TempDir(), nil, ""); len(none) != 0 {
		t.Errorf("without a bus there are %+v", none)
	}
}

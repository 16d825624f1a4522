package machine

import (
	"reflect"
	"testing"
	"testing/fstest"

	"pagurus/fleet"
)

// The files are as a machine with all of them has them.
func TestCountersOf(t *testing.T) {
	file := func(s string) *fstest.MapFile { return &fstest.MapFile{Data: []byte(s)} }
	got, blind := countersOf(fstest.MapFS{
		"sys/devices/system/edac/mc/mc0/ue_count":                          file("1\n"),
		"sys/devices/system/edac/mc/mc0/ce_count":                          file("17\n"),
		"sys/devices/system/edac/mc/mc1/ce_count":                          file("0\n"),
		"sys/fs/ext4/sda2/errors_count":                                    file("2\n"),
		"sys/fs/ext4/features/batched_discard":                             file("supported\n"),
		"sys/block/sda/device/ioerr_cnt":                                   file("0x1f\n"),
		"sys/class/net/eth0/device/vendor":                                 file("0x8086\n"),
		"sys/class/net/eth0/statistics/rx_errors":                          file("3\n"),
		"sys/class/net/eth0/statistics/tx_errors":                          file("4\n"),
		"sys/class/net/eth0/carrier_down_count":                            file("5\n"),
		"sys/class/net/pg7/statistics/rx_errors":                           file("900\n"),
		"sys/devices/system/cpu/cpu0/thermal_throttle/core_throttle_count": file("6\n"),
		"sys/devices/system/cpu/cpu1/thermal_throttle/core_throttle_count": file("7\n"),
		"proc/interrupts":                                                  file("           CPU0       CPU1\n  0:         44          0   IO-APIC   2-edge      timer\nMCE:          1          2   Machine check exceptions\nMCP:         30         30   Machine check polls\n"),
		"proc/vmstat":                                                      file("pswpin 8\npswpout 9\n"),
	})
	want := []fleet.Counter{
		{Kind: fleet.MemoryFaults, Where: "mc0", Total: 1}, {Kind: fleet.MemoryErrors, Where: "mc0", Total: 17}, {Kind: fleet.MemoryErrors, Where: "mc1"},
		{Kind: fleet.FileSystemErrors, Where: "sda2", Total: 2}, {Kind: fleet.DiskErrors, Where: "sda", Total: 31},
		{Kind: fleet.LinkErrors, Where: "eth0", Total: 7}, {Kind: fleet.LinkFlaps, Where: "eth0", Total: 5}, {Kind: fleet.Throttling, Total: 13},
		{Kind: fleet.MachineChecks, Total: 3}, {Kind: fleet.SwapStorm, Total: 8},
	}
	if !reflect.DeepEqual(got, want) || len(blind) > 0 {
		t.Errorf("got %+v, blind to %v", got, blind)
	}
	got, blind = countersOf(fstest.MapFS{"sys/block/sda/device/ioerr_cnt": file("many\n")})
	if len(got) > 0 || len(blind) != 2 {
		t.Errorf("of a machine that says nothing: %+v, blind to %v", got, blind)
	}
}

// This machine's own kernel counts at least what it read from swap, and never less than before.
func TestCounters(t *testing.T) {
	before, _ := Counters()
	after, _ := Counters()
	swap := false
	for _, c := range before {
		swap = swap || c.Kind == fleet.SwapStorm
		for _, d := range after {
			if c.Kind == d.Kind && c.Where == d.Where && d.Total < c.Total {
				t.Errorf("%+v became %+v", c, d)
			}
		}
	}
	if !swap {
		t.Errorf("nothing is known of swap: %+v", before)
	}
}

package qemu

import (
	"testing"
	"time"

	"pagurus/fleet"
)

// EmulateFunctions has guests get an emulated card where they would get a virtual function of the host's.
func EmulateFunctions() {
	cardOf = func(d fleet.Device) map[string]any {
		return map[string]any{"driver": "e1000e", "mac": d.Address, "romfile": ""}
	}
}

// HurryDrivers has guests use a function within so long, until a test ends.
func HurryDrivers(t *testing.T, limit time.Duration) {
	usual := driveLimit
	driveLimit = limit
	t.Cleanup(func() { driveLimit = usual })
}

// HurryUnplugging has guests let go of a function within so long, until a test ends.
func HurryUnplugging(t *testing.T, limit time.Duration) {
	usual := unplugLimit
	unplugLimit = limit
	t.Cleanup(func() { unplugLimit = usual })
}

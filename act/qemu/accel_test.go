package qemu

import (
	"testing"

	"pagurus/internal/testkit"
)

func TestProbeIsBuiltFromItsSource(t *testing.T) {
	testkit.Built(t, "probe.bin", "probe.asm", "22f2720215ac4f830b48f61ad272f40b32b3427d505b25fcc6555769ec18c380")
}

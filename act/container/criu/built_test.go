package criu

import (
	"testing"

	"pagurus/internal/testkit"
)

func TestBinariesAreBuiltFromTheirSources(t *testing.T) {
	testkit.Built(t, "probe/probe.bin", "probe/probe.c", "64008c33ee5eb7e12410634eb21a4a669d051e207409c5a398c05ec5bea127fb")
	testkit.Built(t, "limits/limits.so", "limits/limits.c", "211fa91f24fee0462a38ded5c3bcfa23d1521705ce125210998d84bbacd046c4")
}

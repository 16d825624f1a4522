package machine

import (
	"net/netip"
	"testing"
	"time"
)

// TestSpeed: what is measured is plausible for any machine, of about the same size twice, and
// soon there.
func TestSpeed(t *testing.T) {
	begun := time.Now()
	a, b := Speed(netip.MustParseAddr("127.0.0.1")), Speed(netip.MustParseAddr("127.0.0.1"))
	took := time.Since(begun)
	t.Logf("%+v and %+v in %s", *a, *b, took)
	for what, of := range map[string][2]float64{
		"copying":            {a.CopyBytesPerSecond, b.CopyBytesPerSecond},
		"scanning":           {a.ScanBytesPerSecond, b.ScanBytesPerSecond},
		"starting processes": {1e15 / float64(a.ProcessStart), 1e15 / float64(b.ProcessStart)},
	} {
		if of[0] < 1e6 || of[0] > 1e13 || of[0] > 5*of[1] || of[1] > 5*of[0] {
			t.Errorf("%s: %g and %g", what, of[0], of[1])
		}
	}
	if took > 30*time.Second {
		t.Errorf("it took %s", took)
	}
	if a.LinkBytesPerSecond != 0 {
		t.Errorf("loopback has a speed: %g", a.LinkBytesPerSecond)
	}
}

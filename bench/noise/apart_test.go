package noise

import (
	"slices"
	"testing"
	"time"
)

func TestCPUsSayHowFarTheyAreFromEachOther(t *testing.T) {
	cpus, err := CPUs()
	if err != nil {
		t.Fatal(err)
	}
	d, err := Apart()
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d CPUs are %s apart", len(cpus), d)
	if len(cpus) < 2 {
		if d != 0 {
			t.Errorf("one CPU is %s from itself", d)
		}
		return
	}
	if d <= 0 || d > time.Millisecond {
		t.Errorf("CPUs are %s apart", d)
	}
}

// A request to a missing CPU ends with an error.
func TestNoSuchCPUIsNowhere(t *testing.T) {
	cpus, err := CPUs()
	if err != nil {
		t.Fatal(err)
	}
	for _, pair := range [][2]int{{cpus[0], 1000}, {1000, cpus[0]}} {
		if d, err := Between(pair[0], pair[1]); err == nil {
			t.Errorf("CPUs %v are %s apart", pair, d)
		}
	}
	if slices.Contains(cpus, 1000) {
		t.Fatal("this machine has a CPU 1000")
	}
}

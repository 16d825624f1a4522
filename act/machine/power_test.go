package machine

import (
	"math"
	"strings"
	"testing"
	"testing/fstest"
	"time"
)

func file(text string) *fstest.MapFile { return &fstest.MapFile{Data: []byte(text + "\n")} }

// TestPower: what the kernel of a machine with two processors shows, as recorded in the kernel's documentation
// of powercap.
func TestPower(t *testing.T) {
	zone := powercap + "/intel-rapl:"
	root := fstest.MapFS{
		zone + "0/name": file("package-0"), zone + "0/energy_uj": file("1000000"), zone + "0/max_energy_range_uj": file("262143328850"),
		zone + "1/name": file("package-1"), zone + "1/energy_uj": file("262143328000"), zone + "1/max_energy_range_uj": file("262143328850"),
		zone + "0:0/name": file("core"), zone + "0:0/energy_uj": file("77"),
		zone + "2/name": file("psys"), zone + "2/energy_uj": file("5"),
		powercap + "/intel-rapl-mmio:0/name": file("package-0"), powercap + "/intel-rapl-mmio:0/energy_uj": file("9"),
		"proc/stat": file("cpu  100 10 50 9000 20 5 5 0 30 0\ncpu0 100 10 50 9000 20 5 5 0 30 0"),
	}
	p := &PowerMeter{root: root}
	if is := p.Power(); is.Joules != 0 || is.Worked != 0 || is.Trouble != "" {
		t.Fatalf("%+v before anything was used", is)
	}
	root[zone+"0/energy_uj"], root[zone+"1/energy_uj"] = file("3500000"), file("999150") // the second began again
	root["proc/stat"] = file("cpu  300 10 150 9000 20 5 5 0 30 0")
	if is := p.Power(); is.Joules != 0 {
		t.Errorf("read again at once: %+v", is)
	}
	p.at = time.Time{}
	if is := p.Power(); math.Abs(is.Joules-3.5) > 1e-9 || is.Worked != 3*time.Second {
		t.Errorf("%+v, want 2.5 J and 1 J, and 3 s", is)
	}
	root[zone+"0/energy_uj"] = file("much")
	p.at = time.Time{}
	if is := p.Power(); is.Joules != 0 || !strings.Contains(is.Trouble, "not a number") {
		t.Errorf("%+v", is)
	}
	root[zone+"0/energy_uj"] = file("4000000")
	p.at = time.Time{}
	if is := p.Power(); is.Joules != 0 || is.Trouble != "" {
		t.Errorf("%+v after trouble: what was used meanwhile is unknown", is)
	}
}

func TestPowerOfAMachineWithoutCounters(t *testing.T) {
	p := &PowerMeter{root: fstest.MapFS{"proc/stat": file("cpu 1 2 3 4 5 6 7 8 9 0")}}
	if is := p.Power(); is.Joules != 0 || !strings.Contains(is.Trouble, "powercap") {
		t.Errorf("%+v", is)
	}
}

// TestPowerHere: whatever this machine is, it says what it uses or why it does not.
func TestPowerHere(t *testing.T) {
	p := NewPowerMeter()
	if is := p.Power(); is.Trouble == "" && is.Joules != 0 || is.Joules < 0 {
		t.Errorf("%+v", is)
	}
}

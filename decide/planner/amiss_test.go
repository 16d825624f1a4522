package planner

import (
	"strings"
	"testing"
	"time"

	"pagurus/fleet"
)

func predicted(ready, still time.Duration, converges bool) fleet.Prediction {
	return fleet.Prediction{Ready: ready, Downtime: fleet.Range[time.Duration]{Value: still}, Converges: converges, Why: "it changes too much", Help: "200 MiB/s"}
}

func TestShort(t *testing.T) {
	all := []fleet.Prediction{predicted(time.Second, 0, true), predicted(3*time.Second, 0, true), predicted(time.Second, 0, false)}
	for _, c := range []struct {
		of       []fleet.Prediction
		deadline time.Duration
		says     string
		who      int
	}{
		{of: all[:2]},
		{of: all[:2], deadline: 3 * time.Second},
		{of: all[:2], deadline: 2 * time.Second, says: "after the deadline of 2s", who: 1},
		{of: all, says: "would not converge: it changes too much", who: 2},
	} {
		says, who := shortfall(c.of, fleet.Limits{Deadline: c.deadline})
		if who != c.who || (says == "") != (c.says == "") || !strings.Contains(says, c.says) {
			t.Errorf("deadline %s: %q of guest %d", c.deadline, says, who)
		}
	}
	mapped := predicted(time.Second, 700*time.Millisecond, true)
	mapped.Mapping, mapped.Profile = 700*time.Millisecond, &fleet.Profile{Mappings: 31000}
	for allowed, short := range map[time.Duration]bool{0: false, 500 * time.Millisecond: true, time.Second: false} {
		says, who := shortfall([]fleet.Prediction{all[0], mapped}, fleet.Limits{Downtime: allowed})
		if (says != "") != short || short && (who != 1 || !strings.Contains(says, "700ms for its 31000 memory mappings alone, where 500ms is allowed")) {
			t.Errorf("%s allowed: %q of guest %d", allowed, says, who)
		}
	}
	if latestReady(all) != 3*time.Second || latestReady(nil) != 0 {
		t.Errorf("the last is ready after %s", latestReady(all))
	}
}

func TestDowntimeText(t *testing.T) {
	of := []fleet.Prediction{predicted(0, 40*time.Millisecond, true), predicted(0, 90*time.Millisecond, true)}
	for allowed, want := range map[time.Duration]string{
		0: "90ms", 100 * time.Millisecond: "90ms",
		50 * time.Millisecond: "90ms: sending the rest takes less than the 50ms allowed, but every mode has this downtime",
	} {
		if got := downtimeText(of, fleet.Limits{Downtime: allowed}); got != want {
			t.Errorf("%s allowed: %q, want %q", allowed, got, want)
		}
	}
}

func TestHelp(t *testing.T) {
	p := predicted(0, 0, false)
	if got := helpToBeReady(p, 2*time.Second, true); got != "; it would with 200 MiB/s; --mode stop-and-copy would mean a downtime of about 2s, --mode pre-copy tries all the same" {
		t.Error(got)
	}
	if got := helpToBeReady(p, 2*time.Second, false); !strings.Contains(got, "doctor --fix") {
		t.Error(got)
	}
}

package cost

import (
	"math"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestPredictByHand(t *testing.T) {
	m := Model{Overhead: time.Second, Downtime: 100 * time.Millisecond}
	// 1000 bytes at 100/s, 10/s dirtied: 10 s, then 100 bytes in 1 s, then 10
	// bytes in 0.1 s, which is what a switch may take.
	got := m.Predict(Profile{ResidentBytes: 1000, DirtyBytesPerSecond: 10}, 100)
	want := Estimate{Total: 12100 * time.Millisecond, Downtime: 100 * time.Millisecond, Bytes: 1110, Rounds: 2, Converges: true}
	if got != want {
		t.Errorf("got %+v\nwant %+v", got, want)
	}
	for name, e := range map[string]Estimate{
		"dirties faster than the link": m.Predict(Profile{1000, 100}, 100),
		"no link":                      m.Predict(Profile{1000, 0}, 0),
		"nonsense":                     m.Predict(Profile{1000, 0}, math.NaN()),
		"too many rounds":              m.Predict(Profile{1 << 40, 99.999}, 100),
	} {
		if e != (Estimate{}) {
			t.Errorf("%s: %+v", name, e)
		}
	}
}

func TestMoreBandwidthNeverCostsMore(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := Profile{rapid.Int64Range(0, 1<<40).Draw(t, "bytes"), rapid.Float64Range(0, 1e9).Draw(t, "dirty")}
		rate := rapid.Float64Range(1e3, 1e10).Draw(t, "rate")
		slow, fast := (Model{}).Predict(p, rate), (Model{}).Predict(p, rate*2)
		if slow.Converges && (!fast.Converges || fast.Total > slow.Total) {
			t.Fatalf("slow %+v fast %+v", slow, fast)
		}
		if slow.Downtime > defaultDowntime {
			t.Fatalf("downtime %s", slow.Downtime)
		}
	})
}

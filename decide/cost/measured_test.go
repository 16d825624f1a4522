package cost

import (
	"strings"
	"testing"
	"time"

	"pagurus/fleet"
)

// TestMeasured: without history a slow machine's moves are predicted to take longer, by as
// much as it is slower; a usual machine's as before; and history takes over.
func TestMeasured(t *testing.T) {
	at := func(slow float64) *fleet.Speed {
		return &fleet.Speed{CopyBytesPerSecond: float64(usualCopy) / slow, ScanBytesPerSecond: float64(usualScan) / slow, ProcessStart: time.Duration(float64(usualStart) * slow)}
	}
	p := fleet.Profile{MemoryBytes: 512 << 20, FilledBytes: 256 << 20}
	usual := Model{}.Predict(p, Link{})
	predict := func(from, to *fleet.Speed) fleet.Prediction { return Model{}.Measured(from, to).Predict(p, Link{}) }
	for _, c := range []struct {
		from, to *fleet.Speed
		want     float64 // times as long
		says     string
	}{
		{nil, nil, 1, "no move yet to learn from"},
		{at(1), at(1), 1, "no move yet to learn from, but the measured speed of the hosts, memory about as fast as usual and processes about as fast as usual"},
		{at(3.9), at(0.2), 1, "memory about as fast as usual"},
		{at(1), at(30), 30, "memory 30 times slower than usual and processes 30 times slower than usual"},
		{at(30), nil, 30, "30 times slower"},
		{at(1e9), at(1), mostSlow, "100 times slower"},
		{&fleet.Speed{}, &fleet.Speed{}, mostSlow, ""},
	} {
		got := predict(c.from, c.to)
		if c.says != "" && !strings.Contains(got.Basis, c.says) {
			t.Errorf("%+v, %+v: by %q", c.from, c.to, got.Basis)
		}
		if c.says == "" { // nonsense of a host
			if got.Total.Value < usual.Total.Value || got.Total.Value > 2*mostSlow*usual.Total.Value {
				t.Errorf("of nonsense: %s", got.Total.Value)
			}
			continue
		}
		for what, ratio := range map[string]float64{
			"total": got.Total.Value.Seconds() / usual.Total.Value.Seconds(), "downtime": got.Downtime.Value.Seconds() / usual.Downtime.Value.Seconds(),
		} {
			if ratio < 0.99*c.want || ratio > 1.01*c.want {
				t.Errorf("%+v, %+v: %s is %.2f times as usual, want %.2f", c.from, c.to, what, ratio, c.want)
			}
		}
	}
	slowLink := at(1)
	slowLink.LinkBytesPerSecond = 10 << 20
	if got := predict(at(1), slowLink); got.Total.Value < 25*time.Second || !strings.Contains(got.Basis, "over a link of 10 MiB a second") {
		t.Errorf("over a slow link: %s by %q", got.Total.Value, got.Basis)
	}
	learnt := Fit([]fleet.Migration{finished("m1", "j1", 2*time.Second)}, Subject{Job: "j1"})
	if a, b := learnt.Predict(p, Link{}), learnt.Measured(at(30), at(30)).Predict(p, Link{}); a.Total != b.Total || a.Basis != b.Basis {
		t.Errorf("with history %+v, with a measured speed, too, %+v", a.Total, b.Total)
	}
}

// finished is a past move that took so long.
func finished(id fleet.MigrationID, job fleet.JobID, took time.Duration) fleet.Migration {
	begun := time.Unix(1e9, 0)
	return fleet.Migration{
		ID: id, Job: job, Phase: fleet.Finished,
		Entered: []fleet.Entered{{Phase: fleet.Preparing, At: begun}, {Phase: fleet.Finished, At: begun.Add(took)}},
		Cost:    fleet.Progress{SentBytes: 100 << 20, Elapsed: took / 2, Downtime: 20 * time.Millisecond, TotalBytes: 512 << 20},
	}
}

// A slow machine does not compress what its link carries as fast, whether or not moves were learnt from.
func TestSlowMachineDoesNotCompress(t *testing.T) {
	for slow, want := range map[float64]bool{1: true, 30: false} {
		s := &fleet.Speed{CopyBytesPerSecond: float64(usualCopy) / slow, ScanBytesPerSecond: float64(usualScan) / slow,
			ProcessStart: time.Duration(float64(usualStart) * slow), LinkBytesPerSecond: 10 << 20}
		if got := (Model{}).Measured(s, s).Packs(Link{}); got != want {
			t.Errorf("%g times slower: it compresses: %t", slow, got)
		}
		learnt := Model{basis: "moves", bandwidth: 10 << 20}
		if got := learnt.Measured(s, nil).Packs(Link{}); got != want {
			t.Errorf("%g times slower, with history: it compresses: %t", slow, got)
		}
	}
}

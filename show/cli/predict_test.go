package cli

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	"pagurus/fleet"
	"pagurus/serve/wire"
)

// foresee makes a prediction, and notes for what.
func (w *world) foresee(_ context.Context, r fleet.Request) (fleet.Forecast, error) {
	w.mu.Lock()
	w.predicted = append(w.predicted, r)
	w.mu.Unlock()
	if r.Guest == "none" {
		return fleet.Forecast{}, &wire.Error{Status: http.StatusUnprocessableEntity, Reason: "there is no guest none"}
	}
	p := fleet.Prediction{Converges: true, Basis: "3 past moves of job j1",
		Total:    fleet.Range[time.Duration]{Value: 2100 * time.Millisecond, Low: 1500 * time.Millisecond, High: 4 * time.Second},
		Downtime: fleet.Range[time.Duration]{Value: 14 * time.Millisecond, Low: 5 * time.Millisecond, High: 40 * time.Millisecond},
		Bytes:    fleet.Range[int64]{Value: 181 << 20, Low: 150 << 20, High: 300 << 20}}
	f := fleet.Forecast{Migrations: []fleet.Foreseen{{Guest: "j1g0", Job: "j1", From: "host1", To: "host2", Prediction: p}},
		Total: p.Total, Downtime: p.Downtime, Bytes: p.Bytes, Converges: true}
	if r.Guest == "" {
		p.Converges, p.Why, p.Help = false, "it dirties too fast", "more of everything"
		f.Converges = false
		f.Migrations = append(f.Migrations, fleet.Foreseen{Guest: "j1g1", Job: "j1", From: "host1", To: "host2", Prediction: p})
	}
	return f, nil
}

func TestPredict(t *testing.T) {
	w := newWorld(t)
	for _, c := range []struct {
		args []string
		want []string
		asks fleet.Request
	}{
		{[]string{"predict", "j1g0", "--to", "host2"}, []string{"2.1 s (1.5 s to 4.0 s)", "14 ms (5.0 ms to 40 ms)", "181 MiB (150 MiB to 300 MiB)", "going by 3 past moves"},
			fleet.Request{Verb: fleet.Migrate, Guest: "j1g0", To: "host2"}},
		{[]string{"migrate", "j1g0", "j1g1", "--bandwidth", "1M", "--dry-run"}, []string{"host2"}, fleet.Request{Verb: fleet.Migrate}},
		{[]string{"migrate", "--job", "j1", "--dry-run"}, []string{"host2"}, fleet.Request{Verb: fleet.Migrate, Job: "j1"}},
		{[]string{"predict", "--job", "j1"}, []string{"does not converge", "! j1g1 would be cancelled after 2.1 s: it dirties too fast", "! j1g1 would converge with more of everything", "\nall "},
			fleet.Request{Verb: fleet.Migrate, Job: "j1"}},
		{[]string{"predict", "--host", "host1", "--json"}, []string{`"total_ns":{"value":2100000000,"low":1500000000,"high":4000000000}`}, fleet.Request{Verb: fleet.Drain, Host: "host1"}},
		{[]string{"drain", "host1", "--dry-run"}, []string{"j1g1"}, fleet.Request{Verb: fleet.Drain, Host: "host1"}},
	} {
		w.predicted = nil
		got := w.pagurus("", c.args...)
		for _, want := range c.want {
			if got.code != 0 || !strings.Contains(got.out, want) {
				t.Errorf("%v: exit %d, %q%q lacks %q", c.args, got.code, got.out, got.err, want)
			}
		}
		if len(w.predicted) != 1 {
			t.Fatalf("%v asked %+v", c.args, w.predicted)
		}
		if r := w.predicted[0]; r.Verb != c.asks.Verb || r.Guest != c.asks.Guest || r.Job != c.asks.Job || r.Host != c.asks.Host || r.To != c.asks.To {
			t.Errorf("%v asked %+v", c.args, r)
		}
	}
	if got := w.pagurus("", "predict", "--score"); !strings.Contains(got.out, "total time  12     8 %           1.02               92 %") || !strings.Contains(got.out, "of 13 moves, 12 converged, or did not, as predicted") {
		t.Errorf("%q", got.out)
	}
	for _, bad := range [][]string{{"predict"}, {"predict", "j1g0", "--host", "host1"}, {"predict", "--host", "host1", "--to", "host2"}, {"predict", "none"}} {
		if got := w.pagurus("", bad...); got.code != 1 || got.err == "" {
			t.Errorf("%v: %+v", bad, got)
		}
	}
}

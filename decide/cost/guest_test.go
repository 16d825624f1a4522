package cost

import (
	"testing"
	"time"

	"pagurus/fleet"
)

// What the last move of a guest has shown counts at once for its next one, and not for
// others of its job. A downtime that is as usual is noise, and changes nothing.
func TestTheLastMoveOfAGuestCounts(t *testing.T) {
	profile := steady(200, 1, 1)
	about := Subject{Kind: fleet.VM, Job: "j1", From: "a", To: "b"}
	var history []fleet.Migration
	for i := range 30 {
		history = append(history, past(i, plain(), profile, Link{}, 1+0.4*float64(i%5)))
	}
	predicted := func(g fleet.GuestID) fleet.Prediction {
		is := about
		is.Guest = g
		direct, reused := Fit(history, is), Learn(history).Fit(is)
		if direct != reused {
			t.Errorf("of %s: a history learns %+v, and Fit %+v", g, reused, direct)
		}
		return direct.Predict(profile, Link{})
	}
	before := predicted("j1g1")
	last := past(30, plain(), profile, Link{}, 1)
	last.Guest, last.Cost.Downtime, last.Cost.SentBytes = "j1g1", 20*before.Downtime.Value, before.Bytes.Value*3/2
	last.Entered[1].At = last.Entered[0].At.Add(8 * before.Total.Value)
	history = append(history, last)
	for _, x := range []struct {
		what        string
		is, was, of time.Duration
	}{
		{"total", predicted("j1g1").Total.Value, 8 * before.Total.Value, predicted("j1g0").Total.Value},
		{"downtime", predicted("j1g1").Downtime.Value, last.Cost.Downtime, predicted("j1g0").Downtime.Value},
		{"bytes", time.Duration(predicted("j1g1").Bytes.Value), time.Duration(last.Cost.SentBytes), time.Duration(predicted("j1g0").Bytes.Value)},
	} {
		if near := float64(x.is) / float64(x.was); near < 0.5 || near > 1.1 {
			t.Errorf("%s: the last one was %d, and %d is predicted", x.what, x.was, x.is)
		}
		if 2*x.of > 3*x.is {
			t.Errorf("%s: of another guest %d is predicted, as if it were that one with %d", x.what, x.of, x.is)
		}
	}
	usual := past(31, plain(), profile, Link{}, 1.2)
	usual.Guest = "j1g2"
	was := predicted("j1g2").Downtime
	history = append(history, usual)
	if is := predicted("j1g2").Downtime; float64(is.Value) < 0.9*float64(was.Value) || float64(is.Value) > 1.1*float64(was.Value) {
		t.Errorf("a usual downtime has changed the prediction from %s to %s", was.Value, is.Value)
	}
}

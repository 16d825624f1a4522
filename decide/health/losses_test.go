package health

import (
	"testing"
	"time"

	"pagurus/fleet"
)

const day = 24 * time.Hour

var dawn = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// A loss counts once, whether the host boots after it or not; none counts of a host that is being emptied.
func TestLosses(t *testing.T) {
	h := fleet.Host{ID: "h", State: fleet.HostUp, Since: dawn}
	lose := func(want bool) {
		t.Helper()
		next, changed := Gone(h, dawn.Add(day))
		if h = next; changed != want {
			t.Errorf("changed: %v", changed)
		}
	}
	lose(true)
	lose(false)
	h = Rebooted(h, dawn.Add(2*day))
	if len(h.Losses) != 1 || !h.Lost {
		t.Errorf("%+v", h)
	}
	h, _ = Back(h)
	if _, changed := Back(h); changed || h.Lost {
		t.Errorf("%+v", h)
	}
	h = Rebooted(h, dawn.Add(3*day))
	if r := RecordOf(&h, dawn.Add(5*day)); r != (Record{2, 5 * 24 * 3600}) {
		t.Errorf("%+v", r)
	}
	h.State = fleet.HostDraining
	lose(true)
	if len(h.Losses) != 2 {
		t.Errorf("%+v", h)
	}
	h.State, h.Lost = fleet.HostUp, false
	for i := range 2 * mostLosses {
		h = Rebooted(h, dawn.Add(4*day+time.Duration(i)*time.Minute))
	}
	if len(h.Losses) != mostLosses {
		t.Errorf("%d losses", len(h.Losses))
	}
	if h = Rebooted(h, dawn.Add(200*day)); len(h.Losses) != 1 || RecordOf(&h, dawn.Add(200*day)).Seconds != int64(fleet.LossWindow/time.Second) {
		t.Errorf("%+v", h)
	}
}

// What is known of a host counts more the longer it is known; before that what is known of others does.
func TestBetween(t *testing.T) {
	record := func(losses int64, known time.Duration) Record { return Record{losses, int64(known / time.Second)} }
	for name, c := range map[string]struct {
		own, all Record
		want     time.Duration
	}{
		"nothing is known":                    {record(0, 0), record(0, 0), 3 * day},
		"alone, never lost":                   {record(0, 27*day), record(0, 27*day), 30 * day},
		"alone, lost often":                   {record(9, 27*day), record(9, 27*day), 3 * day},
		"new among hosts that are never lost": {record(0, 0), record(0, 87*day), 90 * day},
		"new among hosts that are lost often": {record(0, 0), record(9, 7*day), day},
		"lost often among those that are not": {record(10, day), record(10, 88*day), 4 * day * 30 / 301},
	} {
		if is := Between(c.own, c.all); (is - c.want).Abs() > time.Second {
			t.Errorf("%s: %s, not %s", name, is, c.want)
		}
	}
}

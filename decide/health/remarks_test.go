package health

import (
	"testing"
	"time"

	"pagurus/fleet"
)

// What was said on a host counts there after the guest has left, until it is taken back or old.
func TestBookOfRemarks(t *testing.T) {
	b := Book{}
	b.NoteRemark("h", "g0", Remarked{0, t0}, true)
	b.NoteRemark("h", "g1", Remarked{1, t0}, true)
	b.NoteRemark("h", "g9", Remarked{9, t0.Add(-2 * time.Hour)}, true)
	if got := b.Of("h", t0); len(got) != 2 {
		t.Errorf("%+v", got)
	}
	b.NoteRemark("h", "g0", Remarked{}, false)
	if got := b.Of("h", t0); len(got) != 1 || got[0].User != 1 {
		t.Errorf("%+v", got)
	}
	for i := range 2 * mostRemarked {
		b.NoteRemark("h", fleet.GuestID(rune('A'+i)), Remarked{1, t0}, true)
	}
	if got := b.Of("h", t0); len(got) != mostRemarked {
		t.Errorf("%d are kept", len(got))
	}
	if got := b.Of("h", t0.Add(2*time.Hour)); len(got) != 0 || len(b) != 0 {
		t.Errorf("%+v, %+v", got, b)
	}
}

// What programs say is a sign where several guests say it, and grave only beside another sign, and of several users.
func TestRemarksOfPrograms(t *testing.T) {
	quiet := &fleet.Health{Policy: fleet.HealthDrain}
	slow := &fleet.Health{Policy: fleet.HealthDrain, Signs: []fleet.Sign{{Kind: fleet.Throttling, Count: 5000, Last: t0}}}
	ago := func(user uint32, d time.Duration) Remarked { return Remarked{user, t0.Add(-d)} }
	for _, c := range []struct {
		name  string
		h     *fleet.Health
		all   []Remarked
		count uint64
		grave bool
	}{
		{"nobody", slow, nil, 0, false},
		{"one guest", slow, []Remarked{ago(1, 0)}, 0, false},
		{"two of one user", slow, []Remarked{ago(1, 0), ago(1, time.Minute)}, 2, false},
		{"many of one user", slow, []Remarked{ago(1, 0), ago(1, 0), ago(1, 0), ago(1, 0)}, 4, false},
		{"two users, and nothing else", quiet, []Remarked{ago(1, 0), ago(2, 0)}, 2, false},
		{"two users beside another sign", slow, []Remarked{ago(1, 0), ago(2, time.Minute)}, 2, true},
		{"one of them long ago", slow, []Remarked{ago(1, 0), ago(2, 2*time.Hour)}, 0, false},
		{"nobody looks", &fleet.Health{Policy: fleet.HealthOff}, []Remarked{ago(1, 0), ago(2, 0)}, 0, false},
		{"an old agent", nil, []Remarked{ago(1, 0), ago(2, 0)}, 0, false},
	} {
		before := 0
		if c.h != nil {
			before = len(c.h.Signs)
		}
		got := Remarks(c.h, c.all, t0)
		if c.count == 0 {
			if got != c.h {
				t.Errorf("%s: %+v", c.name, got)
			}
			continue
		}
		s := got.Signs[len(got.Signs)-1]
		if len(got.Signs) != before+1 || len(c.h.Signs) != before || s.Kind != fleet.ProgramRemarks || s.Count != c.count || s.Grave != c.grave || got.Grave(time.Time{}) != c.grave || !s.Last.Equal(t0) {
			t.Errorf("%s: %+v", c.name, got)
		}
	}
}

package steering

import (
	"slices"
	"strings"
	"testing"
	"time"

	"pagurus/fleet"
)

var noon = time.Date(2026, 11, 27, 12, 0, 0, 0, time.UTC)

// world has job j1 with three ranks in two guests, on host1 and host2.
func world() fleet.Snapshot {
	host := func(id fleet.HostID, load float64) fleet.Host {
		return fleet.Host{ID: id, Facts: fleet.Facts{Site: "here", Capacity: fleet.Resources{CPUs: 2}, LoadCPUs: load, Guests: map[fleet.GuestID]fleet.GuestFacts{"j1g0": {CPUs: 1}}}}
	}
	return fleet.Snapshot{
		At:     noon,
		Jobs:   map[fleet.JobID]fleet.Job{"j1": {ID: "j1", Spec: fleet.JobSpec{UID: 7, GID: 8, Ranks: 3, Guests: 2}}},
		Guests: map[fleet.GuestID]fleet.Guest{"j1g0": {ID: "j1g0", Job: "j1", Home: "host1"}, "j1g1": {ID: "j1g1", Job: "j1", Index: 1, Home: "host2"}},
		Hosts:  map[fleet.HostID]fleet.Host{"host1": host("host1", 2), "host2": host("host2", 0), "host3": host("host3", 1)},
	}
}

func TestAWishIsARequestForItsOwnJob(t *testing.T) {
	s := world()
	g := s.Guests["j1g0"]
	for _, c := range []struct {
		wish fleet.Wish
		want fleet.Request
		no   string
	}{
		{fleet.Wish{ID: 1, Verb: fleet.WishMove, Aim: fleet.AimAway}, fleet.Request{Verb: fleet.Migrate, Guests: []fleet.GuestID{"j1g0"}}, ""},
		{fleet.Wish{ID: 1, Verb: fleet.WishMove, Aim: fleet.AimBetter, Whole: true}, fleet.Request{Verb: fleet.Migrate, Job: "j1"}, ""},
		{fleet.Wish{ID: 1, Verb: fleet.WishMove, Aim: fleet.AimRank, Rank: 2}, fleet.Request{Verb: fleet.Migrate, Guests: []fleet.GuestID{"j1g0"}, To: "host2"}, ""},
		{fleet.Wish{ID: 1, Verb: fleet.WishMove, Aim: fleet.AimRank, Rank: 1}, fleet.Request{Verb: fleet.Migrate, Guests: []fleet.GuestID{"j1g0"}, To: "host1"}, ""},
		{fleet.Wish{ID: 1, Verb: fleet.WishMove, Aim: fleet.AimRank, Rank: 3}, fleet.Request{}, "no rank 3; it has 3"},
		{fleet.Wish{ID: 1, Verb: fleet.WishCheckpoint}, fleet.Request{Verb: fleet.MakeCheckpoint, Job: "j1"}, ""},
	} {
		r, no := Request(s, g, c.wish)
		if c.no != "" {
			if !strings.Contains(no, c.no) {
				t.Errorf("%+v: %q", c.wish, no)
			}
			continue
		}
		if no != "" || r.Verb != c.want.Verb || r.Job != c.want.Job || r.To != c.want.To || !slices.Equal(r.Guests, c.want.Guests) {
			t.Errorf("%+v: %+v, %q", c.wish, r, no)
		}
		if r.By != (fleet.Caller{UID: 7, GID: 8, Guest: "j1g0"}) || r.ID != "j1g0/1" {
			t.Errorf("%+v asks as %+v, with ID %q", c.wish, r.By, r.ID)
		}
	}
}

func TestABetterHostIsLessBusy(t *testing.T) {
	s := world()
	if why := Better(s, []fleet.Foreseen{{Guest: "j1g0", From: "host1", To: "host2"}}); why != "" {
		t.Error(why) // all of two CPUs are busy, and half of them will be
	}
	if why := Better(s, []fleet.Foreseen{{Guest: "j1g0", From: "host1", To: "host3"}}); why == "" {
		t.Error("a host that is as busy with the guest is better")
	}
	if Better(s, nil) == "" {
		t.Error("no move is better")
	}
}

func TestWhatAProgramIsToldOfItsPlace(t *testing.T) {
	s := world()
	want := []string{"job j1", "guest j1g0", "host host1", "site here", "guests 2", "cpus 2", "load 2.00", "here 1", "peer j1g1 host2 here"}
	if got := Place(s, s.Guests["j1g0"]); !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
}

func TestProgramsThatAskOften(t *testing.T) {
	var r Rate
	taken := 0
	for range 20 {
		if r.TakeWish(noon) == "" {
			taken++
		}
	}
	if taken != atOnce {
		t.Errorf("%d were taken at once", taken)
	}
	if r.TakeWish(noon.Add(time.Second)) != "" || r.TakeWish(noon.Add(time.Second)) == "" {
		t.Error("not one a second")
	}
}

func TestPausesOfAJob(t *testing.T) {
	p, at := Pauses{}, noon
	for range 2 {
		if no := p.BeginPause(fleet.WishMove, at); no != "" {
			t.Errorf("a move that was refused forbids others: %s", no)
		}
		if p.BeginPause(fleet.WishMove, at.Add(time.Second)) == "" {
			t.Error("a second one is taken while the first is considered")
		}
		p.EndPause(fleet.WishMove, at)
	}
	if no := p.BeginPause(fleet.WishMove, at); no != "" {
		t.Error(no)
	}
	p.EndPause(fleet.WishMove, at.Add(-time.Second)) // another one's
	if p.BeginPause(fleet.WishMove, at.Add(time.Second)) == "" || p.BeginPause(fleet.WishCheckpoint, at) != "" || p.BeginPause(fleet.WishMove, at.Add(6*time.Second)) != "" {
		t.Error("moves and checkpoints have no pauses of their own")
	}
	if p.BeginPause(fleet.WishMove, at.Add(-time.Hour)) != "" {
		t.Error("a clock that was set back forbids moves")
	}
	for range 100 {
		if no := p.BeginPause(fleet.WishWhere, at); no != "" {
			t.Error(no)
		}
	}
}

func TestMovesWaitForMarks(t *testing.T) {
	s := time.Second
	for _, c := range []struct {
		name  string
		marks []fleet.Marks
		after time.Duration // of the time that the copy could begin
		end   time.Duration // 0: none
		until time.Duration // 0: it does not wait
		why   string
	}{
		{"nobody marks", []fleet.Marks{{}}, 0, 0, 0, ""},
		{"a cheap moment just now", []fleet.Marks{{Cheaps: 3, CheapAgo: s}}, s, 0, 0, "marked as cheap"},
		{"the last one is a while ago", []fleet.Marks{{Cheaps: 3, CheapAgo: 5 * s}}, s, 0, MostWait, "the next is awaited"},
		{"the last one is a while ago, and not over", []fleet.Marks{{Cheaps: 3, CheapAgo: 5 * s, Cheap: true}}, s, 0, 0, "marked as cheap"},
		{"the last one is very long ago", []fleet.Marks{{Cheaps: 3, CheapAgo: 5 * time.Minute}}, s, 0, 0, ""},
		{"not now", []fleet.Marks{{NotFor: 9 * s}}, s, 0, 10 * s, "should not begin now"},
		{"not now, and never done", []fleet.Marks{{NotFor: time.Hour}}, 0, 0, MostWait, "should not begin now"},
		{"the limit is over", []fleet.Marks{{NotFor: time.Hour}}, MostWait, 0, 0, "until it had to begin"},
		{"no mark came", []fleet.Marks{{Cheaps: 1, CheapAgo: 40 * s}}, MostWait, 0, 0, "until it had to begin"},
		{"a move with a deadline", []fleet.Marks{{NotFor: time.Hour}}, s, 2 * s, 2 * s, "should not begin now"},
		{"one of two is not ready", []fleet.Marks{{Cheaps: 1}, {Cheaps: 1, CheapAgo: 5 * s}}, s, 0, MostWait, "the next is awaited"},
		{"one of two marks", []fleet.Marks{{Cheaps: 1}, {}}, s, 0, 0, "marked as cheap"},
		{"scratch memory is not given back yet", []fleet.Marks{{Cheaps: 3, Scratch: 9 << 20, Held: 1}}, s, 0, MostWait, "the next is awaited"},
		{"it is", []fleet.Marks{{Cheaps: 3, Scratch: 9 << 20}}, s, 0, 0, "marked as cheap, without 9 MiB of scratch memory"},
		{"it never marks", []fleet.Marks{{Scratch: 9 << 20, Held: 9 << 20}}, s, 0, 0, ""},
		{"one of two is disturbed", []fleet.Marks{{Cheaps: 1}, {NotFor: s}}, s, 0, 2 * s, "should not begin now"},
	} {
		at := noon.Add(c.after)
		var marks []fleet.Marks
		for _, m := range c.marks {
			marks = append(marks, m.By(at))
		}
		end := time.Time{}
		if c.end > 0 {
			end = noon.Add(c.end)
		}
		w := ForMark(marks, noon, end, at)
		if w.Holds != (c.until > 0) || w.Holds && !w.Until.Equal(noon.Add(c.until)) || !strings.Contains(w.Why, c.why) || (w.Why == "") != (c.why == "") {
			t.Errorf("%s: %+v", c.name, w)
		}
	}
}

func TestSwitchesWaitForMarks(t *testing.T) {
	s := time.Second
	for _, c := range []struct {
		name  string
		marks fleet.Marks
		after time.Duration
		end   time.Duration
		until time.Duration // 0: it does not wait
		why   string
	}{
		{"nobody marks", fleet.Marks{}, 0, 0, 0, ""},
		{"a cheap moment just now", fleet.Marks{Cheaps: 3, CheapAgo: s / 4}, s, 0, 0, "marked as cheap"},
		{"a cheap moment that is over", fleet.Marks{Cheaps: 3, CheapAgo: s}, s, 0, MostSwitchWait, "the next is awaited"},
		{"not now", fleet.Marks{NotFor: time.Minute}, s, 0, MostSwitchWait, "should wait now"},
		{"the limit is over", fleet.Marks{Cheaps: 3, CheapAgo: 8 * s}, MostSwitchWait, 0, 0, "until it had to switch"},
		{"a move with a deadline", fleet.Marks{Cheaps: 3, CheapAgo: 8 * s}, 2 * s, 2 * s, 0, "until it had to switch"},
	} {
		at, end := noon.Add(c.after), time.Time{}
		if c.end > 0 {
			end = noon.Add(c.end)
		}
		w := ForSwitch([]fleet.Marks{c.marks.By(at)}, noon, end, at)
		if w.Holds != (c.until > 0) || w.Holds && !w.Until.Equal(noon.Add(c.until)) || !strings.Contains(w.Why, c.why) || (w.Why == "") != (c.why == "") {
			t.Errorf("%s: %+v", c.name, w)
		}
		if Marks([]fleet.Marks{c.marks.By(at)}, at) != (c.name != "nobody marks") {
			t.Errorf("%s: whether it marks is not told", c.name)
		}
	}
}

func TestHowFarNeighboursAre(t *testing.T) {
	s := world()
	told := func(want ...string) {
		t.Helper()
		if got := Distances(s, s.Guests["j1g0"]); !slices.Equal(got, want) {
			t.Errorf("%q, want %q", got, want)
		}
	}
	change := func(id fleet.HostID, f func(*fleet.Facts)) {
		h := s.Hosts[id]
		f(&h.Facts)
		s.Hosts[id] = h
	}
	told("far j1g1 1 0.000000 0 host2")
	for _, id := range []fleet.HostID{"host1", "host2"} {
		change(id, func(f *fleet.Facts) { f.Speed = &fleet.Speed{LinkBytesPerSecond: 125e6} })
	}
	told("far j1g1 1 0.000000 125000000 host2")
	change("host2", func(f *fleet.Facts) {
		f.Site = "there"
		f.WireGuard = &fleet.WireGuardFacts{Paths: map[fleet.HostID]fleet.Path{"host1": {Latency: 12 * time.Millisecond, BytesPerSecond: 3e6}}}
	})
	told("far j1g1 2 0.012000 3000000 host2")
	g := s.Guests["j1g1"]
	g.Home = "host1"
	s.Guests["j1g1"] = g
	told("far j1g1 0 0.000000 0 host1")
}

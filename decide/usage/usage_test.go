package usage

import (
	"encoding/json"
	"math"
	"reflect"
	"strings"
	"testing"
	"time"

	"pagurus/fleet"
)

var noon = time.Date(2026, 3, 4, 12, 0, 0, 0, time.UTC)

func after(d time.Duration) time.Time { return noon.Add(d) }

// cluster has job j1 of one guest on host1, of two CPUs and a GiB.
func cluster() fleet.Snapshot {
	s := fleet.NewSnapshot()
	s.Jobs["j1"] = fleet.Job{ID: "j1", Born: 7, State: fleet.JobRunning, Submitted: noon.Add(-time.Minute), Started: noon, Spec: fleet.JobSpec{
		Args: []string{"/opt/bin/lmp", "-in", "melt"}, UID: 1000, GID: 100, Guests: 1, Ranks: 2, Need: fleet.Resources{CPUs: 2, MemoryBytes: 1 << 30}}}
	s.Guests["j1g0"] = fleet.Guest{ID: "j1g0", Job: "j1", State: fleet.GuestRunning, Home: "host1", Need: fleet.Resources{CPUs: 2, MemoryBytes: 1 << 30}}
	return s
}

// facts are of a host with the guest, which has used so many seconds of processor time there.
func facts(cpu float64, started time.Time) fleet.Facts {
	return fleet.Facts{Capacity: fleet.Resources{CPUs: 4, MemoryBytes: 8 << 30}, Guests: map[fleet.GuestID]fleet.GuestFacts{
		"j1g0": {Run: fleet.Running, ResidentBytes: 512 << 20, StartedAt: started, CPUTime: time.Duration(cpu * float64(time.Second))}}}
}

// sum is what the job used in all of its records.
func sum(b *Book) (u fleet.Usage) {
	for _, r := range b.Since(time.Time{}) {
		u = u.Plus(r.Sum())
	}
	return u
}

func near(t *testing.T, what string, got, want float64) {
	t.Helper()
	if math.Abs(got-want) > 1e-6*math.Max(1, math.Abs(want)) {
		t.Errorf("%s: %g, want %g", what, got, want)
	}
}

func TestAGuestIsCounted(t *testing.T) {
	b, s := New(Usual, nil), cluster()
	for i := range 7 { // a minute
		b.Count(s, "host1", facts(3+15*float64(i), noon), after(time.Duration(i)*10*time.Second))
	}
	u := sum(b)
	near(t, "processor time", u.CPUSeconds, 93)
	near(t, "held", u.HeldCPUSeconds, 120)
	near(t, "memory", u.MemoryByteSeconds, 60*(512<<20))
	near(t, "memory held", u.HeldByteSeconds, 60*(1<<30))
	if u.Joules != 0 || u.MeteredCPUSeconds != 0 {
		t.Errorf("energy of a host that tells none: %+v", u)
	}
	r := b.Since(noon)[0]
	if a := r.About; a.Name != "lmp" || a.Guests != 1 || r.UID != 1000 || r.Period != "2026-03-04" || r.Read != nil {
		t.Errorf("%+v, %+v", r, r.About)
	}
}

// TestAControllerDies: its successor has what was written, and counters go on.
func TestAControllerDies(t *testing.T) {
	b, s := New(Usual, nil), cluster()
	b.Count(s, "host1", facts(10, noon), after(0))
	b.Count(s, "host1", facts(25, noon), after(10*time.Second))
	kept := written(t, b.TakeChanges())
	b.Count(s, "host1", facts(40, noon), after(20*time.Second)) // never written
	b = New(Usual, kept)
	b.Count(s, "host1", facts(70, noon), after(40*time.Second))
	near(t, "processor time", sum(b).CPUSeconds, 70)
	near(t, "memory, without the time that nobody counted", sum(b).MemoryByteSeconds, 10*(512<<20))
	b.Again(Changes{})
	if c := b.TakeChanges(); len(c.Put) != 1 || len(c.Gone) != 0 {
		t.Errorf("%+v", c)
	}
	if c := b.TakeChanges(); len(c.Put)+len(c.Gone) != 0 {
		t.Errorf("nothing has changed: %+v", c)
	}
}

// written are records as the store gives them back.
func written(t *testing.T, c Changes) (out []fleet.UsageRecord) {
	t.Helper()
	text, err := json.Marshal(c.Put)
	if err == nil {
		err = json.Unmarshal(text, &out)
	}
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func TestAMoveIsCountedOnce(t *testing.T) {
	b, s := New(Usual, nil), cluster()
	b.Count(s, "host1", facts(10, noon), after(0))
	s.Guests["j1g0"] = fleet.Guest{ID: "j1g0", Job: "j1", State: fleet.GuestRunning, Home: "host2", Need: fleet.Resources{CPUs: 2, MemoryBytes: 1 << 30}}
	s.Migrations["m1.j1g0"] = fleet.Migration{ID: "m1.j1g0", Guest: "j1g0", Job: "j1", Born: 7, From: "host1", To: "host2", Phase: fleet.Finished, Cost: fleet.Progress{SentBytes: 1000, PostCopyBytes: 24, Downtime: 250 * time.Millisecond}}
	b.Count(s, "host1", facts(12, noon), after(2*time.Second))
	b.Count(s, "host2", facts(1, after(time.Second)), after(2*time.Second)) // a counter of its own
	b.FollowCluster(s, after(3*time.Second))
	b.FollowCluster(s, after(4*time.Second))
	b.Count(s, "host1", facts(12, noon), after(5*time.Second)) // late facts
	u := sum(b)
	near(t, "processor time", u.CPUSeconds, 13)
	near(t, "blackout", u.BlackoutSeconds, 0.25)
	if u.Moves != 1 || u.MovedBytes != 1024 {
		t.Errorf("%+v", u)
	}
	b = New(Usual, written(t, b.TakeChanges()))
	b.FollowCluster(s, after(time.Hour))
	b.Count(s, "host2", facts(11, after(time.Second)), after(10*time.Second))
	if u := sum(b); u.Moves != 1 {
		t.Errorf("counted again by the next controller: %+v", u)
	}
	near(t, "processor time", sum(b).CPUSeconds, 23)
	if r := b.records[b.byJob[jobKey{"j1", 7}][0]]; len(r.Read) != 1 || r.Read[0].Host != "host2" {
		t.Errorf("the reading of a host that the guest has left is kept: %+v", r.Read)
	}
}

// TestMidnight: a job has a record for each day, and none of its time is in both.
func TestMidnight(t *testing.T) {
	b, s := New(Usual, nil), cluster()
	b.Count(s, "host1", facts(100, noon), after(11*time.Hour+59*time.Minute+55*time.Second))
	b.Count(s, "host1", facts(110, noon), after(12*time.Hour+5*time.Second))
	all := b.Since(noon)
	if len(all) != 2 || all[0].Period != "2026-03-04" || all[1].Period != "2026-03-05" {
		t.Fatalf("%+v", all)
	}
	near(t, "the first day", all[0].Sum().CPUSeconds, 100)
	near(t, "the second day", all[1].Sum().CPUSeconds, 10)
	if got := b.Since(after(13 * time.Hour)); len(got) != 1 {
		t.Errorf("since the second day: %+v", got)
	}
}

// TestAHostThatLies: no host makes a user pay for more than its CPUs had time for, or for guests of nobody.
func TestAHostThatLies(t *testing.T) {
	b, s := New(Usual, nil), cluster()
	b.Count(s, "host1", facts(1, noon), after(0))
	b.Count(s, "host1", facts(1e9, noon), after(10*time.Second))
	near(t, "processor time", sum(b).CPUSeconds, 1+4*12)
	b.Count(s, "host1", facts(5, noon), after(20*time.Second)) // back
	near(t, "processor time", sum(b).CPUSeconds, 1+4*12)
	f := facts(1, noon)
	f.Guests["j9g0"] = f.Guests["j1g0"]
	b.Count(s, "host1", f, after(30*time.Second))
	if n := len(b.Since(time.Time{})); n != 1 {
		t.Errorf("%d records", n)
	}
	b.Count(s, "host1", facts(2, noon), after(-time.Hour)) // the clock was set back
	b.Count(s, "host1", facts(3, noon), after(-time.Hour+time.Second))
}

func TestEnergyIsShared(t *testing.T) {
	b, s := New(Usual, nil), cluster()
	f := facts(10, noon)
	f.Power = &fleet.Power{Joules: 5000, Worked: 100 * time.Second}
	b.Count(s, "host1", f, after(0))
	f = facts(25, noon)
	f.Power = &fleet.Power{Joules: 5600, Worked: 130 * time.Second}
	b.Count(s, "host1", f, after(10*time.Second))
	u := sum(b)
	near(t, "half of the processor time", u.Joules, 300)
	near(t, "metered", u.MeteredCPUSeconds, 15)
	f = facts(30, noon)
	f.Power = &fleet.Power{Trouble: "no counters"}
	b.Count(s, "host1", f, after(20*time.Second))
	near(t, "a host that tells no more", sum(b).Joules, 300)
}

func TestSuspendedForTheOwner(t *testing.T) {
	b, s := New(Usual, nil), cluster()
	f := facts(10, noon)
	g := f.Guests["j1g0"]
	g.Suspended, g.Run = true, fleet.Suspended
	f.Guests["j1g0"] = g
	b.Count(s, "host1", f, after(0))
	b.Count(s, "host1", f, after(10*time.Second))
	near(t, "suspended", sum(b).SuspendedSeconds, 10)
}

func TestDue(t *testing.T) {
	b, s := New(Usual, nil), cluster()
	f := facts(1, noon)
	if !b.Due("host1", fleet.Facts{}, f, noon) {
		t.Error("never counted")
	}
	b.Count(s, "host1", f, noon)
	if b.Due("host1", f, f, after(time.Second)) || !b.Due("host1", f, f, after(Every)) {
		t.Error("counted each second, or never")
	}
	if !b.Due("host1", f, fleet.Facts{}, after(time.Second)) || !b.Due("host1", fleet.Facts{}, f, after(time.Second)) {
		t.Error("a guest came or went")
	}
}

func TestAJobEnds(t *testing.T) {
	b, s := New(Usual, nil), cluster()
	b.Count(s, "host1", facts(10, noon), after(0))
	j := s.Jobs["j1"]
	j.State, j.Result, j.Ended, j.Exit = fleet.JobEnded, fleet.JobFinished, after(9*time.Second), &fleet.Exit{Code: 3}
	s.Jobs["j1"] = j
	g := s.Guests["j1g0"]
	g.State = fleet.GuestEnded
	s.Guests["j1g0"] = g
	b.FollowCluster(s, after(10*time.Second))
	b.Count(s, "host1", facts(12, noon), after(11*time.Second)) // late facts count from the last reading
	near(t, "processor time", sum(b).CPUSeconds, 12)
	if a := b.Since(noon)[0].About; a.Result != fleet.JobFinished || a.Exit.Code != 3 || !a.Ended.Equal(j.Ended) {
		t.Errorf("%+v", a)
	}
	b.FollowCluster(s, after(time.Hour))
	if r := b.records[b.byJob[jobKey{"j1", 7}][0]]; len(r.Read) != 0 || len(b.open) != 0 {
		t.Errorf("%+v, %v", r.Read, b.open)
	}
	// A job that is forgotten before its end was noted ended when it was last heard of.
	b, s = New(Usual, nil), cluster()
	b.Count(s, "host1", facts(10, noon), after(0))
	b.FollowCluster(fleet.NewSnapshot(), after(time.Hour))
	if a := b.Since(noon)[0].About; !a.Ended.Equal(noon) {
		t.Errorf("%+v", a)
	}
}

// TestWhatIsKeptIsBounded: days become months, months go, and nothing is lost before that.
func TestWhatIsKeptIsBounded(t *testing.T) {
	var records []fleet.UsageRecord
	for day := range 400 {
		for job := range 3 {
			at := noon.AddDate(0, 0, -day)
			records = append(records, fleet.UsageRecord{Period: at.Format(fleet.UsageDay), UID: uint32(job), Job: fleet.JobID("j" + string(rune('1'+job))), Born: int64(day),
				Hosts: map[fleet.HostID]fleet.Usage{"host1": {CPUSeconds: 1}, "host2": {CPUSeconds: 2}}, About: &fleet.UsedBy{Ended: at}})
		}
	}
	l := Limits{Days: 62 * 24 * time.Hour, Months: 1000 * 24 * time.Hour, Parts: 1_000_000}
	b := New(l, records)
	before := sum(b)
	b.Fold(noon)
	if after := sum(b); !reflect.DeepEqual(after, before) {
		t.Errorf("%+v, was %+v", after, before)
	}
	days, months := 0, 0
	for _, r := range b.Since(time.Time{}) {
		if r.Daily() {
			days++
		} else if months++; len(r.Hosts) != 1 || strings.Count(r.Period, "-") != 1 {
			t.Errorf("%+v", r)
		}
	}
	if days != 3*62 && days != 3*63 || months == 0 || months > 3*2*13 {
		t.Errorf("%d days, %d months", days, months)
	}
	c := b.TakeChanges()
	if len(c.Gone) != 3*400-days || len(c.Put) != months {
		t.Errorf("%d to write, %d to remove", len(c.Put), len(c.Gone))
	}
	b = New(Limits{Days: l.Days, Months: l.Months, Parts: 100}, written(t, Changes{Put: b.Since(time.Time{})}))
	b.Fold(noon)
	if b.Full() {
		t.Errorf("%d parts", b.parts)
	}
	s := cluster()
	b.Count(s, "host1", facts(5, noon), noon)
	b.limits.Parts = 0
	b.Fold(noon)
	if r := b.Since(time.Time{}); len(r) != 1 || r[0].Job != "j1" {
		t.Errorf("counting goes on in the record of a job that runs: %+v", r)
	}
}

package notice

import (
	"reflect"
	"testing"
	"time"

	"pagurus/fleet"
)

var noon = time.Date(2026, 3, 4, 12, 0, 0, 0, time.UTC)

func TestOf(t *testing.T) {
	s := fleet.NewSnapshot()
	s.At = noon
	s.Users["ada"] = fleet.User{ID: "ada", UID: 1000}
	end := func(id fleet.JobID, ago time.Duration, j fleet.Job) {
		j.ID, j.State, j.Ended = id, fleet.JobEnded, noon.Add(-ago)
		s.Jobs[id] = j
	}
	end("j1", time.Minute, fleet.Job{Spec: fleet.JobSpec{UID: 1000}, Result: fleet.JobFinished, Exit: &fleet.Exit{Code: 3}})
	end("j2", 2*time.Minute, fleet.Job{Spec: fleet.JobSpec{UID: 5}, Result: fleet.JobFailed, Cause: "host1 is gone", LostWith: "host1"})
	end("j3", time.Minute, fleet.Job{Result: fleet.JobFailed, Requeue: true})
	end("j4", 2*time.Hour, fleet.Job{Result: fleet.JobFinished})
	end("j5", 30*time.Second, fleet.Job{Result: fleet.JobFinished, Exit: &fleet.Exit{Code: 137, Signal: "SIGKILL"}})
	end("j6", 20*time.Second, fleet.Job{Result: fleet.JobCancelled})
	s.Hosts["host1"] = fleet.Host{ID: "host1", Losses: []time.Time{noon.Add(-3 * time.Hour), noon.Add(-3 * time.Minute)}, Lost: true}
	s.Moves["m1"] = fleet.Move{ID: "m1", Begun: noon.Add(-11 * time.Minute), Migrations: []fleet.MigrationID{"m1.j7g0"}}
	s.Migrations["m1.j7g0"] = fleet.Migration{ID: "m1.j7g0", Job: "j7", Guest: "j7g0", From: "host1", To: "host2", Phase: fleet.Copying}
	s.Moves["m2"] = fleet.Move{ID: "m2", Begun: noon.Add(-50 * time.Minute), Migrations: []fleet.MigrationID{"m2.j8g0"}} // it was expected to take so long
	s.Migrations["m2.j8g0"] = fleet.Migration{ID: "m2.j8g0", Phase: fleet.Copying, Predicted: &fleet.Prediction{Total: fleet.Range[time.Duration]{High: time.Hour}}}
	s.Moves["m3"] = fleet.Move{ID: "m3", Begun: noon.Add(-50 * time.Minute), Ended: noon}

	var texts []string
	for _, n := range Of(s, noon.Add(-time.Hour), fleet.NoticeKinds, "physics") {
		texts = append(texts, n.Text)
		if n.Cluster != "physics" || n.ID == "" {
			t.Errorf("%+v", n)
		}
	}
	want := []string{
		"host host1 is gone: it was not heard for longer than its lease, and nothing runs there any more",
		"job j2 of uid 5 failed: host1 is gone",
		"job j1 of ada ended with exit code 3",
		"move m1 has been under way since 2026-03-04T11:49:00Z, much longer than expected, in phase copying of guest j7g0 from host1 to host2: `pagurus move show m1` says how far it is",
		"job j5 of uid 0 ended by SIGKILL",
		"job j6 of uid 0 was cancelled",
	}
	if !reflect.DeepEqual(texts, want) {
		t.Errorf("%q\nwant\n%q", texts, want)
	}
	if got := Of(s, noon.Add(-time.Hour), []string{string(fleet.HostLostNotice)}, ""); len(got) != 1 {
		t.Errorf("one kind: %+v", got)
	}
	first, again := Of(s, noon.Add(-time.Hour), fleet.NoticeKinds, ""), Of(s, noon.Add(-time.Hour), fleet.NoticeKinds, "")
	if !reflect.DeepEqual(first, again) {
		t.Error("not the same each time")
	}
}

func TestWait(t *testing.T) {
	last := time.Duration(0)
	for failures := range 100 {
		if w := Wait(failures); w < last || w > LastWait || w <= 0 {
			t.Errorf("%s after %d failures", w, failures)
		} else {
			last = w
		}
	}
	if last != LastWait {
		t.Error(last)
	}
}

func TestLater(t *testing.T) {
	at := func(ago time.Duration) fleet.Notice {
		return fleet.Notice{ID: fleet.NoticeID(ago.String()), At: noon.Add(-ago)}
	}
	m := fleet.NoticeMark{Receiver: "x", Through: noon.Add(-time.Hour)}
	m = Later(m, []fleet.Notice{at(10 * time.Minute), at(5 * time.Minute)}, []fleet.Notice{at(7 * time.Minute)}, noon)
	if !m.Through.Before(noon.Add(-7*time.Minute)) || m.Through.Before(noon.Add(-8*time.Minute)) || !reflect.DeepEqual(m.Told, []fleet.NoticeID{"5m0s"}) {
		t.Errorf("%+v", m)
	}
	m = Later(m, []fleet.Notice{at(5 * time.Minute), at(time.Second)}, nil, noon)
	if !m.Through.Equal(noon.Add(-settled)) || !reflect.DeepEqual(m.Told, []fleet.NoticeID{"1s"}) {
		t.Errorf("%+v", m)
	}
	if back := Later(m, nil, nil, noon.Add(-time.Hour)); !back.Through.Equal(m.Through) { // the clock was set back
		t.Errorf("%+v", back)
	}
}

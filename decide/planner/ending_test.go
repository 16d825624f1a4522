package planner

import (
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"pagurus/fleet"
)

// atOnce is a cancel's grace of zero.
func atOnce() *time.Duration { return new(time.Duration) }

func grace(d time.Duration) *time.Duration { return &d }

// The program is told to end. Its guests are stopped only after it has.
func TestCancelLeavesTheProgramTime(t *testing.T) {
	w, j := running(t, 2, "host1", "host2")
	w.wire = nil
	w.must(fleet.Request{Verb: fleet.Cancel, Job: j})
	if len(w.wire) != 1 || w.wire[0].Verb != fleet.End || w.wire[0].Guest != "j1g0" {
		t.Fatalf("orders: %v", w.wire)
	}
	job := w.s.Jobs[j]
	if job.State != fleet.JobRunning || job.Ending == nil || job.Ending.Grace != fleet.UsualGrace {
		t.Fatalf("job: %+v", job)
	}
	w.answerAll()
	job = w.s.Jobs[j]
	if job.State != fleet.JobEnded || job.Result != fleet.JobCancelled || job.Exit == nil || job.Exit.Code != 143 || job.Cause != "cancelled by uid 0" {
		t.Errorf("job: %+v", job)
	}
}

// A silent host does not keep a job beyond its grace.
func TestCancelEndsAfterTheGrace(t *testing.T) {
	w, j := running(t, 1, "host1", "host2")
	w.must(fleet.Request{Verb: fleet.Cancel, Job: j, Grace: grace(time.Minute)})
	w.wire = nil
	w.tick(time.Minute)
	if s := w.s.Jobs[j].State; s != fleet.JobRunning {
		t.Fatalf("%s while the answer may come", s)
	}
	w.tick(time.Minute)
	if job := w.s.Jobs[j]; job.State != fleet.JobStopping || job.Result != fleet.JobCancelled {
		t.Errorf("job: %+v", job)
	}
}

// The order follows guest 0, with the remaining grace.
func TestCancelDuringAMove(t *testing.T) {
	w, j := running(t, 1, "host1", "host2")
	w.must(fleet.Request{Verb: fleet.Migrate, Guest: "j1g0"})
	for !slices.ContainsFunc(w.wire, func(o fleet.Order) bool { return o.Verb == fleet.Switch }) {
		w.answer(slices.IndexFunc(w.wire, func(o fleet.Order) bool { return o.Migration != "" }))
	}
	w.must(fleet.Request{Verb: fleet.Cancel, Job: j})
	if slices.ContainsFunc(w.wire, func(o fleet.Order) bool { return o.Verb == fleet.End }) {
		t.Fatal("a guest that is being switched was told something")
	}
	for !slices.ContainsFunc(w.wire, func(o fleet.Order) bool { return o.Verb == fleet.End }) {
		w.answer(slices.IndexFunc(w.wire, func(o fleet.Order) bool { return o.Migration != "" }))
	}
	end := w.wire[slices.IndexFunc(w.wire, func(o fleet.Order) bool { return o.Verb == fleet.End })]
	if end.Host != "host2" || end.Gen != 2 {
		t.Errorf("order: %+v", end)
	}
	w.answerAll()
	if job := w.s.Jobs[j]; job.State != fleet.JobEnded || job.Result != fleet.JobCancelled {
		t.Errorf("job: %+v", job)
	}
}

func TestCancelAgain(t *testing.T) {
	w, j := running(t, 1, "host1")
	w.must(fleet.Request{Verb: fleet.Cancel, Job: j, Grace: grace(time.Minute)})
	w.must(fleet.Request{Verb: fleet.Cancel, Job: j, Grace: grace(time.Hour)})
	if e := w.s.Jobs[j].Ending; e.Grace != time.Minute {
		t.Errorf("a second cancel made the grace %s", e.Grace)
	}
	w.must(fleet.Request{Verb: fleet.Cancel, Job: j, Grace: grace(time.Second)})
	if e := w.s.Jobs[j].Ending; e.Grace > 2*time.Second {
		t.Errorf("a shorter one left it %s", e.Grace)
	}
	w.must(fleet.Request{Verb: fleet.Cancel, Job: j, Grace: atOnce()})
	if s := w.s.Jobs[j].State; s != fleet.JobStopping {
		t.Errorf("one without a grace left it %s", s)
	}
	for _, d := range []time.Duration{-time.Second, fleet.MostGrace + 1} {
		if _, err := w.ask(fleet.Request{Verb: fleet.Cancel, Job: j, Grace: &d}); err == nil || !strings.Contains(err.Error(), "from 0s to 1h") {
			t.Errorf("%s: %v", d, err)
		}
	}
}

func TestSignalRefuses(t *testing.T) {
	w, j := running(t, 1, "host1")
	for signal, want := range map[string]string{
		"": "there is no signal", "KILL": "cancel --grace 0s", "9": "cancel --grace 0s", "SIGSTOP": "send TSTP", "19": "send TSTP",
		"FOO": "there is no signal", "0": "there is no signal", "65": "there is no signal", "32": "there is no signal", "-1": "there is no signal", "RTMIN+40": "there is no signal",
	} {
		if _, err := w.ask(fleet.Request{Verb: fleet.SendSignal, Job: j, Signal: signal}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %s", signal, err, want)
		}
	}
	for _, signal := range []string{"USR1", "sigusr1", "10", "RTMIN+3", "64"} {
		if _, err := w.ask(fleet.Request{Verb: fleet.SendSignal, Job: j, Signal: signal}); err != nil {
			t.Errorf("%q: %v", signal, err)
		}
	}
	if _, err := w.ask(fleet.Request{Verb: fleet.SendSignal, Job: "j9", Signal: "USR1"}); err == nil || !strings.Contains(err.Error(), "there is no job j9") {
		t.Errorf("unknown job: %v", err)
	}
	w.must(fleet.Request{Verb: fleet.Cancel, Job: j, Grace: atOnce()})
	if _, err := w.ask(fleet.Request{Verb: fleet.SendSignal, Job: j, Signal: "USR1"}); err == nil || !strings.Contains(err.Error(), "so its program has ended") {
		t.Errorf("stopping job: %v", err)
	}
}

// Every limit of a drain is kept or refused.
func TestDrainDropsNoLimit(t *testing.T) {
	for i := range reflect.TypeFor[fleet.Limits]().NumField() {
		w, _ := running(t, 1, "host1")
		r := fleet.Request{Verb: fleet.Drain, Host: "host1"}
		f := reflect.ValueOf(&r.Limits).Elem().Field(i)
		name := reflect.TypeFor[fleet.Limits]().Field(i).Name
		switch f.Kind() {
		case reflect.Bool:
			f.SetBool(true)
		case reflect.Int, reflect.Int64:
			f.SetInt(1 << 20)
		case reflect.String:
			f.SetString(map[string]string{"Mode": string(fleet.PreCopy), "PageCache": string(fleet.SendCache), "Compress": string(fleet.CompressOff)}[name])
		}
		if f.IsZero() {
			t.Fatalf("nothing was set for %s", name)
		}
		if _, err := w.ask(r); err == nil && w.s.Hosts["host1"].Leave != r.Limits {
			t.Errorf("%s was dropped: %+v", name, w.s.Hosts["host1"].Leave)
		} else if err != nil && !strings.Contains(err.Error(), "give no other limits") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

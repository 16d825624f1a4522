package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"pagurus/act/daemon"
	"pagurus/fleet"
)

// looks plays the CPU times of two copies, scan after scan, in milliseconds; -1: the copy
// does not exist.
func looks(older, younger []int) (wrong []string) {
	r := runners{ran: vmMechanism.ran}
	a, b := daemon.Process{PID: 1, Ticks: 10}, daemon.Process{PID: 2, Ticks: 20}
	sums := map[daemon.Process]time.Duration{}
	for i := range older {
		var all []copyOf
		for p, ran := range map[daemon.Process]int{a: older[i], b: younger[i]} {
			if ran >= 0 {
				sums[p] += time.Duration(ran) * time.Millisecond
				all = append(all, copyOf{p, "j1g0", "host1"})
			}
		}
		wrong = append(wrong, r.noteScan(all, func(c copyOf) time.Duration { return sums[c.Process] })...)
	}
	return wrong
}

func TestTwoCopiesThatRun(t *testing.T) {
	for name, c := range map[string]struct {
		older, younger []int
		doubled        bool
	}{
		"one moves to the other":           {[]int{50, 50, 50, 0, 0, -1}, []int{-1, 0, 0, 50, 50, 50}, false},
		"within one look":                  {[]int{50, 50, 40, 0, 0, -1}, []int{-1, 0, 40, 50, 50, 50}, false},
		"looked at in the middle":          {[]int{50, 50, 40, 20, 0, -1}, []int{-1, 0, 40, 50, 50, 50}, false},
		"both":                             {[]int{50, 50, 50, 50, 50, 50}, []int{-1, 0, 50, 50, 50, 50}, true},
		"the source for once":              {[]int{50, 50, 0, 0, 50, 0}, []int{-1, 0, 50, 50, 50, 50}, true},
		"a source that is put away":        {[]int{50, 50, 0, 1, 2, -1}, []int{-1, 0, 50, 50, 50, 50}, false},
		"a target that is set up":          {[]int{50, 50, 50, 50, 50, 50}, []int{-1, 1, 2, 1, 0, -1}, false},
		"the source, when the other stops": {[]int{50, 50, 0, 0, 50, 50}, []int{-1, 0, 50, 0, 0, 0}, true},
	} {
		t.Run(name, func(t *testing.T) {
			if wrong := looks(c.older, c.younger); (len(wrong) > 0) != c.doubled {
				t.Errorf("found %q", wrong)
			}
		})
	}
}

func TestWhatTheKernelSays(t *testing.T) {
	if ran, ok := fromSched("x (1, #threads: 1)\n-----\nse.sum_exec_runtime      :       272.5\n"); !ok || ran != 272500*time.Microsecond {
		t.Errorf("got %v, %v", ran, ok)
	}
	if _, ok := fromSched("nothing"); ok {
		t.Error("read out of nothing")
	}
	if ran := fromStat("9 (a) b) R 1 2 3 4 5 6 7 8 9 10 20 30 0 0"); ran != 500*time.Millisecond {
		t.Errorf("got %v", ran)
	}
	host, guest, ok := belongs("/run/pagurus/lab/host2/guests/j1g0 (deleted)")
	if host != "host2" || guest != "j1g0" || !ok {
		t.Errorf("got %s %s %v", host, guest, ok)
	}
	if _, _, ok := belongs("/run/pagurus/guests/j1g0"); ok {
		t.Error("took another cluster's for the lab's")
	}
}

// A program with the name of a virtual CPU stands for one.
func TestWhatACPUComputes(t *testing.T) {
	text, err := os.ReadFile("/bin/sh")
	if err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(t.TempDir(), "CPU 0")
	if err := os.WriteFile(program, text, 0o755); err != nil {
		t.Fatal(err)
	}
	busy := exec.Command(program, "-c", "while :; do :; done")
	if err := busy.Start(); err != nil {
		t.Fatal(err)
	}
	pid := busy.Process.Pid
	for end := time.Now().Add(10 * time.Second); computed(pid) < 50*time.Millisecond; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("it has computed for %s", computed(pid))
		}
	}
	if err := busy.Process.Kill(); err != nil {
		t.Error(err)
	}
	_ = busy.Wait() // it was killed
	if ran := computed(pid); ran != 0 {
		t.Errorf("after its end it has computed for %s", ran)
	}
}

func ended(result fleet.JobResult, code int, cause string) fleet.Job {
	return fleet.Job{ID: "j1", State: fleet.JobEnded, Result: result, Cause: cause, Exit: &fleet.Exit{Code: code}, Spec: fleet.JobSpec{Guests: 2}}
}

func TestJobsAreJudged(t *testing.T) {
	unstarted := func(host string) fleet.Job {
		return fleet.Job{ID: "j1", State: fleet.JobEnded, Result: fleet.JobFailed, Spec: fleet.JobSpec{Guests: 2},
			Cause: "guest j1g1 ended: " + host + ": start guest j1g1: remember guest j1g1: no space left on device"}
	}
	for name, c := range map[string]struct {
		job    fleet.Job
		output string
		killed bool
		says   string // empty: it is right
		count  tally
	}{
		"good":                   {ended(fleet.JobFinished, 0, ""), "START\nOK", false, "", tally{Jobs: 1}},
		"good, though one died":  {ended(fleet.JobFinished, 0, ""), "START\nOK", true, "", tally{Jobs: 1}},
		"good, and spoken after": {ended(fleet.JobFinished, 0, ""), "START\nOK\nrank=1 host=guest1 wrong=0", false, "", tally{Jobs: 1}},
		"wrong":                  {ended(fleet.JobFinished, 1, ""), "START\nWRONG", false, "wrong", tally{Wrong: 1}},
		"wrong, though one died": {ended(fleet.JobFinished, 1, ""), "START\nWRONG", true, "wrong", tally{Wrong: 1}},
		"cut short":              {ended(fleet.JobFinished, 0, ""), "START", false, "good end", tally{Lost: 1}},
		"lost":                   {ended(fleet.JobFailed, 0, "guest j1g0 ended"), "START", false, "good end", tally{Lost: 1}},
		"killed":                 {ended(fleet.JobFailed, 0, "guest j1g0 ended"), "START", true, "", tally{JobsDead: 1, Killed: 1}},
		"no room":                {unstarted("host1"), "", false, "", tally{Refused: 1}},
		"no runtime":             {fleet.Job{ID: "j1", State: fleet.JobEnded, Result: fleet.JobFailed, Spec: fleet.JobSpec{Guests: 2}, Cause: `guest j1g0 ended: host host1 runs no guests of kind "container" at present`}, "", false, "", tally{Refused: 1}},
		"no room without cause":  {unstarted("host2"), "", false, "good end", tally{Lost: 1}},
		"killed without a word":  {fleet.Job{ID: "j1", State: fleet.JobEnded, Result: fleet.JobFailed, Spec: fleet.JobSpec{Guests: 2}}, "", true, "nothing says why", tally{}},
	} {
		t.Run(name, func(t *testing.T) {
			k := newChecker()
			k.unfit["host1"] = true
			if c.killed {
				k.expected["j1g1"] = expectedLoss{number: 7}
			}
			if verdict := k.checkJob(c.job, c.output); (verdict == "") != (c.says == "") || !strings.Contains(verdict, c.says) {
				t.Errorf("it says %q", verdict)
			}
			if k.tally != c.count {
				t.Errorf("counted %+v", k.tally)
			}
		})
	}
}

func TestAJobIsNotJudgedWhileAFaultIsUnderWay(t *testing.T) {
	k := newChecker()
	s := fleet.Snapshot{Jobs: map[fleet.JobID]fleet.Job{"j1": ended(fleet.JobFailed, 0, "why")}}
	k.open["j1g1"] = 1
	if got := k.ended(s); len(got) != 0 {
		t.Errorf("judged %v", got)
	}
	k.open["j1g1"] = 0
	if got := k.ended(s); len(got) != 1 {
		t.Errorf("judged %v", got)
	}
}

// A controller is silent for as long as this process could have heard it.
func TestSilence(t *testing.T) {
	var q quiet
	at := time.Now()
	for i, want := range []time.Duration{0, 500 * time.Millisecond, time.Second} {
		if got := q.noteHeard(at, at.Add(time.Duration(i)*500*time.Millisecond)); got != want {
			t.Errorf("look %d: %s", i, got)
		}
	}
	if got := q.noteHeard(at, at.Add(time.Hour)); got != 2*time.Second {
		t.Errorf("after a standstill of an hour: %s", got)
	}
	if got := q.noteHeard(at.Add(time.Hour), at.Add(2*time.Hour)); got != 0 {
		t.Errorf("it was heard: %s", got)
	}
}

func TestExcusesAreTakenBack(t *testing.T) {
	for name, c := range map[string]struct {
		source  bool
		phase   fleet.Phase
		excused bool
	}{
		"a source that was killed too late": {true, fleet.Finished, false},
		"a source that stays":               {true, fleet.Aborted, true},
		"a target that has it":              {false, fleet.Finished, true},
		"a target that did not get it":      {false, fleet.Aborted, false},
		"not known yet":                     {true, fleet.Switching, true},
	} {
		k := newChecker()
		k.expected["j1g0"] = expectedLoss{3, "m1.j1g0", c.source}
		k.survived(fleet.Snapshot{Migrations: map[fleet.MigrationID]fleet.Migration{"m1.j1g0": {Phase: c.phase}}})
		if _, is := k.expected["j1g0"]; is != c.excused {
			t.Errorf("%s: excused is %v", name, is)
		}
	}
}

func TestCheckSnapshot(t *testing.T) {
	at := time.Now()
	s := fleet.NewSnapshot()
	s.At = at
	s.Jobs["j1"] = fleet.Job{ID: "j1", State: fleet.JobRunning, Spec: fleet.JobSpec{Guests: 1}}
	s.Guests["j1g0"] = fleet.Guest{ID: "j1g0", Job: "j1", State: fleet.GuestRunning}
	s.Moves["m1"] = fleet.Move{ID: "m1", Migrations: []fleet.MigrationID{"m1.j1g0"}, Begun: at.Add(-moveLimit / 2)}
	s.Migrations["m1.j1g0"] = fleet.Migration{ID: "m1.j1g0", Guest: "j1g0", Job: "j1", Phase: fleet.Copying}
	k := newChecker()
	if wrong := k.checkSnapshot(s); len(wrong) != 0 {
		t.Errorf("found %q", wrong)
	}
	s.Migrations["m2.j1g0"] = fleet.Migration{ID: "m2.j1g0", Guest: "j1g0", Job: "j1", Phase: fleet.Copying}
	if wrong := k.checkSnapshot(s); len(wrong) != 1 || !strings.Contains(wrong[0], "same time") {
		t.Errorf("found %q", wrong)
	}
	delete(s.Migrations, "m2.j1g0")
	s.At = at.Add(moveLimit)
	if wrong := k.checkSnapshot(s); len(wrong) != 1 || !strings.Contains(wrong[0], "not ended") {
		t.Errorf("found %q", wrong)
	}
	none := func(copyOf) time.Duration { return 0 }
	if wrong := k.present(s, nil, none, at); len(wrong) != 0 {
		t.Errorf("found %q", wrong)
	}
	if wrong := k.present(s, nil, none, at.Add(absentLimit+time.Second)); len(wrong) != 1 || k.tally.Lost != 1 {
		t.Errorf("found %q", wrong)
	}
}

func TestFaultsFindTheirPhase(t *testing.T) {
	at := time.Now()
	s := fleet.Snapshot{Migrations: map[fleet.MigrationID]fleet.Migration{
		"m1.a": {ID: "m1.a", Phase: fleet.Copying, Since: at}, "m2.b": {ID: "m2.b", Phase: fleet.Copying, Since: at.Add(time.Second)},
		"m3.c": {ID: "m3.c", Phase: fleet.Finished, Since: at},
	}}
	waiting := []fault{{Number: 1, Phase: fleet.Finished}, {Number: 2, Phase: fleet.Ready}, {Number: 3, Phase: fleet.Copying}}
	used := map[string]bool{}
	var met []fleet.MigrationID
	for range 2 {
		i, m, ok := match(waiting, s, used, false)
		if !ok || waiting[i].Number != 3 {
			t.Fatalf("fault %d, %v, %v", i, m, ok)
		}
		met = append(met, m.ID)
		used[string(m.ID)+string(m.Phase)] = true
	}
	if want := []fleet.MigrationID{"m2.b", "m1.a"}; !slices.Equal(met, want) {
		t.Errorf("met %v", met)
	}
	if _, m, ok := match(waiting, s, used, false); ok {
		t.Errorf("met %v again", m)
	}
}

// A fault that always comes too late comes sooner, and finally in another phase.
func TestLateFaultsComeSooner(t *testing.T) {
	f := fault{Number: 1, Phase: fleet.PostCopying, After: mostAfter}
	for range mostMisses - 1 {
		f = f.later()
	}
	if f.when(true) != fleet.PostCopying || f.After > mostAfter/16 {
		t.Errorf("it is given up too soon, or comes as late: %+v", f)
	}
	if f = f.later(); f.when(true) != fleet.Copying || f.Number != 1 {
		t.Errorf("it waits without end: %+v", f)
	}
}

// Without post-copy its phase never occurs, and those faults come later.
func TestNoPostCopyPhaseWithoutPostCopy(t *testing.T) {
	waiting := []fault{{Number: 1, Phase: fleet.PostCopying}}
	for phase, want := range map[fleet.Phase][2]bool{fleet.PostCopying: {false, true}, fleet.Retiring: {true, false}} {
		for i, can := range []bool{false, true} {
			s := fleet.NewSnapshot()
			s.Hosts["host1"] = fleet.Host{Facts: fleet.Facts{Abilities: map[fleet.Kind]fleet.Abilities{fleet.VM: {PostCopy: can}}}}
			s.Migrations["m1.a"] = fleet.Migration{ID: "m1.a", Phase: phase}
			if _, _, ok := match(waiting, s, map[string]bool{}, postCopies(s, fleet.VM)); ok != want[i] {
				t.Errorf("in %s, with post-copy %v: struck is %v", phase, can, ok)
			}
		}
	}
}

func TestASourceMattersUntilTheTargetHasItAll(t *testing.T) {
	pre, post := fleet.Migration{Mode: fleet.PreCopy}, fleet.Migration{Mode: fleet.PostCopy}
	for phase, want := range map[fleet.Phase][2]bool{
		fleet.Switching: {false, false}, fleet.Activating: {true, false}, fleet.PostCopying: {false, false}, fleet.Retiring: {true, true}, fleet.Finished: {true, true},
	} {
		if got := [2]bool{left(pre, phase), left(post, phase)}; got != want {
			t.Errorf("in %s: %v, want %v", phase, got, want)
		}
	}
}

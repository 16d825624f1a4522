package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"pagurus/fleet"
)

func TestAPlanOfHostsFollowsFromTheSeed(t *testing.T) {
	seen := map[kind]int{}
	long := 0
	for n := 1; n <= 1000; n++ {
		f := plannedWhole(7, n, nil)
		if f != plannedWhole(7, n, nil) || f == plannedWhole(8, n, nil) {
			t.Fatalf("fault %d is %+v", n, f)
		}
		s := wholeShareOf(f.Kind)
		if f.Number != n || f.After >= mostApart || f.Lasts < s.least || f.Lasts >= max(s.most, s.long) {
			t.Errorf("fault %d is %+v", n, f)
		}
		seen[f.Kind]++
		if f.Lasts > wholeLease {
			long++
		}
		if only := plannedWhole(7, n, []kind{rollback, hostsCut}); only.Kind != rollback && only.Kind != hostsCut {
			t.Errorf("fault %d is %+v", n, only)
		}
	}
	if len(seen) != len(wholeShares) || long < 20 || long > 150 {
		t.Errorf("%d kinds, %d longer than a lease: %v", len(seen), long, seen)
	}
}

// Two faults of a class are not under way at once, a rollback is alone, and is not overtaken.
func TestWhichFaultMayCome(t *testing.T) {
	waiting := []fault{{Kind: hostPower}, {Kind: leaderKilled}, {Kind: rollback}, {Kind: linkSlow}}
	for name, c := range map[string]struct {
		busy []class
		skip int
		want int
	}{
		"nothing is under way":     {nil, 0, 0},
		"a host is away":           {[]class{ofHosts}, 0, 1},
		"a controller, too":        {[]class{ofHosts, ofControllers}, 0, -1},
		"a rollback waits":         {[]class{ofHosts}, 2, -1},
		"a rollback may come":      {nil, 2, 0},
		"a rollback is under way":  {[]class{ofAll}, 0, -1},
		"a link after a rollback":  {nil, 3, 0},
		"a link during a rollback": {[]class{ofAll}, 3, -1},
	} {
		busy := map[class]bool{}
		for _, b := range c.busy {
			busy[b] = true
		}
		if got := ready(waiting[c.skip:], busy); got != c.want {
			t.Errorf("%s: %d", name, got)
		}
	}
}

func TestJobsOfHostsAreJudged(t *testing.T) {
	at := time.Now()
	w := newWhole(10)
	right := w.right(2)
	cut := right[:strings.LastIndexByte(right[:len(right)/2], '\n')]
	lines := strings.Split(right, "\n")
	twice := strings.Join(slices.Insert(slices.Clone(lines), 3, lines[3]), "\n")
	short := strings.Join(slices.Delete(slices.Clone(lines), 3, 4), "\n")
	for name, c := range map[string]struct {
		job    fleet.Job
		output string
		back   bool
		says   string
		count  tally
	}{
		"good":                               {ended(fleet.JobFinished, 0, ""), right, false, "", tally{Jobs: 1, RightAfterCheckpoint: 1}},
		"good, and it had a checkpoint":      {ended(fleet.JobFinished, 0, ""), right, false, "", tally{Jobs: 1, RightAfterCheckpoint: 1, RightWithCheckpoint: 1}},
		"failed, and it had a checkpoint":    {ended(fleet.JobFailed, 1, "guest j1g0 ended"), cut, false, "guest j1g0 ended", tally{Lost: 1, BadWithCheckpoint: 1}},
		"killed, and it had a checkpoint":    {ended(fleet.JobFinished, 255, ""), cut, false, "good end", tally{Lost: 1, BadWithCheckpoint: 1}},
		"a line twice":                       {ended(fleet.JobFinished, 0, ""), twice, false, "line 5 of", tally{Wrong: 1}},
		"a line too few":                     {ended(fleet.JobFinished, 0, ""), short, false, "line 4 of", tally{Wrong: 1}},
		"cut short":                          {ended(fleet.JobFinished, 0, ""), cut, false, "good end", tally{Lost: 1}},
		"another code":                       {ended(fleet.JobFinished, 1, ""), right, false, "good end", tally{Lost: 1}},
		"failed":                             {ended(fleet.JobFailed, 1, "guest j1g0 ended"), cut, false, "guest j1g0 ended", tally{Lost: 1}},
		"it noticed that a guest was killed": {ended(fleet.JobFinished, 255, ""), cut, false, "", tally{JobsDead: 1, Killed: 1}},
		"failed after a rollback":            {ended(fleet.JobFailed, 1, "guest j1g0 ended"), cut, true, "good end", tally{Lost: 1}},
		"given up after a rollback":          {ended(fleet.JobFailed, 1, "the cluster's state was restored from a backup of then, and no host runs it"), cut, true, "", tally{GivenUp: 1}},
		"given up by a store that forgot that it had begun again": {ended(fleet.JobFailed, 1, "the cluster's state was restored from a backup of then"), cut + "\n" + cut, true, "", tally{GivenUp: 1}},
		"begun again as nobody knows":                             {ended(fleet.JobFailed, 1, "the cluster's state was restored from a backup of then"), cut + "\n" + cut, false, "computed something wrong", tally{Wrong: 1}},
		"given up without a rollback":                             {ended(fleet.JobFailed, 1, "the cluster's state was restored from a backup of then"), cut, false, "good end", tally{Lost: 1}},
	} {
		t.Run(name, func(t *testing.T) {
			k := newChecker()
			k.whole = w
			w.born["j1"], w.back, w.from["j1"] = at, nil, true
			c.job.Incarnation, w.killed["j1"] = 0, strings.Contains(name, "killed")
			w.kept["j1"] = strings.Contains(name, "it had a checkpoint")
			if c.back {
				w.back = []time.Time{at.Add(time.Minute)}
			}
			c.job.Spec.Ranks = 2
			if verdict := k.checkJob(c.job, c.output); (verdict == "") != (c.says == "") || !strings.Contains(verdict, c.says) {
				t.Errorf("it says %q", verdict)
			}
			if k.tally != c.count {
				t.Errorf("counted %+v", k.tally)
			}
		})
	}
}

// What a job said before it began again at its beginning stays before what it says then.
func TestOutputsOfJobsThatBeginAgain(t *testing.T) {
	want := newWhole(20).right(2)
	at := func(line string) int { return strings.Index(want, line) }
	for name, c := range map[string]struct {
		output string
		again  int
		last   string
		ok     bool
	}{
		"once":                                 {want, 0, want, true},
		"not at its end":                       {want[:100], 0, want[:100], true},
		"it said nothing":                      {"", 3, "", true},
		"again":                                {want[:at("300 ")] + want, 1, want, true},
		"again, in the middle of a line":       {want[:at("300 ")+7] + want, 1, want, true},
		"again, where both begin alike":        {want[:at("1000 ")] + want, 1, want, true},
		"again and again":                      {want[:at("1000 ")] + want[:at("200 ")] + want, 2, want, true},
		"again, when all was said":             {want + "\n" + want, 1, want, true},
		"all twice, though it has not begun":   {want + "\n" + want, 0, "", false},
		"more often than it has begun":         {want[:at("1000 ")] + want[:at("200 ")] + want, 1, "", false},
		"a line twice":                         {want[:at("300 ")] + want[at("200 "):], 5, "", false},
		"a line twice, and it has begun again": {want[:at("300 ")] + want[:at("300 ")] + want[at("200 "):], 1, "", false},
	} {
		if last, ok := pieces(want, c.output, c.again); last != c.last || ok != c.ok {
			t.Errorf("%s: %t, %q", name, ok, last)
		}
	}
}

// A job that begins again does so because of a fault of a host that had a guest of it.
func TestLossesAreExplained(t *testing.T) {
	at := time.Now()
	again := func(incarnation int, from fleet.CheckpointID) fleet.Snapshot {
		s := fleet.NewSnapshot()
		s.Jobs["j1"] = fleet.Job{ID: "j1", Incarnation: incarnation, From: from}
		s.Guests["j1g0"] = fleet.Guest{ID: "j1g0", Job: "j1", Home: "host1", Migration: "m1"}
		s.Migrations["m1"] = fleet.Migration{ID: "m1", From: "host1", To: "host2"}
		return s
	}
	w, counts := newWhole(1), tally{}
	if wrong := w.losses(again(0, ""), &counts, at); len(wrong) > 0 {
		t.Errorf("it begins: %q", wrong)
	}
	w.strike("host1", at)
	for range 2 {
		if wrong := w.losses(again(1, "j1c1"), &counts, at.Add(explains/2)); len(wrong) > 0 {
			t.Errorf("its host was hit: %q", wrong)
		}
	}
	if wrong := w.losses(again(2, ""), &counts, at.Add(2*explains)); len(wrong) != 1 {
		t.Errorf("long after: %q", wrong)
	}
	w.strike("host10", at.Add(2*explains))
	if wrong := w.losses(again(3, ""), &counts, at.Add(2*explains)); len(wrong) != 1 {
		t.Errorf("another host was hit: %q", wrong)
	}
	w.strike("host2", at.Add(2*explains))
	if wrong := w.losses(again(4, ""), &counts, at.Add(2*explains)); len(wrong) != 0 {
		t.Errorf("the target of its move was hit: %q", wrong)
	}
	w.strike("", at.Add(9*explains))
	if wrong := w.losses(again(5, ""), &counts, at.Add(9*explains)); len(wrong) != 0 {
		t.Errorf("all hosts were hit: %q", wrong)
	}
	if counts != (tally{Again: 5, FromCheckpoint: 1, Lost: 2}) {
		t.Errorf("counted %+v", counts)
	}
}

// A short silence of the controllers explains no loss, one as long as a lease does.
func TestSilenceOfAllControllers(t *testing.T) {
	w, at := newWhole(1), time.Now()
	w.noteSilence(time.Time{}, at)
	w.noteSilence(at, at.Add(wholeLease/2))
	if w.explained(nil, at) {
		t.Error("another leads soon, and that is taken for a loss of all hosts")
	}
	if w.noteSilence(at, at.Add(wholeLease)); !w.explained(nil, at.Add(wholeLease)) {
		t.Error("all leases are over, and that is not seen")
	}
}

// A machine that stops for a while, as a frozen container does, is a fault of all hosts.
func TestTheMachineStoodStill(t *testing.T) {
	w, at := newWhole(1), time.Now()
	w.stand(time.Time{}, at)
	w.stand(at, at.Add(time.Second))
	if w.explained(nil, at) {
		t.Error("a short pause is taken for a fault")
	}
	if w.stand(at, at.Add(time.Minute)); !w.explained(nil, at.Add(time.Minute)) {
		t.Error("a long pause is not seen")
	}
}

// A checkpoint counts once, also when it is removed or the controller forgets it.
func TestCheckpointsAreCounted(t *testing.T) {
	w, counts := newWhole(1), tally{}
	s := fleet.NewSnapshot()
	s.Checkpoints["j1c1"] = fleet.Checkpoint{ID: "j1c1", Job: "j1", Phase: fleet.Kept}
	s.Checkpoints["j2c1"] = fleet.Checkpoint{ID: "j2c1", Job: "j2", Phase: fleet.Void, Cause: "host1 is gone"}
	s.Checkpoints["j2c2"] = fleet.Checkpoint{ID: "j2c2", Job: "j2", Phase: fleet.Saving}
	w.noteCheckpoints(s, &counts)
	delete(s.Checkpoints, "j2c1")
	s.Checkpoints["j1c1"] = fleet.Checkpoint{ID: "j1c1", Job: "j1", Phase: fleet.Removed, WasKept: true, Cause: "newer ones took its place"}
	w.noteCheckpoints(s, &counts)
	if counts != (tally{Checkpoints: 1, CheckpointsFailed: 1}) || !w.kept["j1"] || w.kept["j2"] || w.made["j2c1"] != "host1 is gone" {
		t.Errorf("%+v, %v", counts, w)
	}
}

// Hosts have time to be heard again after a clock was set: what hit them before may be known later, what did not is no excuse.
func TestAClockIsSet(t *testing.T) {
	w, at := newWhole(1), time.Now()
	w.strike("host1", at)
	w.strike("host2", at.Add(-2*explains))
	w.prolong(at, time.Minute)
	late := at.Add(explains + time.Second)
	if !w.explained(map[fleet.HostID]bool{"host1": true}, late) || w.explained(map[fleet.HostID]bool{"host2": true}, at) || w.explained(nil, at) {
		t.Errorf("%v", w.hit)
	}
}

// Faults of versions come only where there are programs of another.
func TestVersionsNeedPrograms(t *testing.T) {
	for _, c := range []struct {
		run  *chaos
		come bool
	}{{&chaos{}, false}, {&chaos{other: "bin/other"}, true}, {&chaos{only: []kind{agentVersion}}, true}} {
		come := false
		for n := range 300 {
			come = come || slices.Contains(ofOtherVersions, plannedWhole(1, n, c.run.may()).Kind)
		}
		if come != c.come {
			t.Errorf("%+v: %t", c.run.only, come)
		}
	}
}

// A folder that has not all programs of another version is refused, and a run that wants faults of versions without any, too.
func TestOtherProgramsAreLookedAt(t *testing.T) {
	half := t.TempDir()
	if err := os.WriteFile(filepath.Join(half, "pagurus-agent"), nil, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		what string
		run  *chaos
		says string
	}{
		{"of guests alone", &chaos{other: half}, "--other is for --kind hosts"},
		{"of guests, by default", &chaos{}, ""},
		{"half a folder", &chaos{whole: newWhole(1), other: half}, "no such file"},
		{"none", &chaos{whole: newWhole(1), other: noOther}, ""},
		{"none, and faults that need some", &chaos{whole: newWhole(1), other: noOther, only: []kind{agentVersion}}, "scripts/chaos builds"},
	} {
		err := c.run.findOther()
		if (err == nil) != (c.says == "") || err != nil && !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v", c.what, err)
		}
		if err == nil && c.run.other != "" {
			t.Errorf("%s: other programs are in %s", c.what, c.run.other)
		}
	}
}

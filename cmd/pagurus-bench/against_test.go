package main

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"pagurus/bench"
	"pagurus/bench/stats"
)

func TestALabThatAnOlderCommitUnderstands(t *testing.T) {
	before, since := older{takes: "--hosts int"}, older{takes: "--hosts int --encryption string"}
	for _, c := range []struct {
		of          older
		flags, left string
	}{
		{before, "--hosts 3 --encryption none", "--hosts 3"},
		{before, "--encryption none --hosts 3", "--hosts 3"},
		{before, "--hosts 3 --encryption auto", "--hosts 3 --encryption auto"}, // it refuses that itself
		{since, "--hosts 3 --encryption none", "--hosts 3 --encryption none"},
	} {
		if got := strings.Join(c.of.understood(strings.Fields(c.flags)), " "); got != c.left {
			t.Errorf("%s is %s, not %s", c.flags, got, c.left)
		}
	}
}

func TestACommitThatIsTooOld(t *testing.T) {
	o := older{commit: "0d52e18e"}
	for said, word := range map[string]string{
		"pagurus: unknown flag: --compress: see `pagurus migrate --help`": "--compress",
		`unknown command "checkpoint" for "pagurus"`:                      "checkpoint",
		"vm: checkpoint j1c1 does not say how long it stopped the job":    "a word about how long it stopped the job",
	} {
		err := errors.New(said)
		if got := o.explained(err); !errors.Is(got, err) || !strings.HasPrefix(got.Error(), "0d52e18e does not have "+word+", ") {
			t.Errorf("%v", got)
		}
	}
	if err := errors.New("no space left"); o.explained(err) != err || o.explained(nil) != nil {
		t.Error("another error is explained so, too")
	}
}

func TestWhatIsAsked(t *testing.T) {
	known := []bench.Trial{{Name: "stall"}, {Name: "jail"}}
	for _, good := range []asked{{tolerance: 1.1}, {only: "stall", tolerance: 1}, {only: "stall", against: "0d52e18", build: true, tolerance: 2}, {guard: true, only: "stall", tolerance: 1.1}, {kernel: "vmlinux", words: "quiet", tolerance: 1.1}} {
		if err := good.refused(known); err != nil {
			t.Errorf("%+v: %v", good, err)
		}
	}
	for _, bad := range []asked{{only: "x", tolerance: 1.1}, {against: "0d52e18", tolerance: 1.1}, {only: "stall", against: "0d52e18", guard: true, tolerance: 1.1}, {build: true, tolerance: 1.1}, {tolerance: 0.9}, {words: "quiet", tolerance: 1.1}, {kernel: "vmlinux", only: "jail", tolerance: 1.1}} {
		if err := bad.refused(known); err == nil {
			t.Errorf("%+v is taken", bad)
		}
	}
}

// Each guarded part is one that is measured, and its record is kept.
func TestGuardedParts(t *testing.T) {
	trials := newExperiments().trials()
	seen := map[string]bool{}
	for _, g := range guardedParts {
		if !slices.ContainsFunc(trials, func(t bench.Trial) bool { return t.Name == g.part }) || seen[g.part] {
			t.Errorf("%s is no part, or is there twice", g.part)
		}
		seen[g.part] = true
		if len(g.samples) == 0 || g.turns < 3 || (g.record == "") == (g.since == "") {
			t.Errorf("%+v is not whole", g)
		}
		for _, s := range g.samples {
			of := func(arm string) bool { return strings.HasPrefix(s, arm+"_") }
			if g.arms != nil && !slices.ContainsFunc(g.arms, of) {
				t.Errorf("%s is of none of the arms %q", s, g.arms)
			}
		}
		if g.record != "" {
			if _, err := os.Stat(filepath.Join("../..", figuresKept, g.record+".json")); err != nil {
				t.Error(err)
			}
		}
	}
}

func TestTableOfTheGuard(t *testing.T) {
	c := bench.Change{Part: "stall", Sample: "stall_move_s", Commit: "4aacdaa1", Was: 0.1, Is: 0.15, Tolerance: 1.1, Ratio: stats.Interval{Value: 1.5, Low: 1.2, High: 1.9, Confidence: 0.95, Samples: 5}}
	none := c
	none.Part, none.Sample, none.Failure = "idle", "idle_agent_one_mib", "sorry"
	other := c
	other.Sample = "other_s"
	all := matter([]bench.Change{c, other, none})
	got := guardTable("abc", time.Date(2026, 11, 28, 0, 0, 0, 0, time.UTC), all, []error{errors.New("jail: no lab")})
	for _, want := range []string{"Figures of abc", "2026-11-28", "0.1  0.15  1.50   1.20 to 1.90  5", "SLOWER, surely", "no ratio: sorry", "not measured: jail: no lab"} {
		if !strings.Contains(got, want) {
			t.Errorf("there is no %q in\n%s", want, got)
		}
	}
	if strings.Contains(got, "other_s") {
		t.Error("what is not guarded is in the table")
	}
	if err := worse(all); !errors.Is(err, errWorse) || err.Error() != "got worse: stall stall_move_s" || worse(all[1:]) != nil {
		t.Errorf("%v", err)
	}
}

// The commit of a record is that of its newest sitting. Where git does not know it, the record's own last is there.
func TestCommitOfARecord(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	git := func(words ...string) {
		t.Helper()
		c := exec.Command("git", append([]string{"-c", "user.name=a", "-c", "user.email=a@example.org"}, words...)...)
		if out, err := c.CombinedOutput(); err != nil {
			t.Fatalf("git %q: %v: %s", words, err, out)
		}
	}
	git("init", "-q")
	r := bench.Record{Sittings: []bench.Sitting{{Commit: "older"}, {Commit: "unknown-dirty"}}}
	if err := r.Write("record.json"); err != nil {
		t.Fatal(err)
	}
	git("add", ".")
	git("commit", "-qm", "a record")
	commit, last, err := commitOfRecord(t.Context(), "record.json")
	if err != nil || commit != "unknown" {
		t.Errorf("%q, %v", commit, err)
	}
	if _, err := fullCommit(t.Context(), commit); err == nil {
		t.Error("there is a commit unknown")
	}
	if full, err := fullCommit(t.Context(), last); err != nil || len(full) < 8 || !strings.HasPrefix(full, last[:7]) {
		t.Errorf("%q is %q, %v", last, full, err)
	}
}

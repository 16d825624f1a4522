package demo

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"pagurus/fleet"
)

const log = `LAMMPS (29 Aug 2024)
   Step          Temp          E_pair         E_mol
         0   3             -6.7733681      0
        50   1.6498549     -4.7539134      0
Loop time of 1.25 on 4 procs for 50 steps with 4000 atoms
Total wall time: 0:00:01
`

func TestCompareForgivesTimingsOnly(t *testing.T) {
	slower := `LAMMPS (29 Aug 2024)
   Step          Temp          E_pair         E_mol
         0   3             -6.7733681      0
        50   1.6498549     -4.7539134      0
Loop time of 9.75 on 4 procs for 50 steps with 4000 atoms
Total wall time: 0:00:09
`
	if c := compare(log, slower); c.Differs != "" || c.Thermo != 2 || c.Lines != 4 {
		t.Errorf("%+v", c)
	}
	wrong := `LAMMPS (29 Aug 2024)
   Step          Temp          E_pair         E_mol
         0   3             -6.7733681      0
        50   1.6498549     -4.7539135      0
`
	if compare(log, wrong).Differs == "" {
		t.Error("a wrong digit was not seen")
	}
	if compare(log, log[:60]).Differs == "" {
		t.Error("a cut log was not seen")
	}
	if compare("", "").Differs == "" {
		t.Error("two empty logs are no result")
	}
}

// typed makes a pagurus that records its command lines and runs the rest of script.
func typed(t *testing.T, script string) (binary string, lines func() string) {
	t.Helper()
	dir := t.TempDir()
	binary = filepath.Join(dir, "pagurus")
	text := "#!/bin/sh\necho \"$*\" >>" + dir + "/typed\n" + script
	if err := os.WriteFile(binary, []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
	return binary, func() string {
		text, _ := os.ReadFile(filepath.Join(dir, "typed"))
		return string(text)
	}
}

func TestALabThatIsUpIsLeftAlone(t *testing.T) {
	for _, script := range []string{
		`echo '{"up":true,"lab":{"hosts":3},"parts":[]}'`,
		`echo '{"up":false,"lab":{"hosts":3},"parts":[]}'; exit 1`,
		`echo "pagurus: reading what the lab is made of: no" >&2; exit 1`,
		// A lab that comes up while the image is built, and one that prevents `lab up`.
		`case "$*" in "lab status"*) [ -e "$0.built" ] && echo '{"up":true,"lab":{}}' || echo '{"up":false}';; "image build"*) touch "$0.built";; esac`,
		`case "$*" in "lab status"*) echo '{"up":false}'; exit 1;; "lab up"*) exit 1;; esac`,
	} {
		binary, lines := typed(t, script)
		d := Demo{Pagurus: binary, Out: io.Discard}
		if err := d.Run(t.Context()); err == nil || strings.Contains(lines(), "lab down") {
			t.Errorf("%s: error %v after\n%s", script, err, lines())
		}
	}
}

// idle is a cluster that first has no job, and then, if job is set, one that does nothing.
type idle struct {
	job   bool
	looks atomic.Int32
}

func (c *idle) Snapshot(context.Context) (fleet.Snapshot, error) {
	s := fleet.NewSnapshot()
	if c.looks.Add(1) > 1 && c.job {
		s.Jobs["j1"] = fleet.Job{ID: "j1", State: fleet.JobRunning}
	}
	return s, nil
}

func (c *idle) Trace(context.Context, fleet.JobID) ([]fleet.Trace, error) { return nil, nil }

func TestNothingIsWaitedForOnceTheRunHasEnded(t *testing.T) {
	for job, says := range map[bool]string{false: "for the job to appear", true: "for the melt to begin"} {
		for script, cause := range map[string]string{"exit 3": "exit status 3", "exit 0": "--steps"} {
			binary, _ := typed(t, script)
			d := Demo{Pagurus: binary, Out: io.Discard, Cluster: &idle{job: job}, dir: t.TempDir()}
			begun := time.Now()
			_, err := d.melt(t.Context(), act{kind: fleet.VM})
			if err == nil || !strings.Contains(err.Error(), cause) || !strings.Contains(err.Error(), says) || time.Since(begun) > time.Minute {
				t.Errorf("a job %t, %s: after %s %v", job, script, time.Since(begun), err)
			}
		}
	}
}

func TestAShortMeltIsMadeLonger(t *testing.T) {
	for _, c := range []struct {
		steps int
		took  time.Duration
		want  int
	}{
		{300, shortest, 300},
		{300, 90 * time.Second, 300},
		{300, 4500 * time.Millisecond, 600},
		{300, 1500 * time.Millisecond, 1800},
		{300, 0, 270000},
	} {
		if got := lengthen(c.steps, c.took); got != c.want {
			t.Errorf("%d steps that took %s become %d, want %d", c.steps, c.took, got, c.want)
		}
	}
	d := Demo{dir: t.TempDir(), Steps: 50}
	if err := os.WriteFile(filepath.Join(d.dir, undisturbedLog), []byte(log), 0o644); err != nil {
		t.Fatal(err)
	}
	if steps, took := d.enough(); steps != 400 || took != 1250*time.Millisecond {
		t.Errorf("%d steps after %s", steps, took)
	}
	d.Fixed = true
	if steps, _ := d.enough(); steps != 50 {
		t.Errorf("%d steps in place of the 50 asked for", steps)
	}
}

func TestGapIsThatOfTheUndisturbedMelt(t *testing.T) {
	at := time.Unix(1000, 0)
	r := run{from: at, until: at.Add(9 * time.Second), gaps: []fleet.Gap{
		{At: at.Add(-time.Second), Took: 5 * time.Second}, {At: at.Add(time.Second), Took: 40 * time.Millisecond}, {At: at.Add(8 * time.Second), Took: 2 * time.Second},
	}}
	if got, ok := r.undisturbedGap(); !ok || got != 40*time.Millisecond {
		t.Errorf("the longest gap is %v, %v", got, ok)
	}
	var said strings.Builder
	report(&said, r, comparison{})
	if !strings.Contains(said.String(), "the longest gap of a rank undisturbed was 40 ms.") {
		t.Error(said.String())
	}
}

// The results of the two kinds are compared as far as both go.
func TestKindsAreComparedAsFarAsBothGo(t *testing.T) {
	line := func(step int, temp string) string {
		return fmt.Sprintf("%10d   %s   -6.1   0.0   -1.6   -1.1\n", step, temp)
	}
	short := run{log: line(0, "3.0") + line(10, "2.9"), undisturbed: time.Second, steps: 100}
	long := run{log: line(0, "3.0") + line(10, "2.9") + line(20, "2.8"), undisturbed: time.Second, steps: 100_000}
	var said strings.Builder
	if err := beside(&said, short, long); err != nil || !strings.Contains(said.String(), "all 2 thermodynamic lines") || !strings.Contains(said.String(), "0.01 ms") {
		t.Errorf("%v: %s", err, said.String())
	}
	long.log = strings.Replace(long.log, "2.9", "2.8", 1)
	if err := beside(&said, short, long); err == nil {
		t.Error("results that differ are taken for equal")
	}
	if err := beside(&said, short, run{}); err == nil {
		t.Error("nothing is taken for equal to something")
	}
}

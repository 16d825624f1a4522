package measuring

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"pagurus/act/cgroup"
	"pagurus/bench"
	"pagurus/bench/noise"
	"pagurus/internal/testkit"
)

// A test's workers are this program itself.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "work" {
		if err := Work(os.Args[2:], os.Stdin, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func open(t *testing.T, lasts time.Duration) *Core {
	t.Helper()
	testkit.Root(t)
	testkit.Leftovers(t)
	cpus, err := noise.CPUs()
	if err != nil {
		t.Fatal(err)
	}
	c, err := Open([]string{os.Args[0], "work"}, cpus[len(cpus)-1], lasts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
		left, _ := filepath.Glob("/sys/fs/cgroup/*/" + group)
		also, _ := filepath.Glob("/sys/fs/cgroup/" + group)
		if left = append(left, also...); len(left) > 0 {
			t.Errorf("groups are left: %v", left)
		}
	})
	return c
}

// All sorts of programs give their figures on each target, and who has four times
// the weight has most of the core.
func TestGuestsShareACore(t *testing.T) {
	c := open(t, 400*time.Millisecond)
	targets := []string{Off}
	if why := c.NoSlices(); why == "" {
		targets = append(targets, Target(cgroup.UsualSlice))
	} else if !strings.Contains(why, "6.12") {
		t.Errorf("it does not say what is needed: %s", why)
	}
	all := Programs()
	e := bench.Experiment{Place: c, Spec: bench.Spec{Targets: targets, Programs: []bench.Program{all[0], all[3], all[5]}, Runs: 2, Confidence: 0.95, Trim: 0.1}}
	if err := e.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, r := range e.Record.Runs {
		t.Logf("%s %s %v", r.Program, r.Target, r.Figures)
		if share := r.Figures["first_share"]; r.Program == "gold+bronze" && (share < 60 || share > 95) {
			t.Errorf("gold has %.1f %% beside bronze on %s", share, r.Target)
		}
	}
	for _, row := range e.Record.Summarise().Rows {
		if row.Runs != 2 || (row.Figure.Due > 0) != strings.Contains(row.OffTarget, "due are") {
			t.Errorf("%+v", row)
		}
	}
}

// What is called off leaves no process and no group.
func TestCancelled(t *testing.T) {
	c := open(t, time.Minute)
	ctx, stop := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer stop()
	r, err := c.Open(ctx, Programs()[0], nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.Run(ctx, Off); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("it ended with %v", err)
	}
	if _, err := c.Open(ctx, bench.Program{Name: "lead"}, nil); err == nil {
		t.Error("guests that there are not were made ready")
	}
	c.worker = []string{"sh", "-c", "echo sorry >&2; exit 3", "sh"}
	if _, err := r.Run(t.Context(), Off); err == nil || !strings.Contains(err.Error(), "sorry") {
		t.Errorf("a worker that does not work: %v", err)
	}
	c.worker = []string{"no-such-program"}
	if _, err := r.Run(t.Context(), Off); err == nil {
		t.Error("a worker that is not there worked")
	}
}

func TestWhatWorkersSay(t *testing.T) {
	const text = `{"work":300e6,"cpu_s":0.8,"wake_mean_s":0.001,"wake_p99_s":0.01}
{"work":100e6,"cpu_s":0.2}
`
	for _, p := range Programs() {
		got, err := p.Read(text)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range p.Figures {
			if !(got.Figures[f.Name] > 0) {
				t.Errorf("%s: nobody reads %s", p.Name, f.Name)
			}
		}
	}
	got, _ := readShares(text)
	if got.Figures["first_share"] != 80 || got.Figures["second_share"] != 20 || got.Figures["second_rate"] != 500 {
		t.Errorf("%v", got)
	}
	// Who got nothing has a share, too.
	if got, err := readShares(`{"work":5,"cpu_s":1}{"work":0,"cpu_s":0}`); err != nil || got.Figures["first_share"] != 100 || got.Figures["second_share"] != least {
		t.Errorf("%v, %v", got, err)
	}
	if due := Programs()[0].Figures[1].Due; due != 20 {
		t.Errorf("bronze beside gold is due %g %%", due)
	}
	for _, bad := range []string{"", "{", `{"work":1,"cpu_s":1}`, `{"work":1,"cpu_s":0}{"work":1,"cpu_s":0}`, "[]"} {
		if _, err := readShares(bad); err == nil {
			t.Errorf("%q was read", bad)
		}
		if _, err := readWakes(bad); err == nil {
			t.Errorf("%q was read", bad)
		}
	}
	for _, bad := range []string{"", "ready", "ready x", "ready 1", "steady 77"} {
		if pids, err := numbers(bad); err == nil {
			t.Errorf("%q are processes %v", bad, pids)
		}
	}
	for _, bad := range [][]string{nil, {"spins"}, {"plays", "0"}, {"spins", "x"}, {"sleeps", "100000"}} {
		if err := Work(bad, strings.NewReader(""), os.Stderr); err == nil {
			t.Errorf("%q was done", bad)
		}
	}
}

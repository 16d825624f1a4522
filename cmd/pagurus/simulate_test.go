package main

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"pagurus/sim"
)

// simulated runs `pagurus simulate` and returns its output.
func simulated(args ...string) (string, error) {
	var out, say strings.Builder
	cmd := command(streams{strings.NewReader(""), &out, &say})
	cmd.SetArgs(append([]string{"simulate"}, args...))
	err := cmd.ExecuteContext(context.Background())
	return out.String(), err
}

func TestSimulate(t *testing.T) {
	page := filepath.Join(t.TempDir(), "out.html")
	small := []string{"--model", "nd07cpu", "--hosts", "40", "--ranks", "4", "--for", "6h", "--policy", "requeue,predictive"}
	table, err := simulated(append(small, "--report", page, "--seeds", "2")...)
	if err != nil || !strings.Contains(table, "predictive against requeue: throughput") {
		t.Errorf("%v:\n%s", err, table)
	}
	if html, err := os.ReadFile(page); err != nil || !strings.Contains(string(html), "Owners: nd07cpu") {
		t.Errorf("the page: %v\n%s", err, html)
	}
	text, err := simulated(append(small, "--json", "--seed", "5")...)
	var rows []sim.Row
	if err != nil || json.Unmarshal([]byte(text), &rows) != nil || len(rows) != 2 || rows[1].Policy != "predictive" || rows[1].Seeds[0] != 5 {
		t.Errorf("%v:\n%s", err, text)
	}
	waits, err := simulated(append(small, "--json", "--seed", "5", "--grace", "20s", "--idle-after", "15m")...)
	var live []sim.Row
	if err != nil || json.Unmarshal([]byte(waits), &live) != nil || live[0].Runs[0].Grace != 20*time.Second || live[0].Runs[0].IdleAfter != 15*time.Minute ||
		live[0].Disturbed.Mean <= 2*rows[0].Disturbed.Mean {
		t.Errorf("owners share for longer with hosts that wait: %v:\n%s", err, waits)
	}
	scenario := filepath.Join("..", "..", "sim", "testdata", "owner-returns")
	if log, err := simulated(scenario, "--log"); err != nil || !strings.Contains(log, "61.000  m1.j1g0 preparing") || !strings.Contains(log, "evacuate") {
		t.Errorf("%v:\n%s", err, log)
	}
	if log, err := simulated(scenario, "--log", "--grace", "20s"); err != nil || !strings.Contains(log, "81.000  m1.j1g0 preparing") {
		t.Errorf("%v:\n%s", err, log)
	}
}

func TestSimulateRefuses(t *testing.T) {
	trace := filepath.Join(t.TempDir(), "owners.csv")
	if err := os.WriteFile(trace, []byte("a,1,2\na,0,1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for args, want := range map[string]string{
		"":                                 "name one of a scenario, --model and --trace",
		"--model nd07cpu --trace x":        "name one of",
		"--model nd08":                     `there is no model "nd08"`,
		"--model nd07cpu --policy none":    `there is no policy "none"`,
		"--model nd07cpu --placement none": `there is no placement "none"`,
		"--model nd07cpu --hosts 0":        "0 hosts cannot be simulated",
		"--model nd07cpu --ranks 0":        "of 0 ranks",
		"--model nd07cpu --seeds 0":        "0 seeds",
		"--model nd07cpu --mem 5":          "5 bytes of memory",
		"--model nd07cpu --mem 0":          `--mem: "0" is not a size`,
		"--model nd07cpu --for -1h":        `--for: "-1h" is not a duration`,
		"--model nd07cpu --grace -1s":      `--grace: "-1s" is not a duration`,
		"--trace " + trace:                 "line 2: the owner of a comes at 0s",
		"--trace /nowhere/at/all":          "reading the trace",
		"/nowhere/at/all":                  "reading the scenario",
	} {
		if out, err := simulated(strings.Fields(args)...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q\n%s", args, err, want, out)
		}
	}
}

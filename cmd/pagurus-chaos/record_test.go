package main

import (
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"
)

var update = flag.Bool("update", false, "print the table of docs/figures/chaos.json again, after somebody wrote what was done about a finding")

// The kept table is what is printed from the kept record.
func TestTheKeptTableIsOfTheKeptRecord(t *testing.T) {
	const file = "../../docs/figures/chaos.json"
	r, err := readRecord(file)
	if err != nil || len(r.Runs) == 0 {
		t.Fatalf("%d runs, %v", len(r.Runs), err)
	}
	if *update {
		if err := os.WriteFile(tableOf(file), []byte(r.table()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	text, err := os.ReadFile(tableOf(file))
	if err != nil || string(text) != r.table() {
		t.Errorf("%v; it is not what follows from the record: go test ./cmd/pagurus-chaos -run Kept -update", err)
	}
}

func TestRunsAddUp(t *testing.T) {
	file := filepath.Join(t.TempDir(), "figures", "chaos.json")
	run := func(of string, seed uint64, wrong string) report {
		return report{Kind: of, Seed: seed, Commit: "abc", Began: time.Date(2026, 11, 27, 8, 0, int(seed), 0, time.UTC), Took: time.Minute, Wrong: wrong,
			Counts: tally{Finished: 3, Jobs: 2}, Faults: []*injection{{fault: fault{Number: 1, Kind: linkCut}}, {fault: fault{Number: 2, Kind: controller}}, {fault: fault{Number: 3, Kind: linkCut}}}}
	}
	var all sync.WaitGroup // side by side
	for seed := range uint64(5) {
		all.Go(func() {
			if err := addTo(file, entryOf(run("vm", seed+1, ""))); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	r, err := readRecord(file)
	if err != nil || len(r.Runs) != 5 || r.Runs[0].Seed != 1 || r.Runs[4].Seed != 5 {
		t.Fatalf("%v, %+v", err, r)
	}
	// A report of a run elsewhere, with a finding, added twice; what a person wrote stays.
	elsewhere := filepath.Join(t.TempDir(), "report.json")
	text, err := json.Marshal(run("hosts", 9, "guest j1g0\nis lost"))
	if err == nil {
		err = os.WriteFile(elsewhere, text, 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := addReport(elsewhere, file); err != nil {
			t.Fatal(err)
		}
	}
	if r, _ = readRecord(file); len(r.Runs) != 6 {
		t.Fatalf("%+v", r)
	}
	e := r.Runs[5]
	e.After = "Mended by abd."
	if err := addTo(file, e); err != nil {
		t.Fatal(err)
	}
	if err := addReport(elsewhere, file); err != nil {
		t.Fatal(err)
	}
	table, err := os.ReadFile(tableOf(file))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		`(?m)^2026-11-27 abc +vm +5 +3 +3 +2( +0){7}$`, `(?m)^total +hosts +3 +3 +2( +0){7}$`, `(?m)^total +all +18 +18 +12( +0){7}$`,
		`(?m)^FAULT +HOSTS +VM +ALL$`, `(?m)^link-cut +2 +10 +12$`, `(?m)^controller +1 +5 +6$`,
		`(?m)^hosts, seed 9: guest j1g0 is lost\n  Mended by abd\.$`,
	} {
		if !regexp.MustCompile(want).Match(table) {
			t.Errorf("it does not say %s:\n%s", want, table)
		}
	}
	for _, text := range []string{"{}", "nonsense", ""} {
		if err := os.WriteFile(elsewhere, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		if err := addReport(elsewhere, file); err == nil || !strings.Contains(err.Error(), elsewhere) {
			t.Errorf("%q was added: %v", text, err)
		}
	}
	if err := os.WriteFile(file, []byte("nonsense"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := addTo(file, e); err == nil {
		t.Error("what was no record was written over")
	}
}

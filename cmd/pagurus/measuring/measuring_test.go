package measuring

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"pagurus/measure/bench"
	"pagurus/measure/stats"
)

// record is one of two targets, of which one run failed.
func record() *bench.Record {
	r := &bench.Record{
		Complete: true, Machine: bench.Machine{Commit: "abcd123", CPUs: 2},
		Spec: bench.Spec{
			Name: "overhead", Targets: []string{"native", "container"}, Runs: 4, Confidence: 0.97,
			Programs: []bench.Program{{Name: "netpipe", Figures: []bench.Figure{{Name: "latency_s", Says: "latency", Unit: "s", Sense: stats.Slower}}}},
		},
	}
	for i, v := range []float64{20e-6, 21e-6, 20.5e-6, 20.2e-6} {
		for _, t := range r.Spec.Targets {
			run := bench.Run{Round: i, Program: "netpipe", Target: t, Figures: map[string]float64{"latency_s": v}}
			if t == "container" {
				run.Figures["latency_s"] *= 1.05 + float64(i)/1000
			}
			if t == "container" && i == 3 {
				run.Figures, run.Failure = nil, "it printed nothing"
			}
			r.Runs = append(r.Runs, run)
		}
	}
	return r
}

// typed runs a command line.
func typed(args ...string) (string, error) {
	var out bytes.Buffer
	root := &cobra.Command{Use: "pagurus", SilenceUsage: true, SilenceErrors: true}
	root.PersistentFlags().Bool("json", false, "")
	root.AddCommand(Bench(Streams{&out, &out}))
	root.SetArgs(args)
	root.SetOut(&out)
	err := root.Execute()
	return out.String(), err
}

func TestWhatARecordSaysIsPrinted(t *testing.T) {
	got := text(record().Summarise())
	for _, want := range []string{
		"netpipe  latency  container  3     21.57 µs",
		"container, latency: container is 5.1 % slower than native (97 %: 4.8 to 5.4 %), 3 runs each; p = 0.25",
		"! latency on container: too few runs: 3",
		"! netpipe on container, run 4: it printed nothing",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("%q is not in:\n%s", want, got)
		}
	}
}

func TestAmounts(t *testing.T) {
	for want, of := range map[string]struct {
		v    float64
		unit string
	}{"21 µs": {21e-6, "s"}, "940 Mbit/s": {940e6, "bit/s"}, "1234 s": {1234, "s"}, "0.02 GUP/s": {0.02, "GUP/s"}, "7": {7, ""}, "0 s": {0, "s"}, "2e+04 Gbit/s": {2e13, "bit/s"}} {
		if got := amount(of.v, of.unit); got != want {
			t.Errorf("%g is %q, want %q", of.v, got, want)
		}
	}
}

func TestRecordsAreListedAndCompared(t *testing.T) {
	in := t.TempDir()
	for _, name := range []string{"monday", "tuesday"} {
		if err := record().Write(filepath.Join(in, name, bench.RecordName)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.MkdirAll(filepath.Join(in, "broken"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(in, "broken", bench.RecordName), []byte(`{"version":99}`), 0o644); err != nil {
		t.Fatal(err)
	}
	got, err := typed("bench", "ls", "--in", in)
	if err != nil || !strings.Contains(got, "monday") || !strings.Contains(got, "newer Pagurus") || !strings.Contains(got, "randomaccess") {
		t.Errorf("%v\n%s", err, got)
	}
	got, err = typed("bench", "compare", filepath.Join(in, "monday"), filepath.Join(in, "tuesday", bench.RecordName))
	if err != nil || !strings.Contains(got, "cannot be told apart") {
		t.Errorf("%v\n%s", err, got)
	}
	if got, err = typed("bench", "compare", "monday", "nowhere", "--in", in); err == nil {
		t.Errorf("nothing was compared: %s", got)
	}
}

func TestEverySampleIsInTheCSV(t *testing.T) {
	text, err := samplesCSV(record())
	if err != nil || strings.Count(string(text), "\n") != 9 || !strings.Contains(string(text), "netpipe,container,4,0001-01-01T00:00:00Z,0,,,,it printed nothing") {
		t.Errorf("%v\n%s", err, text)
	}
}

// What makes no sense is refused before anything is started.
func TestWhatMakesNoSenseIsRefused(t *testing.T) {
	dir := t.TempDir()
	if err := record().Write(filepath.Join(dir, bench.RecordName)); err != nil {
		t.Fatal(err)
	}
	for says, args := range map[string][]string{
		"no target":    {"--targets", "moon"},
		"has no":       {"--suite", "hpl,linpack"},
		"needs --npb":  {"--suite", "npb"},
		"at least 2":   {"--runs", "1"},
		"--mem":        {"--mem", "much"},
		"--figure":     {"--figure", "("},
		"confidence":   {"--confidence", "97"},
		"already":      {"--report", dir},
		"named twice":  {"--targets", "vm,vm"},
		"no program":   {"--suite", ""},
		"unknown flag": {"--nonsense"},
	} {
		got, err := typed(append([]string{"bench", "overhead"}, args...)...)
		if err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%q: %v\n%s", args, err, got)
		}
	}
}

func TestACommandMayHaveCommas(t *testing.T) {
	o := overhead{suite: "stream,app:./a.out 1,2,hpl"}
	words, err := o.words()
	if err != nil || len(words) != 2 || words[1] != "app:./a.out 1,2,hpl" {
		t.Errorf("%q, %v", words, err)
	}
}

package measuring

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"pagurus/bench"
	"pagurus/bench/noise"
	"pagurus/bench/stats"
	"pagurus/fleet"
	"pagurus/serve/wire"
)

// record is of two targets; one run failed.
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
	root.PersistentFlags().String("controller", "", "")
	root.AddCommand(Bench(Streams{Out: &out, Err: &out, Version: "v7-built", Beside: func(string) (string, error) { return exec.LookPath("true") }}))
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

func TestADoubtOfAllFiguresIsSaidOnce(t *testing.T) {
	rows := []bench.Row{{Target: "a", Doubts: []string{"few", "drift"}}, {Target: "b", Doubts: []string{"few"}}}
	for i := range rows {
		rows[i].Figure.Says = "latency"
	}
	if got, want := doubts(rows), []string{"all figures: few", "latency on a: drift"}; !slices.Equal(got, want) {
		t.Errorf("they are %q instead of %q", got, want)
	}
	if got, want := doubts(rows[1:]), []string{"latency on b: few"}; !slices.Equal(got, want) {
		t.Errorf("they are %q instead of %q", got, want)
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
	got, err = typed("bench", "ls", "--in", in, "--json")
	var all struct {
		Suite   []map[string]string
		Targets []string
		Records []map[string]any
	}
	if err != nil || json.Unmarshal([]byte(got), &all) != nil || len(all.Records) != 2 || all.Records[0]["complete"] == nil || all.Suite[0]["name"] != "hpl" || len(all.Targets) < 4 {
		t.Errorf("%v\n%s", err, got)
	}
	if got, err = typed("bench", "ls", "--in", t.TempDir(), "--json"); err != nil || !strings.Contains(got, `"records":[]`) {
		t.Errorf("no records: %v\n%s", err, got)
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

// What is not one number has files of its own, and what TCP did has no unit but a line.
func TestCurvesAndPartsAreInTheCSVs(t *testing.T) {
	r := record()
	r.Runs[0].Figures["resent"] = 3
	r.Runs[0].Curves = map[string][]bench.Point{"latency": {{X: 1, Y: 2e-5}, {X: 1024, Y: 3e-5}}, "bandwidth": {{X: 1, Y: 4e5}}}
	r.Runs[1].Parts = map[string][]bench.Part{"latency_s": {{Name: "wire, card", Value: 1.5}, {Name: "rest", Value: 0.5}}}
	for want, of := range map[string]func(*bench.Record) ([]byte, error){
		"program,target,run,curve,x,y\nnetpipe,native,1,bandwidth,1,400000\nnetpipe,native,1,latency,1,2e-05\nnetpipe,native,1,latency,1024,3e-05\n":                                  curvesCSV,
		"program,target,run,figure,part,unit,value\nnetpipe,container,1,latency_s,\"wire, card\",s,1.5\nnetpipe,container,1,latency_s,rest,s,0.5\n":                                   partsCSV,
		"program,target,run,begun,took_s,figure,unit,value,failure\nnetpipe,native,1,0001-01-01T00:00:00Z,0,latency_s,s,2e-05,\nnetpipe,native,1,0001-01-01T00:00:00Z,0,resent,,3,\n": samplesCSV,
	} {
		if text, err := of(r); err != nil || !strings.HasPrefix(string(text), want) {
			t.Errorf("%v\n%s\ninstead of\n%s", err, text, want)
		}
	}
}

// A ratio that is not to the first target says to which.
func TestAnotherBaseIsNamed(t *testing.T) {
	r := record()
	r.Spec.Targets = append(r.Spec.Targets, "container-lossy")
	r.Guests = map[string]bench.Setting{"container-lossy": {Beside: "container"}}
	for i := range 4 {
		r.Runs = append(r.Runs, bench.Run{Round: i, Program: "netpipe", Target: "container-lossy", Figures: map[string]float64{"latency_s": 1 + float64(i)/10}})
	}
	for line := range strings.Lines(text(r.Summarise())) {
		if named := strings.HasSuffix(line, ") to container\n"); named != strings.HasPrefix(line, "netpipe  latency  container-lossy ") {
			t.Error(line)
		}
	}
}

// What makes no sense is refused before anything is started.
func TestWhatMakesNoSenseIsRefused(t *testing.T) {
	dir := t.TempDir()
	if err := record().Write(filepath.Join(dir, bench.RecordName)); err != nil {
		t.Fatal(err)
	}
	for says, args := range map[string][]string{
		"no target":                      {"--targets", "moon"},
		"has no":                         {"--suite", "hpl,linpack"},
		"needs --npb":                    {"--suite", "npb"},
		"at least 2":                     {"--runs", "1"},
		"--mem":                          {"--mem", "much"},
		"--figure":                       {"--figure", "("},
		"confidence":                     {"--confidence", "97"},
		"already":                        {"--report", dir},
		"named twice":                    {"--targets", "vm,vm"},
		"no program":                     {"--suite", ""},
		"unknown flag":                   {"--nonsense"},
		"target vm has at least 128 MiB": {"--targets", "container,vm", "--mem", "64M"},

		"at least 2 ranks":          {"-n", "1"},
		"at least 1 is needed":      {"--guests", "0"},
		"use at most --guests 3":    {"-n", "3", "--guests", "4"},
		"leave it out, or use -n 2": {"-n", "4", "--suite", "hpl,netpipe"},
		"for 2 ranks, not 3: leave": {"-n", "3", "--guests", "1", "--suite", "netpipe"},
	} {
		got, err := typed(append([]string{"bench", "overhead"}, args...)...)
		if err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%q: %v\n%s", args, err, got)
		}
	}
}

// NetPIPE is left out for other than two ranks, unless it was asked for, and that
// is said and kept.
func TestNetPIPEIsForTwoRanks(t *testing.T) {
	for ranks, want := range map[int]string{2: "hpl,stream,netpipe", 4: "hpl,stream"} {
		var said bytes.Buffer
		o := overhead{asked: usual(Streams{Err: &said}), ranks: ranks, among: 2, suite: "hpl,stream,netpipe"}
		if err := o.shape(false); err != nil || o.suite != want {
			t.Errorf("%d ranks run %q, %v", ranks, o.suite, err)
		}
		if left := ranks != 2; (len(o.notes) == 1) != left || strings.Contains(said.String(), "netpipe is left out: it is for 2 ranks, not 4") != left {
			t.Errorf("%d ranks: said is %q, kept %q", ranks, said.String(), o.notes)
		}
	}
}

// Guests are made for the ranks that they get, and the record says how.
func TestGuestsHaveACPUForEachRank(t *testing.T) {
	can := map[fleet.Kind]fleet.Abilities{fleet.Container: {}}
	small := fleet.Host{State: fleet.HostUp, Facts: fleet.Facts{Connected: true, Capacity: fleet.Resources{CPUs: 2}, Abilities: can}}
	gone := fleet.Host{State: fleet.HostUp, Facts: fleet.Facts{Capacity: fleet.Resources{CPUs: 64}, Abilities: can}}
	for _, c := range []struct{ ranks, among, guests, cpus int }{{0, 0, 2, 1}, {2, 2, 2, 1}, {4, 2, 2, 2}, {3, 2, 2, 2}, {4, 4, 4, 1}, {4, 1, 1, 2}} {
		o := overhead{asked: asked{targets: []string{"native", "container"}}, memory: 1 << 30, ranks: c.ranks, among: c.among, hosts: map[fleet.HostID]fleet.Host{"h1": small, "h2": gone}}
		if s := o.settings()["container"]; s.Guests != c.guests || s.CPUs != c.cpus {
			t.Errorf("%+v: the record has %+v", c, s)
		}
		if s := o.settings()["native"]; s.Guests != 0 || s.CPUs != 0 {
			t.Errorf("%+v: the record has native guests: %+v", c, s)
		}
		lab := o.place()
		if got, want := strings.Join(lab.Kinds["container"], " "), fmt.Sprintf("--kind container --cpus %d", c.cpus); got != want {
			t.Errorf("%+v: they are run with %q", c, got)
		}
		if job := lab.Job(); job.Guests != c.guests || c.ranks > 0 && job.Ranks != c.ranks {
			t.Errorf("%+v: a job is %+v", c, job)
		}
	}
	if n := len(kinds["container"]); n != 2 {
		t.Errorf("the flags of all were changed: %q", kinds["container"])
	}
}

func TestACommandMayHaveCommas(t *testing.T) {
	o := overhead{suite: "stream,app:./a.out 1,2,hpl"}
	words, err := o.words()
	if err != nil || len(words) != 2 || words[1] != "app:./a.out 1,2,hpl" {
		t.Errorf("%q, %v", words, err)
	}
}

func TestNoiseIsMeasuredPrintedAndKept(t *testing.T) {
	dir := t.TempDir()
	got, err := typed("bench", "noise", "--for", "100ms", "--report", dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"CORE", "LOST", "INTERRUPTED FOR", "× its best", "64 "} {
		if !strings.Contains(got, want) {
			t.Errorf("%q is not in\n%s", want, got)
		}
	}
	if r, err := bench.Load(filepath.Join(dir, bench.RecordName)); err != nil || r.HarnessShare() > 0.5 || !r.Complete || r.Machine.Commit != "v7-built" {
		t.Errorf("the record: %v, %+v", err, r)
	}
	if again, err := typed("bench", "compare", dir, dir); err != nil || !strings.Contains(again, "cannot be told apart") {
		t.Errorf("compared with itself: %v\n%s", err, again)
	}
	if text, err := os.ReadFile(filepath.Join(dir, "noise.json")); err != nil || !strings.Contains(string(text), `"predicted"`) {
		t.Errorf("kept is %.200q, %v", text, err)
	}
	for _, bad := range [][]string{{"--cores", "x"}, {"--cores", "8000"}, {"--for", "1ms"}, {"--confidence", "2"}, {"--in", "native"}, {"--in", "shell"}, {"--in", "vm", "--cpus", "0"}} {
		if _, err := typed(append([]string{"bench", "noise"}, bad...)...); err == nil {
			t.Errorf("%q was taken", bad)
		}
	}
}

// What a guest's probe would refuse is refused before the guest is started.
func TestTurnsThatNoGuestIsProbedFor(t *testing.T) {
	o := noisy{asked: usual(Streams{}), in: "container", cpus: 1, lasts: 21 * noise.LongestFar}
	o.runs, o.report = 20, t.TempDir()
	if err := o.check(); err == nil || !strings.Contains(err.Error(), "1h3m0s") {
		t.Errorf("a turn of more than an hour: %v", err)
	}
	o.lasts = 20 * noise.LongestFar
	if err := o.check(); err != nil {
		t.Error(err)
	}
	if o.runs = 0; o.check() == nil {
		t.Error("no turn is one")
	}
}

// What is left out of a folder of programs is said, and in the record.
func TestProgramsForOtherNumbersOfRanksAreNamed(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"cg.A.2", "cg.A.4", "ft.B.8"} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	var said bytes.Buffer
	o := overhead{asked: usual(Streams{Err: &said}), npb: dir}
	o.where.Dir = t.TempDir()
	all, err := o.parallel()
	const want = "cg.A.4, ft.B.8: they are not for 2 ranks"
	if err != nil || len(all) != 1 || !strings.Contains(said.String(), want) || len(o.notes) != 1 || !strings.Contains(o.notes[0], want) {
		t.Errorf("%v, %v; said is %q, kept %q", all, err, said.String(), o.notes)
	}
	if _, err := os.Stat(filepath.Join(o.where.Dir, "cg.A.2")); err != nil {
		t.Error(err)
	}
	o.ranks = 4
	if all, err := o.parallel(); err != nil || len(all) != 1 || all[0].Name != "cg.A.4" || !strings.Contains(o.notes[1], "cg.A.2, ft.B.8: they are not for 4 ranks") {
		t.Errorf("for 4 ranks: %v, %v, kept %q", all, err, o.notes)
	}
}

// TestNoiseThatIsCutOff: what was found is printed and kept, also of the first core's
// first turn, and it is said that it was cut off. A busy machine takes most of a second to find anything.
func TestNoiseThatIsCutOff(t *testing.T) {
	dir, ctx := t.TempDir(), context.Background()
	ctx, stop := context.WithTimeout(ctx, time.Second)
	defer stop()
	var out bytes.Buffer
	cmd := Bench(Streams{Out: &out, Err: io.Discard, Beside: func(string) (string, error) { return exec.LookPath("true") }})
	cmd.SetArgs([]string{"noise", "--for", "10m", "--report", dir})
	cmd.SilenceUsage, cmd.SilenceErrors = true, true
	err := cmd.ExecuteContext(ctx)
	if err == nil || !strings.Contains(out.String(), "it was cut off") || !strings.Contains(out.String(), "× its best") {
		t.Errorf("%v; printed is\n%s", err, out.String())
	}
	if text, err := os.ReadFile(filepath.Join(dir, "noise.json")); err != nil || !strings.Contains(string(text), `"complete":false`) {
		t.Errorf("kept is %.200q, %v", text, err)
	}
}

func TestManyTargetsAreFewWords(t *testing.T) {
	if got := several([]string{"cpu0", "cpu1", "cpu2", "cpu3", "cpu4"}); got != "cpu0 to cpu4 (5)" {
		t.Error(got)
	}
}

func TestMovesAreRead(t *testing.T) {
	begun := time.Unix(1000, 0)
	m := fleet.Migration{Phase: fleet.Finished, Guest: "j1g0", Entered: []fleet.Entered{{Phase: fleet.Preparing, At: begun}, {Phase: fleet.Activating, At: begun.Add(time.Second)},
		{Phase: fleet.Retiring, At: begun.Add(1020 * time.Millisecond)}, {Phase: fleet.Finished, At: begun.Add(2 * time.Second)}},
		Rounds: []fleet.Round{{Number: 1, LeftBytes: 3 << 20}, {Number: 2, LeftBytes: 1 << 19, At: 2 * time.Second}},
		Cost:   fleet.Progress{Downtime: 30 * time.Millisecond, SentBytes: 3 << 20, Rounds: 4}, Stall: &fleet.Stall{Gap: fleet.Gap{Took: 60 * time.Millisecond}, AtSwitch: 60 * time.Millisecond}}
	read := func(m fleet.Migration) (bench.Result, error) {
		text, err := json.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		return readMove(string(text))
	}
	got, err := read(m)
	if err != nil || got.Figures["total_s"] != 2 || got.Figures["down_s"] != 0.05 || got.Figures["handed_s"] != 0.03 || got.Figures["stall_s"] != 0.06 || got.Figures["sent_mib"] != 3 || got.Figures["rounds"] != 4 {
		t.Errorf("%v, %v", got, err)
	}
	if want := []bench.Point{{X: 0, Y: 3}, {X: 2, Y: 0.5}}; !slices.Equal(got.Curves[bench.CopyRounds], want) {
		t.Errorf("the rounds are %v", got.Curves)
	}
	for figure, want := range map[string][]bench.Part{
		"total_s": {{Name: "preparing", Value: 1}, {Name: "activating", Value: 0.02}, {Name: "retiring", Value: 0.98}},
		"stall_s": {{Name: "until the source had handed it over", Value: 0.03}, {Name: "until it ran at the target", Value: 0.02}, {Name: "until its rank got on", Value: 0.01}},
	} {
		if !slices.Equal(got.Parts[figure], want) {
			t.Errorf("%s consists of %v", figure, got.Parts[figure])
		}
	}
	for _, f := range moveProgram().Figures {
		if _, ok := got.Figures[f.Name]; !ok {
			t.Errorf("%s is not read", f.Name)
		}
	}
	m.Stall.Took *= 2 // as the copy began
	if got, err := read(m); err != nil || got.Parts["stall_s"] != nil {
		t.Errorf("a stall that is not the switch's consists of %v, %v", got.Parts["stall_s"], err)
	}
	m.Phase, m.Cause = fleet.Aborted, "no room"
	if _, err := read(m); err == nil || !strings.Contains(err.Error(), "no room") {
		t.Errorf("an aborted migration: %v", err)
	}
	later := m
	later.ID, later.Entered = "m2", []fleet.Entered{{At: begun.Add(time.Minute)}}
	other := later
	other.Guest = "j1g1"
	s := fleet.Snapshot{Migrations: map[fleet.MigrationID]fleet.Migration{"m1": m, "m2": later, "m3": other}}
	if got := newestMigration(s, "j1g0"); got.ID != "m2" {
		t.Errorf("the newest is %+v", got)
	}
	if _, err := typed("bench", "migration", "--targets", "native"); err == nil || !strings.Contains(err.Error(), "cannot be moved") {
		t.Errorf("native: %v", err)
	}
}

// TestNamedControllerDoesNotAnswer: then nothing is measured, and no lab comes up.
func TestNamedControllerDoesNotAnswer(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	t.Setenv(wire.CredentialsVariable, filepath.Join(dir, "none"))
	t.Setenv(wire.ControllerVariable, "") // the command sets it; the test restores it
	out, err := typed("bench", "migration", "--runs", "7", "--controller", "unix:"+filepath.Join(dir, "nobody.sock"))
	if err == nil || !strings.Contains(err.Error(), "nobody.sock does not answer") || strings.Contains(out, "bringing up a lab") {
		t.Errorf("%v: %s", err, out)
	}
}

// What `pagurus bench` measures is what the catalogue says, and ls lists all that can be measured.
func TestTheCatalogueIsOffered(t *testing.T) {
	std := Streams{Out: io.Discard, Err: io.Discard}
	offered := map[string]bool{"ls": true, "compare": true}
	for _, m := range bench.Catalogue {
		offered[m.Name] = offered[m.Name] || m.By == bench.ByCommand
		if got, err := typed("bench", "ls", "--in", t.TempDir()); err != nil || !strings.Contains(got, m.Says) {
			t.Errorf("%s by %s is not listed: %v", m.Name, m.By, err)
		}
	}
	for _, cmd := range Bench(std).Commands() {
		if !offered[cmd.Name()] {
			t.Errorf("%s is not in the catalogue", cmd.Name())
		}
		delete(offered, cmd.Name())
	}
	for name, ours := range offered {
		if ours {
			t.Errorf("the catalogue has %s, and there is no command", name)
		}
	}
}

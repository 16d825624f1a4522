package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"pagurus/bench/stats"
)

// shell runs programs by this machine's shell, which is told the target.
type shell struct {
	order []string
	stop  func(run int) // called before each run
}

func (s *shell) Open(_ context.Context, p Program, _ []string) (Round, error) {
	return shellRound{s, p}, nil
}

type shellRound struct {
	*shell
	program Program
}

func (r shellRound) Run(ctx context.Context, target string) (string, error) {
	r.order = append(r.order, target)
	if r.stop != nil {
		r.stop(len(r.order))
	}
	c := exec.CommandContext(ctx, "sh", "-c", r.program.Command)
	c.Env = []string{"TARGET=" + target, "PATH=" + os.Getenv("PATH")}
	out, err := c.Output()
	return string(out), err
}

func (r shellRound) Close() error { return nil }

func number(command string) Program {
	return Program{
		Name: "number", Command: command, Figures: []Figure{{Name: "v", Says: "value", Unit: "s", Sense: stats.Slower}},
		Read: func(text string) (Result, error) {
			v, err := strconv.ParseFloat(strings.TrimSpace(text), 64)
			return Result{Figures: map[string]float64{"v": v}}, err
		},
	}
}

func spec(p Program, runs int, targets ...string) Spec {
	return Spec{Name: "test", Targets: targets, Programs: []Program{p}, Runs: runs, Seed: 7, Confidence: 0.95}
}

func TestTargetsTakeTurns(t *testing.T) {
	s := &shell{}
	e := Experiment{Spec: spec(number("case $TARGET in a) echo 1 ;; b) echo 1.5 ;; c) echo 3 ;; esac"), 12, "a", "b", "c"), Place: s}
	if err := e.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(s.order); i += 3 {
		if turn := slices.Sorted(slices.Values(s.order[i : i+3])); strings.Join(turn, "") != "abc" {
			t.Errorf("round %d is of %v", i/3, turn)
		}
	}
	again := &shell{}
	if err := (&Experiment{Spec: e.Spec, Place: again}).Run(t.Context()); err != nil || fmt.Sprint(again.order) != fmt.Sprint(s.order) {
		t.Errorf("the same seed gave %v, then %v, %v", s.order, again.order, err)
	}
	rows := e.Record.Summarise().Rows
	if len(rows) != 3 || rows[0].Ratio != nil || rows[1].Sentence != "b is 50.0 % slower than a (95 %: 50.0 to 50.0 %), 12 runs each" {
		t.Errorf("%+v", rows)
	}
	if p := rows[2].Chance; p == nil || *p > 0.001 {
		t.Errorf("the chance of that is %v", p)
	}
}

// What was measured before Ctrl-C is kept; what was cut off is no figure.
func TestWhatWasMeasuredBeforeItIsCutOffIsKept(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	file := filepath.Join(t.TempDir(), "new", RecordName)
	e := Experiment{Spec: spec(number("sleep 0.01; echo 1"), 5, "a", "b"), Place: &shell{stop: func(run int) {
		if run == 4 {
			cancel()
		}
	}}}
	e.KeepRun = func() error { return e.Record.Write(file) }
	if err := e.Run(ctx); !errors.Is(err, context.Canceled) {
		t.Fatalf("it ended with %v", err)
	}
	r, err := Load(file)
	if err != nil || r.Complete || len(r.Runs) != 3 || r.Failures() != nil {
		t.Fatalf("%+v, %v", r, err)
	}
	if notes := strings.Join(r.Summarise().Notes, "\n"); !strings.Contains(notes, "cut off") {
		t.Errorf("the notes are %q", notes)
	}
}

func TestFailuresAreRecordedAndOthersGoOn(t *testing.T) {
	s := &shell{}
	bad := number("[ $TARGET = a ] && echo 1 || echo wrong")
	silent := number("true")
	silent.Name = "silent"
	e := Experiment{Spec: spec(bad, 6, "a", "b"), Place: s}
	e.Spec.Programs = append(e.Spec.Programs, silent)
	err := e.Run(t.Context())
	if err == nil || !e.Record.Complete || !strings.Contains(err.Error(), "number on b, run 1") {
		t.Errorf("it ended with %v", err)
	}
	if n := e.Record.failed("number", "b"); n != failuresKept {
		t.Errorf("it was tried %d times on end", n)
	}
	if v, _ := e.Record.Samples("number", "v", "a"); len(v) != 6 {
		t.Errorf("the other target has %v", v)
	}
	for _, row := range e.Record.Summarise().Rows {
		if row.Program == "silent" && (row.Runs != 0 || len(row.Doubts) == 0) {
			t.Errorf("%+v", row)
		}
	}
}

// What is infinite or no number is that run's failure: JSON has neither, and the record
// of all others would be lost.
func TestWhatIsNoNumberIsAFailure(t *testing.T) {
	file := filepath.Join(t.TempDir(), RecordName)
	figure := number("case $TARGET in a) echo 1 ;; b) echo +Inf ;; c) echo nan ;; esac")
	curve, extra, parts := number("echo 1"), number("echo 1"), number("echo 1")
	curve.Name, extra.Name, parts.Name = "curve", "extra", "parts"
	curve.Read = func(string) (Result, error) {
		return Result{Figures: map[string]float64{"v": 1}, Curves: map[string][]Point{"c": {{1, 1}, {2, math.Inf(1)}}}}, nil
	}
	extra.Read = func(string) (Result, error) {
		return Result{Figures: map[string]float64{"v": 1, "beside": math.NaN()}}, nil
	}
	parts.Read = func(string) (Result, error) {
		return Result{Figures: map[string]float64{"v": 1}, Parts: map[string][]Part{"v": {{"p", math.Inf(-1)}}}}, nil
	}
	e := Experiment{Spec: spec(figure, 2, "a", "b", "c"), Place: &shell{}}
	e.Spec.Programs = append(e.Spec.Programs, curve, extra, parts)
	e.KeepRun = func() error { return e.Record.Write(file) }
	if err := e.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "no number") {
		t.Errorf("it ended with %v", err)
	}
	r, err := Load(file)
	if err != nil || !r.Complete || len(r.Runs) != 24 {
		t.Fatalf("%+v, %v", r, err)
	}
	for _, run := range r.Runs {
		if good := run.Program == "number" && run.Target == "a"; (run.Failure == "") != good {
			t.Errorf("%s on %s: %q, %v", run.Program, run.Target, run.Failure, run.Figures)
		}
	}
}

func TestARecordIsReadAsItWasWritten(t *testing.T) {
	file := filepath.Join(t.TempDir(), RecordName)
	e := Experiment{Spec: spec(number("echo 2"), 3, "a"), Place: &shell{}}
	e.Record.Machine = Here("abcd123")
	if err := e.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := e.Record.Write(file); err != nil {
		t.Fatal(err)
	}
	got, err := Load(file)
	if err != nil {
		t.Fatal(err)
	}
	one, _ := json.Marshal(e.Record)
	two, _ := json.Marshal(got)
	if string(one) != string(two) || got.Machine.Commit != "abcd123" || got.Machine.Kernel == "" || got.Machine.CPUs == 0 {
		t.Errorf("%s\n%s", one, two)
	}
	for text, says := range map[string]string{`{"version":99}`: "newer Pagurus", `{}`: "no version", `[]`: "no record", `{"version":1,"runs":7}`: "no record", "": "no record"} {
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		if _, err := Load(file); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%q: %v", text, err)
		}
	}
}

// A disk that fills up costs the newest run, not the record.
func TestAFullDiskLeavesTheRecordWhole(t *testing.T) {
	if testing.Short() {
		t.Skip("it mounts a disk")
	}
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=64k"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, 0) })
	file := filepath.Join(dir, RecordName)
	r := Record{Spec: spec(number("x"), 2, "a"), Runs: []Run{{Program: "number"}}}
	if err := r.Write(file); err != nil {
		t.Fatal(err)
	}
	r.Notes = []string{strings.Repeat("x", 1<<20)}
	if err := r.Write(file); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("a full disk: %v", err)
	}
	if got, err := Load(file); err != nil || len(got.Runs) != 1 {
		t.Errorf("%+v, %v", got, err)
	}
	if left, _ := os.ReadDir(dir); len(left) != 1 {
		t.Errorf("left are %v", left)
	}
}

func TestRecordsAreCompared(t *testing.T) {
	in := t.TempDir()
	write := func(commit string, values ...float64) *Record {
		r := &Record{Complete: true, Machine: Machine{Commit: commit, Kernel: "6.18"}, Spec: spec(number("x"), len(values), "a")}
		for i, v := range values {
			r.Runs = append(r.Runs, Run{Round: i, Program: "number", Target: "a", Figures: map[string]float64{"v": v}})
		}
		if err := r.Write(filepath.Join(in, commit, RecordName)); err != nil {
			t.Fatal(err)
		}
		return r
	}
	write("abcd123", 1, 1.01, 0.99, 1)
	write("beef456", 2, 2.02, 1.98, 2)
	one, err := Find("abcd", in)
	if err != nil {
		t.Fatal(err)
	}
	two, err := Find(filepath.Join(in, "beef456"), in)
	if err != nil {
		t.Fatal(err)
	}
	s := Compare(one, two)
	if len(s.Rows) != 1 || !strings.HasPrefix(s.Rows[0].Sentence, "the second is 100.0 % slower than the first (95 %") || *s.Rows[0].Chance > 0.001 {
		t.Errorf("%+v", s)
	}
	if notes := strings.Join(s.Notes, "\n"); !strings.Contains(notes, "the commit differs: abcd123, and beef456") || strings.Contains(notes, "kernel") {
		t.Errorf("the notes are %q", notes)
	}
	for _, r := range []*Record{one, two} {
		r.Spec.Ranks, r.Guests = 4, map[string]Setting{"a": {Kind: "container", Guests: 2, CPUs: 2}}
	}
	if notes := Compare(one, two).Notes; len(notes) != 1 {
		t.Errorf("of the same shape are %q", notes)
	}
	two.Spec.Ranks, two.Guests["a"] = 6, Setting{Kind: "vm", Guests: 3, CPUs: 1}
	notes := strings.Join(Compare(one, two).Notes, "\n")
	for _, want := range []string{"the number of ranks differs: 4, and 6", "the number of guests of a differs: 2, and 3", "the number of CPUs of a guest of a differs: 2, and 1", "how a is made differs"} {
		if !strings.Contains(notes, want) {
			t.Errorf("%q is not in\n%s", want, notes)
		}
	}
	two.Guests["a"] = Setting{Kind: "container", Guests: 3, CPUs: 2}
	if notes := strings.Join(Compare(one, two).Notes, "\n"); strings.Contains(notes, "is made") || strings.Contains(notes, "CPUs of a guest") {
		t.Errorf("only guests and ranks differ:\n%s", notes)
	}
	for _, bad := range []string{"ffff", "ab", ""} {
		if _, err := Find(bad, in); err == nil {
			t.Errorf("%q was found", bad)
		}
	}
}

// An emulated target is not compared with one that is not.
func TestEmulationIsNotQuotedAsTheCostOfVirtualization(t *testing.T) {
	e := Experiment{Spec: spec(number("echo 1"), 3, "native", "vm", "vm-tuned"), Place: &shell{}}
	e.Record.Guests = map[string]Setting{"vm": {Accelerator: "tcg"}, "vm-tuned": {Accelerator: "tcg"}}
	if err := e.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	s := e.Record.Summarise()
	if s.Rows[1].Ratio != nil || s.Rows[2].Ratio == nil || !strings.Contains(strings.Join(s.Notes, " "), "nothing of what virtualization costs") ||
		!strings.Contains(strings.Join(s.Notes, " "), "with KVM the same command gives the real overhead") || s.Rows[2].Base != "vm" || s.Aside(s.Rows[2]) != "vm" {
		t.Errorf("%+v", s)
	}
}

func TestMeasuringThatCostsMuchIsSaid(t *testing.T) {
	r := Record{Complete: true, Harness: time.Second, Runs: []Run{{Took: 50 * time.Second}, {Took: 50 * time.Second}}}
	if got := r.HarnessShare(); got != 0.01 {
		t.Errorf("it is %g", got)
	}
	if notes := strings.Join(r.Summarise().Notes, "\n"); !strings.Contains(notes, "took 1.0 % of") {
		t.Errorf("the notes are %q", notes)
	}
	if new(Record).HarnessShare() != 0 {
		t.Error("nothing took some time")
	}
}

// A target can name what it is compared with.
func TestTargetsNameWhatTheyAreHeldAgainst(t *testing.T) {
	e := Experiment{Spec: spec(number("case $TARGET in a) echo 1 ;; b) echo 2 ;; c) echo 3 ;; esac"), 3, "a", "b", "c"), Place: &shell{}}
	e.Record.Guests = map[string]Setting{"c": {Beside: "b"}}
	if err := e.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	if r := e.Record.Summarise().Rows[2]; r.Ratio == nil || !strings.HasPrefix(r.Sentence, "c is 50.0 % slower than b") {
		t.Errorf("%+v", r)
	}
}

// The trimmed mean leaves out one run of ten that is far off.
func TestTrimmedMean(t *testing.T) {
	r := Record{Spec: spec(number("x"), 10, "a"), Complete: true}
	for i := range 10 {
		v := 1.0
		if i == 4 {
			v = 1000
		}
		r.Runs = append(r.Runs, Run{Round: i, Program: r.Spec.Programs[0].Name, Target: "a", Figures: map[string]float64{"v": v}})
	}
	if row := r.Summarise().Rows[0]; row.Trimmed.Value != 1 || row.Mean.Value < 100 {
		t.Errorf("%+v", row)
	}
}

func TestSpecsThatMakeNoSense(t *testing.T) {
	good := spec(number("x"), 2, "a")
	for _, change := range []func(*Spec){
		func(s *Spec) { s.Targets = nil }, func(s *Spec) { s.Targets = []string{"a", "a"} }, func(s *Spec) { s.Runs = 1 },
		func(s *Spec) { s.Programs = nil }, func(s *Spec) { s.Confidence = 95 },
	} {
		bad := good
		change(&bad)
		if (&Experiment{Spec: bad, Place: &shell{}}).Run(t.Context()) == nil {
			t.Errorf("%+v was run", bad)
		}
	}
}

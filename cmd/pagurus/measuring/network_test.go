package measuring

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"pagurus/act/badlink"
	"pagurus/bench"
	"pagurus/bench/drive"
	"pagurus/bench/targets"
)

// Nonsense is refused before anything is started.
func TestNonsenseOfNetworksIsRefused(t *testing.T) {
	for says, args := range map[string][]string{
		"at least 2":         {"network", "--runs", "1"},
		"no target":          {"network", "--targets", "moon"},
		"not a share":        {"network", "--loss", "much"},
		"between 0 and 50 %": {"network", "--loss", "70%"},
		"at most 500ms":      {"network", "--delay", "1s"},
		"--mem":              {"network", "--mem", "much"},
	} {
		got, err := typed(append([]string{"bench"}, args...)...)
		if err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%q: %v\n%s", args, err, got)
		}
	}
}

// loud is a place that writes down what is asked of it, where the program that sets
// links does.
type loud struct {
	log  string
	fail error
}

func (l loud) noteText(t string) {
	f, err := os.OpenFile(l.log, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err == nil {
		_, err = f.WriteString(t + "\n")
	}
	if err = errors.Join(err, f.Close()); err != nil {
		panic(err)
	}
}

func (l loud) Open(_ context.Context, _ bench.Program, targets []string) (bench.Round, error) {
	l.noteText("open " + strings.Join(targets, ","))
	return l, nil
}

func (l loud) Run(_ context.Context, target string) (string, error) {
	l.noteText("run " + target)
	return "", l.fail
}

func (l loud) Close() error { l.noteText("close"); return nil }

// Links are worse only while a target runs that has such, and mended also if it fails
// or is cancelled.
func TestLinksAreWorseNoLongerThanNeeded(t *testing.T) {
	dir := t.TempDir()
	log := filepath.Join(dir, "log")
	script := filepath.Join(dir, "pagurus")
	if err := os.WriteFile(script, []byte("#!/bin/sh\nshift 4; echo link \"$@\" >>"+log+"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	l := &links{inside: loud{log: log, fail: errors.New("no way")}, pagurus: drive.Pagurus{Program: script, Dir: dir}, suffix: "-lossy", impairment: badlink.Impairment{Loss: 0.01}}
	r, err := l.Open(t.Context(), bench.Program{}, []string{"a", "b", "a-lossy", "b-lossy"})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	for _, target := range []string{"b", "a-lossy", "b-lossy", "a"} {
		if _, err := r.Run(ctx, target); err == nil || !strings.Contains(err.Error(), "no way") {
			t.Errorf("%s: %v", target, err)
		}
	}
	stop()
	if _, err := r.Run(ctx, "a-lossy"); err == nil {
		t.Error("it ran though it was cancelled")
	}
	if err := errors.Join(r.Close(), r.Close()); err != nil {
		t.Error(err)
	}
	text, err := os.ReadFile(log)
	const off = "link --loss 0% --delay 0s"
	const on = "link --loss 1% --delay 0s"
	want := strings.Join([]string{"open a,b", "run b", "close", "open a,b", on, "run a", off, on, "run b", off, "close", "open a,b", "run a", "close", "open a,b", off, "close", ""}, "\n")
	if err != nil || string(text) != want {
		t.Errorf("%v\n%s\nwant\n%s", err, text, want)
	}
}

func TestWhatTCPHadToSendAgainIsSaid(t *testing.T) {
	const wrote = "       1  0.2  0.00004\n    1024  90  0.0001\ntook-ns 2500000000\n"
	r := &bench.Record{Spec: bench.Spec{Targets: []string{"native", "native-lossy", "vm"}, Programs: []bench.Program{(&network{}).program()}}}
	for _, target := range r.Spec.Targets {
		for round := range 2 {
			text := wrote
			switch target {
			case "native":
				text += "tcp-resent 0\ntcp-timeouts 0\ntcp-probes 0\n"
			case "native-lossy":
				text += "tcp-resent 12\ntcp-timeouts 3\ntcp-probes 5\n"
			}
			got, err := readNetwork(text)
			if err != nil || got.Figures["latency_s"] != 4e-5 || got.Figures["took_s"] != 2.5 || len(got.Curves[""])+len(got.Curves) != 2 {
				t.Fatalf("%v, %v", got, err)
			}
			r.Runs = append(r.Runs, bench.Run{Round: round, Program: "netpipe", Target: target, Figures: got.Figures})
		}
	}
	notes := strings.Join(tcpNotes(r), "\n")
	if !strings.Contains(notes, "native: TCP of the two guests sent nothing again in 2 runs") || strings.Contains(notes, "vm") ||
		!strings.Contains(notes, "native-lossy: TCP of the two guests sent 24 segments again in 2 runs; it waited for 6 retransmission time-outs, and 10 of a last segment") {
		t.Errorf("the notes are %q", notes)
	}
	for _, bad := range []string{"tcp-resent 1\ntook-ns 5\n", "1 0.2 0.00004\n"} {
		if _, err := readNetwork(bad); err == nil {
			t.Errorf("%q was all output of NetPIPE and its shell, and passed", bad)
		}
	}
	if targets.Counted(wrote)[targets.Resent] != 0 {
		t.Error("NetPIPE's lines were taken for counts")
	}
}

// Each target is there with worse links and compared with itself; a long delay makes a
// run shorter.
func TestTargetsWithWorseLinks(t *testing.T) {
	o := network{overhead: overhead{asked: asked{targets: []string{"native", "container"}}, memory: 1 << 30}, impairment: badlink.Impairment{Loss: 0.01, Delay: time.Millisecond}}
	o.guests = o.settings()
	o.worsen()
	if len(o.targets) != 4 || o.targets[3] != "container-lossy-delayed" {
		t.Fatalf("%q", o.targets)
	}
	if s := o.guests["container-lossy-delayed"]; s.Beside != "container" || s.Link != "1 % loss, 1ms delay" || s.Kind != "container" {
		t.Errorf("%+v", s)
	}
	if c := o.program().Command; !strings.Contains(c, " -n 97 ") {
		t.Error(c)
	}
	o.impairment.Delay = mostLate
	if c := o.program().Command; !strings.Contains(c, " -n 1 ") {
		t.Error(c)
	}
}

package light

import (
	"context"
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"pagurus/fleet"
)

func TestTheLongestGapAfterAMomentCounts(t *testing.T) {
	const said = "START\nGAP 100.5 0.4\nGAP 102.25 0.03\nGAP 103 0.2\nGAP 104 0.05\nnoise\n"
	got, err := stalled(said, time.Unix(101, 0))
	if err != nil || !got.ended.Equal(time.Unix(103, 0)) || got.took != 200*time.Millisecond {
		t.Errorf("%v, %v", got, err)
	}
	for _, bad := range []string{"", "START\nGAP 100.5 0.4\n", "GAP soon 0.1\n"} {
		if got, err := stalled(bad, time.Unix(101, 0)); err == nil {
			t.Errorf("%q says %v", bad, got)
		}
	}
}

func TestReadHPCC(t *testing.T) {
	got, err := readHPCC("Begin\nHPL_time=1.25\nStarSTREAM_Triad=8\nStarSTREAM_Copy=9\nSuccess=1\n")
	if err != nil || got["hpl_s"] != 1.25 || got["stream_s"] != 0.125 {
		t.Errorf("%v, %v", got, err)
	}
	for _, bad := range []string{"", "HPL_time=1\nStarSTREAM_Triad=8\nSuccess=0\n", "HPL_time=1\nSuccess=1\n"} {
		if _, err := readHPCC(bad); err == nil {
			t.Errorf("%q is a good end", bad)
		}
	}
}

func TestReadNetPIPE(t *testing.T) {
	const text = "       1 0.500 0.0000125\n    1024 900.5 0.00001\n 4096 800 0.0002\n"
	if got, err := readLatency(text); err != nil || got["latency_s"] != 0.0000125 {
		t.Errorf("%v, %v", got, err)
	}
	if got, err := readBandwidth(text); err != nil || math.Abs(got["bandwidth"]-900.5e6) > 1 {
		t.Errorf("%v, %v", got, err)
	}
	for _, bad := range []string{"", "one two three\n", "1 0 0\n"} {
		_, err1 := readLatency(bad)
		_, err2 := readBandwidth(bad)
		if err1 == nil || err2 == nil {
			t.Errorf("%q is a measurement", bad)
		}
	}
}

func TestReadJacobi(t *testing.T) {
	if got, err := readJacobi("hello\nSECONDS 2.5 change 1e-3\n"); err != nil || got["solver_s"] != 2.5 {
		t.Errorf("%v, %v", got, err)
	}
	if _, err := readJacobi("aborted\n"); err == nil {
		t.Error("nothing is a time")
	}
}

// HPL takes its parameters line by line: all that it reads have to be there.
func TestHPCCInputHasAllLines(t *testing.T) {
	lines := strings.Split(strings.TrimRight(hpccInput(1234), "\n"), "\n")
	if len(lines) != 36 || !strings.HasPrefix(lines[5], "1234 ") {
		t.Errorf("%d lines, the matrix has %q", len(lines), lines[5])
	}
}

func TestRuncIsToldOfTheSameProgram(t *testing.T) {
	r := &runc{dir: "/var/tmp/bench", path: "/opt/criu:/usr/bin"}
	p := place{host: "host2", dir: "/var/tmp/bench/runc-to"}
	text, err := json.Marshal(r.config(p, size{"50 MiB", 50, 7, 0}, "/var/tmp/bench/x.log", "/criu.conf"))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`"/srv/still","52428800","7","/srv/x.log"`, `"/run/netns/pagurus-lab-host2"`, `"org.criu.config":"/criu.conf"`, `"readonly":true`} {
		if !strings.Contains(string(text), want) {
			t.Errorf("%s lacks %s", text, want)
		}
	}
}

func TestAPipeTellsWhoListens(t *testing.T) {
	path := filepath.Join(t.TempDir(), "go")
	if err := os.WriteFile(path, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := fifo(path); err != nil { // in place of what is there
		t.Fatal(err)
	}
	heard := make(chan string)
	go func() {
		text, _ := os.ReadFile(path)
		heard <- string(text)
	}()
	if err := tell(t.Context(), path); err != nil {
		t.Fatal(err)
	}
	if got := <-heard; got != "go\n" {
		t.Errorf("heard %q", got)
	}
	ctx, stop := context.WithCancel(t.Context())
	stop()
	if err := tell(ctx, path); err == nil {
		t.Error("nobody listened")
	}
	if err := tell(t.Context(), filepath.Join(t.TempDir(), "none")); err == nil || err == unix.ENXIO {
		t.Errorf("no pipe: %v", err)
	}
}

func TestPhasesAreTimed(t *testing.T) {
	at := time.Unix(1000, 0)
	m := fleet.Migration{
		Cost:    fleet.Progress{Downtime: 40 * time.Millisecond},
		Entered: []fleet.Entered{{Phase: "preparing", At: at}, {Phase: "copying", At: at.Add(12 * time.Millisecond)}, {Phase: "finished", At: at.Add(42 * time.Millisecond)}},
	}
	if got := inPhases(m); got != "down 40 ms by the host; preparing 12 copying 30" {
		t.Errorf("%q", got)
	}
	inPhases(fleet.Migration{})
}

func TestPartsAreNamedOnce(t *testing.T) {
	seen := map[string]bool{}
	for _, p := range Parts() {
		if seen[p.Name] || p.Says == "" || p.Measure == nil {
			t.Errorf("%+v", p)
		}
		seen[p.Name] = true
	}
}

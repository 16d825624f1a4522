package light

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"pagurus/bench"
	"pagurus/bench/drive"
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

func TestReadJacobi(t *testing.T) {
	if got, err := readJacobi("hello\nSECONDS 2.5 change 1e-3\n"); err != nil || got.Figures["solver_s"] != 2.5 {
		t.Errorf("%v, %v", got, err)
	}
	if _, err := readJacobi("aborted\n"); err == nil {
		t.Error("nothing is a time")
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

func TestTrialsAreNamedOnce(t *testing.T) {
	seen := map[string]bool{}
	for _, p := range Trials(bench.NewPromises(drive.Pagurus{}, 2)) {
		if seen[p.Name] || p.Says == "" || p.Measure == nil {
			t.Errorf("%+v", p)
		}
		seen[p.Name] = true
	}
}

// Only pairs whose runs are alike in how far CPUs were from each other are left; a record from before
// distances were kept is not taken for one in which all were near.
func TestPairsThatAreAlike(t *testing.T) {
	l := &containerBench{Promises: bench.NewPromises(drive.Pagurus{}, 2)}
	ours, theirs := []float64{1, 2, 3, 4}, []float64{5, 6, 7, 8}
	for i, apart := range [][2]float64{{50e-9, 60e-9}, {320e-9, 50e-9}, {330e-9, 320e-9}, {70e-9, 50e-9}} {
		l.Sample(apartOf("netpipe")+"container", apart[0])
		l.Sample(apartOf("netpipe")+"native", apart[1])
		if _, _, err := l.alike("netpipe", ours, theirs); (err == nil) != (i == 3) {
			t.Errorf("with %d of 4 distances: %v", i+1, err)
		}
	}
	a, b, err := l.alike("netpipe", ours, theirs)
	if err != nil || !slices.Equal(a, []float64{1, 3, 4}) || !slices.Equal(b, []float64{5, 7, 8}) {
		t.Errorf("%v, %v, %v", a, b, err)
	}
}

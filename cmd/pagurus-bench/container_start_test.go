package main

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"pagurus/fleet"
)

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
	for _, p := range newExperiments().trials() {
		if seen[p.Name] || p.Says == "" || p.Measure == nil {
			t.Errorf("%+v", p)
		}
		seen[p.Name] = true
	}
}

package targets

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"pagurus/bench"
	"pagurus/bench/drive"
	"pagurus/fleet"
)

// Of a lab it is always the other one of two hosts; elsewhere the controller chooses
// where to, and the way back is known.
func TestAGuestIsMovedAwayAndBack(t *testing.T) {
	for _, c := range []struct {
		on   []string
		home string
		away bool
		want string
	}{
		{[]string{"host1", "host2"}, "host1", true, "migrate j7g0 --wait --to host2"},
		{[]string{"host1", "host2"}, "host2", true, "migrate j7g0 --wait --to host1"},
		{[]string{"host1", "host2"}, "host2", false, "migrate j7g0 --wait --to host2"},
		{nil, "left", true, "migrate j7g0 --wait"},
		{nil, "left", false, "migrate j7g0 --wait --to left"},
	} {
		if got := strings.Join((&Lab{On: c.on}).migrateArgs("j7g0", c.home, c.away), " "); got != c.want {
			t.Errorf("of %v at home on %s, away %t: typed is %q", c.on, c.home, c.away, got)
		}
	}
}

// A target whose guests move is run as the same one without.
func TestGuestsThatMoveAreStartedAsOthers(t *testing.T) {
	l := &Lab{Image: "hpc", Memory: "1M", Kinds: map[string][]string{"vm": {"--kind", "vm"}}}
	if one, other := strings.Join(l.run("vm"), " "), strings.Join(l.run("vm"+Moved), " "); one != other || !strings.HasSuffix(one, "--kind vm") {
		t.Errorf("one by %q, the other by %q", one, other)
	}
}

func TestWhatGuestsGotIsWholeWhenAllHostsHaveSaidIt(t *testing.T) {
	layout := &fleet.Layout{Pins: [][]int{{3}}}
	s := fleet.Snapshot{
		Guests: map[fleet.GuestID]fleet.Guest{
			"j1g1": {ID: "j1g1", Job: "j1", Index: 1, Home: "b", Shape: &fleet.Shape{Sockets: 1}},
			"j1g0": {ID: "j1g0", Job: "j1", Home: "a", Shape: &fleet.Shape{Sockets: 2}},
			"j2g0": {ID: "j2g0", Job: "j2", Home: "a", Shape: &fleet.Shape{}},
		},
		Hosts: map[fleet.HostID]fleet.Host{"a": {Facts: fleet.Facts{Guests: map[fleet.GuestID]fleet.GuestFacts{"j1g0": {Layout: layout}}}}, "b": {}},
	}
	all, whole := layoutsOf(s, "j1")
	if whole || len(all) != 2 || all[0].Guest != "guest0" || all[0].Host != "a" || all[0].Shape.Sockets != 2 || all[0].Layout != layout || all[1].Layout != nil {
		t.Errorf("%+v, %t", all, whole)
	}
	s.Hosts["b"] = fleet.Host{Facts: fleet.Facts{Guests: map[fleet.GuestID]fleet.GuestFacts{"j1g1": {Layout: layout}}}}
	if _, whole = layoutsOf(s, "j1"); !whole {
		t.Error("both have said it")
	}
	if _, whole = layoutsOf(s, "j3"); whole {
		t.Error("a job without guests is whole")
	}
}

// A run whose guest cannot be moved is none with moves, though its program went well.
func TestARunInWhichNothingMovesHasFailed(t *testing.T) {
	dir := t.TempDir()
	script := "#!/bin/sh\nwhile [ \"$1\" != -- ]; do shift; done; shift\nexec \"$@\"\n"
	if err := os.WriteFile(filepath.Join(dir, "pagurus"), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PAGURUS_CONTROLLER", "127.0.0.1:1") // without a listener
	l := &Lab{Pagurus: drive.Pagurus{Program: filepath.Join(dir, "pagurus"), Dir: dir}, Image: "hpc", Memory: "1M", Kinds: map[string][]string{"vm": {"--kind", "vm"}}}
	r, err := l.Open(t.Context(), bench.Program{Command: "sleep 1"}, []string{"vm" + Moved})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.Run(context.Background(), "vm"+Moved); err == nil {
		t.Error("it went well")
	}
	if _, err := r.Run(context.Background(), "vm"); err != nil {
		t.Errorf("where no move is promised: %v", err)
	}
}

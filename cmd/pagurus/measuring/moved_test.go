package measuring

import (
	"bytes"
	"slices"
	"strings"
	"testing"
	"time"

	"pagurus/bench"
	"pagurus/bench/programs"
	"pagurus/bench/stats"
	"pagurus/fleet"
)

// Guests are moved only where there is something to hold that against, and who moves
// them.
func TestMovesThatMakeNoSenseAreRefused(t *testing.T) {
	for says, args := range map[string][]string{
		"write --targets native,container,container-moved": {"overhead", "--targets", "native,container-moved"},
		"compared with vm,":                  {"overhead", "--targets", "container,vm-moved"},
		"2s or more":                         {"overhead", "--every", "5ms"},
		`"vm-tuned-moved" is no target`:      {"overhead", "--targets", "vm-tuned,vm-tuned-moved"},
		`"native-moved" is no target`:        {"overhead", "--targets", "native,native-moved"},
		`"container-moved" is no target`:     {"migration", "--targets", "container,container-moved"},
		`"vm-moved" is no target: there are`: {"network", "--targets", "vm,vm-moved"},
		`--in "vm-moved"`:                    {"noise", "--in", "vm-moved"},
	} {
		got, err := typed(append([]string{"bench"}, args...)...)
		if err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%q: %v\n%s", args, err, got)
		}
	}
	if got, err := typed("bench", "ls"); err != nil || !strings.Contains(got, "container-moved, vm-moved") {
		t.Errorf("%v\n%s", err, got)
	}
}

// Where guests are moved the time of all of a program counts, but for a user's command.
func TestMovesCountInWhatIsMeasured(t *testing.T) {
	own, err := programs.Command("/", "true", nil, stats.Slower)
	if err != nil {
		t.Fatal(err)
	}
	for _, targets := range [][]string{{"container", "container-moved"}, {"native", "container"}} {
		var said bytes.Buffer
		o := overhead{asked: usual(Streams{Err: &said})}
		o.targets = targets
		all := o.whole([]bench.Program{programs.HPCC(programs.Normal, 2, "hpl", "fft"), programs.NetPIPE(programs.Normal), own})
		moved := len(targets[1]) > len("container")
		if got := len(all[0].Figures) == 1 && all[0].Figures[0].Name == "whole_s" && len(all[1].Figures) == 1; got != moved {
			t.Errorf("%v: of HPCC count %+v, of NetPIPE %+v", targets, all[0].Figures, all[1].Figures)
		}
		if all[2].Figures[0].Name != "app_s" {
			t.Errorf("of a user's command counts %+v", all[2].Figures)
		}
		if strings.Contains(said.String(), "guests are moved") != moved || (len(o.notes) == 1) != moved {
			t.Errorf("%v: said is %q, kept %q", targets, said.String(), o.notes)
		}
	}
}

// The record says that guests are moved and what that is compared with; else they are
// made as those are.
func TestGuestsThatAreMovedAreMadeAsOthers(t *testing.T) {
	o := overhead{asked: asked{targets: []string{"native", "vm", "vm-moved"}}, memory: 1 << 30, every: 3 * time.Second}
	if err := o.checkMoves(); err != nil {
		t.Fatal(err)
	}
	all := o.settings()
	moved := all["vm-moved"]
	if moved.Beside != "vm" || moved.MovesEvery != 3*time.Second {
		t.Errorf("%+v", moved)
	}
	if moved.Beside, moved.MovesEvery = "", 0; moved != all["vm"] || moved.Kind != "vm" {
		t.Errorf("%+v beside %+v", moved, all["vm"])
	}
	if o.place().Every != 3*time.Second {
		t.Error("how often is not said")
	}
	if err := o.room("move"); err == nil {
		t.Error("there is no host to move to")
	}
	o.hosts = map[fleet.HostID]fleet.Host{"a": {}, "b": {}}
	if err := o.room("move"); err != nil {
		t.Error(err)
	}
	if slices.Contains(guestTargets(), "vm-moved") {
		t.Error("noise is measured in guests that are moved")
	}
	if got := outcome(bench.Run{Moves: &bench.Moves{Finished: 3}}, nil); got != "3 moves" {
		t.Error(got)
	}
}

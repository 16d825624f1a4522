package measuring

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"pagurus/bench"
	"pagurus/bench/drive"
	"pagurus/cmd/roles"
	"pagurus/fleet"
)

func TestTheLongestGapOfAMove(t *testing.T) {
	at := func(s, ms int) drive.Gap {
		return drive.Gap{Ended: time.Unix(int64(s), 0), Took: time.Duration(ms) * time.Millisecond}
	}
	all := []drive.Gap{at(1, 900), at(2, 20), at(3, 300), at(4, 30)}
	for _, c := range []struct {
		all   []drive.Gap
		first int
		until int64
		want  time.Duration
		whole bool
	}{
		{all, 1, 3, 300 * time.Millisecond, true},
		{all, 0, 3, 900 * time.Millisecond, true},
		{all, 1, 4, 0, false}, // it may not have ended yet
		{all, 4, 3, 0, false},
		{nil, 0, 0, 0, false},
	} {
		if got, whole := longestSince(c.all, c.first, time.Unix(c.until, 0)); got != c.want || whole != c.whole {
			t.Errorf("of %v but for %d until %d: %s, %t", c.all, c.first, c.until, got, whole)
		}
	}
}

func TestWhatIsAskedForBesideQEMU(t *testing.T) {
	for _, c := range []struct {
		a      against
		chosen bool
		says   string
	}{
		{against{}, true, ""},
		{against{whom: "qemu"}, false, ""},
		{against{whom: "qemu", between: []string{"a", "b"}, via: "ssh {host}"}, false, ""},
		{against{whom: "xen"}, false, "there is only qemu"},
		{against{whom: "qemu"}, true, "leave out --targets"},
		{against{beside: "c"}, false, "belong to --against qemu"},
		{against{via: "ssh"}, false, "belong to --against qemu"},
		{against{whom: "qemu", between: []string{"a", "a"}}, false, "two hosts"},
		{against{whom: "qemu", between: []string{"a"}}, false, "two hosts"},
	} {
		if err := c.a.check(c.chosen); (err == nil) != (c.says == "") || err != nil && !strings.Contains(err.Error(), c.says) {
			t.Errorf("%+v: %v", c.a, err)
		}
	}
}

func TestTheTwoHosts(t *testing.T) {
	host := func(id fleet.HostID, trouble string) fleet.Host {
		h := fleet.Host{ID: id, State: fleet.HostUp}
		h.Facts.Connected = true
		h.Facts.Abilities = map[fleet.Kind]fleet.Abilities{fleet.VM: {Live: true, Accelerator: "kvm", Trouble: trouble}}
		return h
	}
	all := map[fleet.HostID]fleet.Host{"a": host("a", ""), "b": host("b", "no QEMU"), "c": host("c", ""), "d": host("d", "")}
	c := &contest{}
	if err := c.choose(all, against{}); err != nil || c.from.ID != "a" || c.to.ID != "c" || c.stay.ID != "a" {
		t.Errorf("chosen are %s and %s, %v", c.from.ID, c.to.ID, err)
	}
	if err := c.choose(all, against{between: []string{"d", "a"}, beside: "c"}); err != nil || c.from.ID != "d" || c.to.ID != "a" || c.stay.ID != "c" {
		t.Errorf("chosen are %s and %s, %v", c.from.ID, c.to.ID, err)
	}
	if err := c.choose(all, against{between: []string{"a", "b"}}); err == nil || !strings.Contains(err.Error(), "b is no host") {
		t.Error(err)
	}
	if err := c.choose(all, against{between: []string{"a", "c"}, beside: "c"}); err == nil || !strings.Contains(err.Error(), "choose a third host") {
		t.Error(err)
	}
	delete(all, "c")
	delete(all, "d")
	if err := c.choose(all, against{}); err == nil {
		t.Error("one host is enough")
	}
}

func TestTheGoalOfStalls(t *testing.T) {
	r := &bench.Record{Spec: bench.Spec{Confidence: 0.95}}
	if notes := goalNote(r); len(notes) > 0 {
		t.Errorf("of nothing is said %q", notes)
	}
	for i, v := range []float64{0.2, 0.25, 0.4} {
		r.Runs = append(r.Runs, bench.Run{Round: i, Program: "move", Target: "qemu", Figures: map[string]float64{"stall_s": 1}},
			bench.Run{Round: i, Program: "move", Target: "vm", Figures: map[string]float64{"stall_s": v}})
	}
	r.Runs = append(r.Runs, bench.Run{Round: 3, Program: "move", Target: "vm", Figures: map[string]float64{"stall_s": 9}}) // not a pair
	if notes := goalNote(r); len(notes) != 1 || !strings.Contains(notes[0], ": 0.25 (") || !strings.Contains(notes[0], "is reached") {
		t.Errorf("said is %q", notes)
	}
	for i := range r.Runs {
		r.Runs[i].Figures["stall_s"] += 0.2
	}
	if notes := goalNote(r); len(notes) != 1 || !strings.Contains(notes[0], "is missed") {
		t.Errorf("said is %q", notes)
	}
}

// What is run by hand is the program, whatever is in it.
func TestTheCommandByHandHasTheProgramInIt(t *testing.T) {
	c := &contest{Pagurus: drive.Pagurus{Dir: t.TempDir()}, memory: 256 << 20}
	if _, err := c.handCommand(); err == nil {
		t.Error("there is no program")
	}
	want := bytes.Repeat([]byte("\x00\x7fELF\n"), 5000)
	if err := os.WriteFile(c.programFile(), want, 0o755); err != nil {
		t.Fatal(err)
	}
	command, err := c.handCommand()
	if err != nil || len(command) != 6 || command[5] != "64" || len(command[4]) > len(want)/10 {
		t.Fatalf("%d words, %v", len(command), err)
	}
	if text, err := base64.StdEncoding.DecodeString(command[4]); err != nil || !bytes.HasPrefix(text, []byte{0x1f, 0x8b}) {
		t.Errorf("%v, %v", text[:2], err)
	}
}

// An end is a program on a host; what it says is wrong is said, and it ends with its input.
func TestAnEndByHand(t *testing.T) {
	dir := t.TempDir()
	script := filepath.Join(dir, "end")
	text := fmt.Sprintf("#!/bin/sh\necho $1 $2 $3 $4 >%[1]s/asked; read -r setting; echo '{}'; read -r order && echo '{\"error\":\"no room\"}'; while read -r more; do :; done; echo gone >%[1]s/gone\n", dir)
	if err := os.WriteFile(script, []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
	at := fleet.Host{ID: "h1", Facts: fleet.Facts{Address: "10.0.0.1"}}
	other := fleet.Host{ID: "h2", Facts: fleet.Facts{Address: "10.0.0.2"}}
	c := &contest{from: at, to: other, stay: at, via: []string{script, "{host}", "root@{address}"}, agent: func(at fleet.Host) (string, error) { return "agent-of-" + string(at.ID), nil }}
	e, err := c.reach(t.Context(), at, []int{0, 1}, []string{"true"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := e.ask(roles.HandOrder{Do: roles.HandStart}); err == nil || !strings.Contains(err.Error(), "host h1, by hand: no room") {
		t.Error(err)
	}
	if err := e.close(); err != nil {
		t.Error(err)
	}
	if asked, _ := os.ReadFile(filepath.Join(dir, "asked")); string(asked) != "h1 root@10.0.0.1 agent-of-h1 by-hand\n" {
		t.Errorf("it was run with %q", asked)
	}
	if _, err := os.Stat(filepath.Join(dir, "gone")); err != nil {
		t.Error("it did not end by itself")
	}
	// Who is told to stop closes it, too.
	os.Remove(filepath.Join(dir, "gone"))
	ctx, cancel := context.WithCancelCause(t.Context())
	if e, err = c.reach(ctx, at, nil, nil); err != nil {
		t.Fatal(err)
	}
	why := errors.New("enough")
	cancel(why)
	if _, err := e.ask(roles.HandOrder{Do: roles.HandRead}); !errors.Is(err, why) {
		t.Error(err)
	}
	if err := e.close(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(filepath.Join(dir, "gone")); err != nil {
		t.Error("it did not end")
	}
	c.via = []string{filepath.Join(dir, "none")}
	if _, err := c.reach(t.Context(), at, nil, nil); err == nil || !strings.Contains(err.Error(), "reach host h1") {
		t.Error(err)
	}
}

func TestFiguresAreNoZeros(t *testing.T) {
	c := contest{memory: 256 << 20}
	p := moveAgainst(c.words())
	text, err := json.Marshal(figuresOf(time.Second, 0, time.Millisecond, 1<<20))
	if err != nil {
		t.Fatal(err)
	}
	got, err := p.Read(string(text))
	if err != nil || p.Command != "./busy 64" {
		t.Errorf("%s, %v", p.Command, err)
	}
	c.read = 100 << 20
	if p := moveAgainst(c.words()); p.Command != "./busy 64 100" {
		t.Errorf("with files that are read: %s", p.Command)
	}
	for _, f := range p.Figures {
		if got.Figures[f.Name] <= 0 {
			t.Errorf("%s is %g", f.Name, got.Figures[f.Name])
		}
	}
}

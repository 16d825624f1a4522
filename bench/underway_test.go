package bench

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"pagurus/fleet"
)

// told is a place that says what it sees, and whose measuring takes 1 s of processor
// time before the program begins and 2 s while it runs.
type told struct {
	used   time.Duration
	begins bool
}

func (p *told) Open(context.Context, Program, []string) (Round, error) {
	p.used += time.Hour // making ready does not count
	return p, nil
}

func (p *told) Run(ctx context.Context, target string) (string, error) {
	u := UnderwayOf(ctx)
	p.used += time.Second
	if p.begins {
		u.Begins()
	}
	p.used += 2 * time.Second
	if target == "b" {
		u.Moves = &Moves{Finished: 2, Failed: 1}
	}
	time.Sleep(time.Millisecond)
	return "1", nil
}

func (p *told) Close() error { return nil }

func TestWhatMeasuringTakesWhileProgramsRun(t *testing.T) {
	for begins, want := range map[bool]time.Duration{true: 8 * time.Second, false: 12 * time.Second} {
		p := &told{begins: begins}
		e := Experiment{Spec: spec(number("x"), 2, "a", "b"), Place: p, Used: func() time.Duration { return p.used }}
		if err := e.Run(t.Context()); err != nil {
			t.Fatal(err)
		}
		if e.Record.Harness != want {
			t.Errorf("programs begin: %t; it has cost %s instead of %s", begins, e.Record.Harness, want)
		}
		for _, r := range e.Record.Runs {
			if (r.Ran > 0) != begins || (r.Moves != nil) != (r.Target == "b") {
				t.Errorf("%+v", r)
			}
		}
		if notes := strings.Join(e.Record.Summarise().Notes, "\n"); !strings.Contains(notes, "b: a guest was moved 4 times in 2 runs; twice more it was to be") || strings.Contains(notes, "a: a guest") {
			t.Error(notes)
		}
	}
	// Without a run under way.
	if _, err := (&told{begins: true}).Run(t.Context(), "b"); err != nil {
		t.Error(err)
	}
	r := Record{Harness: time.Second, Runs: []Run{{Took: time.Hour, Ran: 40 * time.Second}, {Took: 60 * time.Second}}}
	if got := r.HarnessShare(); got != 0.01 {
		t.Errorf("it is %g of the time that programs ran", got)
	}
}

// What tuned guests got is said in a line, and that it is not known, too.
func TestWhatTunedGuestsGotIsSaid(t *testing.T) {
	shape := fleet.Shape{Sockets: 1, Cores: 2, Threads: 1}
	huge := Got{"guest0", "host1", shape, &fleet.Layout{Nodes: []fleet.LayoutNode{{Hosts: []int{0}, PageBytes: 2 << 20}}, Pins: [][]int{{2}, {3}}}}
	plain := Got{"guest1", "host2", shape, &fleet.Layout{Nodes: []fleet.LayoutNode{{}}, Pins: [][]int{{2}, {2}}, Notes: []string{"no huge pages are set aside"}}}
	silent := Got{Guest: "guest1", Host: "host2", Shape: fleet.Shape{Sockets: 2, Cores: 1, Threads: 1, Nodes: make([]fleet.ShapeNode, 2)}}
	r := Record{Complete: true, Spec: spec(number("x"), 4, "vm", "vm-tuned"), Guests: map[string]Setting{"vm": {}, "vm-tuned": {Tune: "hpc"}}}
	for _, got := range [][]Got{{huge, huge}, {huge, plain}, {huge, huge}, {silent}, nil} {
		r.Runs = append(r.Runs, Run{Target: "vm-tuned", Got: got}, Run{Target: "vm"})
	}
	notes := strings.Join(r.Summarise().Notes, "\n")
	for _, want := range []string{
		"vm-tuned, in 2 runs: 2 guests: 1 socket of 2 cores with 1 thread, pinned one to one, memory in huge pages of 2 MiB on nodes of its own\n",
		"1 guest: 1 socket of 2 cores with 1 thread, pinned together to 1 CPU of the host, memory in pages of the kernel's choice (no huge pages are set aside)",
		"1 guest: 2 sockets of 1 core with 1 thread in 2 nodes, and no host has said where",
		"vm-tuned, in 1 run: what its guests got of their hosts is not known",
	} {
		if !strings.Contains(notes, want) {
			t.Errorf("%q is not in\n%s", want, notes)
		}
	}
	if strings.Contains(notes, "vm,") {
		t.Errorf("of a target that mirrors nothing it is said that\n%s", notes)
	}
	text, err := json.Marshal(r.Runs[0])
	var again Run
	if err == nil {
		err = json.Unmarshal(text, &again)
	}
	if err != nil || len(again.Got) != 2 || again.Got[0].Layout.Nodes[0].PageBytes != 2<<20 {
		t.Errorf("kept is %s, %v", text, err)
	}
	for times := range mostWays + 2 { // each laid out otherwise
		other := plain
		other.Layout = &fleet.Layout{Notes: []string{strings.Repeat("x", times)}}
		r.Runs = append(r.Runs, Run{Target: "vm-tuned", Got: []Got{other}})
	}
	if notes := r.layoutNotes(); len(notes) != mostWays+2 || !strings.Contains(notes[mostWays], "the record says how") {
		t.Errorf("of many ways are said %q", notes)
	}
}

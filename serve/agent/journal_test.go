package agent

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"pagurus/fleet"
)

func TestPageRemembersEveryPromiseOfItsGeneration(t *testing.T) {
	var p journalEntry
	order := func(gen uint64, attempt int) fleet.Order {
		return fleet.Order{Verb: fleet.Copy, Guest: "j1g0", Gen: gen, Attempt: attempt}
	}
	for i := range 200 {
		o := fleet.Done
		if i%4 == 0 {
			o = fleet.Failed
		}
		p = p.With(fleet.Report{Order: order(2, i), Outcome: o}, 2)
	}
	done := 0
	for i := range 200 {
		r, ok := p.Answer(order(2, i))
		if i%4 == 0 && (!ok || r.Outcome != fleet.Failed || r.Order.Attempt != i) {
			t.Errorf("the promise of attempt %d is forgotten", i)
		}
		if i%4 != 0 && r.Outcome == fleet.Done {
			done++
		}
	}
	if len(p.Answers) > doneMost+1 {
		t.Errorf("%d answers are kept", len(p.Answers))
	}
	if _, ok := p.Answer(order(2, 199)); done != doneMost || !ok {
		t.Errorf("%d done orders remembered", done)
	}
	p = p.With(fleet.Report{Order: order(3, 0), Outcome: fleet.Done}, 3)
	if len(p.Answers) != 1 || p.LastGen != 3 {
		t.Errorf("after a new generation: %d answers, generation %d", len(p.Answers), p.LastGen)
	}
}

func TestJournalForgetsOnlyWhatIsLongGone(t *testing.T) {
	l := journal{Dir: t.TempDir()}
	for _, g := range []fleet.GuestID{"kept", "gone", "fresh"} {
		if err := l.Write(g, journalEntry{LastGen: 5}); err != nil {
			t.Fatal(err)
		}
	}
	old := time.Now().Add(-2 * ForgetAfter)
	for _, g := range []string{"kept", "gone"} {
		if err := os.Chtimes(filepath.Join(l.Dir, g+".json"), old, old); err != nil {
			t.Fatal(err)
		}
	}
	l.Prune(func(g fleet.GuestID) bool { return g == "kept" }, time.Now())
	for g, want := range map[fleet.GuestID]uint64{"kept": 5, "gone": 0, "fresh": 5} {
		if p, err := l.Read(g); err != nil || p.LastGen != want {
			t.Errorf("%s: %+v, %v", g, p, err)
		}
	}
	if files, _ := os.ReadDir(l.Dir); len(files) != 2 {
		t.Errorf("%d files left", len(files))
	}
}

func TestSpoiltPageIsAnErrorNotAFreshStart(t *testing.T) {
	l := journal{Dir: t.TempDir()}
	if err := os.WriteFile(l.path("j1g0"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Read("j1g0"); err == nil {
		t.Error("read")
	}
}

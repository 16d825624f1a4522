package agent

import (
	"context"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"pagurus/fleet"
)

// Obstacles gives the obstacles that a test has set.
func (d *memoryDriver) Obstacles(_ context.Context, g fleet.GuestID) ([]string, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.guests[g] == nil {
		return nil, ErrAbsent
	}
	return d.obstacles, nil
}

func (d *memoryDriver) hinder(what ...string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.obstacles = what
}

// TestGuestsAreExamined: the controller gets a new obstacle soon after it appears, and its
// end even sooner. A long list is cut.
func TestGuestsAreExamined(t *testing.T) {
	in(t, func(t *testing.T, r *rig) {
		r.do(task(fleet.Start, 1))
		time.Sleep(3 * time.Second)
		said := func() []string { return r.a.facts().Guests["j1g0"].Obstacles }
		if got := said(); len(got) > 0 {
			t.Errorf("nothing is in it, and the facts say %q", got)
		}
		r.d.hinder("a", "b", "c", "d", "e", "f")
		time.Sleep(examineEvery + 2*factsPollEvery)
		if got, want := said(), []string{"a", "b", "c", "d", "and 2 more"}; !reflect.DeepEqual(got, want) {
			t.Errorf("the facts say %q, want %q", got, want)
		}
		r.d.hinder()
		time.Sleep(examineAgain + 2*factsPollEvery)
		if got := said(); len(got) > 0 {
			t.Errorf("it is gone, and the facts say %q", got)
		}
		r.d.end("j1g0")
		time.Sleep(2 * factsPollEvery)
		r.a.mu.Lock()
		defer r.a.mu.Unlock()
		if n := len(r.a.examined); n != 0 {
			t.Errorf("%d guests that are gone are remembered", n)
		}
	})
}

// TestCopyIsNotBegunOfWhatCannotMove: an obstacle that appeared since the last examination
// is found before anything is sent.
func TestCopyIsNotBegunOfWhatCannotMove(t *testing.T) {
	in(t, func(t *testing.T, r *rig) {
		r.do(task(fleet.Start, 1))
		time.Sleep(3 * time.Second)
		r.d.hinder("a program uses a device")
		r.send(task(fleet.Copy, 1))
		if rep := r.expect(task(fleet.Copy, 1).Order, fleet.Failed); !strings.Contains(rep.Cause, "it cannot be moved: a program uses a device") {
			t.Errorf("report %+v", rep)
		}
		if n := r.d.count("copy j1g0"); n != 0 {
			t.Error("the copy was begun")
		}
		if got := r.a.facts().Guests["j1g0"].Obstacles; len(got) != 1 {
			t.Errorf("the facts say %q", got)
		}
	})
}

// However much a driver says of a guest or a host, the agent tells what a person can read.
func TestSentencesAreClipped(t *testing.T) {
	many := slices.Repeat([]string{strings.Repeat("é", 5000)}, 500)
	got := clipped(many)
	if len(got) != mostSentences || len(got[0]) > mostSentence+len("…") || !utf8.ValidString(got[99]) || len(many[0]) != 10000 {
		t.Errorf("%d sentences, the first of %d bytes", len(got), len(got[0]))
	}
	if got := clipped([]string{"short"}); len(got) != 1 || got[0] != "short" || clipped(nil) != nil {
		t.Errorf("got %q", got)
	}
}

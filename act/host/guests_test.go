package host

import (
	"errors"
	"testing"
	"time"

	"pagurus/fleet"
)

// own is a driver's record.
type own struct{ Record }

func (r own) Ours() own {
	r.Recorded = ByUs()
	return r
}

// made returns a guest with a folder, as a driver makes it.
func made(t *testing.T, r Record) *Guest[own] {
	g := NewGuest(t.TempDir(), own{r})
	return &g
}

// TestStart: one that lives is left alone, of another what is left is removed before a new one is
// made, and after an error nothing is left and the ID is free.
func TestStart(t *testing.T) {
	var all Guests[*Guest[own]]
	created, wiped, wrong := 0, 0, error(nil)
	all.Wipe = func(fleet.GuestID) error { wiped++; return wrong }
	start := func(fails error) error {
		return all.Start(t.Context(), fleet.Task{Guest: fleet.Guest{ID: "g1", Gen: 4}}, func() error { created++; return fails })
	}
	expect := func(what string, makes, wipes int, err, want error) {
		t.Helper()
		if created != makes || wiped != wipes || !errors.Is(err, want) || (err == nil) != (want == nil) {
			t.Errorf("%s: created %d and wiped %d times, %v", what, created, wiped, err)
		}
	}
	no := errors.New("no")
	expect("none is here", 1, 1, start(nil), nil)
	expect("it cannot be made", 2, 3, start(no), no)
	g := made(t, Record{Guest: "g1", Complete: true})
	if err := all.Add("g1", g, func() {}); err != nil {
		t.Fatal(err)
	}
	expect("it runs", 2, 3, start(no), nil)
	g.Record.Target, g.Record.Incoming, g.Record.Gen = true, "m1", 4
	if err := start(nil); err == nil || created != 2 || wiped != 3 {
		t.Errorf("the target of a migration was started, or touched: %v", err)
	}
	all.Remove("g1")
	wrong = no
	expect("what is left of it cannot be removed", 2, 4, start(nil), no)
	all.Close(func(*Guest[own]) {})
	expect("the driver is closed", 2, 4, start(nil), ErrClosed)
}

// TestRestore: a repeated call does nothing, and what is here is never touched.
func TestRestore(t *testing.T) {
	var all Guests[*Guest[own]]
	created, wiped := 0, 0
	all.Wipe = func(fleet.GuestID) error { wiped++; return nil }
	restore := func(gen uint64, fails error) error {
		return all.Restore(t.Context(), "g1", gen, func() error { created++; return fails })
	}
	no := errors.New("no")
	if err := restore(4, no); !errors.Is(err, no) || created != 1 || wiped != 2 {
		t.Errorf("it cannot be made: %v, wiped %d times", err, wiped)
	}
	if err := restore(4, nil); err != nil || created != 2 {
		t.Errorf("none is here: %v", err)
	}
	g := made(t, Record{Guest: "g1", Complete: true, Target: true, Restored: true, Gen: 4})
	if err := all.Add("g1", g, func() {}); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		r  Record
		ok bool
	}{
		"restored":             {Record{Complete: true, Target: true, Restored: true, Gen: 4}, true},
		"restored, and runs":   {Record{Complete: true, Restored: true, Gen: 4}, true},
		"restored before":      {Record{Complete: true, Target: true, Restored: true, Gen: 3}, false},
		"started":              {Record{Complete: true, Gen: 4}, false},
		"a target":             {Record{Complete: true, Target: true, Incoming: "m1", Gen: 4}, false},
		"restored and running": {Record{Complete: true, Restored: true, Gen: 3}, false},
	} {
		g.Record.Record = c.r
		if err := restore(4, nil); (err == nil) != c.ok || created != 2 {
			t.Errorf("%s: %v, created %d times", name, err, created)
		}
	}
	g.Record.Record = Record{Complete: true, Target: true, Restored: true, Gen: 4}
	if err := all.Start(t.Context(), fleet.Task{Guest: fleet.Guest{ID: "g1", Gen: 4}}, func() error { created++; return nil }); err == nil || created != 2 {
		t.Errorf("start of what is restored: %v", err)
	}
}

// TestReceive: a repeated call answers as the first did, and what is here is never touched.
func TestReceive(t *testing.T) {
	var all Guests[*Guest[own]]
	all.Wipe = func(fleet.GuestID) error { return nil }
	receive := func(m fleet.MigrationID) (string, error) {
		task := fleet.Task{Guest: fleet.Guest{ID: "g1"}, Order: fleet.Order{Migration: m}}
		return all.Receive(t.Context(), task, func() (string, error) { return "new", nil })
	}
	if at, err := receive("m1"); at != "new" || err != nil {
		t.Errorf("none is here: %q, %v", at, err)
	}
	g := made(t, Record{Guest: "g1", Complete: true, Target: true, Incoming: "m1", Listen: "old"})
	if err := all.Add("g1", g, func() {}); err != nil {
		t.Fatal(err)
	}
	if at, err := receive("m1"); at != "old" || err != nil {
		t.Errorf("again: %q, %v", at, err)
	}
	if at, err := receive("m2"); at != "" || err == nil {
		t.Errorf("for another migration: %q, %v", at, err)
	}
	g.Record.Target = false
	if at, err := receive("m1"); at != "" || err == nil {
		t.Errorf("it runs here: %q, %v", at, err)
	}
}

// TestEndOfOneThatCouldNotBeMade: who kills a guest while it is made is known afterwards, until it is made again.
func TestEndOfOneThatCouldNotBeMade(t *testing.T) {
	var all Guests[*Guest[own]]
	all.Wipe = func(fleet.GuestID) error { return nil }
	all.Kill = func(*Guest[own]) error { return nil }
	killed := func() error {
		g := made(t, Record{Guest: "g1"})
		err := all.Add("g1", g, func() {
			time.Sleep(hearLimit / 4)
			close(g.Died)
			if !g.IsStopped() {
				_, _ = all.Remember("g1", nil, nil, func(r *fleet.Remains, _ string) { r.Killed = true })
			}
			all.Remove("g1")
			close(g.Ended)
		})
		return errors.Join(err, errors.New("it is not there"))
	}
	task := fleet.Task{Guest: fleet.Guest{ID: "g1"}}
	if err := all.Start(t.Context(), task, killed); err == nil {
		t.Error("it was made")
	}
	if r := all.Ending("g1"); r == nil || !r.Killed {
		t.Errorf("known of its end: %+v", r)
	}
	if err := all.Start(t.Context(), task, func() error { return nil }); err != nil || all.Ending("g1") != nil {
		t.Errorf("after another start: %v, %+v", err, all.Ending("g1"))
	}
}

// TestDestroy: what a guest leaves behind is the error, and its end counts as intended.
func TestDestroy(t *testing.T) {
	var all Guests[*Guest[own]]
	left := errors.New("a mount is left")
	all.Kill = func(g *Guest[own]) error {
		if !g.IsStopped() {
			t.Error("it is killed before its end counts as intended")
		}
		g.Left = left
		close(g.Died)
		close(g.Ended)
		return nil
	}
	g := made(t, Record{Guest: "g1", Complete: true})
	if err := all.Add("g1", g, func() {}); err != nil {
		t.Fatal(err)
	}
	if err := all.Stop(t.Context(), "g1", "nowhere"); !errors.Is(err, left) {
		t.Errorf("stopped: %v", err)
	}
	if g.Lives() || !g.Dead() {
		t.Error("it lives on")
	}
}

// TestRemember: a change is in the folder before it is in memory, and none is made after release.
func TestRemember(t *testing.T) {
	g := made(t, Record{Guest: "g1"})
	if err := g.Remember(func(r *own) { r.Gen = 7 }); err != nil || g.Remembered().Gen != 7 {
		t.Fatalf("%+v, %v", g.Remembered(), err)
	}
	if r, err := ReadRecord[own](g.Dir); err != nil || r != g.Record {
		t.Errorf("stored %+v, %v", r, err)
	}
	g.Dir += "/none"
	if err := g.Remember(func(r *own) { r.Gen = 8 }); err == nil || g.Remembered().Gen != 7 {
		t.Errorf("stored nowhere: %+v, %v", g.Remembered(), err)
	}
	g.Released = true
	if err := g.Remember(func(r *own) { r.Gen = 9 }); !errors.Is(err, ErrClosed) {
		t.Errorf("released: %v", err)
	}
}

// What is here as the target of a migration of an older generation is in nobody's way: its job has begun again.
func TestATargetOfAnOlderGenerationIsOvertaken(t *testing.T) {
	for name, c := range map[string]struct {
		r    Record
		want bool
	}{
		"an older target":          {Record{Complete: true, Target: true, Incoming: "m1", Gen: 3}, true},
		"a target":                 {Record{Complete: true, Target: true, Incoming: "m1", Gen: 4}, false},
		"an older one runs":        {Record{Complete: true, Gen: 3}, false},
		"an older one is restored": {Record{Complete: true, Target: true, Restored: true, Gen: 3}, false},
	} {
		if got := c.r.overtaken(4); got != c.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}

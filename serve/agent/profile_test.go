package agent

import (
	"context"
	"errors"
	"testing"
	"time"

	"pagurus/fleet"
	"pagurus/internal/pause"
	"pagurus/serve/wire"
)

// Profile takes as long as a real sample, and tells callers apart.
func (d *memoryDriver) Profile(ctx context.Context, g fleet.GuestID) (fleet.Profile, error) {
	if err := d.call(ctx, "profile", g); err != nil {
		return fleet.Profile{}, err
	}
	if pause.For(ctx, 4*time.Second) != nil {
		return fleet.Profile{}, ctx.Err()
	}
	if d.guest(g) == nil {
		return fleet.Profile{}, ErrAbsent
	}
	return fleet.Profile{At: time.Now(), FilledBytes: 7, Changed: []fleet.Changed{{Within: time.Second, Bytes: 1}}}, nil
}

// TestGuestsAreLookedAt: guests are sampled soon after they come, then every half minute,
// and the controller gets the profile.
func TestGuestsAreLookedAt(t *testing.T) {
	in(t, func(t *testing.T, r *rig) {
		r.do(task(fleet.Start, 1))
		time.Sleep(15 * time.Second)
		if n := r.d.count("profile j1g0"); n != 1 {
			t.Errorf("looked %d times in the first 15 s", n)
		}
		if p := r.a.facts().Guests["j1g0"].Profile; p == nil || p.FilledBytes != 7 {
			t.Errorf("the facts say %+v", p)
		}
		time.Sleep(5 * time.Minute)
		if n := r.d.count("profile j1g0"); n < 8 || n > 11 {
			t.Errorf("looked %d times in 5 minutes", n)
		}
		r.d.end("j1g0")
		time.Sleep(time.Minute)
		r.a.mu.Lock()
		defer r.a.mu.Unlock()
		if n := len(r.a.profiles.last) + len(r.a.profiles.inside) + len(r.a.profiles.seen); n != 0 {
			t.Errorf("%d profiles of guests that are gone", n)
		}
	})
}

// TestGuestsAreSampledAtMarks: guests whose programs mark moments are sampled from there on in turns with any moment, and both are told.
func TestGuestsAreSampledAtMarks(t *testing.T) {
	in(t, func(t *testing.T, r *rig) {
		r.do(task(fleet.Start, 1))
		time.Sleep(15 * time.Second)
		told := func() int {
			p := r.a.facts().Guests["j1g0"].Profile
			if p == nil || p.FilledBytes != 7 || len(p.Changed) != 1 {
				t.Fatalf("the facts say %+v", p)
			}
			return len(p.AtMark)
		}
		marks := func(n uint64) {
			r.a.mu.Lock()
			defer r.a.mu.Unlock()
			r.a.slots["j1g0"].heard = &heardSaid{fleet.Said{Marks: fleet.Marks{Cheaps: n}}, time.Now()}
		}
		marks(1)
		time.Sleep(time.Minute)
		if told() != 0 {
			t.Error("no moment was marked meanwhile, and one was sampled")
		}
		for n := range uint64(90) {
			marks(2 + n)
			time.Sleep(time.Second)
		}
		if told() != 1 {
			t.Error("no marked moment was sampled")
		}
		marks(0)
		time.Sleep(2 * atMarkKept)
		if told() != 0 {
			t.Error("a sample from long ago is told")
		}
	})
}

// TestTunedGuestsAreAskedFromInside: only tuned guests are asked.
func TestTunedGuestsAreAskedFromInside(t *testing.T) {
	for _, layout := range []*fleet.Layout{nil, {}} {
		in(t, func(t *testing.T, r *rig) {
			r.d.layout = layout
			r.do(task(fleet.Start, 1))
			time.Sleep(15 * time.Second)
			if seen := r.a.facts().Guests["j1g0"].Seen; (seen == nil) != (layout == nil) || seen != nil && seen.Level != "x86-64-v3" {
				t.Errorf("with the layout %v it sees %+v", layout, seen)
			}
		})
	}
}

// TestNoGuestIsSampledDuringAMove: no guest is sampled during a move, and a sample under
// way ends when a move begins.
func TestNoGuestIsSampledDuringAMove(t *testing.T) {
	in(t, func(t *testing.T, r *rig) {
		r.do(task(fleet.Start, 1))
		time.Sleep(2 * time.Second)
		release := r.block("copy j1g0")
		r.s.down <- wire.Down{Query: &wire.Query{ID: 1, Profile: "j1g0"}}
		time.Sleep(time.Second)
		r.send(task(fleet.Copy, 1))
		rep := <-r.c.replies
		if rep.ID != 1 || rep.Profile != nil || rep.Error != errMoves.Error() {
			t.Errorf("reply %+v", rep)
		}
		before := r.d.count("profile j1g0")
		time.Sleep(3 * time.Minute)
		if n := r.d.count("profile j1g0"); n != before {
			t.Errorf("looked %d times while it was copied", n-before)
		}
		r.s.down <- wire.Down{Query: &wire.Query{ID: 2, Profile: "j1g0"}}
		if rep := <-r.c.replies; rep.ID != 2 || rep.Error != errMoves.Error() {
			t.Errorf("reply %+v", rep)
		}
		release(errors.New("off"))
		r.report()
		time.Sleep(time.Minute)
		if n := r.d.count("profile j1g0"); n == before {
			t.Error("no guest is sampled after the copy")
		}
	})
}

func TestLookAskedFor(t *testing.T) {
	in(t, func(t *testing.T, r *rig) {
		r.do(task(fleet.Start, 1))
		time.Sleep(2 * time.Second)
		r.s.down <- wire.Down{Query: &wire.Query{ID: 4, Profile: "j1g0"}}
		if rep := <-r.c.replies; rep.ID != 4 || rep.Profile == nil || rep.Profile.FilledBytes != 7 || rep.Error != "" {
			t.Errorf("reply %+v", rep)
		}
		r.s.down <- wire.Down{Query: &wire.Query{ID: 5, Profile: "j9g9"}}
		if rep := <-r.c.replies; rep.ID != 5 || rep.Error == "" {
			t.Errorf("reply %+v", rep)
		}
	})
}

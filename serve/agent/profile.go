package agent

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	"pagurus/fleet"
	"pagurus/internal/pause"
)

// The intervals and limits of the dirty-rate sampler. A sample costs a twentieth of a second
// of one CPU, so one in 30 s is well below 1 % of a CPU per guest.
const (
	profileEvery = 30 * time.Second
	// profileFirst is how long a new guest is not sampled.
	profileFirst = 5 * time.Second
	profileLimit = 20 * time.Second
	// profilesAsked bounds the requested samples under way.
	profilesAsked = 4
	// markLimit is how long a sample waits for a moment that the guest's programs mark as cheap. It is within
	// profileLimit, and markEvery is how often that is looked for.
	markLimit = 10 * time.Second
	markEvery = 20 * time.Millisecond
	// atMarkKept is how long a sample from a marked moment on is used.
	atMarkKept  = 10 * time.Minute
	movingEvery = 100 * time.Millisecond
)

// errMoves: sampling takes CPU time and memory bandwidth from a copy.
var errMoves = errors.New("a guest is being moved from or to this host; ask again when that is over")

// profiles holds the guests' latest profiles.
type profiles struct {
	last     map[fleet.GuestID]fleet.Profile
	inside   map[fleet.GuestID]fleet.Topology // what tuned guests see of their topology
	seen     map[fleet.GuestID]time.Time      // when the guest was first here, or was last sampled
	atMark   map[fleet.GuestID]atMark         // of guests whose programs mark moments
	busy     bool                             // the agent's own sampling is under way
	sampling chan struct{}                    // for requested samples
}

// atMark is what changed from a marked moment on. Samples of such guests begin there and at any moment in turns.
type atMark struct {
	at      time.Time
	changed []fleet.Changed
	last    bool // the last sample was such a one, or should have been
}

func newProfiles() profiles {
	return profiles{atMark: map[fleet.GuestID]atMark{}, last: map[fleet.GuestID]fleet.Profile{}, inside: map[fleet.GuestID]fleet.Topology{}, seen: map[fleet.GuestID]time.Time{}, sampling: make(chan struct{}, profilesAsked)}
}

// moving reports whether any guest is being moved from or to this host.
func (a *Agent) moving() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, p := range a.present {
		if p.facts.Run == fleet.Incoming {
			return true
		}
	}
	for _, s := range a.slots {
		if s.progress != nil {
			return true
		}
		if s.last == nil || s.last.over() {
			continue
		}
		if s.last.task.Order.Verb.Moves() {
			return true
		}
	}
	return false
}

// study starts sampling the guest that has waited longest, if one is due and nothing moves.
func (a *Agent) study(ctx context.Context, now time.Time) {
	if a.moving() {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	for g := range a.profiles.seen {
		if _, here := a.present[g]; !here {
			delete(a.profiles.seen, g)
			delete(a.profiles.last, g)
			delete(a.profiles.inside, g)
			delete(a.profiles.atMark, g)
		}
	}
	maps.DeleteFunc(a.examined, func(g fleet.GuestID, _ examination) bool { _, here := a.present[g]; return !here })
	var next fleet.GuestID
	var waited time.Duration
	for g, p := range a.present {
		if _, can := a.Drivers[p.kind].(Profiler); !can || p.facts.Run != fleet.Running {
			continue
		}
		if _, known := a.profiles.seen[g]; !known {
			a.profiles.seen[g] = now.Add(profileFirst - profileEvery)
		}
		if w := now.Sub(a.profiles.seen[g]); w >= profileEvery && w > waited {
			next, waited = g, w
		}
	}
	if next == "" || a.profiles.busy {
		return
	}
	a.profiles.busy = true
	begin := a.profile
	if of := a.profiles.atMark[next]; !of.last && a.sampledLocked(next) && a.marksLocked(next) > 0 {
		of.last = true
		a.profiles.atMark[next] = of
		begin = a.profileAtMark
	} else if of.last {
		of.last = false
		a.profiles.atMark[next] = of
	}
	a.runs.Go(func() {
		_, _ = begin(ctx, next) // tried again later
		a.mu.Lock()
		defer a.mu.Unlock()
		a.profiles.busy = false
	})
}

// sampledLocked reports whether there is a sample of a guest.
func (a *Agent) sampledLocked(g fleet.GuestID) bool {
	_, is := a.profiles.last[g]
	return is
}

// marksLocked is how many moments a guest's programs marked as cheap, as far as this agent knows.
func (a *Agent) marksLocked(g fleet.GuestID) uint64 {
	s := a.slots[g]
	if s == nil || s.heard == nil {
		return 0
	}
	return s.heard.said.Marks.Cheaps
}

// profileAtMark samples a guest from the next moment on that its programs mark as cheap. If none comes, its turn is over.
func (a *Agent) profileAtMark(ctx context.Context, g fleet.GuestID) (fleet.Profile, error) {
	marks := func() uint64 {
		a.mu.Lock()
		defer a.mu.Unlock()
		return a.marksLocked(g)
	}
	defer func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		if _, known := a.profiles.seen[g]; known {
			a.profiles.seen[g] = time.Now()
		}
	}()
	begun, before := time.Now(), marks()
	for marks() == before {
		if err := pause.For(ctx, markEvery); err != nil || time.Since(begun) > markLimit {
			return fleet.Profile{}, errors.Join(err, errors.New("no moment was marked as cheap"))
		}
	}
	return a.sample(ctx, g, true)
}

// profile samples a guest now, and stops when a move begins.
func (a *Agent) profile(ctx context.Context, g fleet.GuestID) (fleet.Profile, error) {
	return a.sample(ctx, g, false)
}

// sample is profile, or marked: what changes from a marked moment on, which is now.
func (a *Agent) sample(ctx context.Context, g fleet.GuestID, marked bool) (p fleet.Profile, err error) {
	defer func() {
		if r := recover(); r != nil {
			a.Log.Error("panic while sampling a guest's memory", "guest", g, "panic", r)
			err = fmt.Errorf("sampling the memory of guest %s: %v", g, r)
		}
	}()
	ctx, cancel := context.WithTimeoutCause(ctx, profileLimit, fmt.Errorf("it took longer than %s", profileLimit))
	defer cancel()
	a.mu.Lock()
	at, here := a.present[g]
	a.mu.Unlock()
	d, can := a.Drivers[at.kind].(Profiler)
	if !here || !can {
		return p, fmt.Errorf("guest %s: %w", g, ErrAbsent)
	}
	if a.moving() {
		return p, errMoves
	}
	looking, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	go func() {
		for looking.Err() == nil {
			if _ = pause.For(looking, movingEvery); a.moving() {
				stop(errMoves)
			}
		}
	}()
	var inside *fleet.Topology
	if p, err = d.Profile(looking, g); err == nil {
		p.Cache, p.Resident = a.dispensable(looking, g, at.kind), at.facts.ResidentBytes
		if at.facts.Layout != nil {
			inside = a.sees(looking, g, at.kind)
		}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if _, still := a.present[g]; still {
		a.profiles.seen[g] = time.Now()
		if err == nil {
			p = a.keepLocked(g, p, marked)
		}
		if inside != nil {
			a.profiles.inside[g] = *inside
		}
	}
	if looking.Err() != nil {
		err = context.Cause(looking)
	}
	return p, err
}

// keepLocked keeps a sample beside the one of the other kind, and returns both as one.
func (a *Agent) keepLocked(g fleet.GuestID, p fleet.Profile, marked bool) fleet.Profile {
	of := a.profiles.atMark[g]
	if marked {
		of.at, of.changed = time.Now(), p.Changed
		a.profiles.atMark[g] = of
		if last, known := a.profiles.last[g]; known {
			p = last
		}
	}
	p.AtMark = nil
	if time.Since(of.at) < atMarkKept {
		p.AtMark = of.changed
	}
	a.profiles.last[g] = p
	return p
}

// asked samples a guest on request.
func (a *Agent) asked(ctx context.Context, g fleet.GuestID) (*fleet.Profile, error) {
	select {
	case a.profiles.sampling <- struct{}{}:
		defer func() { <-a.profiles.sampling }()
	case <-ctx.Done():
		return nil, fmt.Errorf("sampling guest %s: too many other guests are being sampled", g)
	}
	p, err := a.profile(ctx, g)
	if err != nil {
		return nil, err
	}
	return &p, nil
}

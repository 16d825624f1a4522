package controller

import (
	"context"
	"maps"
	"slices"
	"time"

	"pagurus/fleet"
	"pagurus/serve/wire"
)

const (
	// fresh is how old a profile may be to be used as it is.
	fresh = 10 * time.Second
	// sampleLimit is how long agents have for a new profile: one takes four seconds, and a
	// host samples four guests at a time.
	sampleLimit = 12 * time.Second
)

// Predict gives the effect and cost of a request to move guests, after sampling each of
// them. A guest that cannot be sampled now, because of a move on its host or an absent
// agent, is judged by its last profile.
func (c *Controller) Predict(ctx context.Context, q fleet.Request) (fleet.Forecast, error) {
	s, err := c.Snapshot(ctx)
	if err != nil {
		return fleet.Forecast{}, err
	}
	q.At = now()
	f, err := c.Planner.Foresee(s, q)
	if err != nil {
		return fleet.Forecast{}, answerable(err)
	}
	if looked := c.sampleGuests(ctx, s, f); len(looked) > 0 {
		s = withProfiles(s, looked)
		if f, err = c.Planner.Foresee(s, q); err != nil {
			return fleet.Forecast{}, answerable(err)
		}
	}
	return f, nil
}

// Score compares past predictions with the results.
func (c *Controller) Score(ctx context.Context) (fleet.Calibration, error) {
	s, err := c.Snapshot(ctx)
	if err != nil {
		return fleet.Calibration{}, err
	}
	return c.Planner.Score(s), nil
}

// sampleGuests has the agents sample all guests that would move, at once.
func (c *Controller) sampleGuests(ctx context.Context, s fleet.Snapshot, f fleet.Forecast) map[fleet.GuestID]fleet.Profile {
	ctx, cancel := context.WithTimeout(ctx, sampleLimit)
	defer cancel()
	type part struct {
		guest   fleet.GuestID
		profile *fleet.Profile
	}
	parts := make(chan part)
	asked := 0
	for _, m := range f.Migrations {
		if p := m.Prediction.Profile; p != nil && f.At.Sub(p.At) < fresh {
			continue
		}
		asked++
		go func() {
			r, err := c.query(ctx, s.Guests[m.Guest], wire.Query{Profile: m.Guest})
			if err != nil {
				c.Log.Debug("a guest was not sampled", "cause", err)
			}
			parts <- part{m.Guest, r.Profile}
		}()
	}
	out := map[fleet.GuestID]fleet.Profile{}
	for range asked {
		if p := <-parts; p.profile != nil {
			out[p.guest] = *p.profile
		}
	}
	return out
}

// withProfiles is the snapshot with new profiles.
func withProfiles(s fleet.Snapshot, looked map[fleet.GuestID]fleet.Profile) fleet.Snapshot {
	s.Hosts = maps.Clone(s.Hosts)
	for _, g := range slices.Sorted(maps.Keys(looked)) {
		h := s.Hosts[s.Guests[g].Home]
		if h.ID == "" {
			continue
		}
		h.Facts.Guests = maps.Clone(h.Facts.Guests)
		if h.Facts.Guests == nil {
			h.Facts.Guests = map[fleet.GuestID]fleet.GuestFacts{}
		}
		f, p := h.Facts.Guests[g], looked[g]
		f.Profile = &p
		h.Facts.Guests[g] = f
		s.Hosts[h.ID] = h
	}
	return s
}

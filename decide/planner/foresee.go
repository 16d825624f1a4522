package planner

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"pagurus/decide/access"
	"pagurus/decide/cost"
	"pagurus/decide/state"
	"pagurus/fleet"
)

// foresee stores a prediction with every migration that this Step starts, for comparison
// with its outcome.
func (d *draft) foresee() {
	var begun []fleet.Migration
	for i := range d.Migrations.Changes() {
		c := &d.Migrations.Changes()[i]
		if _, before := d.base.Migrations[c.ID]; !before && !c.Gone && c.Is.Predicted == nil {
			begun = append(begun, c.Is)
		}
	}
	if len(begun) == 0 {
		return
	}
	slices.SortFunc(begun, func(a, b fleet.Migration) int { return cmp.Compare(a.ID, b.ID) })
	s, past := d.View, history{d.l}
	longestOf := map[fleet.MoveID]fleet.Range[time.Duration]{}
	for i, m := range begun {
		m.Packed, m.Preempts = packs(s, past, m), preempts(s, m)
		p := predict(s, past, m, m.Mode)
		m.Predicted = &p
		begun[i] = m
		longestOf[m.Move] = longest(longestOf[m.Move], p.Total)
	}
	for _, m := range begun {
		m.Predicted.Total = longestOf[m.Move] // they switch together
		d.Migrations.Put(m.ID, m)
	}
}

// predict predicts the cost of a migration in a mode.
func predict(s *state.View, past history, m fleet.Migration, mode fleet.Mode) fleet.Prediction {
	m.Mode = mode
	g, home := s.Guests.At(m.Guest), s.Hosts.At(m.From)
	model := past.model(s, m)
	link := cost.Link{Share: share(s, m), Limits: decided(copyLimits(s, m), m)}
	facts := home.Facts.Guests[m.Guest]
	var p fleet.Prediction
	if look := past.profileOf(home, m.Guest); look != nil {
		grown := cost.Grown(*look, facts.ResidentBytes, g.Need.MemoryBytes)
		grown.Scratch = 0
		used := grown
		if waits, scratch := willAwaitMark(s, m); waits {
			grown.Scratch = scratch
			used, waits = cost.Marked(grown)
			p.AtMark = waits
		}
		atMark := p.AtMark
		p = model.Predict(used, link)
		p.Profile, p.AtMark = &grown, atMark
	} else {
		p = model.Guess(g.Need.MemoryBytes, facts, link)
	}
	p.Kind, p.ForOwner = g.Kind, forOwner(s, m)
	return p
}

// unmarked is what a predicted migration would cost at moments that its programs do not mark as cheap.
func unmarked(s *state.View, past history, m fleet.Migration) fleet.Prediction {
	p := *m.Predicted
	if !p.AtMark {
		return p
	}
	return past.model(s, m).Predict(*p.Profile, cost.Link{Share: p.Share, Limits: p.Limits})
}

// share is the number of copies of one move on the same link.
func share(s *state.View, m fleet.Migration) int {
	from, to := 0, 0
	for _, id := range s.Moves.At(m.Move).Migrations {
		other := s.Migrations.At(id)
		if other.From == m.From {
			from++
		}
		if other.To == m.To {
			to++
		}
	}
	return max(from, to, 1)
}

// Foresee says what a request to move guests would do and cost if it were made now. It
// works as Step does and changes nothing; what Step would refuse it refuses, with a
// *Refusal.
func (p *Planner) Foresee(s fleet.Snapshot, r fleet.Request) (fleet.Forecast, error) {
	d := newDraft(p, state.NewIndex(s, p.Policy))
	defer d.free()
	d.at = orElse(r.At, s.At)
	if reason := access.MayAsk(d.accessView(), r); reason != "" {
		_, err := refuse(r, "%s", reason)
		return fleet.Forecast{}, err
	}
	parts, err := d.apart(r)
	if err != nil {
		return fleet.Forecast{}, err
	}
	out := fleet.Forecast{At: d.at, Migrations: []fleet.Foreseen{}, Converges: true}
	for ; len(parts) > 0; parts = parts[1:] {
		part := parts[0]
		decided, err := p.Step(s, part)
		switch {
		case err != nil && r.Verb == fleet.Migrate:
			return fleet.Forecast{}, err
		case err != nil && len(part.Guests) > 1:
			for _, g := range part.Guests { // one by one: a drain moves those that can leave
				one := part
				one.Guests = []fleet.GuestID{g}
				parts = append(parts, one)
			}
			continue
		case err != nil:
			out.Notes = append(out.Notes, fmt.Sprintf("%s would stay for now: %s", part.Guests[0], err))
			continue
		}
		out.Notes = append(out.Notes, decided.Answer.Notes...)
		begun := slices.DeleteFunc(slices.Clone(decided.Change.Migrations), func(m fleet.Migration) bool {
			_, before := s.Migrations[m.ID]
			return before || m.Predicted == nil
		})
		out.Unmarked = joinUnmarked(out, begun, func(m fleet.Migration) fleet.Prediction { return unmarked(state.ViewOf(s), history{d.l}, m) })
		out = join(out, begun)
		for _, v := range decided.Change.Moves {
			if len(begun) > 0 && v.ID == begun[0].Move && v.Choice != "" && begun[0].Mode != fleet.PreCopy {
				out.Notes = append(out.Notes, fmt.Sprintf("%s: %s", begun[0].Mode, v.Choice))
			}
		}
		for _, m := range begun {
			out.Notes = append(out.Notes, cost.Reservations(d.at, m)...)
		}
		at := s.At
		s = s.Apply(decided.Change, s.Revision)
		s.At = at
	}
	return out, nil
}

// apart splits a request into moves: to empty a host is to move its guests, those of one
// job together.
func (d *draft) apart(r fleet.Request) ([]fleet.Request, error) {
	r.ID = "" // a dry run never repeats an earlier answer
	switch r.Verb {
	case fleet.Migrate:
		return []fleet.Request{r}, nil
	case fleet.Drain:
	default:
		_, err := refuse(r, "the cost of %s cannot be predicted; ask about migrate or drain", orNone(r.Verb))
		return nil, err
	}
	h, err := d.namedHost(r)
	if err != nil {
		return nil, err
	}
	if r.Limits.ForDrain() != r.Limits {
		_, err := refuse(r, "%s", onlyDrainFlags())
		return nil, err
	}
	var out []fleet.Request
	for _, g := range sortedGuests(d.base, func(g fleet.Guest) bool { return !g.State.Ended() && g.Home == h.ID }) {
		i := slices.IndexFunc(out, func(r fleet.Request) bool { return d.Guests.At(r.Guests[0]).Job == g.Job })
		if i < 0 {
			out = append(out, fleet.Request{At: r.At, By: r.By, Verb: fleet.Migrate, Host: h.ID, Limits: r.Limits.ForDrain()})
			i = len(out) - 1
		}
		out[i].Guests = append(out[i].Guests, g.ID)
		if len(out[i].Guests) > 1 && out[i].Limits.Compress == fleet.CompressOn {
			out[i].Limits.Compress = "" // a drain goes on without compression
		}
	}
	if len(out) == 0 {
		_, err := refuse(r, "no guest would move: %s has none; `pagurus guest ls` lists them and where they are", h.ID)
		return nil, err
	}
	return out, nil
}

// join adds the members of one more move. It comes after the others, because moves off
// one host go one at a time. Members of one move go together.
func join(f fleet.Forecast, members []fleet.Migration) fleet.Forecast {
	var together fleet.Range[time.Duration]
	for _, m := range members {
		p := *m.Predicted
		f.Migrations = append(f.Migrations, fleet.Foreseen{Guest: m.Guest, Job: m.Job, From: m.From, To: m.To, Prediction: p})
		together = longest(together, p.Total)
		f.Downtime = longest(f.Downtime, p.Downtime)
		f.Bytes.Value += p.Bytes.Value
		f.Bytes.Low += p.Bytes.Low
		f.Bytes.High += p.Bytes.High
		f.Converges = f.Converges && p.Converges
	}
	f.Total.Value += together.Value
	f.Total.Low += together.Low
	f.Total.High += together.High
	return f
}

// joinUnmarked is join for what members would cost at unmarked moments; nil: none waits for a mark.
func joinUnmarked(f fleet.Forecast, members []fleet.Migration, price func(fleet.Migration) fleet.Prediction) *fleet.Price {
	if f.Unmarked == nil && !slices.ContainsFunc(members, func(m fleet.Migration) bool { return m.Predicted.AtMark }) {
		return nil
	}
	before := fleet.Price{Total: f.Total, Downtime: f.Downtime, Bytes: f.Bytes, Converges: f.Converges}
	if f.Unmarked != nil {
		before = *f.Unmarked
	}
	all := make([]fleet.Migration, len(members))
	for i, m := range members {
		p := price(m)
		m.Predicted = &p
		all[i] = m
	}
	sum := join(fleet.Forecast{Total: before.Total, Downtime: before.Downtime, Bytes: before.Bytes, Converges: before.Converges}, all)
	return &fleet.Price{Total: sum.Total, Downtime: sum.Downtime, Bytes: sum.Bytes, Converges: sum.Converges}
}

func longest(a, b fleet.Range[time.Duration]) fleet.Range[time.Duration] {
	return fleet.Range[time.Duration]{Value: max(a.Value, b.Value), Low: max(a.Low, b.Low), High: max(a.High, b.High)}
}

// Score compares past predictions with their outcomes.
func (p *Planner) Score(s fleet.Snapshot) fleet.Calibration {
	return cost.Score(slices.Collect(maps.Values(s.Migrations)))
}

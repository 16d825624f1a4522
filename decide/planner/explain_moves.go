// This file says which moves and checkpoints were made lately, and because of what: a notice, an owner, a request.

package planner

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"pagurus/fleet"
)

// mostMovesTold is how many moves Explain tells, the newest.
const mostMovesTold = 3

// departures says which moves a job made lately.
func (e *explainer) departures(j fleet.Job) []string {
	return e.moved(func(_ fleet.Move, m fleet.Migration) bool { return m.Job == j.ID && m.Born == j.Born })
}

// savedFrom says what was moved off a host lately, and which checkpoints were made, because it was to be empty.
func (e *explainer) savedFrom(h fleet.Host) []string {
	out := e.moved(func(v fleet.Move, m fleet.Migration) bool { return v.Drains == h.ID && m.From == h.ID })
	var made []fleet.Checkpoint
	for _, c := range e.s.Checkpoints {
		if at, _, of := strings.Cut(c.Notice, " "); of && at == string(h.ID) && c.Phase == fleet.Kept {
			made = append(made, c)
		}
	}
	slices.SortFunc(made, func(a, b fleet.Checkpoint) int {
		return cmp.Or(b.Begun.Compare(a.Begun), cmp.Compare(a.ID, b.ID))
	})
	for _, c := range made[:min(len(made), mostMovesTold)] {
		out = append(out, fmt.Sprintf("Checkpoint %s was made %s ago: %s.", c.ID, e.ago(c.Begun), c.Why))
	}
	return out
}

// moved tells the newest moves that have ended and have migrations that are asked for, and of each these migrations.
func (e *explainer) moved(asked func(fleet.Move, fleet.Migration) bool) (out []string) {
	var all []fleet.Move
	for _, v := range e.s.Moves {
		if !v.Ended.IsZero() && len(e.of(v, asked)) > 0 {
			all = append(all, v)
		}
	}
	slices.SortFunc(all, func(a, b fleet.Move) int {
		return cmp.Or(b.Ended.Compare(a.Ended), cmp.Compare(a.ID, b.ID))
	})
	for _, v := range all[:min(len(all), mostMovesTold)] {
		out = append(out, fmt.Sprintf("Move %s took %s, %s ago: %s.", v.ID, fleet.Enumerate(e.of(v, asked), "and"), e.ago(v.Ended),
			strings.TrimSuffix(v.Why, ".")))
	}
	return out
}

// of says which guests a move took where.
func (e *explainer) of(v fleet.Move, asked func(fleet.Move, fleet.Migration) bool) (out []string) {
	for _, id := range v.Migrations {
		if m, known := e.s.Migrations[id]; known && m.Phase == fleet.Finished && asked(v, m) {
			out = append(out, fmt.Sprintf("%s from %s to %s", m.Guest, m.From, m.To))
		}
	}
	return out
}

func (e *explainer) ago(t time.Time) string {
	return fleet.ShortDuration(max(e.s.At.Sub(t), 0).Round(time.Second))
}

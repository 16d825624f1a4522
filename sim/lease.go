package sim

import (
	"maps"
	"slices"
)

// cut disconnects a host. When its lease is over, it ends its guests.
func (w *world) cut(m *machine) {
	if m.cut {
		return
	}
	m.cut = true
	w.loop.Index.Learn(m.id, w.facts(m))
	if m.Lease > 0 {
		w.after(m.Lease, event{kind: fences, machine: m, version: m.cuts})
	}
}

// ruin ends all that a host has, by a loss of power or the end of its lease.
func (w *world) ruin(m *machine) {
	m.ruined = true
	for _, id := range slices.Sorted(maps.Keys(w.guests)) {
		g := w.guests[id]
		switch m {
		case g.at:
			w.halt(g)
			w.occupy(m, -1)
			w.alter(g, func() { g.at, g.up, g.ended = nil, false, true })
		case g.to:
			w.halt(g)
			g.to, g.whole = nil, false
			w.occupy(m, -1)
		case g.old:
			g.old = nil
			w.occupy(m, -1)
		}
	}
}

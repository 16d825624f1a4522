package sim

import "pagurus/fleet"

// check compares the models with the controller's snapshot.
func (w *world) check() {
	s := w.loop.Index.Snapshot()
	if w.out.Events%64 == 0 {
		if wrong := w.loop.Index.Check(); wrong != "" {
			w.breach("the state index: %s", wrong)
		}
	}
	used := map[*machine]int{}
	for id, g := range w.guests {
		v := s.Guests[id]
		for _, m := range []*machine{g.at, g.to, g.old} {
			if m != nil {
				used[m]++
			}
		}
		m := s.Migrations[v.Migration]
		switch {
		case g.ended:
			// Its host ended it, and the controller does not know yet.
		case v.State == fleet.GuestRunning && (g.at == nil || g.at.id != v.Home):
			w.breach("%s should run on %s and does not", id, v.Home)
		case v.State == fleet.GuestMoving && g.runs() && g.at.id != m.From && g.at.id != m.To:
			w.breach("%s runs on %s while it moves from %s to %s", id, g.at.id, m.From, m.To)
		case v.State == fleet.GuestRunning && (g.to != nil || g.copying != nil):
			w.breach("%s runs and is on its way somewhere", id)
		case g.up && g.at == nil:
			w.breach("%s runs nowhere", id)
		}
	}
	for _, m := range w.hosts {
		running := 0
		for _, g := range m.guests {
			if g.runs() {
				running++
			}
		}
		if used[m] != m.images || running != m.running || m.streams < 0 {
			w.breach("%s counts %d guests, %d running, %d copies, and has %d and %d", m.id, m.images, m.running, m.streams, used[m], running)
		}
	}
	for _, j := range w.jobs {
		if j.done > j.Time || j.pace < 0 || j.pace > 1 {
			w.breach("%s has done %s of %s at a pace of %g", j.id, j.done, j.Time, j.pace)
		}
	}
}

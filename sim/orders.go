package sim

import (
	"time"

	"pagurus/decide/placement"
	"pagurus/decide/planner"
	"pagurus/fleet"
)

// Durations of orders on hosts without copying, measured on real ones.
const (
	stopTakes     = 500 * time.Millisecond
	receiveTakes  = 300 * time.Millisecond
	activateTakes = 30 * time.Millisecond
	retireTakes   = 100 * time.Millisecond
	suspendTakes  = 45 * time.Millisecond // of a switch, without sending memory
)

// task is an order being carried out, with its future answer.
type task struct {
	report fleet.Report
	do     func() // effect at completion; nil: none
}

// Commit stands for the store and accepts everything.
func (w *world) Commit(from int64, _ fleet.Changeset) (int64, error) { return from + 1, nil }

// Committed applies what was decided.
func (w *world) Committed(c fleet.Changeset) {
	for _, v := range c.Jobs {
		w.followJob(v)
	}
	for _, v := range c.Moves {
		if v.Begun.Equal(w.at()) && v.Request == "" && v.Drains == "" && v.ForOwner == "" {
			w.say("%s begins: %s", v.ID, v.Why)
		}
		if v.Ended.IsZero() && v.Weighed != "" {
			w.say("%s %s", v.ID, v.Weighed)
		}
	}
	for _, p := range c.Checkpoints {
		w.followCheckpoint(p)
	}
	for i := range c.Migrations {
		m := &c.Migrations[i]
		if w.Log != nil {
			w.say("%s %s", m.ID, m.Phase)
		}
		switch m.Phase {
		case fleet.Finished:
			w.out.Moves++
			w.out.Bytes += m.Cost.SentBytes
		case fleet.Aborted:
			w.out.Aborted++
		case fleet.Lost:
			w.out.Lost++
		}
	}
	for i := range c.Guests {
		v := &c.Guests[i]
		g := w.guests[v.ID]
		if (g == nil || g.gone) && (v.State == fleet.GuestStarting || v.State == fleet.GuestRestoring) {
			j := w.jobs[v.Job]
			g = &guest{id: v.ID, job: j}
			j.room(v.Index, g)
			w.guests[v.ID] = g
			if w.Log != nil {
				w.say("%s shall run on %s", v.ID, v.Home)
			}
		}
		if v.State == fleet.GuestRunning && g != nil {
			if m := w.byID[v.Home]; m != nil && m.state.There() {
				w.changed = append(w.changed, m)
			}
		}
	}
}

// Send starts orders on their hosts. Disconnected hosts do not get them.
func (w *world) Send(orders []fleet.Order) {
	for _, o := range orders {
		if m := w.byID[o.Host]; m != nil && !m.cut {
			w.beginOrder(m, o)
		}
	}
}

// reply answers an order after some time, with an effect at that time.
func (w *world) reply(after time.Duration, o fleet.Order, r fleet.Report, do func()) {
	if r.Order = o; r.Outcome == "" {
		r.Outcome = fleet.Done
	}
	w.after(after, event{kind: answers, task: &task{r, do}})
}

func (w *world) refuse(o fleet.Order, why string) {
	w.reply(time.Millisecond, o, fleet.Report{Outcome: fleet.Failed, Cause: why}, nil)
}

// answer completes a task and all others of the same time: the controller handles
// simultaneous reports together.
func (w *world) answer(t *task) {
	w.heard = w.heard[:0]
	w.finish(t)
	for w.queue.has(answers, w.now) {
		w.out.Events++
		w.finish(w.queue.pop().task)
	}
	if len(w.heard) == 0 {
		return
	}
	if _, err := w.handleEvent(w.heard); err != nil {
		w.breach("reports %+v: %v", w.heard, err)
	}
}

// finish applies a task's effect, and returns its report if the host is connected.
func (w *world) finish(t *task) {
	if t.do != nil && !w.byID[t.report.Order.Host].ruined {
		t.do()
	}
	if !w.byID[t.report.Order.Host].cut {
		t.report.At = w.at()
		w.heard = append(w.heard, t.report)
	}
}

// beginOrder starts an order on its host.
func (w *world) beginOrder(m *machine, o fleet.Order) {
	g := w.guests[o.Guest]
	if g != nil && o.Verb == fleet.Discard && g.taking == o.Migration {
		g.taking = ""
	}
	if o.Verb == fleet.Stop || o.Verb == fleet.Discard || o.Verb == fleet.Retire {
		w.destroy(m, g, o)
		return
	}
	if o.Checkpoint != "" && o.Verb != fleet.Restore {
		w.carryCheckpoint(m, g, o)
		return
	}
	if g == nil {
		w.refuse(o, "it is not here")
		return
	}
	if o.Gen < g.gen {
		w.refuse(o, "that is too old")
		return
	}
	g.gen = o.Gen
	switch o.Verb {
	case fleet.Start:
		if g.at != nil && g.at != m {
			w.breach("%s is started on %s and is on %s", g.id, m.id, g.at.id)
		}
		w.reply(m.Boot, o, fleet.Report{}, func() {
			if g.at == nil && !g.gone {
				w.occupy(m, 1)
				w.alter(g, func() { g.at, g.up = m, true })
			}
		})
	case fleet.Restore:
		w.restore(m, g, o)
	case fleet.Watch:
		w.keepGuest(m, g, o)
	case fleet.Run:
		j := g.job
		if j.run = o; j.over {
			w.exited(j)
		} else if !j.started {
			j.started, j.since = true, w.now
			w.repace(j)
		}
	case fleet.End: // modelled programs have nothing to save
		w.reply(10*time.Millisecond, o, fleet.Report{Exit: &fleet.Exit{Code: 128 + fleet.Terminate}}, nil)
	default:
		w.migrate(m, g, o)
	}
}

// keepGuest handles watch.
func (w *world) keepGuest(m *machine, g *guest, o fleet.Order) {
	switch {
	case g.at != m:
		w.refuse(o, "it is not here")
	case !g.up && !(g.cutting.cut && !g.cutting.continued && !g.cutting.void):
		w.alter(g, func() { g.up = true })
	}
}

// destroy removes everything of a guest from a host.
func (w *world) destroy(m *machine, g *guest, o fleet.Order) {
	takes := retireTakes
	if o.Verb == fleet.Stop {
		takes = stopTakes
	}
	w.reply(takes, o, fleet.Report{}, func() {
		switch {
		case g == nil:
		case o.Verb == fleet.Stop && (g.at == m || g.at == nil):
			w.wipe(g)
		case o.Verb == fleet.Discard && g.to == m:
			w.halt(g)
			g.to, g.whole = nil, false
			w.occupy(m, -1)
		case o.Verb == fleet.Retire && g.old == m:
			g.old = nil
			w.occupy(m, -1)
		case o.Verb == fleet.Retire && g.at == m:
			w.breach("%s is destroyed on %s, where it is", g.id, m.id)
		}
	})
}

// migrate handles a move's orders.
func (w *world) migrate(m *machine, g *guest, o fleet.Order) {
	peer := w.byID[o.Peer]
	switch o.Verb {
	case fleet.Receive:
		g.taking = o.Migration
		w.reply(receiveTakes, o, fleet.Report{Listen: "modelled"}, func() {
			if g.to == nil && g.taking == o.Migration && !g.gone { // otherwise it was discarded meanwhile
				g.to = m
				w.occupy(m, 1)
			}
		})
	case fleet.Copy:
		if g.at != m || g.to != peer {
			w.refuse(o, "it is not here, or no target takes it")
		} else if g.copying == nil {
			w.copy(m, g, o)
		} else if g.copying.converged {
			w.reply(time.Millisecond, o, fleet.Report{Cost: g.copying.cost(w.now, 0)}, nil)
		}
	case fleet.Switch:
		w.change(m, peer, g, o)
	case fleet.Activate:
		w.activateGuest(m, g, o)
	case fleet.Fetch:
		w.fetchRemaining(m, g, o)
	case fleet.Revert:
		w.reply(activateTakes, o, fleet.Report{}, func() {
			if g.at != m {
				w.breach("%s goes back to %s and is not there", g.id, m.id)
				return
			}
			w.halt(g)
			w.alter(g, func() { g.up, g.whole = true, false })
		})
	}
}

// activateGuest resumes a guest at its target.
func (w *world) activateGuest(m *machine, g *guest, o fleet.Order) {
	if g.at == m {
		w.reply(time.Millisecond, o, fleet.Report{Resumed: w.at()}, func() {
			if !g.up && g.at == m {
				w.alter(g, func() { g.up = true })
			}
		})
		return
	}
	if g.to != m || !g.whole {
		w.refuse(o, "it is not whole here")
		return
	}
	if g.up {
		w.breach("%s runs on %s and shall run on %s", g.id, g.at.id, m.id)
	}
	w.reply(activateTakes, o, fleet.Report{Resumed: w.at().Add(activateTakes)}, func() {
		if g.to == m {
			g.old = g.at
			w.alter(g, func() { g.at, g.to, g.whole, g.up, g.suspended = m, nil, false, true, false })
		}
	})
}

// fits reports whether a job has room, without a refusal: each host's reason is much more
// work than placing.
func (w *world) fits(j *job) bool {
	v := w.loop.Index.Room().Survey(w.at())
	for range j.Ranks {
		host, found := v.Where(placement.Ask{Need: fleet.Resources{CPUs: j.CPUs, MemoryBytes: j.MemoryBytes}, Kind: fleet.VM, Files: files})
		if !found {
			return false
		}
		v.Reserve(host, fleet.Resources{CPUs: j.CPUs, MemoryBytes: j.MemoryBytes})
	}
	return true
}

// mend reconnects a host: it gets all outstanding orders.
func (w *world) mend(m *machine) {
	if !m.cut {
		return
	}
	m.cut, m.ruined, m.cuts = false, false, m.cuts+1
	w.learn(m)
	for _, o := range planner.Pending(w.loop.Index.Snapshot()) {
		if o.Host == m.id {
			w.beginOrder(m, o)
		}
	}
	w.evaluateHost(m)
}

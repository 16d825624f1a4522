package sim

import (
	"math"
	"time"

	"pagurus/decide/lifecycle"
	"pagurus/decide/planner"
	"pagurus/fleet"
)

// copying is a copy of a guest's memory in progress.
type copying struct {
	order      fleet.Order
	guest      *guest
	from       *machine
	to         *machine
	limits     fleet.Limits
	rounds     []lifecycle.Round
	left       float64 // bytes
	sent       float64
	began      time.Duration
	roundBegan time.Duration // start of the present round
	took       time.Duration // duration of the present round
	over       bool          // no further rounds
	converged  bool
}

// leastRound is the minimum duration of a round.
const leastRound = 5 * time.Millisecond

// dirtied is how much memory a guest changes in some seconds: most of its writes repeat.
func dirtied(w Work, seconds, pace float64) float64 {
	all := float64(w.MemoryBytes)
	return all * -math.Expm1(-w.Dirty*pace*seconds/all)
}

// copy starts a copy.
func (w *world) copy(m *machine, g *guest, o fleet.Order) {
	task := planner.Task(w.loop.Index.Snapshot(), o)
	c := &copying{order: o, guest: g, from: m, to: g.to, limits: task.Limits, left: float64(g.job.MemoryBytes), began: w.now}
	g.copying = c
	w.stream(c, 1)
	w.repace(g.job)
	w.send(c)
}

// rate is a copy's bandwidth: each link is shared by its users.
func (c *copying) rate() float64 {
	rate := min(c.from.BytesPerSecond/float64(max(c.from.streams, 1)), c.to.BytesPerSecond/float64(max(c.to.streams, 1)))
	if limit := float64(c.limits.BytesPerSecond); limit > 0 {
		rate = min(rate, limit)
	}
	return rate
}

// send begins a round. The shares of links are computed for each round.
func (w *world) send(c *copying) {
	c.roundBegan = w.now
	c.took = max(seconds(c.left/c.rate()), leastRound)
	w.after(c.took, event{kind: rounds, copying: c})
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

// round ends a round. The verdict comes from the real agent's code.
func (w *world) round(c *copying) {
	if c.over {
		return
	}
	took := w.now - c.roundBegan
	c.sent += c.left
	sent := int64(c.left)
	c.left = dirtied(c.guest.job.Work, took.Seconds(), c.guest.job.pace)
	c.rounds = append(c.rounds, lifecycle.Round{Took: took, SentBytes: sent, LeftBytes: int64(c.left)})
	switch lifecycle.Copy(c.limits, c.rounds) {
	case lifecycle.GoOn:
		w.send(c)
	case lifecycle.SwitchNow:
		c.converged = true
		w.reply(time.Millisecond, c.order, fleet.Report{Cost: c.cost(w.now, 0)}, nil)
	case lifecycle.GiveUp:
		w.halt(c.guest)
		w.reply(time.Millisecond, c.order, fleet.Report{Outcome: fleet.Failed, Cause: "it changes memory as fast as it is sent"}, nil)
	}
}

// cost is a copy's cost so far.
func (c *copying) cost(now, still time.Duration) *fleet.Progress {
	took := now - c.began
	return &fleet.Progress{Rounds: len(c.rounds), TotalBytes: c.guest.job.MemoryBytes, RemainingBytes: int64(c.left), SentBytes: int64(c.sent),
		BytesPerSecond: c.sent / max(took.Seconds(), 1e-3), Elapsed: took, Downtime: still}
}

// progress is a copy's progress within the present round.
func (c *copying) progress(now time.Duration) fleet.Progress {
	sent := c.left * min(float64(now-c.roundBegan)/float64(max(c.took, 1)), 1)
	so := *c
	so.sent, so.left = c.sent+sent, c.left-sent
	p := so.cost(now, 0)
	p.Rounds = len(c.rounds) + 1
	return *p
}

// halt ends a copy in any state.
func (w *world) halt(g *guest) {
	c := g.copying
	if c == nil {
		return
	}
	c.over, g.copying = true, nil
	w.stream(c, -1)
	w.repace(g.job)
}

// change suspends a guest and sends the rest.
func (w *world) change(m, peer *machine, g *guest, o fleet.Order) {
	c := g.copying
	switch {
	case g.to == peer && g.whole:
		w.reply(time.Millisecond, o, fleet.Report{}, nil)
		return
	case g.at != m || g.to != peer || c == nil:
		w.refuse(o, "it is not here, or no target takes it")
		return
	}
	c.over = true // no further rounds
	w.alter(g, func() { g.up = false })
	took := suspendTakes
	if c.limits.Mode != fleet.PostCopy {
		took += seconds(c.left / c.rate())
		c.sent, c.left = c.sent+c.left, 0
	}
	w.reply(took, o, fleet.Report{Cost: c.cost(w.now+took, took+activateTakes)}, func() {
		if g.to == peer && g.copying == c {
			g.whole = true
			if c.left == 0 {
				w.halt(g)
			}
		}
	})
}

// fetchRemaining sends the rest of a guest's memory after its switch.
func (w *world) fetchRemaining(m *machine, g *guest, o fleet.Order) {
	took := time.Millisecond
	c := g.copying
	if c != nil {
		took = seconds(c.left / c.rate())
		c.sent, c.left = c.sent+c.left, 0
	}
	w.reply(took, o, fleet.Report{}, func() {
		if g.at != m {
			w.breach("%s fetches memory on %s and is not there", g.id, m.id)
		}
		w.halt(g)
	})
}

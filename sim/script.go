package sim

import (
	"time"

	"pagurus/fleet"
)

// Cue is a scripted event.
type Cue struct {
	At   time.Duration
	Do   string // one of cueWords
	Host fleet.HostID
	Load float64       // for "returns": CPUs that the owner uses
	In   time.Duration // for "notice": after which the host goes away
}

// The kinds of cues.
const (
	returns  = "returns"
	departs  = "departs"
	cuts     = "cut"
	powers   = "power"
	mends    = "mend"
	drains   = "drain"
	undrains = "undrain"
	notes    = "notice"
	recants  = "withdraw"
)

var cueWords = []string{returns, departs, cuts, powers, mends, drains, undrains, notes, recants}

// play carries out a cue. Cues on unknown hosts were refused before.
func (w *world) play(c Cue) {
	m := w.byID[c.Host]
	switch c.Do {
	case returns:
		w.arrive(m, true, c.Load)
	case departs:
		w.arrive(m, false, 0)
	case cuts:
		if !m.cut {
			w.say("%s is cut off", m.id)
			w.cut(m)
		}
	case powers:
		w.say("%s loses power", m.id)
		w.cut(m)
		w.ruin(m)
	case mends:
		w.say("%s is heard again", m.id)
		w.mend(m)
	case notes:
		w.say("%s is to go away in %s", m.id, c.In)
		m.notice = w.now + c.In
		w.notice(m)
	case recants:
		w.say("%s stays", m.id)
		m.notice = 0
		w.notice(m)
	case drains, undrains:
		verb := fleet.Drain
		if c.Do == undrains {
			verb = fleet.Undrain
		}
		w.say("%s %s", verb, m.id)
		if _, err := w.handleEvent(fleet.Request{At: w.at(), By: admin, Verb: verb, Host: m.id}); err != nil {
			w.breach("%s: %v", verb, err)
		}
	}
}

// notice has a host say what it knows about its end.
func (w *world) notice(m *machine) {
	w.learn(m)
	if _, err := w.handleEvent(fleet.Tick{At: w.at()}); err != nil {
		w.breach("a notice: %v", err)
	}
}

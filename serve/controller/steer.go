package controller

import (
	"context"
	"errors"
	"time"

	"pagurus/decide/planner"
	"pagurus/decide/steering"
	"pagurus/fleet"
	"pagurus/serve/wire"
)

const (
	// answersKept is how long answers to programs are kept, for guests that have moved and ask again.
	answersKept = time.Minute
	// mostConsidered bounds what is considered for programs at once: each looks through the cluster.
	mostConsidered = 4
	considerLimit  = fleet.WishLimit
)

// wishes is what the controller knows of programs that steer their jobs. Nothing of it is stored: a controller that
// begins to lead hears all of it again.
type wishes struct {
	by    map[fleet.GuestID]*wishesOf
	busy  int
	swept time.Time
}

// wishesOf is that of one guest.
type wishesOf struct {
	rate    steering.Rate
	under   map[uint64]bool // being considered
	answers map[uint64]keptAnswer
	cheaps  uint64 // marked so far
	notFor  bool   // moves should not begin, when it was last heard
}

type keptAnswer struct {
	fleet.WishAnswer
	at time.Time
}

// heed does what programs of a host's guests ask for, each for its own job, if the host is the guest's home.
func (c *Controller) heed(ctx context.Context, id fleet.HostID, f fleet.Facts) {
	at := now()
	for g, facts := range f.Guests {
		if facts.Said == nil {
			continue
		}
		guest, known := c.snap().Guests[g]
		if !known || guest.Home != id || guest.State.Ended() {
			continue
		}
		of := c.wishes.of(g)
		c.heedMarks(ctx, guest, of, facts.Said.Marks)
		var again []fleet.WishAnswer
		for _, w := range facts.Said.Wishes {
			if a, answered := of.answers[w.ID]; answered {
				again = append(again, a.WishAnswer)
			} else if !of.under[w.ID] && c.wishes.busy < mostConsidered { // else with the next facts
				c.consider(g, of, w)
			}
		}
		c.answerGuest(g, again)
	}
	c.wishes.sweep(at, func(g fleet.GuestID) bool { return c.snap().Guests[g].State.Ended() || c.snap().Guests[g].ID == "" })
}

// of is what is known of a guest's programs.
func (w *wishes) of(g fleet.GuestID) *wishesOf {
	if w.by == nil {
		w.by = map[fleet.GuestID]*wishesOf{}
	}
	if w.by[g] == nil {
		w.by[g] = &wishesOf{under: map[uint64]bool{}, answers: map[uint64]keptAnswer{}}
	}
	return w.by[g]
}

// sweep forgets what is over.
func (w *wishes) sweep(at time.Time, gone func(fleet.GuestID) bool) {
	if at.Sub(w.swept).Abs() < answersKept/4 {
		return
	}
	w.swept = at
	for g, of := range w.by {
		for id, a := range of.answers {
			if at.Sub(a.at).Abs() > answersKept {
				delete(of.answers, id)
			}
		}
		if gone(g) && len(of.under) == 0 {
			delete(w.by, g)
		}
	}
}

// heedMarks goes on with a move that waits for a mark, if there is a new one.
func (c *Controller) heedMarks(ctx context.Context, g fleet.Guest, of *wishesOf, m fleet.Marks) {
	turned := m.Cheaps != of.cheaps || of.notFor && m.NotFor == 0
	of.cheaps, of.notFor = m.Cheaps, m.NotFor > 0
	if turned && c.snap().Migrations[g.Migration].Phase == fleet.Waiting {
		_, err := c.step(ctx, fleet.Observation{At: now(), Marked: g.ID})
		c.noteStoreError(err)
	}
}

// consider finds an answer to a wish beside the loop, and gives it.
func (c *Controller) consider(g fleet.GuestID, of *wishesOf, w fleet.Wish) {
	if no := of.rate.TakeWish(w.Verb, now()); no != "" {
		c.keepAnswer(g, of, fleet.WishAnswer{ID: w.ID, Code: fleet.WishBusy, Text: no})
		return
	}
	of.under[w.ID] = true
	c.wishes.busy++
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), considerLimit)
		defer cancel()
		a, err := c.grant(ctx, g, w)
		_ = c.do(ctx, func(context.Context) { // if it leads no longer, another one is asked
			c.wishes.busy--
			delete(of.under, w.ID)
			if err == nil {
				if a.Code == fleet.WishDone {
					of.rate.NoteMade(w.Verb, now())
				}
				c.keepAnswer(g, of, a)
			}
		})
	}()
}

// grant finds an answer to a wish, and makes the request that it is. After an error the wish is considered again.
func (c *Controller) grant(ctx context.Context, g fleet.GuestID, w fleet.Wish) (fleet.WishAnswer, error) {
	s, err := c.Snapshot(ctx)
	if err != nil {
		return fleet.WishAnswer{}, err
	}
	a, r := c.Planner.Consider(s, g, w)
	if r == nil {
		return a, nil
	}
	answer, err := c.Ask(ctx, *r)
	if said := (*wire.Error)(nil); err != nil && (!errors.As(err, &said) || said.Status == wire.NotLeading) {
		return a, err
	}
	c.Log.Info("a program asked for its own job", "guest", g, "asked", w.Verb, "aim", w.Aim, "moves", answer.Moves, "refused", err)
	return planner.Granted(w, answer, err), nil
}

// keepAnswer keeps an answer and gives it to the guest.
func (c *Controller) keepAnswer(g fleet.GuestID, of *wishesOf, a fleet.WishAnswer) {
	a = a.Bounded()
	of.answers[a.ID] = keptAnswer{a, now()}
	c.answerGuest(g, []fleet.WishAnswer{a})
}

// answerGuest sends answers to the host where a guest is. If it has left from there meanwhile, it asks again.
func (c *Controller) answerGuest(g fleet.GuestID, answers []fleet.WishAnswer) {
	home := c.snap().Guests[g].Home
	if len(answers) > 0 && c.hosts[home] != nil {
		c.sendToHost(home, wire.Down{Answers: &fleet.WishAnswers{Guest: g, Answers: answers}})
	}
}

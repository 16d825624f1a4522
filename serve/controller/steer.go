package controller

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"runtime/debug"
	"time"

	"pagurus/decide/health"
	"pagurus/decide/planner"
	"pagurus/decide/steering"
	"pagurus/fleet"
	"pagurus/serve/wire"
)

const (
	// answersKept is how long answers to programs are kept, for guests that have moved and ask again.
	answersKept = time.Minute
	// mostConsidered bounds what is considered for programs at once: each looks through the cluster. One user's have no more than half.
	mostConsidered = 4
	considerLimit  = fleet.WishLimit
	// mostAnswers is of one guest's programs at once.
	mostAnswers = 2 * fleet.MostWishes
)

// wishes is what the controller knows of programs that steer their jobs. Nothing of it is stored: a controller that
// begins to lead hears all of it again.
type wishes struct {
	by    map[fleet.GuestID]*wishesOf
	jobs  map[fleet.JobID]steering.Pauses
	busy  int
	users map[uint32]int // of busy
	swept time.Time
}

// enter reports whether one more wish of a user's may be considered, and counts it until leave.
func (w *wishes) enter(uid uint32) bool {
	if w.busy >= mostConsidered || w.users[uid] >= mostConsidered/2 {
		return false
	}
	if w.users == nil {
		w.users = map[uint32]int{}
	}
	w.busy++
	w.users[uid]++
	return true
}

func (w *wishes) leave(uid uint32) {
	w.busy--
	if w.users[uid]--; w.users[uid] == 0 {
		delete(w.users, uid)
	}
}

// wishesOf is that of one guest.
type wishesOf struct {
	rate    steering.Rate
	under   map[uint64]bool // being considered
	answers map[uint64]keptAnswer
	cheaps  uint64 // marked so far
	notFor  bool   // moves should not begin, when it was last heard

	awaited   fleet.Awaited // as it was told last
	awaitedAt time.Time
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
		c.tellAwaited(g, of, facts.Said.Marks)
		var answers []fleet.WishAnswer
		for _, w := range facts.Said.Wishes[:min(len(facts.Said.Wishes), mostAnswers)] {
			if a, answered := of.answers[w.ID]; answered {
				answers = append(answers, a.WishAnswer)
			} else if a, atOnce := c.consider(guest, of, w); atOnce {
				answers = append(answers, a)
			}
		}
		c.answerGuest(g, answers)
	}
	s := c.snap()
	c.wishes.sweep(at, func(g fleet.GuestID) bool { return s.Guests[g].State.Ended() || s.Guests[g].ID == "" },
		func(j fleet.JobID) bool { return s.Jobs[j].ID == "" || !s.Jobs[j].Ended.IsZero() })
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

// pauses are those between what a job's programs had done.
func (w *wishes) pauses(j fleet.JobID) steering.Pauses {
	if w.jobs == nil {
		w.jobs = map[fleet.JobID]steering.Pauses{}
	}
	if w.jobs[j] == nil {
		w.jobs[j] = steering.Pauses{}
	}
	return w.jobs[j]
}

// sweep forgets what is over.
func (w *wishes) sweep(at time.Time, gone func(fleet.GuestID) bool, ended func(fleet.JobID) bool) {
	if at.Sub(w.swept).Abs() < answersKept/4 {
		return
	}
	w.swept = at
	maps.DeleteFunc(w.jobs, func(j fleet.JobID, _ steering.Pauses) bool { return ended(j) })
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

// withRemarks is a host's health, with what the programs of guests said there. What they said elsewhere, before they came, does not count.
func (c *Controller) withRemarks(id fleet.HostID, f fleet.Facts) *fleet.Health {
	s := c.snap()
	for g, facts := range f.Guests {
		guest, known := s.Guests[g]
		if !known || guest.Home != id || guest.State != fleet.GuestRunning || facts.Said == nil || facts.Said.Remark == nil {
			continue
		}
		if at := f.SeenAt.Add(-facts.Said.Remark.Ago); at.After(guest.Since) {
			c.remarks.NoteRemark(id, g, health.Remarked{User: s.Jobs[guest.Job].Spec.UID, At: at}, facts.Said.Remark.Level == fleet.Ill)
		}
	}
	return health.Remarks(f.Health, c.remarks.Of(id, f.SeenAt), f.SeenAt)
}

// heedMarks goes on with a move that waits for a mark, if there is a new one or can be none.
func (c *Controller) heedMarks(ctx context.Context, g fleet.Guest, of *wishesOf, m fleet.Marks) {
	turned := m.Cheaps != of.cheaps || of.notFor && m.NotFor == 0
	of.cheaps, of.notFor = m.Cheaps, m.NotFor > 0
	s := c.snap()
	move := s.Migrations[g.Migration]
	if turned && (move.Phase == fleet.Waiting || move.Phase == fleet.Ready) || planner.HeldAtSwitch(s, move) {
		_, err := c.step(ctx, fleet.Observation{At: now(), Marked: g.ID})
		c.noteStoreError(err)
	}
}

// tellAwaited tells a guest whose programs mark moments whether a move waits for one, when that changes, and again as long as it does:
// the guest forgets it after a time.
func (c *Controller) tellAwaited(g fleet.GuestID, of *wishesOf, m fleet.Marks) {
	s := c.snap()
	awaited, at := planner.Awaited(s, s.Guests[g]), now()
	again := at.Sub(of.awaitedAt).Abs() > fleet.AwaitedKept/4 && (awaited.For != "" || m.For != "")
	home := s.Guests[g].Home
	if m == (fleet.Marks{At: m.At}) || awaited == of.awaited && !again || c.hosts[home] == nil {
		return
	}
	of.awaited, of.awaitedAt = awaited, at
	c.sendToHost(home, wire.Down{Answers: &fleet.WishAnswers{Guest: g, Awaited: &awaited}})
}

// consider answers a wish at once, or finds an answer beside the loop and gives it then. With too much under way it is
// considered when it is asked again. An answer that it comes too often is not kept.
func (c *Controller) consider(g fleet.Guest, of *wishesOf, w fleet.Wish) (a fleet.WishAnswer, atOnce bool) {
	quick, uid := w.Verb == fleet.WishWhere || w.Verb == fleet.WishDistances, c.snap().Jobs[g.Job].Spec.UID
	if of.under[w.ID] {
		return a, false
	}
	if w.Verb == fleet.WishGrow { // it takes its time, and another controller may have begun it
		if a, waits, known := planner.GrowthSaid(c.snap(), g, w); known {
			if waits {
				return a, false
			}
			return c.keepAnswer(of, a), true
		}
	}
	if !quick && !c.wishes.enter(uid) {
		return a, false
	}
	at, pauses := now(), c.wishes.pauses(g.Job)
	no := of.rate.TakeWish(at)
	if no == "" {
		no = pauses.BeginPause(w.Verb, at)
	}
	if no != "" {
		if !quick {
			c.wishes.leave(uid)
		}
		return fleet.WishAnswer{ID: w.ID, Code: fleet.WishBusy, Text: no}.Bounded(), true
	}
	if quick {
		a, _ = c.considered(c.snap(), g.ID, w)
		return c.keepAnswer(of, a), true
	}
	of.under[w.ID] = true
	go func() {
		a, err := c.grant(g.ID, w)
		// However long that took: what it held is given back. If this controller leads no longer, another one is asked.
		_ = c.do(context.Background(), forItself, func(context.Context) {
			c.wishes.leave(uid)
			delete(of.under, w.ID)
			if err != nil || a.Code != fleet.WishDone {
				pauses.EndPause(w.Verb, at)
			}
			if granted := a.Code == fleet.WishDone && w.Verb == fleet.WishGrow; err == nil && !granted { // that is answered when it is over
				c.answerGuest(g.ID, []fleet.WishAnswer{c.keepAnswer(of, a)})
			}
		})
	}()
	return a, false
}

// considered is what the planner says of a wish. A bug in it costs the wish, not the controller.
func (c *Controller) considered(s fleet.Snapshot, g fleet.GuestID, w fleet.Wish) (a fleet.WishAnswer, r *fleet.Request) {
	defer func() {
		if p := recover(); p != nil {
			c.Log.Error("the planner has a bug", "guest", g, "wish", w, "panic", p, "stack", string(debug.Stack()))
			a, r = fleet.WishAnswer{ID: w.ID, Code: fleet.WishRefused, Text: fmt.Sprintf("the controller has a bug, its log has the details: %v", p)}, nil
		}
	}()
	return c.Planner.Consider(s, g, w)
}

// grant finds an answer to a wish, and makes the request that it is. After an error the wish is considered again.
func (c *Controller) grant(g fleet.GuestID, w fleet.Wish) (fleet.WishAnswer, error) {
	ctx, cancel := context.WithTimeout(context.Background(), considerLimit)
	defer cancel()
	s, err := c.Snapshot(ctx)
	if err != nil {
		return fleet.WishAnswer{}, err
	}
	a, r := c.considered(s, g, w)
	if r == nil {
		return a, nil
	}
	answer, err := c.Ask(ctx, *r)
	c.recordWish(*r, answer, err)
	if said := (*wire.Error)(nil); err != nil && (!errors.As(err, &said) || said.Status == wire.NotLeading) {
		return a, err
	}
	c.Log.Info("a program asked for its own job", "guest", g, "asked", w.Verb, "aim", w.Aim, "moves", answer.Moves, "refused", err)
	return planner.Granted(w, answer, err), nil
}

// recordedBytes is the most of each text in the audit, and refusedASecond how many refusals are kept there.
const (
	recordedBytes  = 1 << 10
	refusedASecond = 10
)

// recordWish keeps in the audit what a program asked for, and what came of it.
func (c *Controller) recordWish(r fleet.Request, answer fleet.Answer, err error) {
	if c.Audit == nil {
		return
	}
	rec := fleet.AuditRecord{At: time.Now(), By: r.By, Did: string(r.Verb), On: r.Object(answer), Request: r.ID}
	switch said := (*wire.Error)(nil); {
	case err == nil:
	case errors.As(err, &said) && said.Status == wire.NotLeading:
		return // it is asked again
	case errors.As(err, &said) && said.Status < http.StatusInternalServerError:
		if rec.Refused = fleet.OneLine(err.Error(), recordedBytes); !c.wishRefusals.Allow() {
			return
		}
	default:
		rec.Failed = fleet.OneLine(err.Error(), recordedBytes)
	}
	c.Log.Info("audit", "who", rec.Who(), "did", rec.Did, "on", rec.On, "result", rec.Result())
	if err := c.Audit.Append(rec); err != nil {
		c.Log.Error("what a program asked for could not be kept", "guest", r.By.Guest, "did", rec.Did, "cause", err)
	}
}

// keepAnswer keeps an answer, for when it is asked again.
func (c *Controller) keepAnswer(of *wishesOf, a fleet.WishAnswer) fleet.WishAnswer {
	a = a.Bounded()
	of.answers[a.ID] = keptAnswer{a, now()}
	return a
}

// answerGuest sends answers to the host where a guest is. If it has left from there meanwhile, it asks again.
func (c *Controller) answerGuest(g fleet.GuestID, answers []fleet.WishAnswer) {
	home := c.snap().Guests[g].Home
	if len(answers) > 0 && c.hosts[home] != nil {
		c.sendToHost(home, wire.Down{Answers: &fleet.WishAnswers{Guest: g, Answers: answers}})
	}
}

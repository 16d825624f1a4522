// Package notices tells receivers outside what happened in the cluster: by webhooks and by mail.
//
// Each receiver has a queue and a goroutine of its own, so nobody waits for one that does not answer. A notice is told at least once, with
// the same ID each time: what was told is kept as a mark, and a controller that takes over goes on from there. The package does not know
// what is worth a notice: package decide/notice does. Its tests run against real servers of HTTP and SMTP.
package notices

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"

	"pagurus/decide/notice"
	"pagurus/fleet"
)

// Receiver is told notices.
type Receiver interface {
	// Name says who it is, in logs and marks. It has no secrets.
	Name() string
	// Tell tells one notice. After an error it may have been told. ErrUnwanted: the receiver says that it does not want it.
	Tell(context.Context, fleet.Notice) error
}

// ErrUnwanted: a receiver refuses a notice; trying it for long is of no use. Receivers wrap it.
var ErrUnwanted = errors.New("the receiver refuses it")

// tellLimit is how long telling one notice may take.
const tellLimit = 20 * time.Second

// Outbox has the notices that wait.
type Outbox struct {
	log     *slog.Logger
	of      []*queue
	counted func(result string)
}

// queue is one receiver's.
type queue struct {
	to   Receiver
	news chan struct{} // capacity 1

	mu      sync.Mutex
	known   map[fleet.NoticeID]bool
	waiting []*letter
	over    []fleet.Notice // told or given up, as far as the mark may need them
	mark    fleet.NoticeMark
	dirty   bool
	failing string // the last error, so that it is logged once
}

// letter is a notice that waits.
type letter struct {
	fleet.Notice
	tries, refused int
	begun, next    time.Time
}

// New makes an outbox. counted hears "told", "failed" or "given up" for each try; it may be nil.
func New(to []Receiver, log *slog.Logger, counted func(result string)) *Outbox {
	if counted == nil {
		counted = func(string) {}
	}
	o := &Outbox{log: log, counted: counted}
	for _, r := range to {
		o.of = append(o.of, &queue{to: r, news: make(chan struct{}, 1), known: map[fleet.NoticeID]bool{}})
	}
	return o
}

// Run tells until ctx ends. marks are what was kept; a receiver without one is told what happens from now on.
func (o *Outbox) Run(ctx context.Context, marks []fleet.NoticeMark, now time.Time) {
	var all sync.WaitGroup
	for _, q := range o.of {
		q.start(marks, now)
		all.Go(func() { o.tell(ctx, q) })
	}
	all.Wait()
}

// Start sets where each receiver is. Until then it is offered nothing.
func (q *queue) start(marks []fleet.NoticeMark, now time.Time) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.mark = fleet.NoticeMark{Receiver: q.to.Name(), Through: now}
	q.dirty = true
	for _, m := range marks {
		if m.Receiver == q.to.Name() {
			q.mark, q.dirty = m, false
		}
	}
	for _, id := range q.mark.Told {
		q.known[id] = true
	}
}

// Since is from when on notices are to be offered; zero: none yet.
func (o *Outbox) Since() (at time.Time) {
	for _, q := range o.of {
		q.mu.Lock()
		if t := q.mark.Through; at.IsZero() || t.Before(at) {
			at = t
		}
		q.mu.Unlock()
	}
	return at
}

// Offer queues the notices that are new to a receiver. It does not wait.
func (o *Outbox) Offer(all []fleet.Notice, now time.Time) {
	for _, q := range o.of {
		if lost := q.offer(all, now); lost > 0 {
			o.log.Warn("notices are given up: too many wait for a receiver", "receiver", q.to.Name(), "notices", lost)
			for range lost {
				o.counted("given up")
			}
		}
	}
}

// offer queues what is new, and gives up the oldest of too many.
func (q *queue) offer(all []fleet.Notice, now time.Time) (lost int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.mark.Through.IsZero() {
		return 0
	}
	fresh := false
	for _, n := range all {
		if q.known[n.ID] || !n.At.After(q.mark.Through) {
			continue
		}
		q.known[n.ID], fresh = true, true
		q.waiting = append(q.waiting, &letter{Notice: n, begun: now, next: now})
	}
	for ; len(q.waiting) > notice.MostWaiting; lost++ {
		q.finish(0)
	}
	if fresh {
		select {
		case q.news <- struct{}{}:
		default:
		}
	}
	return lost
}

// finish takes a letter out that is told or given up; the caller holds the lock.
func (q *queue) finish(i int) {
	q.over = append(q.over, q.waiting[i].Notice)
	q.waiting = slices.Delete(q.waiting, i, i+1)
	q.dirty = true
}

// Marks gives the marks that have to be kept. The outbox forgets that: who cannot keep one gives it back by Again.
func (o *Outbox) Marks(now time.Time) (out []fleet.NoticeMark) {
	for _, q := range o.of {
		q.mu.Lock()
		if q.dirty {
			q.later(now)
			q.dirty = false
			out = append(out, q.mark)
		}
		q.mu.Unlock()
	}
	return out
}

// later moves the mark on, and forgets what lies before it; the caller holds the lock.
func (q *queue) later(now time.Time) {
	waiting := make([]fleet.Notice, 0, len(q.waiting))
	for _, l := range q.waiting {
		waiting = append(waiting, l.Notice)
	}
	q.mark = notice.Later(q.mark, q.over, waiting, now)
	gone := func(n fleet.Notice) bool { return !n.At.After(q.mark.Through) }
	for _, n := range q.over {
		if gone(n) {
			delete(q.known, n.ID)
		}
	}
	q.over = slices.DeleteFunc(q.over, gone)
}

// Again takes back a mark that was not kept.
func (o *Outbox) Again(m fleet.NoticeMark) {
	for _, q := range o.of {
		if q.to.Name() == m.Receiver {
			q.mu.Lock()
			q.dirty = true
			q.mu.Unlock()
		}
	}
}

// tell tells one receiver what waits, until ctx ends.
func (o *Outbox) tell(ctx context.Context, q *queue) {
	for ctx.Err() == nil {
		l, wait := q.next(time.Now())
		if l == nil {
			select {
			case <-ctx.Done():
			case <-q.news:
			case <-time.After(wait):
			}
			continue
		}
		telling, stop := context.WithTimeout(ctx, tellLimit)
		err := q.to.Tell(telling, l.Notice)
		stop()
		if ctx.Err() != nil { // not known, so the next controller tells it again
			return
		}
		o.told(q, l, err, time.Now())
	}
}

// idle is how long to wait when nothing is queued.
const idle = time.Hour

// next is the letter that is due; nil: none is, for a while.
func (q *queue) next(now time.Time) (*letter, time.Duration) {
	q.mu.Lock()
	defer q.mu.Unlock()
	var first *letter
	for _, l := range q.waiting {
		if first == nil || l.next.Before(first.next) {
			first = l
		}
	}
	switch {
	case first == nil:
		return nil, idle
	case first.next.After(now):
		return nil, first.next.Sub(now)
	}
	return first, 0
}

// told notes what came of a try.
func (o *Outbox) told(q *queue, l *letter, err error, now time.Time) {
	q.mu.Lock()
	defer q.mu.Unlock()
	i := slices.Index(q.waiting, l)
	if i < 0 { // given up meanwhile
		return
	}
	if err == nil {
		q.finish(i)
		o.counted("told")
		if q.failing != "" {
			q.failing = ""
			o.log.Info("a receiver takes notices again", "receiver", q.to.Name())
		}
		return
	}
	l.tries++
	if errors.Is(err, ErrUnwanted) {
		l.refused++
	}
	if l.refused >= notice.MostRefused || now.Sub(l.begun) >= notice.GiveUp {
		o.log.Warn("a notice is given up", "receiver", q.to.Name(), "notice", l.ID, "tries", l.tries, "cause", err)
		q.finish(i)
		o.counted("given up")
		return
	}
	l.next = now.Add(notice.Wait(l.tries))
	o.counted("failed")
	if q.failing != err.Error() {
		q.failing = err.Error()
		o.log.Warn("a receiver was not told, and is tried again", "receiver", q.to.Name(), "notice", l.ID, "cause", err)
	}
}

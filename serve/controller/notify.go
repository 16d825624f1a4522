package controller

import (
	"context"
	"slices"
	"sync"
	"time"

	"pagurus/decide/notice"
	"pagurus/fleet"
	"pagurus/serve/notices"
)

// NoticeStore keeps how far receivers of notices were told.
type NoticeStore interface {
	// LoadNoticeMarks reads all marks. bad: which could not be understood.
	LoadNoticeMarks(context.Context) (all []fleet.NoticeMark, bad []error, err error)
	// KeepNoticeMarks writes marks, and removes those of receivers, all or none. After an error it may have been done.
	KeepNoticeMarks(ctx context.Context, put []fleet.NoticeMark, gone []string) error
}

// Notify is who is told what happens, by the controller that leads.
type Notify struct {
	Receivers []notices.Receiver
	Kinds     []string // of notices
	Cluster   string   // its name; empty: its ID
	Store     NoticeStore
}

// noticeEvery is how often the state is looked through, and marks are kept.
const noticeEvery = time.Second

// notifying is what the loop has of that. Only the loop touches it.
type notifying struct {
	outbox  *notices.Outbox // nil: nobody is told
	at      time.Time
	trouble string
}

// notify begins to tell receivers, until ctx ends; all waits for the end. Without a mark a receiver hears what happens from
// now on, so a store that cannot be read here costs nobody a flood of old notices.
func (c *Controller) notify(ctx context.Context, all *sync.WaitGroup) {
	if len(c.Notify.Receivers) == 0 {
		return
	}
	marks, bad, err := c.Notify.Store.LoadNoticeMarks(ctx)
	if err != nil {
		bad = append(bad, err)
	}
	for _, why := range bad {
		c.Log.Warn("it is not known how far a receiver of notices was told: it hears what happens from now on", "cause", why)
	}
	o := notices.New(c.Notify.Receivers, c.Log, func(result string) { c.meter.notices.WithLabelValues(result).Inc() })
	c.notifying.outbox = o
	all.Go(func() { o.Run(ctx, marks, now()) })
	var gone []string
	for _, m := range marks {
		if !slices.ContainsFunc(c.Notify.Receivers, func(r notices.Receiver) bool { return r.Name() == m.Receiver }) {
			gone = append(gone, m.Receiver)
		}
	}
	if len(gone) > 0 {
		if err := c.Notify.Store.KeepNoticeMarks(ctx, nil, gone); err != nil {
			c.Log.Debug("marks of earlier receivers stay", "cause", err)
		}
	}
}

// offerNotices queues what has happened, and keeps how far receivers were told.
func (c *Controller) offerNotices(ctx context.Context) {
	n, at := &c.notifying, now()
	if n.outbox == nil || at.Sub(n.at).Abs() < noticeEvery {
		return
	}
	n.at = at
	since := n.outbox.Since()
	if since.IsZero() {
		return
	}
	s := c.snap()
	s.At = at
	name := c.Notify.Cluster
	if name == "" {
		name = s.Cluster.ID
	}
	n.outbox.Offer(notice.Of(s, since, c.Notify.Kinds, name), at)
	marks := n.outbox.Marks(at)
	if len(marks) == 0 {
		return
	}
	if err := c.Notify.Store.KeepNoticeMarks(ctx, marks, nil); err != nil {
		for _, m := range marks {
			n.outbox.Again(m)
		}
		if n.trouble != err.Error() {
			n.trouble = err.Error()
			c.Log.Warn("how far receivers of notices were told is not kept, and is tried again; they may be told twice", "cause", err)
		}
		return
	}
	n.trouble = ""
}

package controller

import (
	"context"
	"fmt"
	"time"

	"pagurus/decide/access"
	"pagurus/decide/usage"
	"pagurus/fleet"
)

// UsageStore keeps the records of usage.
type UsageStore interface {
	// LoadUsage reads all records. bad: which could not be understood.
	LoadUsage(context.Context) (all []fleet.UsageRecord, bad []error, err error)
	// KeepUsage writes and removes records, all or none. After an error it may have been done.
	KeepUsage(ctx context.Context, put []fleet.UsageRecord, gone []fleet.UsageID) error
}

// The book is written once a minute, in parts, so that no turn of the loop waits long for it. What a controller that is
// killed had not written of processor time is counted by its successor, since agents' counters go on; what it
// had not written of memory and energy is lost.
const (
	usageEvery  = time.Minute
	usageAtOnce = 250 // records in one transaction, and turn of the loop
	foldEvery   = 10 * time.Minute
)

// accounts are the controller's book, and what of it is being written. Only the loop touches them.
type accounts struct {
	book    *usage.Book // nil: there is no store for it
	waits   usage.Changes
	written time.Time
	folded  time.Time
	trouble string
}

// openAccounts reads the records. Without them jobs run as well: the controller counts, and tries to write.
func (c *Controller) openAccounts(ctx context.Context) error {
	if c.Usages == nil {
		return nil
	}
	all, bad, err := c.Usages.LoadUsage(ctx)
	if err != nil {
		return fmt.Errorf("loading the records of usage: %w", err)
	}
	for _, why := range bad {
		c.Log.Warn("a record of usage is left out", "cause", why)
	}
	c.accounts.book = usage.New(usage.Usual, all)
	c.accounts.written, c.accounts.folded = now(), now()
	return nil
}

// countUsage counts what the guests of a host have used. Guests that have left are counted by what was last told
// of them.
func (c *Controller) countUsage(id fleet.HostID, before, f fleet.Facts) {
	b := c.accounts.book
	if b == nil || !b.Due(id, before, f, f.SeenAt) {
		return
	}
	s := c.snap()
	if !before.SeenAt.IsZero() {
		b.Count(s, id, before, before.SeenAt)
	}
	b.Count(s, id, f, f.SeenAt)
}

// keepUsage writes what has changed of the records, a part each turn.
func (c *Controller) keepUsage(ctx context.Context) {
	a, at := &c.accounts, now()
	if a.book == nil {
		return
	}
	if len(a.waits.Put)+len(a.waits.Gone) == 0 {
		if at.Sub(a.written).Abs() < usageEvery {
			return
		}
		a.written = at
		a.book.FollowCluster(c.snap(), at)
		if at.Sub(a.folded).Abs() >= foldEvery || a.book.Full() {
			a.folded = at
			a.book.Fold(at)
		}
		a.waits = a.book.TakeChanges()
	}
	c.keepUsagePart(ctx)
}

// keepUsagePart writes the next records. Those that are removed are in months that are written before.
func (c *Controller) keepUsagePart(ctx context.Context) {
	a := &c.accounts
	put := a.waits.Put[:min(usageAtOnce, len(a.waits.Put))]
	var gone []fleet.UsageID
	if len(put) == len(a.waits.Put) {
		gone = a.waits.Gone[:min(usageAtOnce, len(a.waits.Gone))]
	}
	if len(put)+len(gone) == 0 {
		return
	}
	err := c.Usages.KeepUsage(ctx, put, gone)
	if err != nil {
		a.book.Again(a.waits)
		a.waits = usage.Changes{}
		if a.trouble != err.Error() {
			a.trouble = err.Error()
			c.Log.Warn("records of usage are not written, and are tried again", "cause", err)
		}
		return
	}
	a.trouble = ""
	a.waits.Put, a.waits.Gone = a.waits.Put[len(put):], a.waits.Gone[len(gone):]
}

// closeAccounts writes what has changed when the controller ends.
func (c *Controller) closeAccounts() {
	a := &c.accounts
	if a.book == nil {
		return
	}
	ctx, stop := context.WithTimeout(context.Background(), usageLast)
	defer stop()
	a.book.Again(a.waits)
	a.book.FollowCluster(c.snap(), now())
	for a.waits = a.book.TakeChanges(); len(a.waits.Put)+len(a.waits.Gone) > 0 && a.trouble == ""; {
		c.keepUsagePart(ctx)
	}
}

// usageLast is how long the end of a controller may wait for that.
const usageLast = 5 * time.Second

// Usage says what a caller's jobs used since a time, or everybody's for an administrator.
func (c *Controller) Usage(ctx context.Context, by fleet.Caller, since time.Time) (fleet.UsageAnswer, error) {
	if err := c.leads(ctx); err != nil {
		return fleet.UsageAnswer{}, err
	}
	var out fleet.UsageAnswer
	err := c.do(ctx, forUser(by), func(context.Context) {
		b := c.accounts.book
		if b == nil {
			return
		}
		s := c.snap()
		for id, h := range s.Hosts { // up to this moment
			if f := h.Facts; f.Connected && len(f.Guests) > 0 {
				b.Count(s, id, f, f.SeenAt)
			}
		}
		b.FollowCluster(s, now())
		out = fleet.UsageAnswer{At: now(), Cluster: s.Cluster.ID, Records: b.Since(since), Users: map[uint32]fleet.UserID{}, NoPower: map[fleet.HostID]string{}}
		for id, u := range s.Users {
			if is, known := out.Users[u.UID]; !known || id < is {
				out.Users[u.UID] = id
			}
		}
		for id, h := range s.Hosts {
			if p := h.Facts.Power; p != nil && p.Trouble != "" {
				out.NoPower[id] = p.Trouble
			}
		}
	})
	if err != nil {
		return fleet.UsageAnswer{}, unasked(err)
	}
	if c.Authority != nil && c.Authority.Name() != "" {
		out.Cluster = c.Authority.Name()
	}
	return access.VisibleUsage(out, by), nil
}

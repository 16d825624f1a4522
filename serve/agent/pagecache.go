package agent

import (
	"context"
	"time"

	"pagurus/fleet"
)

// How long a guest may take to say what it could do without, and to do without
// it: most take some milliseconds. One that does not answer is copied as it is.
const (
	cacheLimit    = 2 * time.Second
	guestAskLimit = time.Second // the same, of a guest that is only looked at
)

// dropPageCache lets a guest drop its page cache before it is copied, where that
// pays, so that there is less to send, and gives how much that was. A container has
// none, and is not asked: one that has just come may not hear it for a second. Nothing
// that goes wrong here keeps the copy from beginning.
func (a *Agent) dropPageCache(ctx context.Context, w *taskRun) int64 {
	if w.link == nil || a.Drops == nil || w.task.Limits.PageCache == fleet.SendCache || !w.task.Guest.Kind.Traits().OwnPageCache {
		return 0
	}
	ctx, cancel := context.WithTimeout(ctx, cacheLimit)
	defer cancel()
	in, begun := a.guestAgentOf(w.slot, w.link), time.Now()
	before, err := in.Cache(ctx, false)
	if err == nil && !a.Drops(w.task.Limits, before) {
		return 0
	}
	var after fleet.Cache
	if err == nil {
		after, err = in.Cache(ctx, true)
	}
	if err != nil {
		if w.ctx.Err() == nil {
			a.Log.Warn("the guest is copied with its page cache", "guest", w.slot.guest, "cause", err)
		}
		return 0
	}
	dropped := max(0, before.CleanBytes-after.CleanBytes)
	a.Log.Info("the guest dropped its page cache", "guest", w.slot.guest, "bytes", dropped, "took", time.Since(begun).Round(time.Millisecond))
	return dropped
}

// dispensable asks a guest what it could do without; nil: it does not say.
func (a *Agent) dispensable(ctx context.Context, g fleet.GuestID, kind fleet.Kind) *fleet.Cache {
	return said(ctx, a, g, kind, func(ctx context.Context, in GuestAgent) (fleet.Cache, error) { return in.Cache(ctx, false) })
}

// sees asks a guest what it is made of; nil: it does not say.
func (a *Agent) sees(ctx context.Context, g fleet.GuestID, kind fleet.Kind) *fleet.Topology {
	return said(ctx, a, g, kind, func(ctx context.Context, in GuestAgent) (fleet.Topology, error) { return in.Topology(ctx) })
}

// said is what a guest answers; nil: it does not in time, or cannot.
func said[T any](ctx context.Context, a *Agent, g fleet.GuestID, kind fleet.Kind, ask func(context.Context, GuestAgent) (T, error)) *T {
	link, can := a.Drivers[kind].(Linker)
	a.mu.Lock()
	s := a.slots[g]
	a.mu.Unlock()
	if !can || s == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, guestAskLimit)
	defer cancel()
	answer, err := ask(ctx, a.guestAgentOf(s, link))
	if err != nil {
		return nil
	}
	return &answer
}

func (a *Agent) setDropped(s *guestSlot, bytes int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	s.dropped, s.slowed = bytes, 0
}

// slowed gives how much a guest has been slowed at the most in the copy under way.
func (a *Agent) slowed(s *guestSlot, percent int) int {
	a.mu.Lock()
	defer a.mu.Unlock()
	s.slowed = max(s.slowed, percent)
	return s.slowed
}

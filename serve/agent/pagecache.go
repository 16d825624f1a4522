package agent

import (
	"context"
	"time"

	"pagurus/fleet"
)

// Time limits for a guest to report the memory it could do without, and to drop its page
// cache. Most take some milliseconds. A guest that does not answer is copied as it is.
const (
	cacheLimit    = 2 * time.Second
	guestAskLimit = time.Second // the same for a guest that is only sampled
)

// dropPageCache lets a guest drop its page cache before its copy, where that pays, and
// returns the bytes dropped. A container has no page cache of its own and is not asked: a
// guest that has just moved may not answer for a second. A failure here does not prevent the
// copy.
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

// dispensable asks a guest how much memory it could do without; nil if it does not answer.
func (a *Agent) dispensable(ctx context.Context, g fleet.GuestID, kind fleet.Kind) *fleet.Cache {
	return said(ctx, a, g, kind, func(ctx context.Context, in GuestAgent) (fleet.Cache, error) { return in.Cache(ctx, false) })
}

// sees asks a guest for the topology that it sees; nil if it does not answer.
func (a *Agent) sees(ctx context.Context, g fleet.GuestID, kind fleet.Kind) *fleet.Topology {
	return said(ctx, a, g, kind, func(ctx context.Context, in GuestAgent) (fleet.Topology, error) { return in.Topology(ctx) })
}

// said is a guest's answer; nil if it does not answer in time, or cannot.
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

// slowed notes and returns the highest slowdown of a guest in the copy under way, in
// percent.
func (a *Agent) slowed(s *guestSlot, percent int) int {
	a.mu.Lock()
	defer a.mu.Unlock()
	s.slowed = max(s.slowed, percent)
	return s.slowed
}

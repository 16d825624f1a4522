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

// spareCopy prepares a guest of its own kernel for its copy, so that less is sent: it drops its page
// cache where that pays, and empties free memory. It returns the bytes of page cache dropped. A container has no page cache of its own and is not asked: a
// guest that has just moved may not answer for a second. A failure here does not prevent the
// copy.
func (a *Agent) spareCopy(ctx context.Context, w *taskRun) int64 {
	if w.link == nil || a.Drops == nil || w.task.Limits.PageCache == fleet.SendCache || !w.task.Guest.Kind.Traits().OwnPageCache {
		return 0
	}
	dropped, has, err := a.dropPageCache(ctx, w)
	if err != nil {
		if w.ctx.Err() == nil {
			a.Log.Warn("the guest is copied with its page cache", "guest", w.slot.guest, "cause", err)
		}
		return 0
	}
	if bytes := max(dropped, a.emptied(w.slot.guest, has)); bytes >= leastEmptied && has.Empties && a.empties(w.slot, w.task.Guest.Kind) {
		a.empty(ctx, w, bytes)
	}
	return dropped
}

// dropPageCache lets a guest drop its page cache where that pays. It returns how much that was, and what the guest then says of its memory.
func (a *Agent) dropPageCache(ctx context.Context, w *taskRun) (dropped int64, has fleet.Cache, err error) {
	ctx, cancel := context.WithTimeout(ctx, cacheLimit)
	defer cancel()
	in, begun := a.guestAgentOf(w.slot, w.link), time.Now()
	before, err := in.Cache(ctx, fleet.Spare{})
	before.Empties = before.Empties && a.empties(w.slot, w.task.Guest.Kind)
	if err != nil || !a.Drops(w.task.Limits, before) {
		return 0, before, err
	}
	if has, err = in.Cache(ctx, fleet.Spare{Drop: true}); err != nil {
		return 0, has, err
	}
	dropped = max(0, before.CleanBytes-has.CleanBytes)
	a.Log.Info("the guest dropped its page cache", "guest", w.slot.guest, "bytes", dropped, "took", time.Since(begun).Round(time.Millisecond))
	return dropped, has, nil
}

// leastEmptied is the least memory that it pays to empty.
const leastEmptied = 16 << 20

// emptied is how much of a guest's free memory holds what was there before, by its last profile; 0 if it has none.
func (a *Agent) emptied(g fleet.GuestID, has fleet.Cache) int64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	return min(has.FreeBytes, a.profiles.last[g].FilledBytes-has.UsedBytes)
}

// empties reports whether what was in a guest's free memory need not be sent: zeroes are not, and none of it is with the host's owner.
func (a *Agent) empties(s *guestSlot, kind fleet.Kind) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return kind.Traits().SkipsZeroes && s.reclaim.Reclaimed == 0
}

// empty empties bytes of a guest's free memory.
func (a *Agent) empty(ctx context.Context, w *taskRun, bytes int64) {
	ctx, cancel := context.WithTimeout(ctx, cacheLimit)
	defer cancel()
	begun := time.Now()
	if _, err := a.guestAgentOf(w.slot, w.link).Cache(ctx, fleet.Spare{EmptyBytes: bytes}); err != nil {
		if w.ctx.Err() == nil {
			a.Log.Warn("the guest is copied with what its free memory holds", "guest", w.slot.guest, "cause", err)
		}
		return
	}
	a.Log.Info("the guest emptied free memory", "guest", w.slot.guest, "most", bytes, "took", time.Since(begun).Round(time.Millisecond))
}

// dispensable asks a guest how much memory it could do without; nil if it does not answer. Empties then says whether a copy would.
func (a *Agent) dispensable(ctx context.Context, g fleet.GuestID, kind fleet.Kind) *fleet.Cache {
	c := said(ctx, a, g, kind, func(ctx context.Context, in GuestAgent) (fleet.Cache, error) { return in.Cache(ctx, fleet.Spare{}) })
	a.mu.Lock()
	s := a.slots[g]
	a.mu.Unlock()
	if c != nil {
		c.Empties = c.Empties && s != nil && a.empties(s, kind)
	}
	return c
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

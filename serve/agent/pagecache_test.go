package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"pagurus/fleet"
)

// TestPageCacheBeforeCopy: the guest drops its cache where that is wanted, and empties the memory that is
// free then, before the copy begins. In any case the copy begins.
func TestPageCacheBeforeCopy(t *testing.T) {
	for i, c := range []struct {
		policy fleet.CachePolicy
		cache  int64
		kind   fleet.Kind
		fails  error
		hangs  bool
		asked  bool  // to drop
		empty  bool  // free memory is emptied
		want   int64 // dropped
	}{
		{cache: 90, asked: true, want: 90},
		{cache: 10},
		{cache: 10, policy: fleet.DropCache, asked: true, want: 10},
		{cache: 90, policy: fleet.SendCache},
		{cache: 64 << 20, asked: true, want: 64 << 20, empty: true},
		{cache: 64 << 20, kind: fleet.Xen},
		{cache: 64 << 20, kind: fleet.Xen, policy: fleet.DropCache, asked: true, want: 64 << 20},
		{cache: 90, kind: fleet.Container},
		{cache: 90, fails: errors.New("no"), asked: true},
		{cache: 90, hangs: true, asked: true},
	} {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t)
				defer r.stop()
				r.do(task(fleet.Start, 1))
				if c.kind != "" {
					r.a.Drivers[c.kind] = r.d
				}
				r.d.mu.Lock()
				r.d.cache = c.cache
				r.d.hook = func(ctx context.Context, call string) error {
					if call == "drop j1g0" && c.hangs {
						<-ctx.Done()
						return ctx.Err()
					} else if call == "drop j1g0" {
						return c.fails
					}
					return nil
				}
				r.d.mu.Unlock()
				if c.kind != fleet.Container {
					kind := cmp.Or(c.kind, fleet.VM)
					if says := r.a.dispensable(t.Context(), "j1g0", kind); says == nil || says.Empties != kind.Traits().SkipsZeroes {
						t.Errorf("it could do without %+v", says)
					}
				}
				order := task(fleet.Copy, 1)
				order.Limits.PageCache, order.Guest.Kind = c.policy, cmp.Or(c.kind, order.Guest.Kind)
				begun := time.Now()
				copied := r.do(order)
				if took := time.Since(begun); took > cacheLimit+time.Second {
					t.Errorf("it took %s", took)
				}
				if copied.Cost == nil || copied.Cost.DroppedBytes != c.want {
					t.Errorf("the copy cost %+v", copied.Cost)
				}
				if switched := r.do(task(fleet.Switch, 1)); switched.Cost.DroppedBytes != c.want {
					t.Errorf("the switch cost %+v", switched.Cost)
				}
				r.d.mu.Lock()
				defer r.d.mu.Unlock()
				drop, copy := slices.Index(r.d.calls, "drop j1g0"), slices.Index(r.d.calls, "copy j1g0")
				empty := slices.Index(r.d.calls, "empty j1g0")
				if (drop >= 0) != c.asked || drop > copy || (empty >= 0) != c.empty || empty > copy || c.empty && empty < drop {
					t.Errorf("it did %q", r.d.calls)
				}
			})
		})
	}
}

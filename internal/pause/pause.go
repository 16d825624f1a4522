// Package pause waits, but no longer than somebody wants it.
//
// It does not know what for. Its tests run on the clock.
package pause

import (
	"context"
	"time"
)

// For waits for a while, and returns earlier, with the cause, when ctx ends.
func For(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return context.Cause(ctx)
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-t.C:
		return nil
	}
}

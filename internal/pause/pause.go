// Package pause waits until a time is over or a context ends.
//
// It does not know what for. Its tests run on the clock.
package pause

import (
	"context"
	"time"
)

// For waits for d. If ctx ends before, it returns its cause.
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

package pause

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

func TestFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begun := time.Now()
		if err := For(t.Context(), time.Hour); err != nil || time.Since(begun) != time.Hour {
			t.Errorf("after %s: %v", time.Since(begun), err)
		}
		if err := errors.Join(For(t.Context(), 0), For(t.Context(), -1)); err != nil {
			t.Errorf("there was nothing to wait for: %v", err)
		}
		why := errors.New("why")
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(why)
		for _, d := range []time.Duration{time.Hour, 0} {
			if err := For(ctx, d); !errors.Is(err, why) {
				t.Errorf("a wait of %s that was ended: %v", d, err)
			}
		}
	})
}

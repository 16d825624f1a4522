package qemu

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

// TestAlign: for a copy that sends its share at once in each tenth of a second, align
// returns shortly before the next; otherwise in bounded time.
func TestAlign(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for offset := range 20 {
			begun := time.Now().Add(-time.Duration(offset) * 5 * time.Millisecond)
			align(t.Context(), func() (int64, bool) { return int64(time.Since(begun) / window), true })
			if left := window - time.Since(begun)%window; left > ahead || left < ahead-2*glance {
				t.Errorf("%d ms after it began to send it is stopped %s before it does again", offset*5, left)
			}
		}
	})
	for after := range 3 * window / time.Millisecond {
		synctest.Test(t, func(t *testing.T) {
			begun, stops := time.Now(), after*time.Millisecond
			align(t.Context(), func() (int64, bool) { return int64(time.Since(begun) / window), time.Since(begun) < stops })
			if late := time.Since(begun) - stops; late > glance {
				t.Errorf("QEMU has stopped the guest itself after %s, and nobody notices for %s", stops, late)
			}
		})
	}
	for what, sent := range map[string]func() (int64, bool){
		"sends nothing":       func() (int64, bool) { return 7, true },
		"does not send":       func() (int64, bool) { return 0, false },
		"sends all the while": func() (int64, bool) { return time.Now().UnixNano(), true },
	} {
		synctest.Test(t, func(t *testing.T) {
			begun := time.Now()
			align(t.Context(), sent)
			if took := time.Since(begun); took > 3*window {
				t.Errorf("one that %s: it took %s", what, took)
			}
			ctx, stop := context.WithCancel(t.Context())
			stop()
			begun = time.Now()
			if align(ctx, sent); time.Since(begun) > 0 {
				t.Errorf("one that %s: it waits though it is cancelled", what)
			}
		})
	}
}

package qemu

import (
	"context"
	"time"

	"pagurus/internal/pause"
)

// A copy that has sent its share sleeps until QEMU counts anew, every tenth of a
// second (BUFFER_DELAY). A guest that is stopped meanwhile is silent for so long
// more, and nothing wakes that thread.
const (
	window = 100 * time.Millisecond
	ahead  = 20 * time.Millisecond // stopping a guest takes some
	glance = 2 * time.Millisecond
)

// align returns shortly before QEMU begins to send again, as far as that can be told
// from how much it has sent; more is false when it sends no longer, as when it has
// found nothing left and stopped the guest itself. It takes no more than three tenths of a
// second.
func align(ctx context.Context, sent func() (bytes int64, more bool)) {
	before, more := sent()
	end := time.Now().Add(2 * window)
	for seen := false; more && time.Now().Before(end) && pause.For(ctx, glance) == nil; {
		var now int64
		if now, more = sent(); !seen && now != before {
			seen, end = true, time.Now().Add(window-ahead)
		}
	}
}

package qemu

import (
	"context"
	"time"

	"pagurus/internal/pause"
)

// A copy that has sent its share sleeps until QEMU's next interval of a tenth of a second
// (BUFFER_DELAY). A guest that is suspended meanwhile waits that much longer, because
// that thread cannot be woken.
const (
	window = 100 * time.Millisecond
	ahead  = 20 * time.Millisecond // suspending a guest takes some of it
	glance = 2 * time.Millisecond
)

// align returns shortly before QEMU sends again, estimated from the bytes sent so far.
// more is false when QEMU has finished sending, for example because it found nothing left
// and suspended the guest. align takes at most 300 ms.
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

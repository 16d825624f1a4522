package transfer

import (
	"testing"
	"time"

	"pagurus/fleet"
)

// A target gives up a restore and says so before its source stops waiting, and the source knows
// the outcome before its agent gives up the order. Otherwise nobody knows where the guest is,
// though nothing failed but a slow restore.
func TestLimitsOfSourceTargetAndOrder(t *testing.T) {
	const (
		answer = 10 * time.Second // for the target to end what it has made, and to answer
		before = 40 * time.Second // for the source to suspend the guest and to send the rest
	)
	for _, memory := range []int64{0, 32 << 20, 1 << 30, 4 << 30, 64 << 30, 1 << 40} {
		target, source := fleet.RestoreLimit(memory), RestoredLimit(memory)
		if source < target+answer {
			t.Errorf("%d MiB: the target restores for up to %s, and the source waits only %s", memory>>20, target, source)
		}
		for _, mode := range []fleet.Mode{"", fleet.PreCopy, fleet.StopAndCopy, fleet.PostCopy} {
			if order := fleet.Switch.Limit(mode, memory); order < source+before {
				t.Errorf("%d MiB by %q: the source waits for up to %s, and its agent only %s for all of the switch", memory>>20, mode, source, order)
			}
		}
	}
}

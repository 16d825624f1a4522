// This file makes a guest give memory to its host and take it back, with its kernel's
// balloon.
//
// It must not know what a guest is, nor the reason. TestMemoryIsReclaimed tests it with a
// real guest.

package qemu

import "context"

// balloonAsk sends a command to QEMU's monitor and decodes the answer into out.
type balloonAsk func(ctx context.Context, command string, args, out any) error

// reserve is the share of its memory that a guest keeps free when it gives memory back:
// an eighth, so that its programs can go on. If they need more, the guest takes it back
// itself (deflate-on-oom).
const reserve = 8

// inflate makes a guest with free bytes of free memory give them back, except a reserve.
// It returns the bytes of its memory that the host then has; the guest follows gradually.
// After an error nothing has changed.
func inflate(ctx context.Context, ask balloonAsk, free int64) (int64, error) {
	return set(ctx, ask, func(all, has int64) int64 { return min(all, max(has-free+all/reserve, all/reserve)) })
}

// deflate returns all memory to a guest. After an error call again.
func deflate(ctx context.Context, ask balloonAsk) error {
	_, err := set(ctx, ask, func(all, _ int64) int64 { return all })
	return err
}

// set sets the balloon to what want returns, given the guest's maximum and present
// memory.
func set(ctx context.Context, ask balloonAsk, want func(all, has int64) int64) (int64, error) {
	var size struct {
		Base int64 `json:"base-memory"`
	}
	if err := ask(ctx, "query-memory-size-summary", nil, &size); err != nil {
		return 0, err
	}
	has, err := ballooned(ctx, ask)
	if err != nil {
		return 0, err
	}
	keep := want(size.Base, has)
	if keep == has {
		return size.Base - keep, nil
	}
	return size.Base - keep, ask(ctx, "balloon", map[string]any{"value": keep}, nil)
}

// ballooned is the guest's present memory.
func ballooned(ctx context.Context, ask balloonAsk) (int64, error) {
	var balloon struct {
		Actual int64 `json:"actual"`
	}
	err := ask(ctx, "query-balloon", nil, &balloon)
	return balloon.Actual, err
}

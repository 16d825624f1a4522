// This file has a guest give memory back to its host and take it again,
// by the balloon that its kernel blows up inside of it.
//
// It must not know what a guest is, nor why. Its test is package qemu's TestLent,
// with a real guest.

package qemu

import "context"

// balloonAsk is a command of QEMU's monitor, its arguments and where the answer goes.
type balloonAsk func(ctx context.Context, command string, args, out any) error

// reserve is what a guest keeps of its free memory when it gives memory back:
// an eighth of all it has, so that its programs can go on as they are. What
// they need beyond that the guest takes again by itself (deflate-on-oom).
const reserve = 8

// inflate has a guest in which so many bytes hold nothing give them back, but for a
// reserve, and says how many bytes of its memory the host has then; the guest
// follows as it can. After an error it has what it had.
func inflate(ctx context.Context, ask balloonAsk, free int64) (int64, error) {
	return set(ctx, ask, func(all, has int64) int64 { return min(all, max(has-free+all/reserve, all/reserve)) })
}

// deflate gives a guest all of its memory again. After an error call again.
func deflate(ctx context.Context, ask balloonAsk) error {
	_, err := set(ctx, ask, func(all, _ int64) int64 { return all })
	return err
}

// set does what want says, of all the guest could have and what it has.
func set(ctx context.Context, ask balloonAsk, want func(all, has int64) int64) (int64, error) {
	var size struct {
		Base int64 `json:"base-memory"`
	}
	if err := ask(ctx, "query-memory-size-summary", nil, &size); err != nil {
		return 0, err
	}
	var balloon struct {
		Actual int64 `json:"actual"`
	}
	if err := ask(ctx, "query-balloon", nil, &balloon); err != nil {
		return 0, err
	}
	keep := want(size.Base, balloon.Actual)
	if keep == balloon.Actual {
		return size.Base - keep, nil
	}
	return size.Base - keep, ask(ctx, "balloon", map[string]any{"value": keep}, nil)
}

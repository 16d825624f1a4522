package qemu

import (
	"context"
	"errors"
)

// turn is a lock for which a call waits no longer than it has time: whoever has it may wait for minutes, while the kernel pins
// a guest's memory.
type turn chan struct{}

func newTurn() turn { return make(turn, 1) }

func (t turn) Lock() { t <- struct{}{} }

func (t turn) Unlock() { <-t }

func (t turn) TryLock() bool {
	select {
	case t <- struct{}{}:
		return true
	default:
		return false
	}
}

// Await is Lock until ctx ends, or the guest does. After an error the lock is not held.
func (t turn) Await(ctx context.Context, died <-chan struct{}) error {
	select {
	case t <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-died:
		return errors.New("qemu ended")
	}
}

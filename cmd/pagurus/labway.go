package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"

	"pagurus/act/daemon"
	"pagurus/cmd/roles"
	"pagurus/internal/pause"
	"pagurus/serve/wire"
)

// wayVerb is the hidden command that is the way to the lab's controller.
const wayVerb = "way"

// runWay has this machine's socket of a controller be that of the head, by its shell, until
// it is told to end. Whoever reaches the socket, root here, is root there.
func runWay(ctx context.Context) error {
	l, err := readLab()
	if err != nil {
		return err
	}
	lock, err := daemon.HoldLock(roles.Lock(wire.DefaultSocket), labPurpose)
	if err != nil {
		return err
	}
	defer func() { _ = lock.Release() }()
	args := l.machine(head).Shell([]string{"-N", "-o", "ExitOnForwardFailure=yes", "-o", "StreamLocalBindUnlink=yes",
		"-o", "StreamLocalBindMask=0177", "-L", wire.DefaultSocket + ":" + wire.DefaultSocket})
	for ctx.Err() == nil {
		c := exec.CommandContext(ctx, args[0], args[1:]...)
		c.Stdout, c.Stderr = os.Stdout, os.Stderr
		if err := c.Run(); err != nil && ctx.Err() == nil {
			fmt.Fprintln(os.Stderr, "the head is gone, and is looked for again:", err)
		}
		_ = pause.For(ctx, labPoll) // the loop sees how it ended
	}
	if err := os.Remove(wire.DefaultSocket); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

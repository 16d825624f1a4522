package qemu

import (
	"context"
	"errors"
	"fmt"
	"time"

	"pagurus/act/qemu/qmp"
	"pagurus/fleet"
	"pagurus/internal/fault"
)

const (
	// firstPreempting is the first QEMU that makes the second connection, for requested
	// pages, in a reliable order.
	firstPreempting = 8
	// stateLimit is the time for sending the guest's state without its memory: some
	// hundred KiB.
	stateLimit = 5 * time.Second
	// stateSent is how long QEMU may have been sending memory without counting any: the
	// guest may have had none left.
	stateSent = 300 * time.Millisecond
	// muteLimit is the time for QEMU to report how much memory has arrived. A QEMU that
	// waits for memory may never answer. The caller retries, and knows whether a host can
	// still send it.
	muteLimit = 5 * time.Second
)

// tryPostCopy checks whether guests can move here in post-copy, with QEMU's account, and
// says what to do if not; empty: they can.
func (d *Driver) tryPostCopy(ctx context.Context) string {
	err := tryUserfault(ctx, d.binary, postCopyCapability, d.account.Attributes(), "-sandbox", sandbox)
	if err == nil {
		return ""
	}
	return fmt.Sprintf("user %s may not use userfaultfd (%s); run `pagurus doctor --fix` on it and restart its agent", d.config.User, err)
}

// postCopy adds the post-copy abilities.
func postCopy(can Ability, a fleet.Abilities) fleet.Abilities {
	a.NoPostCopy = can.NoPostCopy
	a.PostCopy = a.NoPostCopy == ""
	a.Preempt = a.PostCopy && majorVersion(can.Version) >= firstPreempting
	return a
}

// parted reports whether the guest runs on another host, or is about to, while this host
// still has some of its memory.
func (m migration) parted() bool {
	switch m.Status {
	case statePostCopy, statePostCopyPaused, statePostCopyRecover, statePostCopyDevice:
		return true
	}
	return false
}

// finish suspends the guest and lets QEMU send the rest, or in post-copy all but the rest
// of its memory. QEMU must not suspend it, because after a later error it would resume
// the guest, which then runs elsewhere.
func (g *guest) finish(ctx context.Context, q *qmp.Client, mode fleet.Mode) error {
	if err := g.suspendForSwitch(ctx, q); err != nil {
		return err
	}
	switch mode {
	case fleet.PostCopy:
		return q.Do(ctx, "migrate-start-postcopy", nil, nil)
	case fleet.StopAndCopy:
		// It finishes by itself, and until then keeps its bandwidth limit, answers, and
		// can be cancelled. With an order to finish it would not.
		return nil
	}
	return q.Do(ctx, "migrate-set-parameters", map[string]any{"downtime-limit": mostDowntime.Milliseconds()}, nil)
}

// errDropped: no host has the guest any more.
var errDropped = errors.New("the target ended as post-copy began: it has not got the guest, and QEMU here cannot let it run again")

// dropped reports whether QEMU has given up a guest at the start of post-copy. If the
// target ends before it has the guest's state, QEMU 10 hangs there for ever, and its
// guest with it.
func (g *guest) dropped(ctx context.Context, q *qmp.Client) bool {
	if c := g.Remembered().Copy; c == nil || c.Limits.Mode != fleet.PostCopy || g.Remembered().Process.HasThread("mig/src", "live_migration") {
		return false
	}
	info, err := queryMigrate(ctx, q) // checked again because it may have just completed
	return err == nil && info.Status == stateDevice
}

// handedOver reports whether all but memory has been sent; since is when QEMU began to
// send it. Data is sent in order, so the first page of post-copy shows that the state was sent.
func (m migration) handedOver(since time.Time) bool {
	return m.RAM.PostCopyBytes > 0 || m.Status == statePostCopyPaused || m.RAM.Remaining == 0 || time.Since(since) > stateSent
}

// stateCame waits until a guest has arrived, in post-copy except for its memory: the source
// may still be sending when the activate order comes.
func (g *guest) stateCame(ctx context.Context, q *qmp.Client, postCopy bool) (status string, info migration, err error) {
	for end := time.Now().Add(stateLimit); ; {
		if status, err = vmStatus(ctx, q); err == nil {
			info, err = queryMigrate(ctx, q)
		}
		// QEMU says that the migration is completed a moment before the guest is more than incoming.
		coming := info.Status == stateCompleted || postCopy && (info.parted() || info.Status == stateActive)
		if err != nil || status != vmIncoming || !coming || time.Now().After(end) {
			return status, info, err
		}
		if err := g.wait(ctx, nil, brief); err != nil {
			return status, info, err
		}
	}
}

// FetchRemaining returns when all memory of a post-copy guest has arrived. All other guests
// have their memory already. After an error that wraps fleet.ErrUnsure call it again. After
// any other error some memory never arrives, and the guest is lost.
func (d *Driver) FetchRemaining(ctx context.Context, id fleet.GuestID) error {
	if err := d.awaitMemory(ctx, id); err != nil {
		return fmt.Errorf("fetch the memory of guest %s: %w", id, err)
	}
	return nil
}

func (d *Driver) awaitMemory(ctx context.Context, id fleet.GuestID) error {
	short, cancel := context.WithTimeout(ctx, muteLimit)
	g, q, err := d.here(short, id)
	cancel()
	if errors.Is(err, fleet.ErrAbsent) {
		return err
	}
	if err == nil {
		err = fault.Point("qemu.fetch.before")
	}
	for err == nil {
		var info migration
		short, cancel = context.WithTimeout(ctx, muteLimit)
		info, err = queryMigrate(short, q)
		cancel()
		if err != nil {
			break
		}
		switch info.Status {
		case statePostCopy, statePostCopyDevice, stateActive:
		case statePostCopyPaused, statePostCopyRecover:
			return errors.New("the line to the source broke before all of its memory had come")
		case stateCompleted, "": // without any migration it was started here
			return nil
		default:
			return fmt.Errorf("its memory did not come whole: %w", info.cause())
		}
		err = g.wait(ctx, nil, copyPollEvery)
	}
	if g != nil && g.Dead() {
		return fleet.ErrAbsent
	}
	return fmt.Errorf("%w: %w", err, fleet.ErrUnsure)
}

// Pushed returns at the source how much was sent in post-copy.
func (d *Driver) Pushed(ctx context.Context, id fleet.GuestID) (fleet.Progress, error) {
	g, q, err := d.here(ctx, id)
	var info migration
	if err == nil {
		info, err = queryMigrate(ctx, q)
	}
	if err != nil {
		return fleet.Progress{}, fmt.Errorf("ask how far guest %s is: %w", id, err)
	}
	p := info.progress()
	if c := g.Remembered().Copy; c != nil {
		p.SuspendedAt, p.Downtime = c.SuspendedAt, c.Downtime
	}
	return p, nil
}

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
	// firstPreempting is the first QEMU whose second line, for what the guest
	// waits for, is made in an order that the other side can rely on.
	firstPreempting = 8
	// stateLimit is how long the guest's state without its memory may take from
	// one host to the other: some hundred KiB.
	stateLimit = 5 * time.Second
	// stateSent is how long QEMU may have been sending memory afterwards without
	// having counted any: a guest may have had none left.
	stateSent = 300 * time.Millisecond
	// muteLimit is how long QEMU may take to say how much of a guest has come. One
	// that waits for memory itself answers nothing, maybe never: whoever asked is
	// to ask again, and knows whether there is still somebody to send it.
	muteLimit = 5 * time.Second
)

// tryPostCopy finds out whether guests can come to this host by post-copy, as
// the account that QEMU runs as, and says what to do if not; empty: they can.
func (d *Driver) tryPostCopy(ctx context.Context) string {
	err := tryUserfault(ctx, d.binary, d.account.Attributes(), "-sandbox", sandbox)
	if err == nil {
		return ""
	}
	return fmt.Sprintf("user %s may not use userfaultfd (%s); run `pagurus doctor --fix` on it and restart its agent", d.config.User, err)
}

// postCopy adds to what the driver can do whether it can do that.
func (d *Driver) postCopy(a fleet.Abilities) fleet.Abilities {
	a.NoPostCopy = d.ability.NoPostCopy
	a.PostCopy = a.NoPostCopy == ""
	a.Preempt = a.PostCopy && majorVersion(d.ability.Version) >= firstPreempting
	return a
}

// parted reports whether the guest runs, or is about to, on another host while
// this one still has some of its memory.
func (m migration) parted() bool {
	switch m.Status {
	case statePostCopy, statePostCopyPaused, statePostCopyRecover, statePostCopyDevice:
		return true
	}
	return false
}

// finish stops the guest and lets QEMU send what is left of it, or by post-copy
// all but what is left of its memory. The guest is stopped here and not by QEMU,
// which would let it run again if it met with an error later on, when the guest
// runs elsewhere.
func (g *guest) finish(ctx context.Context, q *qmp.Client, mode fleet.Mode) error {
	if err := g.halt(ctx, q); err != nil {
		return err
	}
	switch mode {
	case fleet.PostCopy:
		return q.Do(ctx, "migrate-start-postcopy", nil, nil)
	case fleet.StopAndCopy:
		// It comes to the end by itself, and until then keeps to the ceiling, answers,
		// and can be cancelled: told to end, it would do none of that.
		return nil
	}
	return q.Do(ctx, "migrate-set-parameters", map[string]any{"downtime-limit": mostDowntime.Milliseconds()}, nil)
}

// errDropped is of a guest that is nowhere any more.
var errDropped = errors.New("the target ended as post-copy began: it has not got the guest, and QEMU here cannot let it run again")

// dropped reports whether QEMU has given a guest up that was about to go by
// post-copy: the one of version 10 stays in the midst of it for ever when the target
// has gone before it had the guest's state, and its guest with it.
func (g *guest) dropped(ctx context.Context, q *qmp.Client) bool {
	if c := g.remembered().Copy; c == nil || c.Limits.Mode != fleet.PostCopy || g.remembered().Process.HasThread("mig/src", "live_migration") {
		return false
	}
	info, err := queryMigrate(ctx, q) // after that, as it may just have come to its end
	return err == nil && info.Status == stateDevice
}

// handedOver reports whether all but memory has been sent, of which since says
// when it was last to come: what is sent goes in order, so with the first page
// that is sent late the state is on its way.
func (m migration) handedOver(since time.Time) bool {
	return m.RAM.LateBytes > 0 || m.Status == statePostCopyPaused || m.RAM.Remaining == 0 || time.Since(since) > stateSent
}

// stateCame waits until a guest that comes by post-copy is all here but its
// memory: the source may still be sending when the order to let it run comes.
func (g *guest) stateCame(ctx context.Context, q *qmp.Client) (status string, info migration, err error) {
	for end := time.Now().Add(stateLimit); ; {
		if status, err = vmStatus(ctx, q); err == nil {
			info, err = queryMigrate(ctx, q)
		}
		if err != nil || status != vmIncoming || !info.parted() && info.Status != stateActive || time.Now().After(end) {
			return status, info, err
		}
		if err := g.wait(ctx, nil, brief); err != nil {
			return status, info, err
		}
	}
}

// FetchRemaining returns when all memory of a guest that came by post-copy is here. A
// guest that came otherwise has it. After an error that wraps fleet.ErrUnsure it
// is to be called again; after any other some of the memory never comes, and the
// guest is lost.
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
		case stateCompleted, "": // with no word of a migration it was started here
			return nil
		default:
			return fmt.Errorf("its memory did not come whole: %w", info.cause())
		}
		err = g.wait(ctx, nil, copyPollEvery)
	}
	if g != nil && g.dead() {
		return fleet.ErrAbsent
	}
	return fmt.Errorf("%w: %w", err, fleet.ErrUnsure)
}

// Pushed says at the source what has been sent of a guest that went by
// post-copy.
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
	if c := g.remembered().Copy; c != nil {
		p.SuspendedAt, p.Downtime = c.SuspendedAt, c.Downtime
	}
	return p, nil
}

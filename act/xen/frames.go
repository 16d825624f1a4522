// This file has the frames for a guest wait while the guest moves here.

package xen

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/vishvananda/netlink"

	"pagurus/internal/pause"
)

// holds has the frames for the guest wait from now on. They come as soon as its source suspends it.
func (k *warden) holds() error {
	p := k.spec.Port.Place
	if p == nil {
		return nil
	}
	held, err := p.QueueFrames()
	k.held = held
	return err
}

// lets gives the guest, which runs, the frames that wait, and lets later ones through. Before its kernel has met the link's new other end, this
// host's kernel would drop them. A guest whose kernel does not do so in time gets what comes from then on.
func (k *warden) lets() {
	if k.held == nil {
		return
	}
	ctx, cancel := context.WithTimeout(k.life, meetingLimit)
	defer cancel()
	met := awaitLink(ctx, k.spec.Port.Interface)
	err := k.held.Release()
	if n := k.held.Count(); met != nil || err != nil || n.Lost > 0 {
		fmt.Fprintf(os.Stderr, "of the frames that waited for the guest %d were delivered and %d lost: %v, %v\n", n.Delivered, n.Lost, met, err)
	}
	k.drops()
}

// meetingLimit is how long a guest's kernel may take, after a move, until its link works again: under emulation it takes seconds.
const meetingLimit = 2 * time.Minute

const meetingEvery = 10 * time.Millisecond

// awaitLink waits until a link takes frames. Linux says that a link is up, and begins to send what it is given, while it holds the lock with which it
// answers this question (linkwatch_do_dev in net/core/link_watch.c).
func awaitLink(ctx context.Context, name string) error {
	for {
		link, err := netlink.LinkByName(name)
		if err == nil && link.Attrs().OperState == netlink.OperUp {
			return nil
		}
		if waited := pause.For(ctx, meetingEvery); waited != nil {
			return fmt.Errorf("wait for the link %s: %w (%v)", name, waited, err)
		}
	}
}

// drops ends the wait; frames that still do so are lost.
func (k *warden) drops() {
	if k.held == nil {
		return
	}
	if err := k.held.Close(); err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
}

// frees ends what a guest before this one, whose warden was killed as it came, has left at the port.
func (k *warden) frees() error {
	if k.spec.Port.Place == nil {
		return nil
	}
	return k.spec.Port.Place.Free()
}

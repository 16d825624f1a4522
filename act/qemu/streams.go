// This file connects a guest's QEMU with that of another host. QEMU has no network: it is given connections that
// the agents have made. It can be given one (fd:); a move that takes more goes through a relay
// (package passage).

package qemu

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"pagurus/act/host/passage"
	"pagurus/act/qemu/qmp"
	"pagurus/fleet"
)

// Names of what QEMU is given.
const (
	givenIn  = "in" // connections, by name
	givenOut = "out"
	sockIn   = "in.sock" // of relays, in the guest's folder
	sockOut  = "out.sock"
)

// connectPatience is how long the target may take to greet the source.
const connectPatience = 30 * time.Second

// Streams is how many connections a move takes.
func (w way) Streams() int {
	switch {
	case w.Packed:
		return 1 + channels
	case w.Preempt:
		return 2
	}
	return 1
}

// listen prepares QEMU to receive state and waits for the source, and returns where.
func (d *Driver) listen(ctx context.Context, g *guest, t fleet.Task) (string, error) {
	q, err := g.monitor(ctx)
	if err != nil {
		return "", err
	}
	w := wayOf(t.Limits)
	if err := prepareStream(ctx, q.Do, w); err != nil {
		return "", err
	}
	a := awaiting{Gen: t.Order.Gen, From: t.Order.Peer, Streams: w.Streams()}
	place, err := d.awaitSource(ctx, g, a, "")
	if err == nil {
		err = g.Remember(func(r *record) { r.Awaits = &a })
	}
	return place, err
}

// listenOn goes on waiting for a source for which an earlier agent waited.
func (d *Driver) listenOn(ctx context.Context, g *guest) {
	r := g.Remembered()
	if r.Awaits == nil || !r.Target {
		return
	}
	if _, err := d.awaitSource(ctx, g, *r.Awaits, r.Listen); err != nil {
		d.config.Log.Warn("the move of a guest to this host will fail", "guest", g.ID, "cause", err)
	}
}

// awaitSource waits for the source, at an earlier place if there is one, and returns where.
func (d *Driver) awaitSource(ctx context.Context, g *guest, a awaiting, earlier string) (string, error) {
	move := passage.Move{Guest: g.ID, Gen: a.Gen, Migration: g.Remembered().Incoming, From: a.From}
	target := passage.Target{Address: d.Here(), Earlier: earlier, Move: move, Streams: a.Streams, Log: d.config.Log}
	l, err := target.Listen(ctx)
	if err != nil {
		return "", err
	}
	err = d.guests.Go(func() {
		g.Mu.Lock()
		defer g.Mu.Unlock()
		g.waiting = l
		if g.Released {
			l.Close()
		}
	}, func() {
		streams, err := l.Await()
		if err != nil {
			return // the guest has ended, or this driver
		}
		defer passage.CloseAll(streams)
		if err := d.takeIn(g, streams); err != nil {
			d.config.Log.Warn("a guest cannot be received", "guest", g.ID, "cause", err)
		}
	})
	if err != nil {
		l.Close()
		return "", err
	}
	return l.Place.String(), nil
}

// takeIn gives QEMU the connections of the source. After an error they are of no use, and the source's copy fails.
func (d *Driver) takeIn(g *guest, streams []*net.TCPConn) error {
	ctx, cancel := context.WithTimeout(d.life, connectPatience)
	defer cancel()
	// The secret is good for one stream: also the next agent takes no other.
	if err := g.Remember(func(r *record) { r.Awaits = nil }); err != nil {
		return err
	}
	q, err := g.monitor(ctx)
	if err != nil {
		return err
	}
	if len(streams) == 1 {
		if err := give(ctx, q, givenIn, streams[0]); err != nil {
			return err
		}
		return q.Do(ctx, "migrate-incoming", map[string]any{"uri": "fd:" + givenIn}, nil)
	}
	if err := q.Do(ctx, "migrate-incoming", map[string]any{"uri": "unix:" + sockIn}, nil); err != nil {
		return err
	}
	folder, err := os.OpenFile(g.Dir, unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return err
	}
	defer folder.Close()
	return d.relay(g, streams, func(r passage.Relay) error { return r.ToQEMU(folder, sockIn, g.Remembered().Process.PID) })
}

// connect connects QEMU with a move's target, and returns the address that QEMU then sends to.
func (d *Driver) connect(ctx context.Context, g *guest, q *qmp.Client, place passage.Place, t fleet.Task) (uri string, err error) {
	ctx, cancel := context.WithTimeout(ctx, connectPatience)
	defer cancel()
	move := passage.Move{Guest: g.ID, Gen: t.Order.Gen, Migration: t.Order.Migration, From: t.Order.Host}
	streams, err := place.Dial(ctx, move, wayOf(t.Limits).Streams())
	if err != nil {
		return "", err
	}
	defer passage.CloseAll(streams)
	if len(streams) == 1 {
		return "fd:" + givenOut, give(ctx, q, givenOut, streams[0])
	}
	if err := ignoreAbsent(os.Remove(filepath.Join(g.Dir, sockOut))); err != nil { // an earlier move's
		return "", err
	}
	listener, err := listenIn(g.Dir, sockOut, g.uid())
	if err != nil {
		return "", err
	}
	defer listener.Close()
	return "unix:" + sockOut, d.relay(g, streams, func(r passage.Relay) error { return r.FromQEMU(listener) })
}

// give gives QEMU a connection by a name.
func give(ctx context.Context, q *qmp.Client, name string, c *net.TCPConn) error {
	f, err := c.File()
	if err != nil {
		return err
	}
	defer f.Close()
	return q.Give(ctx, name, f)
}

// relay calls start with a relay of a guest's connections, which says what goes wrong in the log of the guest's QEMU.
func (d *Driver) relay(g *guest, streams []*net.TCPConn, start func(passage.Relay) error) error {
	log, err := os.OpenFile(filepath.Join(g.Dir, ownLog), os.O_WRONLY|os.O_APPEND|unix.O_NOFOLLOW, 0)
	if err != nil {
		return err
	}
	defer log.Close()
	return start(passage.Relay{Shim: d.config.Shim, UID: uint32(g.uid()), Folder: g.Dir, Streams: streams, Log: log})
}

package wireguard

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Two hosts agree on session keys before the first packet passes. One begins; if the other does not
// know it yet, what it sends is dropped, and WireGuard tries again after five seconds. If both begin at the same
// time neither takes the other's answer, and both try again after five seconds. Hosts learn of each other at about
// the same time, and guests cannot wait so long. So of two hosts the one with the lesser key begins, at
// once, by an empty packet. Until the other has answered it makes the peer again, which
// lets it begin again, and takes no answer to what it began before: so each pause is longer, for what takes
// its time, as on far or busy hosts. The other one begins a little later, in case the first believes that they have agreed
// already. A host with a new device or key begins with all: others do not know that what they agreed on is gone.

// greetings are the peers with which this host begins.
type greetings struct {
	socket  int // in the device's network
	over    chan struct{}
	running sync.WaitGroup

	// Guarded by the device's mutex.
	due   map[string]greeting // by public key
	begun bool                // something works on due
}

type greeting struct {
	peer  Peer
	since time.Time
	next  time.Time // it begins, again
	pause time.Duration
}

// again is the greeting after one that was sent. The pause varies, or two hosts that begin with each other
// might do so for ever.
func (g greeting) again(now time.Time) greeting {
	g.next = now.Add(g.pause + rand.N(g.pause))
	g.pause = g.pause * 3 / 2
	return g
}

// How long a peer is greeted, and how soon again.
const (
	greetFor   = 15 * time.Second
	greetLater = 500 * time.Millisecond
	greetPause = 150 * time.Millisecond  // the first, and how often answers are looked for
	greetFar   = 1500 * time.Millisecond // the first to a peer that is far away: an answer takes a round trip
	greetPort  = 9                       // discard (RFC 863)
)

func (g *greetings) open() (err error) {
	g.over, g.due = make(chan struct{}), map[string]greeting{}
	if g.socket, err = unix.Socket(unix.AF_INET6, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0); err != nil {
		return fmt.Errorf("opening a socket to greet peers: %w", err)
	}
	return nil
}

func (g *greetings) close() {
	close(g.over)
	g.running.Wait()
	unix.Close(g.socket)
}

// greetPeers begins with the peers that changes have made.
func (d *Device) greetPeers(changes []Change, want State) {
	since := time.Now()
	for _, c := range changes {
		switch c.Verb {
		case removePeer:
			delete(d.greets.due, c.Key)
		case setPeer:
			if c.Peer.Endpoint == "" { // it cannot be called yet
				continue
			}
			next := since
			if want.Key > c.Key {
				next = since.Add(greetLater)
			}
			d.greets.due[c.Key] = greeting{c.Peer, since, next, greetPause}
		case setKey:
			for key, p := range want.Peers {
				if p.Endpoint != "" {
					d.greets.due[key] = greeting{p, since, since, greetPause}
				}
			}
		}
	}
	for key, due := range d.greets.due {
		if due.next.Equal(since) {
			d.greet(due.peer)
			d.greets.due[key] = due.again(since)
		}
	}
	d.greetMeanwhile()
}

// greetMeanwhile has what is due done in the background.
func (d *Device) greetMeanwhile() {
	if len(d.greets.due) > 0 && !d.greets.begun {
		d.greets.begun = true
		d.greets.running.Go(d.greetOn)
	}
}

// greet sends an empty packet. If it cannot be sent, the peer's first packet has the same effect.
func (d *Device) greet(p Peer) {
	if link, err := d.links.LinkByName(d.name); err == nil {
		_ = unix.Sendto(d.greets.socket, nil, unix.MSG_DONTWAIT, &unix.SockaddrInet6{Port: greetPort, ZoneId: uint32(link.Attrs().Index), Addr: p.Address.As16()})
	}
}

// greetOn greets until all have answered, or have had their time.
func (d *Device) greetOn() {
	for {
		select {
		case <-d.greets.over:
			return
		case <-time.After(greetPause):
		}
		if !d.greetAgain() {
			return
		}
	}
}

// greetAgain reports whether some peers have not answered yet.
func (d *Device) greetAgain() (more bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	agreed := map[string]time.Time{}
	has, err := d.tool.Device(d.name)
	if err != nil { // it is gone: the next one begins with all again
		clear(d.greets.due)
	} else {
		for _, p := range has.Peers {
			agreed[p.PublicKey.String()] = p.LastHandshakeTime
		}
	}
	for key, due := range d.greets.due {
		if agreed[key].After(due.since) || time.Since(due.since) > greetFor {
			delete(d.greets.due, key)
		} else if now := time.Now(); now.After(due.next) {
			d.remake(key, due.peer)
			d.greets.due[key] = due.again(now)
		}
	}
	d.greets.begun = len(d.greets.due) > 0
	return d.greets.begun
}

// remake makes a peer again, with which nothing was agreed on yet, and greets it.
func (d *Device) remake(key string, p Peer) {
	for _, remove := range []bool{true, false} {
		if err := d.configurePeer(Change{Key: key, Peer: p}, remove); err != nil {
			return // Apply finds what is missing
		}
	}
	d.greet(p)
}

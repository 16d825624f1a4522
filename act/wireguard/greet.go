package wireguard

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"
)

// Two hosts agree on session keys before the first packet passes. One begins; if the other does not
// know it yet, what it sends is dropped, and WireGuard tries again after five seconds. If both begin at the same
// time neither takes the other's answer, and both try again after five seconds. Hosts learn of each other at about
// the same time, and guests cannot wait so long. So of two hosts the one with the lesser key begins, at
// once, by an empty packet. Until the other has answered it makes the peer again, which
// lets it begin again, and takes no answer to what it began before: so each pause is longer, for what takes
// its time, as on far or busy hosts. The other one begins a little later, in case the first believes that they have agreed
// already. A host with a new device or key begins with all: others do not know that what they agreed on is gone.
//
// Two handshakes at the same time can leave wireguard-go with a session in which it can send and hears nothing, for 15 s: it
// looks at the state of a handshake, works out the keys, and then takes the answer without looking again (ConsumeMessageResponse).
// If it has taken the other's beginning meanwhile, the keys get the wrong number. The kernel's device looks again. So hosts that have
// agreed go on greeting until something has come from the other, and begin again if nothing does.

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
	peer   Peer
	since  time.Time
	next   time.Time // it begins, again
	pause  time.Duration
	waited bool // once more, as something had come from the peer

	agreed time.Time // when that was seen; zero: not yet
	came   int64     // bytes by then
	deaf   int       // how often nothing came after that
}

// again is the greeting after one that was sent. The pause varies, or two hosts that begin with each other
// might do so for ever.
func (g greeting) again(now time.Time) greeting {
	g.next = now.Add(g.pause + rand.N(g.pause))
	g.pause, g.waited = g.pause*3/2, false
	return g
}

// How long a peer is greeted, and how soon again.
const (
	greetFor   = 15 * time.Second
	greetLater = 500 * time.Millisecond
	greetPause = 150 * time.Millisecond  // the first, and how often answers are looked for
	greetFar   = 1500 * time.Millisecond // the first to a peer that is far away: an answer takes a round trip
	greetProof = 3 * greetPause          // at least, until something must have come from a peer with which this host has agreed
	mostDeaf   = 3                       // then the peer is one that never greets
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
			next, pause := since, greetPause
			if want.Key > c.Key {
				next, pause = since.Add(greetLater), greetLater
			}
			d.greets.due[c.Key] = greeting{peer: c.Peer, since: since, next: next, pause: pause}
		case setKey:
			for key, p := range want.Peers {
				if p.Endpoint != "" {
					d.greets.due[key] = greeting{peer: p, since: since, next: since, pause: greetPause}
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
		slept := time.Now()
		select {
		case <-d.greets.over:
			return
		case <-time.After(greetPause):
		}
		if !d.greetAgain(time.Since(slept) - greetPause) {
			return
		}
	}
}

// greetAgain reports whether some peers have not answered yet. It begins late, by so much: on a busy machine what answers is
// late as well, so that time does not count.
func (d *Device) greetAgain(late time.Duration) (more bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	seen := map[string]wgtypes.Peer{}
	has, err := d.tool.Device(d.name)
	if err != nil { // it is gone: the next one begins with all again
		clear(d.greets.due)
	} else {
		for _, p := range has.Peers {
			seen[p.PublicKey.String()] = p
		}
	}
	for key, due := range d.greets.due {
		if due, more = d.greetOne(key, due, seen[key], late); more {
			d.greets.due[key] = due
		} else {
			delete(d.greets.due, key)
		}
	}
	d.greets.begun = len(d.greets.due) > 0
	return d.greets.begun
}

// greetOne does what is due with a peer, as it is now. false: no more is.
func (d *Device) greetOne(key string, due greeting, p wgtypes.Peer, late time.Duration) (_ greeting, more bool) {
	now := time.Now()
	due.next = due.next.Add(late)
	switch agreed := p.LastHandshakeTime.After(due.since); {
	case now.Sub(due.since) > greetFor:
		return due, false
	case !agreed && now.Before(due.next):
	case !agreed && p.ReceiveBytes > 0 && !due.waited: // the two are about to agree
		due.waited, due.next = true, now.Add(due.pause)
	case !agreed:
		d.remake(key, due.peer)
		due = due.again(now)
	case due.agreed.IsZero():
		due.agreed, due.came, due.next = now, p.ReceiveBytes, now.Add(max(greetProof, due.pause))
		d.greet(due.peer)
	case p.ReceiveBytes > due.came || due.deaf >= mostDeaf:
		d.greet(due.peer) // the peer may not have heard anything since
		return due, false
	case now.Before(due.next):
		d.greet(due.peer)
	default:
		d.remake(key, due.peer)
		due = due.again(now)
		due.agreed, due.deaf = time.Time{}, due.deaf+1
	}
	return due, true
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

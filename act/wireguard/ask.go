package wireguard

import (
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"time"

	"github.com/pion/stun/v3"
)

// asks makes a question no shorter than its answer: the controller says nothing to others.
var asks = stun.NewSoftware("Pagurus asks how it is seen here")

// AskServer asks a STUN server how it sees the device's port. Mapped has the answer when it has come.
func (c *Checks) AskServer(at netip.AddrPort) error {
	m, err := stun.Build(stun.TransactionID, stun.BindingRequest, asks, stun.Fingerprint)
	if err != nil {
		return err
	}
	c.mu.Lock()
	c.asked[m.TransactionID] = question{to: at, at: time.Now()}
	c.mu.Unlock()
	return c.send(m, at)
}

// askOn asks peers until the end.
func (c *Checks) askOn() {
	tick := time.NewTicker(checkTick)
	defer tick.Stop()
	for {
		select {
		case <-c.over:
			return
		case now := <-tick.C:
			c.askDue(now)
		}
	}
}

// askDue makes the checks that are due. One that cannot be sent now is tried again.
func (c *Checks) askDue(now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for id, q := range c.asked {
		if now.Sub(q.at) > answerLimit {
			delete(c.asked, id)
		}
	}
	for _, all := range []map[string]*checked{c.peers, c.relays} {
		for _, p := range all {
			c.askPeer(p, now)
		}
	}
}

// askPeer makes the checks of a peer or relay that are due.
func (c *Checks) askPeer(p *checked, now time.Time) {
	pace := p.pace(now)
	for _, w := range p.ways {
		if now.Before(w.next) || len(c.asked) >= mostAsked {
			continue
		}
		w.next = now.Add(pace)
		if w.works(now) {
			w.next = now.Add(checkAgain)
		}
		m, err := stun.Build(stun.TransactionID, stun.BindingRequest, p.out, stun.Fingerprint)
		if err != nil {
			continue
		}
		c.asked[m.TransactionID] = question{p, w.At, now}
		_ = c.send(m, w.At)
	}
}

// pace is how long after a check a way of the peer that does not work is checked again.
func (p *checked) pace(now time.Time) time.Duration {
	for _, w := range p.ways {
		if w.works(now) {
			return checkOther
		}
	}
	if now.Sub(p.since) < checkFirst {
		return checkSoon
	}
	return checkAgain
}

// listen handles what comes to a socket until it is closed.
func (c *Checks) listen(socket *net.IPConn) {
	b := make([]byte, 2048)
	for {
		n, from, err := socket.ReadFromIP(b)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil || n < udpBytes {
			continue
		}
		addr, ok := netip.AddrFromSlice(from.IP)
		if !ok {
			continue
		}
		at := netip.AddrPortFrom(addr.Unmap().WithZone(from.Zone), binary.BigEndian.Uint16(b))
		if !c.worthwhile(b[udpBytes:n], at) {
			continue
		}
		m := &stun.Message{Raw: append([]byte(nil), b[udpBytes:n]...)}
		if m.Decode() == nil {
			c.hear(m, at, time.Now())
		}
	}
}

// worthwhile reports whether a message is read at all: it answers a question, comes from where a peer may be, or is one of
// a few. To read it costs a comparison with every peer's secret.
func (c *Checks) worthwhile(b []byte, from netip.AddrPort) bool {
	const idPlace = 8
	if len(b) < idPlace+stun.TransactionIDSize {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, answers := c.asked[[stun.TransactionIDSize]byte(b[idPlace:])]; answers {
		return true
	}
	for _, all := range []map[string]*checked{c.peers, c.relays} {
		for _, p := range all {
			if p.find(from) != nil {
				return true
			}
		}
	}
	return c.limit.Allow()
}

// hear handles a message. Whoever sent it has proved nothing yet.
func (c *Checks) hear(m *stun.Message, from netip.AddrPort, now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch m.Type {
	case stun.BindingRequest:
		for _, p := range c.peers {
			if p.in.Check(m) == nil {
				p.learn(from)
				c.answer(p, m, from)
				return
			}
		}
		for _, p := range c.relays { // nobody else asks in a relay's name
			if p.find(from) != nil && p.in.Check(m) == nil {
				c.answer(p, m, from)
				return
			}
		}
	case stun.BindingSuccess:
		q, known := c.asked[m.TransactionID]
		if !known || q.to != from {
			return
		}
		if q.peer == nil {
			c.noteMapped(m, from, now)
			return
		}
		p := q.peer
		if p.out.Check(m) != nil {
			return
		}
		delete(c.asked, m.TransactionID)
		if w := p.find(from); w != nil {
			w.Answered, w.Took = now, now.Sub(q.at)
		}
	}
}

// answer answers a peer's check.
func (c *Checks) answer(p *checked, m *stun.Message, from netip.AddrPort) {
	seen := &stun.XORMappedAddress{IP: from.Addr().AsSlice(), Port: int(from.Port())}
	r, err := stun.Build(stun.NewTransactionIDSetter(m.TransactionID), stun.BindingSuccess, seen, p.in, stun.Fingerprint)
	if err == nil {
		_ = c.send(r, from)
	}
}

// noteMapped takes a server's answer.
func (c *Checks) noteMapped(m *stun.Message, from netip.AddrPort, now time.Time) {
	var seen stun.XORMappedAddress
	if seen.GetFrom(m) != nil {
		return
	}
	delete(c.asked, m.TransactionID)
	if addr, ok := netip.AddrFromSlice(seen.IP); ok {
		c.mapped[from.Addr().Is4()] = mapping{netip.AddrPortFrom(addr.Unmap(), uint16(seen.Port)), now}
	}
}

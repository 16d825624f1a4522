package siterelay

import (
	"crypto/subtle"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"golang.org/x/crypto/blake2s"
	"golang.org/x/time/rate"
)

// A relay passes WireGuard's messages between two hosts that call the same port of it, and cannot read them. It learns where
// the two are from their handshakes. Each handshake message has a code (mac1, section 5.4.4 of WireGuard's paper) that
// only who knows the other's public key can make: so it says who is meant, and thereby who sends. That does not prove it: the
// message may be old, or of a third host that knows the key. So where a side is counts once the other side has answered from where
// it was asked, which it does only if the sender has the private key and the message is new. Until then the messages
// that ask are passed, and nothing else.

// The messages of WireGuard that matter here, with their sizes and the places in them.
const (
	initiation, response, cookie, transport = 1, 2, 3, 4

	initiationBytes, responseBytes, cookieBytes, transportBytes = 148, 92, 64, 32

	senderPlace, receiverPlace, cookieReceiver = 4, 8, 4
	macBytes                                   = 16
)

const (
	mostPending = 4
	pendingFor  = 30 * time.Second
)

// side is one of the two hosts.
type side struct {
	mac     []byte         // what makes the codes of messages to it
	at      netip.AddrPort // proved; not valid: not yet
	pending []asking       // what it may have asked, newest last
}

// asking is a handshake that was not answered yet.
type asking struct {
	index uint32 // by which the answer names it
	from  netip.AddrPort
	to    []netip.AddrPort // where it was passed
	at    time.Time
}

// pair is two hosts with a port.
type pair struct {
	conn  *net.UDPConn
	limit *rate.Limiter // of all pairs

	mu    sync.Mutex
	sides [2]side
}

// newPair is a pair of hosts with public keys, as WireGuard's tools print them.
func newPair(keys [2]string) (*pair, error) {
	p := &pair{}
	for i, text := range keys {
		key, err := base64.StdEncoding.Strict().DecodeString(text)
		if err != nil || len(key) != 32 {
			return nil, errors.New("a public key is none")
		}
		sum := blake2s.Sum256(slices.Concat([]byte("mac1----"), key))
		p.sides[i].mac = sum[:]
	}
	return p, nil
}

// serve passes messages until the port is closed.
func (p *pair) serve() {
	b := make([]byte, 64<<10)
	for {
		n, from, err := p.conn.ReadFromUDPAddrPort(b)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil || !p.limit.AllowN(time.Now(), n) {
			continue
		}
		from = netip.AddrPortFrom(from.Addr().Unmap(), from.Port())
		for _, to := range p.pass(b[:n], from, time.Now()) {
			_, _ = p.conn.WriteToUDPAddrPort(b[:n], to) // lost, as on any way
		}
	}
}

// pass says where a message goes; nowhere: it is dropped.
func (p *pair) pass(b []byte, from netip.AddrPort, now time.Time) []netip.AddrPort {
	if len(b) < transportBytes {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	switch kind := binary.LittleEndian.Uint32(b); {
	case kind == transport:
		for i := range p.sides {
			if to := p.sides[1-i].at; p.sides[i].at == from && to.IsValid() {
				return []netip.AddrPort{to}
			}
		}
	case kind == initiation && len(b) == initiationBytes:
		for i := range p.sides {
			if p.sides[1-i].meant(b) {
				return p.ask(i, binary.LittleEndian.Uint32(b[senderPlace:]), from, now)
			}
		}
	case kind == response && len(b) == responseBytes:
		for i := range p.sides {
			if p.sides[i].meant(b) {
				return p.answer(i, binary.LittleEndian.Uint32(b[receiverPlace:]), from, now)
			}
		}
	case kind == cookie && len(b) == cookieBytes: // the other side is busy, and asks for another try
		for i := range p.sides {
			if a := p.sides[i].asked(binary.LittleEndian.Uint32(b[cookieReceiver:]), from, now); a != nil {
				return []netip.AddrPort{a.from}
			}
		}
	}
	return nil
}

// meant reports whether a handshake message is for this side.
func (s *side) meant(b []byte) bool {
	h, err := blake2s.New128(s.mac)
	if err != nil {
		return false
	}
	end := len(b) - 2*macBytes
	_, _ = h.Write(b[:end]) // never fails
	return subtle.ConstantTimeCompare(h.Sum(nil), b[end:end+macBytes]) == 1
}

// ask passes a handshake of a side to where the other one is, or may be.
func (p *pair) ask(i int, index uint32, from netip.AddrPort, now time.Time) []netip.AddrPort {
	own, other := &p.sides[i], &p.sides[1-i]
	own.forget(now)
	other.forget(now)
	var to []netip.AddrPort
	if other.at.IsValid() {
		to = append(to, other.at)
	}
	for _, a := range other.pending { // both may be elsewhere now
		if !slices.Contains(to, a.from) && a.from != from {
			to = append(to, a.from)
		}
	}
	// From one place the newest counts, so that nobody drives out what comes from others by asking more often.
	own.pending = slices.DeleteFunc(own.pending, func(a asking) bool { return a.from == from })
	if len(own.pending) >= mostPending {
		own.pending = own.pending[1:]
	}
	own.pending = append(own.pending, asking{index, from, to, now})
	return to
}

// answer passes the answer to what side i has asked, and then knows where both are.
func (p *pair) answer(i int, index uint32, from netip.AddrPort, now time.Time) []netip.AddrPort {
	own, other := &p.sides[i], &p.sides[1-i]
	a := own.asked(index, from, now)
	if a == nil || a.from == from {
		return nil
	}
	own.at, other.at = a.from, from
	return []netip.AddrPort{a.from}
}

// asked is what this side has asked whoever answers from an address; nil: nothing.
func (s *side) asked(index uint32, from netip.AddrPort, now time.Time) *asking {
	s.forget(now)
	for i, a := range s.pending {
		if a.index == index && slices.Contains(a.to, from) {
			return &s.pending[i]
		}
	}
	return nil
}

func (s *side) forget(now time.Time) {
	s.pending = slices.DeleteFunc(s.pending, func(a asking) bool { return now.Sub(a.at) > pendingFor })
}

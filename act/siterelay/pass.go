package siterelay

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/pion/stun/v3"
	"golang.org/x/time/rate"
)

// A relay passes WireGuard's messages between two hosts that call the same port of it, and cannot read them. Nothing in these
// messages proves to a relay who sends them: it has neither host's private key. So each of the two says where it is by a check, as hosts
// do among each other: a request of STUN, authenticated by what its WireGuard key and the relay's have in common. A request may be old, and
// sent by another. So the relay asks back, and where a side is counts only when it has answered that from there.

// sizes are those of WireGuard's messages; of the last kind, the least.
var sizes = map[uint32]int{1: 148, 2: 92, 3: 64, transport: 32}

const transport = 4

// freshFor is how long a question of the relay may be answered, at least.
const freshFor = 10 * time.Second

// side is one of the two hosts.
type side struct {
	in, out stun.MessageIntegrity // of what it asks, and of what it is asked
	at      netip.AddrPort        // proved; not valid: not yet
}

// pair is two hosts with a port.
type pair struct {
	conn   *net.UDPConn
	secret []byte // makes questions: nothing has to be remembered of who asks
	limits

	mu    sync.Mutex
	sides [2]side
}

// newPair is a pair of hosts that have these secrets.
func newPair(secrets [2]Secrets) (*pair, error) {
	p := &pair{secret: make([]byte, sha256.Size)}
	if _, err := rand.Read(p.secret); err != nil {
		return nil, err
	}
	for i, s := range secrets {
		in, err := hex.DecodeString(s.In)
		out, err2 := hex.DecodeString(s.Out)
		if err := errors.Join(err, err2); err != nil || len(in) == 0 || len(out) == 0 || s.In == s.Out {
			return nil, errors.Join(errors.New("a host has no secret"), err)
		}
		p.sides[i].in, p.sides[i].out = in, out
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
		if err != nil {
			continue
		}
		from = netip.AddrPortFrom(from.Addr().Unmap(), from.Port())
		now := time.Now()
		if say := p.check(b[:n], from, now); say != nil {
			_, _ = p.conn.WriteToUDPAddrPort(say, from) // it is asked again
			continue
		}
		if to := p.pass(b[:n], from); to.IsValid() && p.allow(b[:n], now) {
			_, _ = p.conn.WriteToUDPAddrPort(b[:n], to) // lost, as on any way
		}
	}
}

// pass says where a message goes. Not valid: it is dropped.
func (p *pair) pass(b []byte, from netip.AddrPort) (to netip.AddrPort) {
	if len(b) < sizes[transport] {
		return to
	}
	kind := binary.LittleEndian.Uint32(b)
	if size, known := sizes[kind]; !known || kind != transport && len(b) != size {
		return to
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := range p.sides {
		if p.sides[i].at == from {
			return p.sides[1-i].at
		}
	}
	return to
}

// check hears a check, and returns what to say to its sender; nil: nothing.
func (p *pair) check(b []byte, from netip.AddrPort, now time.Time) []byte {
	if !stun.IsMessage(b) {
		return nil
	}
	m := &stun.Message{Raw: append([]byte(nil), b...)}
	if m.Decode() != nil {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := range p.sides {
		s := &p.sides[i]
		switch {
		case m.Type == stun.BindingRequest && s.in.Check(m) == nil:
			if s.at != from {
				return build(p.question(i, from, now), stun.BindingRequest, s.out)
			}
			seen := &stun.XORMappedAddress{IP: from.Addr().AsSlice(), Port: int(from.Port())}
			return build(m.TransactionID, stun.BindingSuccess, seen, s.in)
		case m.Type == stun.BindingSuccess && p.asked(i, m.TransactionID, from, now) && s.out.Check(m) == nil:
			if other := &p.sides[1-i]; other.at == from { // NAT gave its port to this one
				other.at = netip.AddrPort{}
			}
			s.at = from
			return nil
		}
	}
	return nil
}

type questionID = [stun.TransactionIDSize]byte

// question names what side i is asked at an address now. Nobody else can name it.
func (p *pair) question(i int, at netip.AddrPort, now time.Time) (id questionID) {
	h := hmac.New(sha256.New, p.secret)
	fmt.Fprint(h, i, at, now.UnixNano()/int64(freshFor)) // never fails
	copy(id[:], h.Sum(nil))
	return id
}

// asked reports whether side i was asked this at an address lately.
func (p *pair) asked(i int, id questionID, at netip.AddrPort, now time.Time) bool {
	return id == p.question(i, at, now) || id == p.question(i, at, now.Add(-freshFor))
}

// build makes a message; nil: it cannot be made.
func build(id questionID, what ...stun.Setter) []byte {
	m, err := stun.Build(append(append([]stun.Setter{stun.NewTransactionIDSetter(id)}, what...), stun.Fingerprint)...)
	if err != nil {
		return nil
	}
	return m.Raw
}

// limits are what may pass. A pair has a share that no other can use up, and what it has over that is from what is for all. Only
// what is passed counts.
type limits struct {
	own, handshakes, all *rate.Limiter
}

// What may pass at once, in bytes: more than the largest packet; and what of handshakes passes in any case, in bytes a second.
const (
	longestBurst   = 256 << 10
	ownBurst       = 64 << 10
	handshakeShare = 2 << 10
)

func newLimits(all *rate.Limiter) limits {
	return limits{rate.NewLimiter(0, ownBurst), rate.NewLimiter(handshakeShare, handshakeShare), all}
}

// allow reports whether a message may pass now.
func (l limits) allow(b []byte, now time.Time) bool {
	if binary.LittleEndian.Uint32(b) != transport && l.handshakes.AllowN(now, len(b)) {
		return true
	}
	return l.own.AllowN(now, len(b)) || l.all.AllowN(now, len(b))
}

// divide gives one half to all in common, and of the other each its part.
func divide(bytesPerSecond int64, pairs int) (own, all rate.Limit) {
	half := rate.Limit(bytesPerSecond) / 2
	return half / rate.Limit(max(pairs, 1)), half
}

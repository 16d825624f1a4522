package wireguard

import (
	"crypto/ecdh"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/pion/stun/v3"
	"golang.org/x/sys/unix"
	"golang.org/x/time/rate"
	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"
)

// A peer in another network is looked for by checks: requests of STUN (RFC 8489), as ICE makes them (RFC 8445). They leave from the
// device's own port and are heard there, because a hole in NAT is for that port alone. The device has the port, the kernel's as well as
// wireguard-go; so checks go by raw sockets, and the device ignores them, as they are no messages of WireGuard. Nothing of what a
// device is doing is disturbed by a check.
//
// Both sides of a check prove that they have the private key of the peer that they say they are: what both keys
// have in common authenticates it, for each direction by itself. An address from which a peer's check comes is a
// way to it, too: so a host behind symmetric NAT is reached by one that is not.

// Checks look for ways to peers, and for how this host is seen from outside.
type Checks struct {
	port    uint16
	private wgtypes.Key
	v4, v6  *net.IPConn // nil: this host has none
	over    chan struct{}
	limit   *rate.Limiter // of others' questions
	running sync.WaitGroup

	mu     sync.Mutex
	peers  map[string]*checked // by public key
	relays map[string]*checked // hosts that relay between this one and peers, by public key; they may be peers, too
	asked  map[[stun.TransactionIDSize]byte]question
	mapped map[bool]mapping // of IPv4 (true) and IPv6
}

// checked is one peer.
type checked struct {
	out, in stun.MessageIntegrity // of what this host asks, and of what the peer asks
	since   time.Time
	ways    []*way // those that were given, then those from which it asked
}

type way struct {
	Way
	given bool
	next  time.Time // of the next check
}

// Way is what is known of one way to a peer.
type Way struct {
	At       netip.AddrPort
	Answered time.Time     // when the last answer came; zero: none yet
	Took     time.Duration // from that check to its answer
}

type question struct {
	peer *checked // nil: a server
	to   netip.AddrPort
	at   time.Time
}

type mapping struct {
	is netip.AddrPort
	at time.Time
}

// How often a way is checked.
const (
	checkTick   = 100 * time.Millisecond
	checkSoon   = 400 * time.Millisecond // while none is known, at first
	checkFirst  = 10 * time.Second       // how long that is
	checkAgain  = 3 * time.Second        // one that works, and while none works later
	checkOther  = 10 * time.Second       // others beside one that works
	checkAlive  = 12 * time.Second       // one works for so long after an answer
	answerLimit = 5 * time.Second
	mappedFor   = 3 * time.Minute // how long an answer of a server counts
	mostLearnt  = 4               // ways that nobody gave, of a peer
	mostAsked   = 4096
	mostHeard   = 1000 // questions a second from where no peer is known to be
)

// OpenChecks begins to answer peers' checks. They are asked once Seek names them.
func (d *Device) OpenChecks() (*Checks, error) {
	c := &Checks{
		port: d.config.Port, private: d.key.private(), over: make(chan struct{}),
		peers: map[string]*checked{}, relays: map[string]*checked{}, limit: rate.NewLimiter(mostHeard, mostHeard), asked: map[[stun.TransactionIDSize]byte]question{}, mapped: map[bool]mapping{},
	}
	var err error
	if c.v4, err = openRaw("ip4:udp", d.config.Port); err != nil {
		return nil, fmt.Errorf("opening a socket to look for ways to peers: %w", err)
	}
	c.v6, _ = openRaw("ip6:udp", d.config.Port) // a kernel may have no IPv6
	for _, socket := range []*net.IPConn{c.v4, c.v6} {
		if socket != nil {
			c.running.Go(func() { c.listen(socket) })
		}
	}
	c.running.Go(c.askOn)
	return c, nil
}

// openRaw opens a socket that hears the checks that come to a UDP port, and nothing else.
func openRaw(network string, port uint16) (*net.IPConn, error) {
	conn, err := net.ListenIP(network, nil)
	if err != nil {
		return nil, err
	}
	raw, err := conn.SyscallConn()
	if err == nil {
		failed := raw.Control(func(fd uintptr) { err = prepare(int(fd), network == "ip4:udp", port) })
		err = errors.Join(err, failed)
	}
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return conn, nil
}

// The places in a packet: of UDP's header, and of STUN's magic cookie behind it.
const (
	udpBytes    = 8
	udpPort     = 2
	udpSum      = 6
	cookiePlace = udpBytes + 4
	magicCookie = 0x2112A442
)

// prepare sets what a raw socket hears. IPv4's sockets see the IP header, IPv6's do not.
func prepare(fd int, v4 bool, port uint16) error {
	const all = 0xffff
	load, from := [2]uint16{unix.BPF_LD | unix.BPF_H | unix.BPF_ABS, unix.BPF_LD | unix.BPF_W | unix.BPF_ABS}, []unix.SockFilter(nil)
	if v4 {
		load = [2]uint16{unix.BPF_LD | unix.BPF_H | unix.BPF_IND, unix.BPF_LD | unix.BPF_W | unix.BPF_IND}
		from = []unix.SockFilter{{Code: unix.BPF_LDX | unix.BPF_B | unix.BPF_MSH}}
	}
	filter := append(from,
		unix.SockFilter{Code: load[0], K: udpPort},
		unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, Jf: 3, K: uint32(port)},
		unix.SockFilter{Code: load[1], K: cookiePlace},
		unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, Jf: 1, K: magicCookie},
		unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: all},
		unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K},
	)
	if !v4 {
		if err := unix.SetsockoptInt(fd, unix.SOL_IPV6, unix.IPV6_CHECKSUM, udpSum); err != nil {
			return fmt.Errorf("having the kernel sum up packets: %w", err)
		}
	}
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_BROADCAST, 0); err != nil { // Go allows it; a check is for one host
		return fmt.Errorf("having nothing sent to all: %w", err)
	}
	if err := unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}); err != nil {
		return fmt.Errorf("setting what the socket hears: %w", err)
	}
	return nil
}

// Close ends all checks.
func (c *Checks) Close() error {
	close(c.over)
	var errs []error
	for _, socket := range []*net.IPConn{c.v4, c.v6} {
		if socket != nil {
			errs = append(errs, socket.Close())
		}
	}
	c.running.Wait()
	return errors.Join(errs...)
}

// Seek says which peers to look for, by public key, and the ways to try, best first; and which hosts relay, and at which ports, so
// that they know where this host is. What is known of those that stay stays. One whose key is unusable keeps nobody else from
// being looked for.
func (c *Checks) Seek(peers, relays map[string][]netip.AddrPort) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return errors.Join(c.lookFor(c.peers, peers, ofPeer), c.lookFor(c.relays, relays, ofRelay))
}

func (c *Checks) lookFor(has map[string]*checked, want map[string][]netip.AddrPort, of purpose) error {
	var errs []error
	for key := range has {
		if _, stays := want[key]; !stays {
			delete(has, key)
		}
	}
	for key, ways := range want {
		p := has[key]
		if p == nil {
			p = &checked{since: time.Now()}
			var err error
			if p.out, p.in, err = secrets(c.private, key, of); err != nil {
				errs = append(errs, err)
				continue
			}
			has[key] = p
		}
		p.give(ways, of == ofPeer)
	}
	return errors.Join(errs...)
}

// give replaces the ways that were given. Those that were learnt may stay behind them.
func (p *checked) give(ways []netip.AddrPort, learnt bool) {
	var all []*way
	for _, at := range ways {
		w := p.find(at)
		if w == nil {
			w = &way{Way: Way{At: at}}
			p.since = time.Now() // it may take another look
		}
		w.given = true
		all = append(all, w)
	}
	for _, w := range p.ways {
		if learnt && !slices.Contains(all, w) && (!w.given || !w.Answered.IsZero()) {
			w.given = false
			all = append(all, w)
		}
	}
	p.ways = all
}

func (p *checked) find(at netip.AddrPort) *way {
	for _, w := range p.ways {
		if w.At == at {
			return w
		}
	}
	return nil
}

// learn adds the address from which a peer asked, and has it checked at once.
func (p *checked) learn(at netip.AddrPort) {
	w := p.find(at)
	if w == nil {
		learnt := 0
		p.ways = slices.DeleteFunc(p.ways, func(w *way) bool {
			if w.given || time.Since(w.Answered) < checkAlive {
				return false
			}
			learnt++
			return learnt >= mostLearnt
		})
		w = &way{Way: Way{At: at}}
		p.ways = append(p.ways, w)
	}
	if !w.works(time.Now()) {
		w.next = time.Time{}
	}
}

func (w *way) works(now time.Time) bool {
	return !w.Answered.IsZero() && now.Sub(w.Answered) < checkAlive
}

// Known lists what is known of the ways to a peer, and since when it is looked for.
func (c *Checks) Known(key string) (all []Way, since time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	p := c.peers[key]
	if p == nil {
		return nil, time.Time{}
	}
	for _, w := range p.ways {
		all = append(all, w.Way)
	}
	return all, p.since
}

// Mapped lists how servers lately saw the device's port: at most one address of IPv4 and one of IPv6.
func (c *Checks) Mapped() (all []netip.AddrPort) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, v4 := range []bool{true, false} {
		if m, some := c.mapped[v4]; some && time.Since(m.at) < mappedFor {
			all = append(all, m.is)
		}
	}
	return all
}

// purpose is what a secret is for, so that what is said for one means nothing for another.
type purpose string

const (
	ofPeer  purpose = "pagurus check"
	ofRelay purpose = "pagurus relay"
)

// secrets authenticate what passes between this host and another: each has its private key, and the other's public one.
func secrets(own wgtypes.Key, key string, of purpose) (out, in stun.MessageIntegrity, err error) {
	peer, err := wgtypes.ParseKey(key)
	if err != nil {
		return nil, nil, err
	}
	private, err := ecdh.X25519().NewPrivateKey(own[:])
	if err != nil {
		return nil, nil, err
	}
	public, err := ecdh.X25519().NewPublicKey(peer[:])
	if err != nil {
		return nil, nil, err
	}
	common, err := private.ECDH(public)
	if err != nil {
		return nil, nil, fmt.Errorf("the key %s is unusable: %w", key, err)
	}
	secret := func(from, to wgtypes.Key) stun.MessageIntegrity {
		sum := sha256.Sum256(slices.Concat([]byte(of), common, from[:], to[:]))
		return sum[:]
	}
	return secret(own.PublicKey(), peer), secret(peer, own.PublicKey()), nil
}

// RelaySecrets authenticate the checks between this host as a relay and a host for which it relays, by that one's public key: what
// it asks, and what it is asked.
func (d *Device) RelaySecrets(key string) (asks, asked []byte, err error) {
	asked, asks, err = secrets(d.key.private(), key, ofRelay)
	return asks, asked, err
}

// send sends a message from the device's port.
func (c *Checks) send(m *stun.Message, to netip.AddrPort) error {
	socket := c.v6
	if to.Addr().Is4() {
		socket = c.v4
	}
	if socket == nil {
		return syscall.EAFNOSUPPORT
	}
	b := make([]byte, udpBytes, udpBytes+len(m.Raw))
	binary.BigEndian.PutUint16(b, c.port)
	binary.BigEndian.PutUint16(b[udpPort:], to.Port())
	binary.BigEndian.PutUint16(b[4:], uint16(udpBytes+len(m.Raw)))
	// The sum stays 0, which is none (RFC 768); the kernel makes IPv6's, where it must be.
	_, err := socket.WriteToIP(append(b, m.Raw...), &net.IPAddr{IP: to.Addr().AsSlice(), Zone: to.Addr().Zone()})
	return err
}

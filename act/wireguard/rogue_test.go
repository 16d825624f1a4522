package wireguard

import (
	"encoding/binary"
	"hash/crc32"
	"math/rand/v2"
	"net"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Packets that are altered, sent again, delayed and reordered on the way between two hosts: what comes out inside was sent,
// as it is, and once.
func TestPathMeddlesWithPackets(t *testing.T) { eachMeans(t, pathMeddlesWithPackets) }

func pathMeddlesWithPackets(t *testing.T, goOnly bool) {
	all := stationsBy(t, 3, goOnly)
	a, b, rogue := all[0], all[1], all[2]
	between := newMeddler(t, rogue, a, b)
	toB, toA := b.peer(), a.peer()
	toB.Endpoint, toA.Endpoint = between.ends[0].LocalAddr().String(), between.ends[1].LocalAddr().String()
	a.apply(toB)
	b.apply(toA)
	a.soon(b)
	between.meddles.Store(true)
	open := func(s *station) (c *net.UDPConn) {
		s.Must(func() (err error) {
			at := netip.AddrPortFrom(s.Local(s.wanted()), 9999)
			c, err = net.ListenUDP("udp6", net.UDPAddrFromAddrPort(at))
			return err
		})
		t.Cleanup(func() { c.Close() })
		return c
	}
	from, to := open(a), open(b)
	raw, err := to.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	_ = raw.Control(func(fd uintptr) { _ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 16<<20) })
	const packets = 3000
	r := rand.New(rand.NewPCG(1, 2))
	go func() {
		at := netip.AddrPortFrom(b.Local(b.wanted()).WithZone(a.Name()), 9999)
		for i := range packets {
			p := binary.BigEndian.AppendUint32(nil, uint32(i))
			for range 50 + r.IntN(1000) {
				p = append(p, byte(r.Uint32()))
			}
			_, _ = from.WriteToUDPAddrPort(binary.BigEndian.AppendUint32(p, crc32.ChecksumIEEE(p)), at)
			if i%50 == 0 {
				time.Sleep(5 * time.Millisecond)
			}
		}
	}()
	came := map[uint32]int{}
	buffer := make([]byte, 2000)
	for {
		to.SetReadDeadline(time.Now().Add(2 * time.Second))
		n, err := to.Read(buffer)
		if err != nil {
			break
		}
		p := buffer[:n]
		if n < 8 || crc32.ChecksumIEEE(p[:n-4]) != binary.BigEndian.Uint32(p[n-4:]) {
			t.Fatalf("a packet of %d bytes was altered", n)
		}
		if came[binary.BigEndian.Uint32(p)]++; came[binary.BigEndian.Uint32(p)] > 1 {
			t.Errorf("packet %d came twice", binary.BigEndian.Uint32(p))
		}
	}
	if between.altered.Load() == 0 || between.repeated.Load() == 0 {
		t.Errorf("%d packets were altered and %d sent again", between.altered.Load(), between.repeated.Load())
	}
	if len(came) < packets/2 || len(came) > packets*99/100 {
		t.Errorf("%d of %d packets came: a tenth is altered on the way", len(came), packets)
	}
}

// meddler is a rogue on the path between two hosts.
type meddler struct {
	ends              [2]*net.UDPConn // towards a, and towards b
	meddles           atomic.Bool
	altered, repeated atomic.Int64
}

func newMeddler(t *testing.T, at, a, b *station) *meddler {
	t.Helper()
	m := &meddler{}
	for i := range m.ends {
		at.Must(func() (err error) {
			m.ends[i], err = net.ListenUDP("udp4", &net.UDPAddr{IP: at.Addr.AsSlice()})
			return err
		})
		t.Cleanup(func() { m.ends[i].Close() })
	}
	for i, to := range []*station{b, a} {
		go m.carry(m.ends[i], m.ends[1-i], &net.UDPAddr{IP: to.Addr.AsSlice(), Port: int(to.End().Port)}, rand.New(rand.NewPCG(uint64(i), 3)))
	}
	return m
}

// carry passes packets on. Of ten it alters one, sends three once more, and each of the first hundred much later again.
func (m *meddler) carry(from, by *net.UDPConn, to *net.UDPAddr, r *rand.Rand) {
	buffer := make([]byte, 2000)
	var recorded [][]byte
	for {
		n, err := from.Read(buffer)
		if err != nil {
			return
		}
		p := append([]byte(nil), buffer[:n]...)
		if m.meddles.Load() {
			if len(recorded) < 100 {
				recorded = append(recorded, append([]byte(nil), p...))
			}
			switch r.IntN(10) {
			case 0:
				p[r.IntN(n)] ^= 1 << r.IntN(8)
				m.altered.Add(1)
			case 1, 2, 3:
				again := append([]byte(nil), p...)
				time.AfterFunc(time.Duration(r.IntN(20))*time.Millisecond, func() { _, _ = by.WriteToUDP(again, to) })
				_, _ = by.WriteToUDP(recorded[r.IntN(len(recorded))], to)
				m.repeated.Add(2)
			case 4: // later than what follows
				time.AfterFunc(time.Duration(r.IntN(5))*time.Millisecond, func() { _, _ = by.WriteToUDP(p, to) })
				continue
			}
		}
		_, _ = by.WriteToUDP(p, to)
	}
}

package wireguard

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"strings"
	"testing"

	"pagurus/fleet"
	"pagurus/internal/testkit"
)

// wide has a station's link carry frames of 9000 bytes, at both ends.
func (s *station) wide() {
	middle := strings.TrimRight(s.Namespace, "0123456789")
	s.Run("ip", "link", "set", testkit.UplinkName, "mtu", "9000")
	s.Run("ip", "-n", strings.TrimSuffix(middle, "h")+"s", "link", "set", fmt.Sprintf("h%d", s.number), "mtu", "9000")
}

// mtuWith is the device's MTU with these peers.
func (s *station) mtuWith(peers ...fleet.WireGuardPeer) int {
	s.t.Helper()
	s.apply(peers...)
	have, err := s.Read()
	if err != nil {
		s.t.Fatal(err)
	}
	return have.MTU
}

// streams has bytes go to another station by TCP, and says what came.
func (s *station) streams(to *station, all []byte) (got []byte, err error) {
	s.soon(to)
	var l net.Listener
	to.Must(func() (err error) {
		l, err = net.Listen("tcp", net.JoinHostPort(to.Local(to.wanted()).String(), "0"))
		return err
	})
	defer l.Close()
	sent := make(chan error, 1)
	go func() {
		sent <- s.Do(func() error {
			at := net.JoinHostPort(to.Local(to.wanted()).WithZone(s.Name()).String(), fmt.Sprint(l.Addr().(*net.TCPAddr).Port))
			c, err := net.Dial("tcp", at)
			if err != nil {
				l.Close()
				return err
			}
			_, err = c.Write(all)
			return errors.Join(err, c.Close())
		})
	}()
	c, err := l.Accept()
	if err != nil {
		return nil, errors.Join(err, <-sent)
	}
	defer c.Close()
	got, err = io.ReadAll(c)
	return got, errors.Join(err, <-sent)
}

// Packets inside are as large as the links to all peers carry; a stream to a peer whose link carries less arrives; and with a peer behind
// a router, or none, they are small.
func TestPacketsAreAsLargeAsLinksCarry(t *testing.T) { eachMeans(t, asLargeAsLinksCarry) }

func asLargeAsLinksCarry(t *testing.T, goOnly bool) {
	all := stationsBy(t, 3, goOnly)
	a, b, c := all[0], all[1], all[2]
	a.wide()
	b.wide()
	for _, s := range []*station{a, b} {
		peers := []fleet.WireGuardPeer{a.peer(), b.peer(), c.peer()}
		if has := s.mtuWith(append(peers[:s.number-1:s.number-1], peers[s.number:]...)...); has != 9000-fleet.WireGuardAdds {
			t.Errorf("%s sends packets of %d bytes over links that carry 9000", s.Namespace, has)
		}
	}
	if has := c.mtuWith(a.peer(), b.peer()); has != fleet.WireGuardMTU {
		t.Errorf("%s sends packets of %d bytes over a link that carries 1500", c.Namespace, has)
	}
	large := make([]byte, 1<<20)
	for i := range large {
		large[i] = byte(rand.Uint32())
	}
	for _, to := range []*station{b, c} {
		if got, err := a.streams(to, large); err != nil || !bytes.Equal(got, large) {
			t.Errorf("of %d bytes to %s %d came, or others: %v", len(large), to.Namespace, len(got), err)
		}
	}
	a.Run("ip", "route", "add", "203.0.113.0/24", "via", b.Addr.String())
	far := c.peer()
	far.Endpoint = "203.0.113.7:7462"
	if has := a.mtuWith(b.peer(), far); has != fleet.WireGuardMTU {
		t.Errorf("with a peer behind a router it sends packets of %d bytes", has)
	}
	somewhere := c.peer()
	somewhere.Ways = []string{"198.18.0.3:7462"}
	if has := a.mtuWith(b.peer(), somewhere); has != fleet.WireGuardMTU {
		t.Errorf("with a peer in another network it sends packets of %d bytes", has)
	}
	if has := a.mtuWith(); has != fleet.WireGuardMTU {
		t.Errorf("without a peer it would send packets of %d bytes", has)
	}
}

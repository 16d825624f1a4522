package wireguard

import (
	"encoding/base64"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/pion/stun/v3"
	"golang.org/x/time/rate"

	"pagurus/internal/testkit"
)

// checks begins the checks of a station.
func (s *station) checks() *Checks {
	s.t.Helper()
	var c *Checks
	s.Must(func() (err error) {
		c, err = s.OpenChecks()
		return err
	})
	s.t.Cleanup(func() { _ = c.Close() })
	return c
}

func (s *station) at() netip.AddrPort { return netip.AddrPortFrom(s.Addr, s.End().Port) }

func (c *Checks) seek(t *testing.T, s *station, at ...netip.AddrPort) {
	t.Helper()
	if err := c.Seek(map[string][]netip.AddrPort{s.End().Key: at}, nil); err != nil {
		t.Fatal(err)
	}
}

func (c *Checks) reaches(s *station, at netip.AddrPort) bool {
	known, _ := c.Known(s.End().Key)
	for _, w := range known {
		if w.At == at && !w.Answered.IsZero() {
			return true
		}
	}
	return false
}

// Peers that look for each other find each other while the device has the port and works, also where
// one was told nothing or something wrong. Nobody else is answered.
func TestChecks(t *testing.T) { eachMeans(t, checksFindPeers) }

func checksFindPeers(t *testing.T, goOnly bool) {
	all := stationsBy(t, 3, goOnly)
	a, b, stranger := all[0], all[1], all[2]
	a.apply(b.peer())
	b.apply(a.peer())
	a.soon(b)
	ca, cb, cs := a.checks(), b.checks(), stranger.checks()
	wrong := netip.AddrPortFrom(stranger.Addr, 9)
	ca.seek(t, b, wrong, b.at())
	cb.seek(t, a)
	cs.seek(t, a, a.at())
	testkit.Until(t, 5*time.Second, "a finds b", func() bool { return ca.reaches(b, b.at()) })
	testkit.Until(t, 5*time.Second, "b finds a by its checks", func() bool { return cb.reaches(a, a.at()) })
	time.Sleep(2 * checkSoon)
	if cs.reaches(a, a.at()) {
		t.Error("a stranger is answered")
	}
	if known, _ := ca.Known(b.End().Key); len(known) != 2 {
		t.Errorf("a stranger's checks count as a peer's: %+v", known)
	}
	a.soon(b)
}

// Who sends back what a host asks, or answers in a peer's place, is not taken for the peer.
func TestChecksAreNotForged(t *testing.T) {
	all := stations(t, 3)
	a, b, attacker := all[0], all[1], all[2]
	a.apply()
	c := a.checks()
	var conn net.PacketConn
	attacker.Must(func() (err error) {
		conn, err = net.ListenPacket("udp4", netip.AddrPortFrom(attacker.Addr, 999).String())
		return err
	})
	defer conn.Close()
	evil := netip.AddrPortFrom(attacker.Addr, 999)
	c.seek(t, b, evil)
	answered := 0
	for end := time.Now().Add(2 * time.Second); time.Now().Before(end); {
		buffer := make([]byte, 1500)
		_ = conn.SetReadDeadline(end)
		n, from, err := conn.ReadFrom(buffer)
		if err != nil {
			break
		}
		m := &stun.Message{Raw: append([]byte(nil), buffer[:n]...)}
		if err := m.Decode(); err != nil {
			t.Fatalf("it sent what is no STUN: %v", err)
		}
		if m.Type == stun.BindingSuccess {
			answered++
			continue
		}
		to := from.(*net.UDPAddr)
		_, _ = conn.WriteTo(m.Raw, from) // reflected
		for _, with := range []stun.Setter{stun.Fingerprint, stun.NewShortTermIntegrity("guessed")} {
			forged := stun.MustBuild(stun.NewTransactionIDSetter(m.TransactionID), stun.BindingSuccess, &stun.XORMappedAddress{IP: to.IP.To4(), Port: to.Port}, with)
			_, _ = conn.WriteTo(forged.Raw, from)
		}
	}
	if c.reaches(b, evil) {
		t.Error("an attacker's answer counts as the peer's")
	}
	if answered > 0 {
		t.Error("its own check, sent back, is answered")
	}
}

// A server says how it sees the device's port.
func TestAServerSaysHowAHostIsSeen(t *testing.T) {
	all := stations(t, 2)
	a, server := all[0], all[1]
	a.apply()
	c := a.checks()
	var conn net.PacketConn
	server.Must(func() (err error) {
		conn, err = net.ListenPacket("udp4", netip.AddrPortFrom(server.Addr, 3478).String())
		return err
	})
	defer conn.Close()
	go func() {
		buffer := make([]byte, 1500)
		for {
			n, from, err := conn.ReadFrom(buffer)
			if err != nil {
				return
			}
			m := &stun.Message{Raw: append([]byte(nil), buffer[:n]...)}
			if m.Decode() == nil {
				at := from.(*net.UDPAddr)
				_, _ = conn.WriteTo(stun.MustBuild(stun.NewTransactionIDSetter(m.TransactionID), stun.BindingSuccess, &stun.XORMappedAddress{IP: at.IP.To4(), Port: at.Port}).Raw, from)
			}
		}
	}()
	if err := c.AskServer(netip.AddrPortFrom(server.Addr, 3478)); err != nil {
		t.Fatal(err)
	}
	testkit.Until(t, 5*time.Second, "the server's answer", func() bool { m := c.Mapped(); return len(m) == 1 && m[0] == a.at() })
}

// A relay that has this host's secret hears where it is, and asks back. Nobody asks in its name, nor from elsewhere.
func TestARelayIsToldWhereAHostIs(t *testing.T) {
	all := stations(t, 3)
	a, relay, other := all[0], all[1], all[2]
	a.apply()
	c := a.checks()
	var at, elsewhere net.PacketConn
	relay.Must(func() (err error) {
		if at, err = net.ListenPacket("udp4", netip.AddrPortFrom(relay.Addr, 7470).String()); err == nil {
			elsewhere, err = net.ListenPacket("udp4", netip.AddrPortFrom(relay.Addr, 7471).String())
		}
		return err
	})
	defer at.Close()
	defer elsewhere.Close()
	ends := netip.AddrPortFrom(relay.Addr, 7470)
	low := base64.StdEncoding.EncodeToString(make([]byte, 32)) // of what this has in common with others everybody knows
	err := c.Seek(map[string][]netip.AddrPort{low: {ends}}, map[string][]netip.AddrPort{relay.End().Key: {ends}})
	if err == nil {
		t.Error("an unusable key is not told")
	}
	asks, asked, err := relay.RelaySecrets(a.End().Key)
	if err != nil {
		t.Fatal(err)
	}
	stranger, _, err := other.RelaySecrets(a.End().Key)
	if err != nil {
		t.Fatal(err)
	}
	hears := func(conn net.PacketConn, kind stun.MessageType, secret []byte) *stun.Message {
		b := make([]byte, 1500)
		for {
			_ = conn.SetReadDeadline(time.Now().Add(time.Second))
			n, _, err := conn.ReadFrom(b)
			if err != nil {
				return nil
			}
			m := &stun.Message{Raw: append([]byte(nil), b[:n]...)}
			if m.Decode() == nil && m.Type == kind && stun.MessageIntegrity(secret).Check(m) == nil {
				return m
			}
		}
	}
	if hears(at, stun.BindingRequest, asks) == nil {
		t.Fatal("the relay is not told, though another key is unusable")
	}
	for name, s := range map[string]struct {
		by     net.PacketConn
		secret []byte
		is     bool
	}{
		"the relay":           {at, asked, true},
		"from another port":   {elsewhere, asked, false},
		"with the other half": {at, asks, false},
		"another host":        {at, stranger, false},
	} {
		q := stun.MustBuild(stun.TransactionID, stun.BindingRequest, stun.MessageIntegrity(s.secret), stun.Fingerprint)
		if _, err := s.by.WriteTo(q.Raw, net.UDPAddrFromAddrPort(a.at())); err != nil {
			t.Fatal(err)
		}
		if m := hears(s.by, stun.BindingSuccess, s.secret); (m != nil && m.TransactionID == q.TransactionID) != s.is {
			t.Errorf("%s: it is answered: %v", name, m != nil)
		}
	}
}

// Questions from anywhere are read up to a bound; those from where a peer is, and answers, always.
func TestStrangersDoNotKeepPeersFromBeingHeard(t *testing.T) {
	peer, stranger := netip.MustParseAddrPort("203.0.113.1:4711"), netip.MustParseAddrPort("198.51.100.1:1")
	asked := stun.MustBuild(stun.TransactionID, stun.BindingRequest)
	c := &Checks{limit: rate.NewLimiter(mostHeard, mostHeard), peers: map[string]*checked{"b": {ways: []*way{{Way: Way{At: peer}}}}}, asked: map[[stun.TransactionIDSize]byte]question{asked.TransactionID: {}}}
	read := 0
	for range 10 * mostHeard {
		if c.worthwhile(stun.MustBuild(stun.TransactionID, stun.BindingRequest).Raw, stranger) {
			read++
		}
	}
	if read < mostHeard || read > 5*mostHeard {
		t.Errorf("%d questions of strangers are read", read)
	}
	c.limit.SetLimit(0)
	if c.worthwhile(stun.MustBuild(stun.TransactionID, stun.BindingRequest).Raw, stranger) || c.worthwhile(asked.Raw[:10], peer) {
		t.Error("one more is read, or one that is too short")
	}
	if !c.worthwhile(stun.MustBuild(stun.TransactionID, stun.BindingRequest).Raw, peer) || !c.worthwhile(asked.Raw, stranger) {
		t.Error("a peer, or an answer, is not read")
	}
}

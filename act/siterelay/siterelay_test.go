package siterelay

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/crypto/blake2s"
	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"pagurus/fleet"
	"pagurus/internal/testkit"
)

func TestMain(m *testing.M) {
	if run := Shims[os.Args[0]]; run != nil {
		if err := run(os.Args[1:]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

func newKey(t *testing.T) wgtypes.Key {
	t.Helper()
	k, err := wgtypes.GeneratePrivateKey()
	if err != nil {
		t.Fatal(err)
	}
	return k.PublicKey()
}

// message is one of WireGuard's, to a host with a public key.
func message(kind, index uint32, to wgtypes.Key) []byte {
	size, place := map[uint32]int{initiation: initiationBytes, response: responseBytes, cookie: cookieBytes, transport: 100}[kind], receiverPlace
	switch kind {
	case initiation:
		place = senderPlace
	case cookie, transport:
		place = cookieReceiver
	}
	b := make([]byte, size)
	binary.LittleEndian.PutUint32(b, kind)
	binary.LittleEndian.PutUint32(b[place:], index)
	if kind == initiation || kind == response {
		sum := blake2s.Sum256(append([]byte("mac1----"), to[:]...))
		h, _ := blake2s.New128(sum[:])
		h.Write(b[:size-2*macBytes])
		copy(b[size-2*macBytes:], h.Sum(nil))
	}
	return b
}

// What is passed where, step by step. Letters are addresses: a and b are the two hosts', and x is an attacker's, who
// knows both public keys.
func TestPass(t *testing.T) {
	keyA, keyB := newKey(t), newKey(t)
	at := map[string]netip.AddrPort{}
	for i, name := range []string{"a", "a2", "b", "b2", "x", "x2", "x3", "x4", "x5"} {
		at[name] = netip.AddrPortFrom(netip.AddrFrom4([4]byte{192, 0, 2, byte(i + 1)}), 7462)
	}
	ask := func(to wgtypes.Key, index uint32) []byte { return message(initiation, index, to) }
	answer := func(to wgtypes.Key, index uint32) []byte { return message(response, index, to) }
	packet := message(transport, 9, wgtypes.Key{})
	broken := ask(keyB, 1)
	broken[50] ^= 1
	type step struct {
		from string
		what []byte
		to   string // in order; empty: nowhere
	}
	// a asks, b asks, and a answers b: then both are known.
	agreed := []step{{"a", ask(keyB, 1), ""}, {"b", ask(keyA, 2), "a"}, {"a", answer(keyB, 2), "b"}, {"a", packet, "b"}, {"b", packet, "a"}}
	for name, steps := range map[string][]step{
		"they agree":                           agreed,
		"nothing before":                       {{"a", packet, ""}, {"b", packet, ""}, {"a", answer(keyB, 1), ""}, {"a", message(cookie, 1, keyB), ""}},
		"the other answers":                    {{"b", ask(keyA, 2), ""}, {"a", ask(keyB, 1), "b"}, {"b", answer(keyA, 1), "a"}, {"a", packet, "b"}},
		"a busy host's cookie":                 {{"b", ask(keyA, 2), ""}, {"a", ask(keyB, 1), "b"}, {"b", message(cookie, 1, keyA), "a"}, {"a", packet, ""}},
		"a stranger's packets":                 append(slices.Clone(agreed), step{"x", packet, ""}, step{"x", make([]byte, 10), ""}, step{"x", broken, ""}, step{"x", bytes.Repeat([]byte{1}, initiationBytes), ""}, step{"b", packet, "a"}),
		"a foreign key's handshake":            append(slices.Clone(agreed), step{"x", ask(newKey(t), 7), ""}, step{"b", packet, "a"}),
		"an old or foreign handshake":          append(slices.Clone(agreed), step{"x", ask(keyB, 1), "b"}, step{"b", packet, "a"}, step{"a", packet, "b"}, step{"x", packet, ""}),
		"an answer from elsewhere":             append(slices.Clone(agreed), step{"a2", ask(keyB, 3), "b"}, step{"x", answer(keyA, 3), ""}, step{"b", packet, "a"}),
		"an answer to oneself":                 append(slices.Clone(agreed), step{"x", ask(keyB, 7), "b"}, step{"x", answer(keyA, 7), ""}, step{"b", packet, "a"}),
		"an answer to nothing":                 append(slices.Clone(agreed), step{"b", answer(keyA, 77), ""}, step{"a", packet, "b"}),
		"a host moves":                         append(slices.Clone(agreed), step{"a2", ask(keyB, 3), "b"}, step{"b", packet, "a"}, step{"b", answer(keyA, 3), "a2"}, step{"b", packet, "a2"}, step{"a", packet, ""}),
		"both move":                            append(slices.Clone(agreed), step{"a2", ask(keyB, 3), "b"}, step{"b2", ask(keyA, 4), "a a2"}, step{"a2", answer(keyB, 4), "b2"}, step{"b2", packet, "a2"}),
		"an attacker asks from many addresses": append(slices.Clone(agreed), step{"x", ask(keyB, 11), "b"}, step{"x2", ask(keyB, 12), "b"}, step{"x3", ask(keyB, 13), "b"}, step{"x4", ask(keyB, 14), "b"}, step{"x5", ask(keyB, 15), "b"}, step{"b", packet, "a"}, step{"a", packet, "b"}),
	} {
		p, err := newPair([2]string{keyA.String(), keyB.String()})
		if err != nil {
			t.Fatal(err)
		}
		now := time.Unix(1e9, 0)
		for i, s := range steps {
			var want []netip.AddrPort
			for _, n := range strings.Fields(s.to) {
				want = append(want, at[n])
			}
			now = now.Add(time.Millisecond)
			if got := p.pass(s.what, at[s.from], now); !slices.Equal(got, want) {
				t.Errorf("%s, step %d: %v, wanted %v", name, i+1, got, want)
			}
		}
		late := now.Add(pendingFor + time.Second)
		if got := p.pass(answer(keyA, 3), at["b"], late); got != nil {
			t.Errorf("%s: an answer after %v is passed to %v", name, pendingFor, got)
		}
	}
}

// endpoint is a socket that stands for a host's device.
type endpoint struct {
	*net.UDPConn
	t *testing.T
}

func newEndpoint(t *testing.T) endpoint {
	c, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return endpoint{c, t}
}

func (e endpoint) send(b []byte, port uint16) {
	e.t.Helper()
	if _, err := e.WriteToUDPAddrPort(b, netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), port)); err != nil {
		e.t.Fatal(err)
	}
}

// hears reports whether something comes soon.
func (e endpoint) hears(b []byte) bool {
	_ = e.SetReadDeadline(time.Now().Add(300 * time.Millisecond))
	got := make([]byte, 2000)
	for {
		n, err := e.Read(got)
		if err != nil {
			return false
		}
		if bytes.Equal(got[:n], b) {
			return true
		}
	}
}

// The process relays while its starter restarts, changes what it does without disturbing what stays, has no
// capability, and ends when nothing is left to do.
func TestTheProcess(t *testing.T) {
	testkit.Root(t)
	testkit.Leftovers(t)
	c := Config{Run: t.TempDir(), Program: "/proc/self/exe", FirstPort: 47470, BytesPerSecond: 1 << 20}
	open := func() *Relay {
		r, err := Open(c)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	r := open()
	t.Cleanup(func() { _ = r.Remove() })
	keyA, keyB := newKey(t), newKey(t)
	one := fleet.RelayPair{Hosts: [2]fleet.HostID{"a", "b"}, Keys: [2]string{keyA.String(), keyB.String()}}
	two := fleet.RelayPair{Hosts: [2]fleet.HostID{"a", "c"}, Keys: [2]string{keyA.String(), newKey(t).String()}}
	begun := time.Now()
	apply := func(at time.Time, pairs ...fleet.RelayPair) {
		t.Helper()
		if err := r.Apply(pairs, at); err != nil {
			t.Fatal(err)
		}
	}
	apply(begun, one)
	port := r.Ports()[0].Port
	a, b := newEndpoint(t), newEndpoint(t)
	packet := message(transport, 5, keyB)
	testkit.Until(t, 10*time.Second, "both agree", func() bool {
		a.send(message(initiation, 1, keyB), port)
		b.send(message(initiation, 2, keyA), port)
		if !a.hears(message(initiation, 2, keyA)) {
			return false
		}
		a.send(message(response, 2, keyB), port)
		return b.hears(message(response, 2, keyB))
	})
	passes := func(when string) {
		t.Helper()
		a.send(packet, port)
		if !b.hears(packet) {
			t.Errorf("nothing passes %s", when)
		}
	}
	passes("at first")
	p, err := r.process()
	if err != nil {
		t.Fatal(err)
	}
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.PID))
	if err != nil || !strings.Contains(string(status), "CapEff:\t0000000000000000") || !strings.Contains(string(status), "CapBnd:\t0000000000000000") {
		t.Errorf("it has capabilities (%v):\n%s", err, status)
	}
	r = open() // as after a restart
	apply(begun, one, two)
	if now := r.Ports(); len(now) != 2 || now[0].Port != port || now[1].Port == port {
		t.Errorf("the ports are %v, and the first was %d", now, port)
	}
	passes("beside another pair")
	apply(begun.Add(time.Second)) // a controller that has begun again asks for nothing yet
	passes("when nobody asks for it any more")
	apply(begun.Add(30*time.Second), one)
	passes("when it is asked for again")
	if err := p.End(); err != nil { // as it might crash
		t.Fatal(err)
	}
	apply(begun.Add(31*time.Second), one)
	if again, err := r.process(); err != nil || again == p || !again.Lives() {
		t.Errorf("a process that died is not started again: %v, %v", again, err)
	}
	apply(begun.Add(32 * time.Second))
	apply(begun.Add(32*time.Second + linger + time.Second))
	if again, err := r.process(); err != nil || again.PID != 0 || len(r.Ports()) > 0 {
		t.Errorf("it still runs without anything to do: %v, %v", again, err)
	}
	if left, _ := filepath.Glob(filepath.Join(c.Run, "*")); len(left) > 0 {
		t.Errorf("left are %v", left)
	}
}

// No more passes than was allowed.
func TestTheRateIsBounded(t *testing.T) {
	testkit.Root(t)
	keyA, keyB := newKey(t), newKey(t)
	file := filepath.Join(t.TempDir(), "orders")
	r, err := Open(Config{Run: filepath.Dir(file), Program: "/proc/self/exe", FirstPort: 47570, BytesPerSecond: 1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.Remove() })
	if err := r.Apply([]fleet.RelayPair{{Hosts: [2]fleet.HostID{"a", "b"}, Keys: [2]string{keyA.String(), keyB.String()}}}, time.Now()); err != nil {
		t.Fatal(err)
	}
	port := r.Ports()[0].Port
	a, b := newEndpoint(t), newEndpoint(t)
	testkit.Until(t, 10*time.Second, "the process passes a handshake", func() bool {
		a.send(message(initiation, 1, keyB), port)
		b.send(message(initiation, 2, keyA), port)
		return a.hears(message(initiation, 2, keyA))
	})
	for range 2 * longestBurst / initiationBytes {
		a.send(message(initiation, 1, keyB), port)
	}
	b.send(message(initiation, 3, keyA), port)
	if a.hears(message(initiation, 3, keyA)) {
		t.Error("after more than the burst the next message still passes")
	}
}

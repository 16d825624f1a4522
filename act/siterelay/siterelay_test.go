package siterelay

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pion/stun/v3"
	"golang.org/x/time/rate"

	"pagurus/fleet"
	"pagurus/internal/note"
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

// message is one of WireGuard's, as far as a relay sees.
func message(kind uint32, size int) []byte {
	return append(binary.LittleEndian.AppendUint32(nil, kind), make([]byte, size-4)...)
}

// in and out are the secrets of a host with the relay, as the host has them.
func in(of string) stun.MessageIntegrity  { return stun.MessageIntegrity("in of " + of) }
func out(of string) stun.MessageIntegrity { return stun.MessageIntegrity("out of " + of) }

func secretsOf(key string) (Secrets, error) {
	return Secrets{hex.EncodeToString(in(key)), hex.EncodeToString(out(key))}, nil
}

// question is what a host asks a relay; of is whose secret it has.
func question(of string) []byte {
	return stun.MustBuild(stun.TransactionID, stun.BindingRequest, in(of), stun.Fingerprint).Raw
}

// answer is what a host says to a relay's question.
func answer(of string, asked []byte) []byte {
	m := &stun.Message{Raw: asked}
	if m.Decode() != nil || m.Type != stun.BindingRequest || out(of).Check(m) != nil {
		return nil
	}
	return stun.MustBuild(stun.NewTransactionIDSetter(m.TransactionID), stun.BindingSuccess, out(of), stun.Fingerprint).Raw
}

// What is passed where, step by step. Letters are addresses: a and b are the two hosts', and x is an attacker's, who
// knows both public keys, has heard what passed, and has no private key.
func TestPass(t *testing.T) {
	const (
		asks    = "asks"    // and the relay asks back
		says    = "says"    // answers what it, or another, was asked last
		is      = "is"      // asks, and the relay answers: it is known there
		late    = "late"    // says, when what it was asked is old
		replays = "replays" // what the host has asked before
	)
	at := map[string]netip.AddrPort{}
	for i, name := range []string{"a", "a2", "b", "b2", "x", "x2"} {
		at[name] = netip.AddrPortFrom(netip.AddrFrom4([4]byte{192, 0, 2, byte(i + 1)}), 7462)
	}
	type step struct {
		from, does string // a host does it from its address, or from another's: "a x" is a's secret from x
		to         string // of a packet; empty: nowhere
	}
	packet, handshake := message(transport, 100), message(1, sizes[1])
	agreed := []step{{"a", asks, ""}, {"a", says, ""}, {"b", asks, ""}, {"b", says, ""}, {"a", "packet", "b"}, {"b", "packet", "a"}}
	then := func(more ...step) []step { return append(slices.Clone(agreed), more...) }
	undisturbed := []step{{"b", "packet", "a"}, {"a", "packet", "b"}, {"b", "handshake", "a"}, {"x", "packet", ""}, {"x2", "packet", ""}}
	for name, steps := range map[string][]step{
		"they agree":                       agreed,
		"they are known":                   then(step{"a", is, ""}, step{"b", is, ""}),
		"nothing before":                   {{"a", "packet", ""}, {"b", "handshake", ""}},
		"one alone":                        {{"a", asks, ""}, {"a", says, ""}, {"a", "packet", ""}, {"b", "packet", ""}},
		"one has only asked":               {{"a", asks, ""}, {"a", says, ""}, {"b", asks, ""}, {"b", "packet", ""}, {"a", "packet", ""}},
		"an answer comes late":             {{"a", asks, ""}, {"a", late, ""}, {"b", asks, ""}, {"b", says, ""}, {"b", "packet", ""}},
		"a host moves":                     then(step{"a a2", asks, ""}, step{"b", "packet", "a"}, step{"a a2", says, ""}, step{"b", "packet", "a2"}, step{"a", "packet", ""}),
		"both move":                        then(step{"a a2", asks, ""}, step{"b b2", asks, ""}, step{"b b2", says, ""}, step{"a b2", says, ""}, step{"a a2", asks, ""}, step{"a a2", says, ""}, step{"b2", "packet", "a2"}),
		"NAT gives a port to the other":    then(step{"b a", asks, ""}, step{"b a", says, ""}, step{"a", "packet", ""}, step{"a a2", asks, ""}, step{"a a2", says, ""}, step{"a", "packet", "a2"}),
		"a stranger's packets":             then(append([]step{{"x", "packet", ""}, {"x", "handshake", ""}, {"x", "junk", ""}, {"x", "short", ""}}, undisturbed...)...),
		"two addresses feign a handshake":  then(append([]step{{"x2", "handshake", ""}, {"x", "handshake", ""}, {"x2", "response", ""}, {"x", "response", ""}}, undisturbed...)...),
		"before they agree":                append([]step{{"x2", "handshake", ""}, {"x", "handshake", ""}, {"x2", "response", ""}}, then(undisturbed...)...),
		"another key":                      then(append([]step{{"c x", "ignored", ""}}, undisturbed...)...),
		"what a host asked, sent again":    then(append([]step{{"a x", replays, ""}}, undisturbed...)...),
		"its answer, from elsewhere":       then(append([]step{{"a a2", asks, ""}, {"a x", says, ""}}, undisturbed...)...),
		"the relay's question, sent back":  then(append([]step{{"a x", replays, ""}, {"x", "reflects", ""}}, undisturbed...)...),
		"one side speaks for the other":    then(append([]step{{"a x", replays, ""}, {"b x", says, ""}}, undisturbed...)...),
		"junk of a size and of a kind not": then(append([]step{{"a", "junk", ""}, {"a", "short", ""}}, undisturbed...)...),
	} {
		play := func(steps []step) {
			p, err := newPair([2]Secrets{must(secretsOf("a")), must(secretsOf("b"))})
			if err != nil {
				t.Fatal(err)
			}
			now := time.Unix(1e9, 0)
			old, asked := question("a"), []byte(nil)
			for i, s := range steps {
				now = now.Add(time.Millisecond)
				who, from, elsewhere := strings.Cut(s.from, " ")
				if !elsewhere {
					from = who
				}
				wrong := func(what string) { t.Errorf("%s, step %d (%s %s): %s", name, i+1, s.from, s.does, what) }
				pass := func(b []byte) {
					got := p.pass(b, at[from])
					if p.check(b, at[from], now) != nil || got != at[s.to] {
						wrong(fmt.Sprintf("it goes to %v, wanted %v", got, at[s.to]))
					}
				}
				switch s.does {
				case asks, replays:
					b := old
					if s.does == asks {
						b = question(who)
					}
					if asked = p.check(b, at[from], now); answer(who, asked) == nil {
						wrong("the relay does not ask back")
					}
				case late:
					now = now.Add(2 * freshFor)
					_ = p.check(answer(who, asked), at[from], now)
				case says:
					if p.check(answer(who, asked), at[from], now) != nil {
						wrong("an answer is answered")
					}
				case is:
					b := question(who)
					m, want := &stun.Message{Raw: p.check(b, at[from], now)}, &stun.Message{Raw: b}
					if m.Decode() != nil || want.Decode() != nil || m.Type != stun.BindingSuccess || m.TransactionID != want.TransactionID {
						wrong("it is not answered")
					}
				case "ignored":
					if p.check(question(who), at[from], now) != nil {
						wrong("it is heard")
					}
				case "reflects":
					if p.check(asked, at[from], now) != nil {
						wrong("it is heard")
					}
				case "packet":
					pass(packet)
				case "handshake":
					pass(handshake)
				case "response":
					pass(message(2, sizes[2]))
				case "junk":
					pass(bytes.Repeat([]byte{1}, sizes[1]))
				case "short":
					pass(message(1, 100))
				}
			}
		}
		play(steps)
	}
	if _, err := newPair([2]Secrets{{}, must(secretsOf("b"))}); err == nil {
		t.Error("a host without a secret is relayed for")
	}
}

func must(s Secrets, err error) Secrets {
	if err != nil {
		panic(err)
	}
	return s
}

// A pair has its share, and handshakes theirs, whatever others use.
func TestAPairHasItsShare(t *testing.T) {
	const bytesPerSecond = 1 << 20
	own, common := divide(bytesPerSecond, 4)
	if sum := 4*own + common; sum != bytesPerSecond {
		t.Errorf("all together may pass %v bytes a second", sum)
	}
	all := rate.NewLimiter(common, longestBurst)
	greedy, modest := newLimits(all), newLimits(all)
	greedy.own.SetLimit(own)
	modest.own.SetLimit(own)
	now := time.Unix(1e9, 0)
	packet := message(transport, 1400)
	passed := 0
	for greedy.allow(packet, now) {
		passed += len(packet)
	}
	if passed > longestBurst+ownBurst {
		t.Errorf("%d bytes passed at once", passed)
	}
	if !modest.allow(packet, now) {
		t.Error("another pair has nothing left")
	}
	if !greedy.allow(message(1, sizes[1]), now) {
		t.Error("a handshake does not pass")
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

// begins has an endpoint say where it is, until the relay knows.
func (e endpoint) begins(of string, port uint16) {
	e.t.Helper()
	b := make([]byte, 2000)
	testkit.Until(e.t, 10*time.Second, of+" is known to the relay", func() bool {
		e.send(question(of), port)
		_ = e.SetReadDeadline(time.Now().Add(300 * time.Millisecond))
		n, err := e.Read(b)
		if err != nil {
			return false
		}
		m := &stun.Message{Raw: append([]byte(nil), b[:n]...)}
		if m.Decode() == nil && m.Type == stun.BindingSuccess {
			return true
		}
		if says := answer(of, b[:n]); says != nil {
			e.send(says, port)
		}
		return false
	})
}

// The process relays while its starter restarts, changes what it does without disturbing what stays, has no
// capability, and ends when nothing is left to do.
func TestTheProcess(t *testing.T) {
	testkit.Root(t)
	testkit.Leftovers(t)
	c := Config{Run: t.TempDir(), Program: "/proc/self/exe", FirstPort: 47470, BytesPerSecond: 1 << 20, Secrets: secretsOf}
	open := func() *Relay {
		r, err := Open(c)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	r := open()
	t.Cleanup(func() { _ = r.Remove() })
	one := fleet.RelayPair{Hosts: [2]fleet.HostID{"a", "b"}, Keys: [2]string{"a", "b"}}
	two := fleet.RelayPair{Hosts: [2]fleet.HostID{"a", "c"}, Keys: [2]string{"a", "c"}}
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
	packet := message(transport, 100)
	a.begins("a", port)
	b.begins("b", port)
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
	a.begins("a", r.Ports()[0].Port) // it runs
	// Another bound and other ports count at once.
	c.BytesPerSecond = 2 << 20
	r = open()
	apply(begun.Add(31*time.Second), one)
	var had orders
	if err := note.Load(filepath.Join(c.Run, ordersFile), &had); err != nil || had.BytesPerSecond != c.BytesPerSecond {
		t.Errorf("another bound is not passed on: %+v, %v", had, err)
	}
	a.begins("a", r.Ports()[0].Port)
	c.FirstPort += 100
	r = open()
	apply(begun.Add(31*time.Second), one)
	if now := r.Ports(); len(now) != 1 || now[0].Port < c.FirstPort {
		t.Errorf("with other ports it relays at %v", now)
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
	file := filepath.Join(t.TempDir(), "orders")
	r, err := Open(Config{Run: filepath.Dir(file), Program: "/proc/self/exe", FirstPort: 47570, BytesPerSecond: 1, Secrets: secretsOf})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.Remove() })
	if err := r.Apply([]fleet.RelayPair{{Hosts: [2]fleet.HostID{"a", "b"}, Keys: [2]string{"a", "b"}}}, time.Now()); err != nil {
		t.Fatal(err)
	}
	port := r.Ports()[0].Port
	a, b := newEndpoint(t), newEndpoint(t)
	a.begins("a", port)
	b.begins("b", port)
	packet, last := message(transport, 1000), message(transport, 999)
	stranger := newEndpoint(t)
	for range 1000 { // nobody's, so it costs nothing
		stranger.send(packet, port)
	}
	testkit.Until(t, 3*time.Second, "a packet passes, as others' junk does not count", func() bool {
		b.send(packet, port)
		return a.hears(packet)
	})
	// What a busy machine drops before the relay reads it is of no burst, so more may be needed.
	testkit.Until(t, 20*time.Second, "after more than the burst nothing passes", func() bool {
		for range (longestBurst + ownBurst) / len(packet) {
			a.send(packet, port)
		}
		for range 3 {
			b.send(last, port)
			if a.hears(last) {
				return false
			}
		}
		return true
	})
}

package wire

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"pagurus/fleet"
	"pagurus/serve/identity"
)

// raw is a connection of a host that has joined, over which nothing was said yet.
func (s *served) raw(t *testing.T, host string) net.Conn {
	t.Helper()
	c, err := identity.Load(s.credentials(t, identity.Subject{Role: identity.Host, Name: host}))
	if err != nil {
		t.Fatal(err)
	}
	config := c.Client().Clone()
	config.ServerName = identity.ServerName
	conn, err := tls.Dial("tcp", s.addr, config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

// upgraded is the same as an agent's WebSocket.
func (s *served) upgraded(t *testing.T, host string) (net.Conn, *bufio.Reader) {
	t.Helper()
	conn := s.raw(t, host)
	fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: %s\r\n%s: %d\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: MDEyMzQ1Njc4OWFiY2RlZg==\r\n\r\n",
		agentPath, identity.ServerName, protocolHeader, fleet.Protocol())
	in := bufio.NewReader(conn)
	r, err := http.ReadResponse(in, nil)
	if err != nil || r.StatusCode != http.StatusSwitchingProtocols {
		t.Fatal(r, err)
	}
	return conn, in
}

// wsFrame is a frame of a WebSocket (RFC 6455, 5.2) with a length that need not be true.
func wsFrame(first byte, length uint64, masked bool, payload []byte) []byte {
	b := []byte{first, 127}
	if masked {
		b[1] |= 0x80
	}
	b = binary.BigEndian.AppendUint64(b, length)
	if masked {
		b = append(b, 0, 0, 0, 0)
	}
	return append(b, payload...)
}

const (
	wsText, wsMore, wsPing, wsLast = 0x01, 0x00, 0x89, 0x80
	helloText                      = `{"hello":{"host":"host1"}}`
)

// heap is how much memory is in use.
func heap() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// Whatever a host's agent sends for a frame of its session, the session ends soon, hardly any memory is used
// for it, and another host's agent is served meanwhile.
func TestFramesOfARogueHost(t *testing.T) {
	if testing.Short() {
		t.Skip("takes ten seconds: make test")
	}
	ctx, s := limited(t), serve(t, &world{attach: echo})
	honest := attached(t, ctx, s)
	hello := wsFrame(wsText|wsLast, uint64(len(helloText)), true, []byte(helloText))
	big := make([]byte, 64<<10)
	for i := range big {
		big[i] = 'x'
	}
	before := heap()
	var all sync.WaitGroup
	for what, sends := range map[string]func(net.Conn) error{
		"2 GiB":                 func(c net.Conn) error { return write(c, wsFrame(wsText|wsLast, 2<<30, true, big)) },
		"2⁶³ bytes":             func(c net.Conn) error { return write(c, wsFrame(wsText|wsLast, 1<<63, true, big)) },
		"without a mask":        func(c net.Conn) error { return write(c, wsFrame(wsText|wsLast, 2, false, []byte("{}"))) },
		"of no kind":            func(c net.Conn) error { return write(c, wsFrame(0x7f, 2, true, []byte("{}"))) },
		"a continuation":        func(c net.Conn) error { return write(c, wsFrame(wsMore|wsLast, 2, true, []byte("{}"))) },
		"half a frame":          func(c net.Conn) error { return write(c, wsFrame(wsText|wsLast, 1000, true, []byte("{"))) },
		"half a message":        func(c net.Conn) error { return write(c, wsFrame(wsText, 1, true, []byte("{"))) },
		"half a header":         func(c net.Conn) error { return write(c, []byte{wsText}) },
		"a long ping":           func(c net.Conn) error { return write(c, wsFrame(wsPing, 1<<20, true, big)) },
		"endless fragments":     func(c net.Conn) error { return endless(c, wsFrame(wsMore, uint64(len(big)), true, big)) },
		"an endless ping flood": func(c net.Conn) error { return endless(c, []byte{wsPing, 0x80, 0, 0, 0, 0}) },
	} {
		conn, in := s.upgraded(t, "rogue "+what)
		all.Go(func() {
			begun := time.Now()
			over := make(chan struct{})
			go func() {
				defer close(over)
				if what != "an endless ping flood" { // who does not read what it asks for
					_, _ = io.Copy(io.Discard, in)
				} else {
					time.Sleep(pingEvery + pongLimit + writeLimit)
				}
			}()
			_ = write(conn, hello)
			if what == "endless fragments" {
				_ = write(conn, wsFrame(wsText, 1, true, []byte(" ")))
			}
			_ = sends(conn)
			<-over
			if took := time.Since(begun); took > pingEvery+pongLimit+writeLimit+5*time.Second {
				t.Errorf("%s: it took %s until the session was over", what, took)
			}
		})
	}
	for i := range 20 { // all the while
		begun := time.Now()
		if err := honest.Send(ctx, Up{Report: &fleet.Report{Order: fleet.Order{Attempt: i}}}); err != nil {
			t.Fatal(err)
		}
		if d, err := honest.Receive(ctx); err != nil || d.Task.Order.Attempt != i || time.Since(begun) > 3*time.Second {
			t.Fatalf("after %s: %+v, %v", time.Since(begun), d, err)
		}
		time.Sleep(50 * time.Millisecond)
	}
	if used := heap() - before; used > 96<<20 {
		t.Errorf("it uses %d MiB", used>>20)
	}
	all.Wait()
}

func write(c net.Conn, b []byte) error { _, err := c.Write(b); return err }

// endless writes until it is stopped.
func endless(c net.Conn, b []byte) error {
	for {
		c.SetWriteDeadline(time.Now().Add(10 * time.Second))
		if _, err := c.Write(b); err != nil {
			return err
		}
	}
}

// Messages that are not taken wait on the other side: here no more than one message may be long.
func TestMessagesThatWaitAreFew(t *testing.T) {
	ctx := limited(t)
	s := serve(t, &world{attach: func(ctx context.Context, _ Hello, s *HostSession) error {
		_ = s.Send(ctx, greeting)
		<-s.Done() // never receives
		return nil
	}})
	a, err := s.client(t).Attach(ctx, Hello{Host: "host1"})
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	before := heap()
	flooding, stop := context.WithTimeout(ctx, 2*time.Second)
	defer stop()
	sent := 0
	for facts := (fleet.Facts{Troubles: []string{strings.Repeat("x", factsBytes/2)}}); ; sent++ {
		if err := a.Send(flooding, Up{Facts: &facts}); err != nil {
			break
		}
	}
	// The client's own queue, what the kernel holds, and 4 MiB.
	if used := heap() - before; used > int64(sent+32)*factsBytes/2 {
		t.Errorf("it uses %d MiB for %d messages", used>>20, sent)
	}
	if most := upQueue + (upBytes+16<<20)/(factsBytes/2); sent > most {
		t.Errorf("%d messages were sent, at most %d may be", sent, most)
	}
}

// What a host says of itself is short, and so is every message; the one who sends it hears of it at once.
func TestTooLongMessages(t *testing.T) {
	ctx, s := limited(t), serve(t, &world{attach: echo})
	a := attached(t, ctx, s)
	if err := a.Send(ctx, Up{Reply: &Reply{Error: strings.Repeat("x", upBytes)}}); !errors.Is(err, ErrTooLong) {
		t.Errorf("it was sent: %v", err)
	}
	if err := a.Send(ctx, Up{Report: &fleet.Report{Order: fleet.Order{Attempt: 7}}}); err != nil {
		t.Fatal(err)
	}
	if d, err := a.Receive(ctx); err != nil || d.Task.Order.Attempt != 7 {
		t.Errorf("the session does not go on: %v", err)
	}
	if err := a.Send(ctx, Up{Facts: &fleet.Facts{Troubles: []string{strings.Repeat("x", factsBytes)}}}); err != nil {
		t.Fatal(err)
	}
	if _, err := a.Receive(ctx); err == nil || !strings.Contains(err.Error(), "more than a host can have to say") {
		t.Errorf("got %v", err)
	}
}

// Headers that do not end are cut off, whether they come fast or slowly. No certificate is needed to try.
func TestHeadersThatDoNotEnd(t *testing.T) {
	if testing.Short() {
		t.Skip("takes ten seconds: make test")
	}
	t.Parallel()
	s := serve(t, &world{})
	for what, each := range map[string]time.Duration{"fast": 0, "slowly": 500 * time.Millisecond} {
		conn := s.raw(t, "host1")
		fmt.Fprintf(conn, "GET /v1/snapshot HTTP/1.1\r\nHost: x\r\n")
		over := make(chan struct{})
		go func() { defer close(over); _, _ = io.Copy(io.Discard, conn) }()
		begun, sent := time.Now(), 0
		line := "X-More: " + strings.Repeat("y", 1000) + "\r\n"
		for done := false; !done; {
			select {
			case <-over:
				done = true
			default:
				if _, err := io.WriteString(conn, line); err != nil {
					<-over
					done = true
				}
				sent += len(line)
				time.Sleep(each)
			}
			if sent > 64<<20 || time.Since(begun) > headerLimit+5*time.Second {
				t.Fatalf("%s: %d bytes of headers were taken in %s", what, sent, time.Since(begun))
			}
		}
	}
}

// Versions that are none, or too far apart, are refused before anything else.
func TestVersionsOfARogueHost(t *testing.T) {
	s := serve(t, &world{attach: echo})
	for said, want := range map[string]int{"x": 400, "-1": 400, "99999999999999999999": 400, "1e3": 400, "2147483647": 422, strings.Repeat("9", 2*headerBytes): 431} {
		conn := s.raw(t, "host1")
		fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: x\r\n%s: %s\r\n\r\n", whoAmIPath, protocolHeader, said)
		r, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil || r.StatusCode != want {
			t.Errorf("%.30s: %v, %v; want %d", said, r, err, want)
		}
	}
}

// One host has a few sessions at a time, however many it opens: each may bring a long message. Others are served.
func TestSessionsOfARogueHost(t *testing.T) {
	ctx, s := limited(t), serve(t, &world{attach: echo})
	rogue := s.member(t, identity.Subject{Role: identity.Host, Name: "host7"})
	refused := 0
	for range 3 * sessionsMost {
		conn, err := rogue.connect(ctx, agentPath) // says nothing
		if err != nil {
			if status(t, err) != http.StatusTooManyRequests {
				t.Fatal(err)
			}
			refused++
			continue
		}
		defer conn.CloseNow()
	}
	if refused != 2*sessionsMost {
		t.Errorf("%d were refused", refused)
	}
	other := s.member(t, identity.Subject{Role: identity.Host, Name: "host8"})
	if _, err := other.Attach(ctx, Hello{Host: "host8"}); err != nil {
		t.Error(err)
	}
}

// Whoever opens thousands of connections gets no more than an address may have; others come in. A network of IPv6 counts
// as one address.
func TestConnectionsOfARogueHost(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	all := newCounting(l, connectionsPerAddress)
	for _, c := range []struct {
		from string
		n    int
	}{{"192.0.2.7:1", 10000}, {"[2001:db8::%x]:1", 10000}, {"[::ffff:192.0.2.8]:1", 10000}} {
		open := 0
		for i := range c.n {
			from := c.from
			if strings.Contains(from, "%x") {
				from = fmt.Sprintf(from, i)
			}
			if conn := all.count(called{from: from}); conn != nil {
				open++
			}
		}
		if open != 2*connectionsPerAddress {
			t.Errorf("%s: %d of %d are open", c.from, open, c.n)
		}
	}
	for _, from := range []string{"192.0.2.9:1", "[2001:db8:0:1::1]:1", "[fe80::1%eth0]:1"} {
		if conn := all.count(called{from: from}); conn == nil || conn.over {
			t.Errorf("%s does not come in", from)
		}
	}
}

// called is a connection from an address.
type called struct {
	net.Conn
	from string
}

func (c called) RemoteAddr() net.Addr { return address(c.from) }

type address string

func (a address) Network() string { return "tcp" }
func (a address) String() string  { return string(a) }

// Who joins without a token that counts writes little into the audit, however long what it says is.
func TestRefusalsAreShort(t *testing.T) {
	ctx, w := limited(t), &world{}
	s := serve(t, w)
	s.stop()
	kept := &keptAudit{}
	s.audit = kept
	s.start(t)
	token := s.authority.NewToken()
	c := joining(s.addr, token)
	defer c.Close()
	if _, err := c.join(ctx, Joining{Host: fleet.HostID(strings.Repeat("x", nameBytes+1))}); status(t, err) != http.StatusBadRequest {
		t.Error(err)
	}
	if _, err := c.join(ctx, Joining{Host: "h", Request: strings.Repeat("x", toldBytes)}); status(t, err) != http.StatusRequestEntityTooLarge {
		t.Error(err)
	}
	_, _ = s.client(t).Ask(ctx, fleet.Request{Verb: fleet.Cancel, Job: "none", Guests: []fleet.GuestID{fleet.GuestID(strings.Repeat("x", 100<<10))}, Host: fleet.HostID(strings.Repeat("y", 100<<10))})
	for _, r := range kept.records {
		if len(r.On) > recordedBytes || len(r.Refused) > recordedBytes || len(r.Failed) > recordedBytes {
			t.Errorf("%d, %d and %d bytes are kept", len(r.On), len(r.Refused), len(r.Failed))
		}
	}
}

// keptAudit is an audit in memory.
type keptAudit struct {
	mu      sync.Mutex
	records []fleet.AuditRecord
}

func (k *keptAudit) Append(r fleet.AuditRecord) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.records = append(k.records, r)
	return nil
}

func (k *keptAudit) Read(context.Context, time.Time, func(fleet.AuditRecord) error) (int, error) {
	return 0, nil
}

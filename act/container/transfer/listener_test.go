package transfer

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"pagurus/act/container/framing"
	"pagurus/fleet"
	"pagurus/internal/testkit"
)

var who = Hello{Guest: "j1g0", Migration: "m1.j1g0"}

// opened returns a listener on the loopback, and the connections that it accepts.
func opened(t *testing.T) (d *Listener, in chan bool) {
	t.Helper()
	d, err := Listen(t.Context(), netip.MustParseAddr("127.0.0.1"), "", who, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	in = make(chan bool, 10)
	over := make(chan struct{})
	go func() {
		defer close(over)
		d.Serve(func(c *framing.Conn, h Hello) error {
			in <- h.Only
			if err := Reply(c, Answer{}); err != nil || h.Only {
				return err
			}
			_, _, err := c.Receive(0) // until it is ended
			return err
		})
	}()
	t.Cleanup(func() { d.Close(); <-over })
	return d, in
}

func hello(d *Listener) Hello {
	return Hello{Protocol: fleet.Protocol(), Guest: "j1g0", Migration: "m1.j1g0", Word: d.Place.Word}
}

// knock connects and sends a hello.
func knock(t *testing.T, d *Listener, h Hello) (*framing.Conn, Answer, error) {
	t.Helper()
	ctx, stop := context.WithTimeout(t.Context(), 10*time.Second)
	defer stop()
	c, err := framing.Dial(ctx, d.Place)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	a, err := Greet(c, h)
	return c, a, err
}

func TestOnlyTheSourceComesIn(t *testing.T) {
	d, in := opened(t)
	for what, change := range map[string]func(*Hello){
		"another word":       func(h *Hello) { h.Word = "abracadabra" },
		"another guest":      func(h *Hello) { h.Guest = "j1g1" },
		"another migration":  func(h *Hello) { h.Migration = "m2.j1g0" },
		"pages of another's": func(h *Hello) { h.Word, h.PageServer = "", true },
	} {
		h := hello(d)
		change(&h)
		if _, a, err := knock(t, d, h); err == nil {
			t.Errorf("%s was let in: %+v", what, a)
		}
	}
	h := hello(d)
	h.Protocol = fleet.Protocol() + 2
	if _, a, err := knock(t, d, h); err != nil || !strings.HasSuffix(a.Failure, "upgrade the target's agent") || a.Protocol != fleet.Protocol() {
		t.Errorf("a source that is too new is told %+v: %v", a, err)
	}
	if len(in) != 0 || d.PageConn() != nil {
		t.Error("somebody came in")
	}
	h.Only = true // also a source of another version
	if _, _, err := knock(t, d, h); err != nil || !<-in {
		t.Errorf("the source, which only asks: %v", err)
	}
}

// TestNeighbouringVersions: a source that is one version apart comes in, also one from before
// there were versions, which checks the form of the messages in turn.
func TestNeighbouringVersions(t *testing.T) {
	for _, protocol := range []int{fleet.Protocol() - 1, fleet.Protocol() + 1} {
		d, in := opened(t)
		h := hello(d)
		h.Protocol = protocol
		if _, a, err := knock(t, d, h); err != nil || a.Failure != "" || a.Protocol != fleet.Protocol() || <-in {
			t.Errorf("a source of version %d is told %+v: %v", protocol, a, err)
		}
	}
	text, err := json.Marshal(Hello{Form: form})
	if err != nil || !strings.Contains(string(text), `"version":4`) {
		t.Errorf("a target from before there were versions refuses %s: %v", text, err)
	}
}

// TestTargetIsApart: a source refuses a target that does not refuse it.
func TestTargetIsApart(t *testing.T) {
	source, target := net.Pipe()
	defer source.Close()
	go func() {
		c := framing.New(target)
		defer c.Close()
		if _, err := Meet(c); err != nil {
			t.Error(err)
		}
		if err := sendJSON(c, sayAnswer, struct{}{}); err != nil {
			t.Error(err)
		}
	}()
	_, err := Greet(framing.New(source), Hello{Protocol: 2})
	if err == nil || !strings.HasSuffix(err.Error(), "upgrade the target's agent") {
		t.Errorf("a target from before there were versions: %v", err)
	}
}

// TestAgain: a source that knows a listener's place finds the next listener there.
func TestAgain(t *testing.T) {
	d, _ := opened(t)
	earlier := d.Place.String()
	d.Close()
	again, err := Listen(t.Context(), d.Place.Address.Addr(), earlier, who, slog.New(slog.DiscardHandler))
	if err != nil || again.Place.String() != earlier {
		t.Fatalf("it was at %s: %+v, %v", earlier, again, err)
	}
	again.Close()
	if _, err := Listen(t.Context(), d.Place.Address.Addr(), "nowhere", who, slog.New(slog.DiscardHandler)); err == nil {
		t.Error("it is somewhere else than it was said to be")
	}
}

// TestTheLastOneCounts: a source's new connection replaces its previous one.
func TestTheLastOneCounts(t *testing.T) {
	d, in := opened(t)
	first, _, err := knock(t, d, hello(d))
	if err != nil || <-in {
		t.Fatal(err)
	}
	if _, _, err := knock(t, d, hello(d)); err != nil || <-in {
		t.Fatal(err)
	}
	if _, _, err := first.Receive(10 * time.Second); !framing.Over(err) {
		t.Errorf("the first one is not ended: %v", err)
	}
}

// TestStrangersAreFew: who has not shown the word is one of a few, so that strangers cannot use up
// the memory. The source comes in again when one of them has gone.
func TestStrangersAreFew(t *testing.T) {
	d, in := opened(t)
	dial := func() net.Conn {
		c, err := net.Dial("tcp", d.Place.Address.String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return c
	}
	ended := func(c net.Conn, wait time.Duration) bool {
		_ = c.SetReadDeadline(time.Now().Add(wait))
		_, err := c.Read(make([]byte, 1))
		return !errors.Is(err, os.ErrDeadlineExceeded)
	}
	var silent []net.Conn
	for range mostUnproven {
		silent = append(silent, dial())
	}
	if ended(silent[0], 50*time.Millisecond) {
		t.Error("the first stranger is not waited for")
	}
	for range 3 {
		silent = append(silent, dial())
		if !ended(silent[0], 5*time.Second) {
			t.Fatal("with one stranger more the oldest is still waited for")
		}
		silent = silent[1:]
	}
	if _, _, err := knock(t, d, hello(d)); err != nil {
		t.Fatalf("the source does not come in while strangers wait: %v", err)
	}
	if <-in {
		t.Error("the source only asks")
	}
	// Those who have come in do not count any more: the source may come as often as it likes.
	for range mostUnproven {
		if _, _, err := knock(t, d, hello(d)); err != nil {
			t.Fatal(err)
		}
		<-in
	}
}

// TestPageConn: the connection is kept for another process, and ends with the listener.
func TestPageConn(t *testing.T) {
	d, _ := opened(t)
	h := hello(d)
	h.PageServer = true
	if _, _, err := knock(t, d, h); err != nil {
		t.Fatal(err)
	}
	c, _, err := knock(t, d, h)
	if err != nil {
		t.Fatal(err)
	}
	pages := d.PageConn()
	if pages == nil || d.PageConn() != nil {
		t.Fatal("it was not kept, or kept twice")
	}
	defer pages.Close()
	if _, err := pages.WriteString("x\x00\x00\x00\x02hi"); err != nil {
		t.Fatal(err)
	}
	if kind, text, err := c.Receive(10 * time.Second); err != nil || kind != 'x' || string(text) != "hi" {
		t.Errorf("%c %q came: %v", kind, text, err)
	}
	last, _, err := knock(t, d, h)
	if err != nil {
		t.Fatal(err)
	}
	d.Close()
	testkit.Until(t, 10*time.Second, "it has ended", func() bool {
		_, _, err := last.Receive(time.Second)
		return framing.Over(err)
	})
}

// Whoever waits at one address with as many connections as may wait, and makes new ones: the source, which came first and
// needs a while, comes in.
func TestStrangersDoNotPushTheSourceOut(t *testing.T) {
	d, in := opened(t)
	dial := func(from string) net.Conn {
		t.Helper()
		own := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
		c, err := own.DialContext(t.Context(), "tcp", d.Place.Address.String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return c
	}
	waiting := func(want int) {
		t.Helper()
		testkit.Until(t, 10*time.Second, "they wait", func() bool {
			d.mu.Lock()
			defer d.mu.Unlock()
			return len(d.unproven) == want
		})
	}
	source := dial("127.0.0.3")
	other := dial("127.0.0.3") // for pages
	waiting(2)
	var last net.Conn
	for range 4 * mostUnproven {
		last = dial("127.0.0.2")
	}
	waiting(mostUnproven)
	one := make([]byte, 1)
	last.SetReadDeadline(time.Now().Add(10 * time.Millisecond))
	if _, err := last.Read(one); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("the stranger who came last: %v", err)
	}
	h := hello(d)
	h.PageServer = true
	if _, err := Greet(framing.New(other), h); err != nil || d.PageConn() == nil {
		t.Errorf("the source's connection for pages: %v", err)
	}
	if _, err := Greet(framing.New(source), hello(d)); err != nil || <-in {
		t.Errorf("the source: %v", err)
	}
}

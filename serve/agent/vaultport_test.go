package agent

import (
	"bufio"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"

	"pagurus/fleet"
	"pagurus/serve/identity"
)

// A host that opens hundreds of connections and sends all but the last byte of what it may put has this host hold its share, and
// another host puts its part meanwhile.
func TestOneHostHasItsShareOfAVault(t *testing.T) {
	a, other, host := greedy(t)
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	piece, path := make([]byte, mostChunk-1), fmt.Sprintf("PUT /v1/vault/j1c1/j1g0/chunks/sha256-%064d", 0)
	var sending sync.WaitGroup
	for range 200 {
		c := host.begins(path, mostChunk)
		sending.Go(func() { _, _ = c.Write(piece) }) // what has no share yet waits
	}
	until(t, func() bool { return a.vaultShares.at("greedy") == shareEach })
	runtime.GC()
	runtime.ReadMemStats(&after)
	if held := int64(after.HeapAlloc) - int64(before.HeapAlloc); held > 4*shareEach {
		t.Errorf("200 connections of one host hold %d MiB", held>>20)
	}
	if err := other.PutChunk(t.Context(), otherPart, "sha256-0", []byte("x")); err == nil || !strings.Contains(err.Error(), "refuses") {
		t.Errorf("another host is answered %v", err)
	}
	host.close()
	sending.Wait()
	until(t, func() bool { return a.vaultShares.at("greedy") == 0 })
}

// What a host may put bounds what it may send, before it has sent it.
func TestARequestIsNoLongerThanItsOrder(t *testing.T) {
	a, _, host := greedy(t)
	a.grant(fleet.VaultGrant{Checkpoint: "j1c1", Guest: "j1g0", Host: "greedy", Write: true, MostBytes: 1 << 10})
	for _, what := range []string{"chunks/sha256-0", "manifest"} {
		c := host.begins("PUT /v1/vault/j1c1/j1g0/"+what, 1<<20)
		got, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil || got.StatusCode != http.StatusBadRequest {
			t.Fatalf("%s: %+v, %v", what, got, err)
		}
		if said, _ := io.ReadAll(got.Body); !strings.Contains(string(said), "longer than what may come") {
			t.Errorf("%s: %q", what, said)
		}
	}
}

// A host that does not end its manifest, or does not read one, keeps no other's out, and is left after a time.
func TestASlowManifestKeepsNobodyOut(t *testing.T) {
	a, other, host := greedy(t, time.Second)
	c := host.begins("PUT /v1/vault/j1c1/j1g0/manifest", 1<<20)
	until(t, func() bool { return a.vaultShares.at("greedy") == 1<<20 })
	if err := other.PutManifest(t.Context(), otherPart, []byte("x")); err == nil || !strings.Contains(err.Error(), "refuses") {
		t.Errorf("another host is answered %v", err)
	}
	if _, err := io.Copy(io.Discard, c); err != nil { // until it is left
		t.Error(err)
	}
	until(t, func() bool { return a.vaultShares.at("greedy") == 0 })
	from, unread := net.Pipe()
	defer unread.Close()
	q := vaultAsking{out: &slowWriter{to: from}, patience: time.Millisecond}
	q.answer(make([]byte, 1<<20)) // it comes back
}

// The longest manifest keeps nobody out, neither while it comes nor while somebody waits with another one; who waits in vain is told to try again.
func TestTheLongestManifestKeepsNobodyOut(t *testing.T) {
	a, other, host := greedy(t, 2*time.Second)
	a.grant(fleet.VaultGrant{Checkpoint: "j3c1", Guest: "j3g0", Host: "greedy", Write: true},
		fleet.VaultGrant{Checkpoint: otherPart.Checkpoint, Guest: otherPart.Guest, Host: "other", Write: true})
	c := host.begins("PUT /v1/vault/j3c1/j3g0/manifest", mostManifest)
	until(t, func() bool { return a.vaultShares.at("greedy") == shareEach })
	if a.vaultShares.inWidePlace() {
		t.Error("who has sent nothing has the place of what is longer than a share")
	}
	if _, err := c.Write(make([]byte, shareEach)); err != nil {
		t.Fatal(err)
	}
	until(t, a.vaultShares.inWidePlace)
	if err := other.PutManifest(t.Context(), otherPart, []byte("x")); err == nil || !strings.Contains(err.Error(), "refuses") {
		t.Errorf("another host is answered %v", err)
	}
	if err := other.PutManifest(t.Context(), otherPart, make([]byte, shareEach+1)); err == nil || !strings.Contains(err.Error(), "try again") {
		t.Errorf("another host with a long one is answered %v", err)
	}
	host.close()
	until(t, func() bool { return !a.vaultShares.inWidePlace() && a.vaultShares.at("greedy") == 0 })
}

func (s *vaultShares) inWidePlace() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.wide
}

// slowWriter answers somebody who does not read.
type slowWriter struct {
	http.ResponseWriter
	to net.Conn
}

func (s *slowWriter) SetWriteDeadline(at time.Time) error { return s.to.SetWriteDeadline(at) }

func (s *slowWriter) Write(b []byte) (int, error) { return s.to.Write(b) }

// Where the cluster encrypts nobody comes in but inside WireGuard.
func TestTheVaultIsInsideTheTunnel(t *testing.T) {
	inside := netip.MustParseAddr("fe80::7%3")
	here := inside
	d := vaultListener{inside: func() netip.Addr { return here }}
	for by, want := range map[string]bool{"[fe80::7%pagurus]:7": true, "[fe80::8%pagurus]:7": false, "192.0.2.7:7": false, "[2001:db8::7]:7": false} {
		if is := d.welcome(comesBy(by)); is != want {
			t.Errorf("by %s: %v", by, is)
		}
	}
	here = netip.Addr{}
	if d.welcome(comesBy("192.0.2.7:7")) || d.welcome(comesBy("[fe80::7%pagurus]:7")) {
		t.Error("a host that does not know yet whether the cluster encrypts lets others in")
	}
	here = netip.MustParseAddr("192.0.2.7")
	if !d.welcome(comesBy("192.0.2.7:7")) {
		t.Error("a host without encryption lets nobody in")
	}
	here = inside
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() { _, _ = newVaultListener(l, d.inside).Accept() }()
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Read(make([]byte, 1)); err == nil {
		t.Error("somebody outside is answered")
	}
}

type comesBy string

func (comesBy) Network() string  { return "tcp" }
func (p comesBy) String() string { return string(p) }

// Whoever takes and gives when: no host has more than its share, but for one request that is larger; all together have no more than
// there is; and what nobody has any more is given to who waits.
func TestSharesOfAVault(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := vaultShares{}
		var gives []func()
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			if len(gives) > 0 && rapid.Bool().Draw(t, "give") {
				gives[0]()
				gives = gives[1:]
				continue
			}
			host := fleet.HostID(fmt.Sprint("h", rapid.IntRange(1, 12).Draw(t, "host")))
			w := share{host: host, wide: rapid.IntRange(1, 5).Draw(t, "wide") == 1}
			if !w.wide {
				w.bytes = rapid.SampledFrom([]int64{1, 1 << 20, shareEach / 2, shareEach}).Draw(t, "bytes")
			}
			before, total := s.at(host), s.total
			fits := before+w.bytes <= shareEach && total+w.bytes <= shareAll && !(w.wide && s.wide)
			ctx, cancel := context.WithCancel(t.Context())
			if !fits {
				cancel()
			}
			give, err := s.takeShare(ctx, w)
			cancel()
			if fits != (err == nil) {
				t.Fatalf("%s has %d of %d, and wants %+v: %v", host, before, total, w, err)
			}
			if err == nil {
				gives = append(gives, give)
			}
		}
		for _, give := range gives {
			give()
			give()
		}
		if s.total != 0 || s.wide || len(s.used) != 0 || len(s.waiting) != 0 {
			t.Fatalf("%d bytes of %v stay, %d wait", s.total, s.used, len(s.waiting))
		}
	})
	s := vaultShares{}
	give, err := s.takeShare(t.Context(), share{host: "a", bytes: shareEach})
	if err != nil {
		t.Fatal(err)
	}
	waits := make(chan error)
	go func() { _, err := s.takeShare(t.Context(), share{host: "a", bytes: 1}); waits <- err }()
	until(t, func() bool { s.mu.Lock(); defer s.mu.Unlock(); return len(s.waiting) == 1 })
	if _, err := s.takeShare(t.Context(), share{host: "b", bytes: shareEach}); err != nil {
		t.Errorf("another host behind it: %v", err)
	}
	give()
	if err := <-waits; err != nil {
		t.Errorf("who has waited: %v", err)
	}
}

// at is what a host has.
func (s *vaultShares) at(host fleet.HostID) int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.used[host]
}

func until(t *testing.T, is func() bool) {
	t.Helper()
	for t.Context().Err() == nil && !is() {
		time.Sleep(time.Millisecond)
	}
}

var otherPart = fleet.PartName{Checkpoint: "j2c1", Guest: "j2g0"}

// greedy is a host that has an order about another's vault, beside one more that has.
func greedy(t *testing.T, patience ...time.Duration) (a *Agent, other *vaultClient, host *caller) {
	t.Helper()
	cluster := authority(t)
	named := func(name string) *identity.Credentials {
		return joined(t, cluster, identity.Subject{Role: identity.Host, Name: name})
	}
	a, at := vaultHost(t, named("stock"), 8<<20, patience...)
	a.grant(fleet.VaultGrant{Checkpoint: "j1c1", Guest: "j1g0", Host: "greedy", Write: true},
		fleet.VaultGrant{Checkpoint: otherPart.Checkpoint, Guest: otherPart.Guest, Host: "other", Write: true})
	other = newVaultClient(named("other").Calling("stock"), "stock", func() (string, error) { return at, nil })
	t.Cleanup(other.close)
	host = &caller{t: t, at: at, by: named("greedy").Calling("stock")}
	t.Cleanup(host.close)
	return a, other, host
}

// caller is a host that calls by hand.
type caller struct {
	t   *testing.T
	at  string
	by  *tls.Config
	all []*tls.Conn
}

// begins sends a request but for its body.
func (c *caller) begins(what string, length int) *tls.Conn {
	c.t.Helper()
	conn, err := tls.Dial("tcp", c.at, c.by)
	if err == nil {
		_, err = fmt.Fprintf(conn, "%s HTTP/1.1\r\nHost: vault\r\nContent-Length: %d\r\n\r\n", what, length)
	}
	if err != nil {
		c.t.Fatal(err)
	}
	c.all = append(c.all, conn)
	return conn
}

func (c *caller) close() {
	for _, conn := range c.all {
		_ = conn.Close()
	}
}

// This file bounds what other hosts can have this one hold by the port of its vault: connections, and bytes of requests and
// answers, each host's for itself. Time is bounded by how much there is to send.

package agent

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"pagurus/fleet"
	"pagurus/serve/wire"
)

// What others have of this host at once. A guest that is saved takes four connections and four chunks.
const (
	connsEach = 512 // connections of an address
	connsAll  = 2048
	shareEach = 32 << 20  // bytes of a host
	shareAll  = 256 << 20 // beside one request or answer of one host that is longer than a share

	slowestVault = 1 << 20 // bytes a second, beyond vaultBody
	packedMore   = 64 << 10
)

// vaultListener is the vault's listener. Where the cluster encrypts, only connections inside WireGuard come in; nobody else gets as far as TLS.
type vaultListener struct {
	net.Listener
	inside func() netip.Addr // this host's address for others; not of a link: the cluster does not encrypt
	open   atomic.Int64
}

func newVaultListener(l net.Listener, inside func() netip.Addr) *vaultListener {
	return &vaultListener{Listener: wire.Bounded(l, connsEach), inside: inside}
}

// Accept waits for the next connection that may come in.
func (d *vaultListener) Accept() (net.Conn, error) {
	for {
		conn, err := d.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if d.open.Load() < connsAll && d.welcome(conn.LocalAddr()) {
			d.open.Add(1)
			return &countedConn{Conn: conn, leave: sync.OnceFunc(func() { d.open.Add(-1) })}, nil
		}
		_ = conn.Close() // it was not used
	}
}

// welcome reports whether others may come in by an address of this host; not before it is known whether the cluster encrypts.
func (d *vaultListener) welcome(by net.Addr) bool {
	if d.inside == nil {
		return true
	}
	here := d.inside()
	at, err := netip.ParseAddrPort(by.String())
	return here.IsValid() && !here.IsLinkLocalUnicast() || err == nil && at.Addr().WithZone("") == here.WithZone("")
}

// countedConn is a connection that counts until it is closed.
type countedConn struct {
	net.Conn
	leave func()
}

// Close closes the connection and stops counting it.
func (g *countedConn) Close() error {
	defer g.leave()
	return g.Conn.Close()
}

// vaultShares are the bytes that this host holds for others. Who comes first gets them first, but for those who have their own share already, and
// those for whom too few are left.
type vaultShares struct {
	mu      sync.Mutex
	used    map[fleet.HostID]int64
	total   int64
	wide    bool // somebody has more than a share
	waiting []*waitingShare
}

// share is what somebody needs.
type share struct {
	host  fleet.HostID
	bytes int64 // at most shareEach
	wide  bool  // no bytes, but the place of what is longer than a share
}

type waitingShare struct {
	share
	given chan struct{} // closed when it has them
}

// errBusy: too much of others is here.
var errBusy = errors.New("this host has too much of others' to take at the moment: try again")

// takeShare waits for a share, until give. After an error it has none.
func (s *vaultShares) takeShare(ctx context.Context, of share) (give func(), err error) {
	w := &waitingShare{of, make(chan struct{})}
	s.mu.Lock()
	s.waiting = append(s.waiting, w)
	s.serve()
	s.mu.Unlock()
	select {
	case <-w.given:
		return sync.OnceFunc(func() {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.put(w)
		}), nil
	case <-ctx.Done():
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if i := slices.Index(s.waiting, w); i >= 0 {
		s.waiting = slices.Delete(s.waiting, i, i+1)
		s.serve() // others may have waited behind it
	} else {
		s.put(w)
	}
	return nil, fmt.Errorf("%w (%w)", errBusy, ctx.Err())
}

// serve gives to those who wait what they may have. The caller holds the lock.
func (s *vaultShares) serve() {
	if s.used == nil {
		s.used = map[fleet.HostID]int64{}
	}
	for i := 0; i < len(s.waiting); {
		w := s.waiting[i]
		if !s.fits(w.share) {
			i++
			continue
		}
		if w.wide {
			s.wide = true
		} else {
			s.used[w.host] += w.bytes
			s.total += w.bytes
		}
		s.waiting = slices.Delete(s.waiting, i, i+1)
		close(w.given)
	}
}

// fits reports whether somebody may have what they need now. The caller holds the lock.
func (s *vaultShares) fits(w share) bool {
	if w.wide {
		return !s.wide
	}
	return s.used[w.host]+w.bytes <= shareEach && s.total+w.bytes <= shareAll
}

// put takes back what was given. The caller holds the lock.
func (s *vaultShares) put(w *waitingShare) {
	if w.wide {
		s.wide = false
		s.serve()
		return
	}
	s.total -= w.bytes
	if s.used[w.host] -= w.bytes; s.used[w.host] == 0 {
		delete(s.used, w.host)
	}
	s.serve()
}

// errTooLong: another host sends more than it may.
var errTooLong = errors.New("that is longer than what may come")

// vaultAsking is a request of another host.
type vaultAsking struct {
	host     fleet.HostID
	out      http.ResponseWriter
	r        *http.Request
	of       *vaultShares
	patience time.Duration
	give     func() // its share back
}

func (a *Agent) vaultAsked(host fleet.HostID, out http.ResponseWriter, r *http.Request) vaultAsking {
	return vaultAsking{host: host, out: out, r: r, of: &a.vaultShares, patience: cmp.Or(a.Vaults.patience, vaultBody)}
}

// body reads what the host sends, in its share; answer is how much it gets then. Of what is longer than a share that much has come before it takes
// the place of those. After an error it has no share.
func (q *vaultAsking) body(most, answer int64) ([]byte, error) {
	length := q.r.ContentLength
	if length > most {
		return nil, errTooLong
	}
	if length < 0 {
		length = most
	}
	if err := q.takeMore(share{host: q.host, bytes: min(max(length, answer, 1), shareEach)}); err != nil {
		return nil, err
	}
	var text bytes.Buffer
	text.Grow(int(min(length, shareEach)) + bytes.MinRead)
	within := http.MaxBytesReader(q.out, q.r.Body, most)
	err := q.read(&text, within, min(length, shareEach))
	if err == nil && length > shareEach && int64(text.Len()) == shareEach {
		if err = q.widen(); err == nil {
			err = q.read(&text, within, length-shareEach)
		}
	}
	if err != nil {
		q.give()
	}
	return text.Bytes(), err
}

// read reads so many bytes at the most, and waits for them as long as for the slowest host.
func (q *vaultAsking) read(into *bytes.Buffer, from io.Reader, most int64) error {
	_ = http.NewResponseController(q.out).SetReadDeadline(q.until(most)) // a broken connection fails when it is read
	_, err := into.ReadFrom(io.LimitReader(from, most))
	return err
}

// takeMore waits for a share, until give. After an error it has what it had before.
func (q *vaultAsking) takeMore(w share) error {
	ctx, cancel := context.WithTimeout(q.r.Context(), q.patience)
	defer cancel()
	give, err := q.of.takeShare(ctx, w)
	if err != nil {
		return err
	}
	before := q.give
	q.give = func() {
		give()
		if before != nil {
			before()
		}
	}
	return nil
}

// widen waits until this is the one request that is longer than a share.
func (q *vaultAsking) widen() error { return q.takeMore(share{host: q.host, wide: true}) }

// answer sends what the host gets.
func (q *vaultAsking) answer(text []byte) {
	_ = http.NewResponseController(q.out).SetWriteDeadline(q.until(int64(len(text))))
	_, _ = q.out.Write(text) // if it does not arrive, the other host asks again
}

// until is when so many bytes have been sent by, or to, the slowest host that is waited for.
func (q *vaultAsking) until(bytes int64) time.Time {
	return time.Now().Add(q.patience + time.Duration(bytes/slowestVault)*time.Second)
}

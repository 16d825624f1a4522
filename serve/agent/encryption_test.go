package agent

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pagurus/fleet"
	"pagurus/serve/wire"
)

// memoryEncryption remembers what was wanted of it.
type memoryEncryption struct {
	mu     sync.Mutex
	wanted []*fleet.WireGuard
	fails  error
	gone   bool
}

func (e *memoryEncryption) Encrypt(_ context.Context, w *fleet.WireGuard) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.wanted = append(e.wanted, w)
	e.gone = false
	return e.fails
}

func (e *memoryEncryption) Holds() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return !e.gone
}

func (e *memoryEncryption) set(fails error, gone bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.fails, e.gone = fails, gone
}

func (e *memoryEncryption) count() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.wanted)
}

// encrypting is a host that encrypts by e, whose controller wants that.
func encrypting(r *rig, e Encryption) {
	r.a.applying.Lock()
	r.a.Encryption = e
	r.a.applying.Unlock()
	r.s.down <- wire.Down{Wanted: &fleet.Wanted{Cluster: "c1", Revision: 11, WireGuard: &fleet.WireGuard{MTU: 1420}}}
	synctest.Wait()
}

// troubled reports whether the host complains of encryption.
func troubled(r *rig) bool {
	time.Sleep(2 * time.Second)
	synctest.Wait()
	return slices.ContainsFunc(r.facts().Troubles, func(s string) bool { return strings.Contains(s, "encrypting") })
}

// Networks are made when their frames are encrypted, and not before.
func TestNetworksWaitForEncryption(t *testing.T) {
	in(t, func(t *testing.T, r *rig) {
		e := &memoryEncryption{fails: errors.New("no TUN")}
		synctest.Wait()
		n := r.overlay.count()
		encrypting(r, e)
		if !troubled(r) || r.overlay.count() != n {
			t.Errorf("networks are made %d times, without encryption; the host says %q", r.overlay.count()-n, r.facts().Troubles)
		}
		e.set(nil, false)
		if troubled(r) || r.overlay.count() != n+1 {
			t.Errorf("with encryption, networks are made %d times; the host says %q", r.overlay.count()-n, r.facts().Troubles)
		}
		before := e.count()
		time.Sleep(5 * time.Second)
		synctest.Wait()
		if e.count() != before {
			t.Error("it is applied again without a reason")
		}
		e.set(nil, true) // its process died
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if e.count() != before+1 || r.overlay.count() != n+2 {
			t.Errorf("when it is gone it is applied %d times, and networks %d times", e.count()-before, r.overlay.count()-n-1)
		}
	})
}

// A host that cannot encrypt makes no network in clear.
func TestHostWithoutEncryption(t *testing.T) {
	in(t, func(t *testing.T, r *rig) {
		synctest.Wait()
		n := r.overlay.count()
		encrypting(r, nil)
		if !troubled(r) || r.overlay.count() != n {
			t.Errorf("networks are made %d times; the host says %q", r.overlay.count()-n, r.facts().Troubles)
		}
	})
}

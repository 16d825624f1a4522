package numa

import (
	"slices"
	"sync"
	"time"

	"pagurus/fleet"
)

// stays is how long what the machine is made of is taken to be as it was: only huge
// pages come and go.
const stays = 10 * time.Second

// Reader reads this machine now and then. Its zero value is ready.
type Reader struct {
	First int                 // of each node's cores, as if they were a ring, which comes first: of several hosts on one machine each begins elsewhere
	May   func() fleet.CPUSet // CPUs that may be used, asked again each time; nil or none: all
	mu    sync.Mutex
	last  *fleet.Topology
	at    time.Time
}

// Last is what the machine was made of some seconds ago; nil: it does not say.
func (r *Reader) Last() *fleet.Topology {
	r.mu.Lock()
	defer r.mu.Unlock()
	if time.Since(r.at) > stays {
		r.at, r.last = time.Now(), nil
		if t, err := Read("/"); err == nil {
			if r.May != nil {
				t = t.Only(r.May())
			}
			r.last = turned(&t, r.First)
		}
	}
	return r.last
}

// turned has another core of each node come first.
func turned(t *fleet.Topology, first int) *fleet.Topology {
	for i, n := range t.Nodes {
		if len(n.Cores) > 0 {
			k := first % len(n.Cores)
			t.Nodes[i].Cores = slices.Concat(n.Cores[k:], n.Cores[:k])
		}
	}
	return t
}

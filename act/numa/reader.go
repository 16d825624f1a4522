package numa

import (
	"slices"
	"sync"
	"time"

	"pagurus/fleet"
)

// stays is how long the topology is cached: only huge pages change.
const stays = 10 * time.Second

// Reader reads this machine's topology at intervals. Its zero value is ready.
type Reader struct {
	First int                 // rotates each node's list of cores, so that several hosts on one machine start with different ones
	May   func() fleet.CPUSet // usable CPUs, queried each time; nil or none: all
	mu    sync.Mutex
	last  *fleet.Topology
	at    time.Time
}

// Last is the machine's topology within the last seconds; nil: unknown.
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

// turned rotates each node's list of cores.
func turned(t *fleet.Topology, first int) *fleet.Topology {
	for i, n := range t.Nodes {
		if len(n.Cores) > 0 {
			k := first % len(n.Cores)
			t.Nodes[i].Cores = slices.Concat(n.Cores[k:], n.Cores[:k])
		}
	}
	return t
}

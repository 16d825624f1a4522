package gateway

import (
	"net/netip"
	"sync"
)

// room is a table of connections with a limit for each guest and for all. One that is full refuses, and forgets nothing.
type room struct {
	all, each int // at most

	mu    sync.Mutex
	taken map[netip.Addr]int
	sum   int
}

func newRoom(all, each int) *room { return &room{all: all, each: each, taken: map[netip.Addr]int{}} }

// takePlace takes a place for a connection of a guest, to be given back once; false: there is none.
func (r *room) takePlace(guest netip.Addr) (giveBack func(), free bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.sum >= r.all || r.taken[guest] >= r.each {
		return nil, false
	}
	r.sum++
	r.taken[guest]++
	return func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.sum--
		if r.taken[guest]--; r.taken[guest] == 0 {
			delete(r.taken, guest)
		}
	}, true
}

package main

import (
	"testing"

	"pagurus/cmd/roles"
	"pagurus/fleet"
)

// A small host offers no more than it has, beside what a container takes while it arrives; another has half, or all but a GiB.
func TestCapacity(t *testing.T) {
	const mib = 1 << 20
	for name, c := range map[string]struct {
		all, free, guests, set int64
		small                  bool
		want                   int64
	}{
		"of a machine of 128 MiB the kernel and the system have most": {all: 84 * mib, free: 26 * mib, small: true, want: 18 * mib},
		"with swap space":                      {all: 84 * mib, free: (26 + 256) * mib, small: true, want: 42 * mib},
		"the guests that are here have theirs": {all: 84 * mib, free: 20 * mib, guests: 28 * mib, small: true, want: 40 * mib},
		"nothing is free":                      {all: 84 * mib, free: 4 * mib, small: true},
		"as it is set":                         {all: 84 * mib, free: 26 * mib, small: true, set: 32 * mib, want: 32 * mib},
		"not small":                            {all: 512 * mib, free: 26 * mib, want: 256 * mib},
		"large":                                {all: 4096 * mib, want: 3072 * mib},
	} {
		h := &host{flags: roles.Agent{Small: c.small, Memory: c.set}, room: smallRoom(c.free, c.guests)}
		h.machine.MemoryBytes = c.all
		h.machine.CPUs = fleet.CPUSet{0}
		if got := h.capacity().MemoryBytes; got != c.want {
			t.Errorf("%s: %d MiB, want %d", name, got>>20, c.want>>20)
		}
	}
}

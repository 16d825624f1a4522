package placement

import "math/bits"

// sizes counts hosts by the memory that they have free, in classes an eighth apart, so that it is known at once when no host
// has enough for a guest: in a full cluster that would be found out host by host.
type sizes struct {
	counts [64 * 8]int32
	top    int // the highest class with a host; 0 also if there is none
}

// sizeOf is the class of a number of bytes.
func sizeOf(free int64) int {
	n := bits.Len64(uint64(max(free, 0)))
	if n < 4 {
		return 0
	}
	return n*8 + int(free>>(n-4))&7
}

func (s *sizes) add(free int64) {
	size := sizeOf(free)
	s.counts[size]++
	s.top = max(s.top, size)
}

func (s *sizes) drop(free int64) {
	s.counts[sizeOf(free)]--
	for s.top > 0 && s.counts[s.top] == 0 {
		s.top--
	}
}

// most is at least what any of the hosts has free, and at most an eighth more.
func (s *sizes) most() int64 {
	if s.top == 0 {
		return 7
	}
	next := s.top + 1
	if n := next / 8; n < 64 {
		return int64(8|next%8)<<(n-4) - 1
	}
	return 1<<63 - 1
}

package pace

import (
	"testing"
	"time"

	"pagurus/fleet"
)

// Near the end of a pass a held copy is slow, elsewhere it is not; the last
// page takes a while, however little there is.
func TestPace(t *testing.T) {
	const mib = 1 << 20
	p := New(1000 * mib)
	for i, c := range []struct {
		rounds int
		left   int64
		speed  float64
		held   bool
		want   int64
	}{
		{1, 500 * mib, 0, false, 1000 * mib},         // nothing measured yet
		{1, 400 * mib, 100 * mib, false, 1000 * mib}, // far from the end
		{1, 10 * mib, 100 * mib, false, 50 * mib},    // the rest in 200 ms
		{1, 5 * mib, 50 * mib, false, 50 * mib},      // goes on so
		{2, 4 * mib, 50 * mib, false, 1000 * mib},    // good enough or not, that is judged
		{3, 4 * mib, 90 * mib, true, 20 * mib},       // held
		{3, 1 * mib, 20 * mib, true, 20 * mib},
		{4, 8192, 20 * mib, true, 40960}, // slower than the least would be none
		{5, 4096, 20 * mib, true, Least},
		{6, 60 * mib, 1 * mib, true, 1000 * mib}, // much to do again
		{6, 9 * mib, 100 * mib, true, 45 * mib},
	} {
		before := p.told
		got, news := p.Next(fleet.Progress{Rounds: c.rounds, RemainingBytes: c.left, BytesPerSecond: c.speed}, c.held)
		if got != c.want || news != (got != before) {
			t.Errorf("look %d: %d (news: %t), want %d", i, got, news, c.want)
		}
	}
}

func TestFits(t *testing.T) {
	p := New(1 << 40)
	if p.Fits(0, time.Second) {
		t.Error("nothing was measured")
	}
	p.Next(fleet.Progress{Rounds: 1, RemainingBytes: 1 << 30, BytesPerSecond: 100 << 20}, false)
	if !p.Fits(5<<20, 50*time.Millisecond) || p.Fits(6<<20, 50*time.Millisecond) {
		t.Errorf("%+v", p)
	}
}

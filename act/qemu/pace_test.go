package qemu

import (
	"testing"
	"time"

	"pagurus/fleet"
)

// A held copy is slow only near the end of a pass. The last page takes some time, however
// little is left.
func TestPace(t *testing.T) {
	const mib = 1 << 20
	p := newPace(1000 * mib)
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
		{1, 5 * mib, 50 * mib, false, 25 * mib},      // of which half goes in 100 ms
		{2, 4 * mib, 50 * mib, false, 1000 * mib},    // not held: it may converge
		{3, 4 * mib, 90 * mib, true, 20 * mib},       // held
		{3, 2 * mib, 20 * mib, true, 20 * mib},
		{4, 8192, 20 * mib, true, 40960},
		{5, 4096, 20 * mib, true, 20480},
		{5, 0, 20 * mib, true, Least},            // not below the minimum
		{6, 60 * mib, 1 * mib, true, 1000 * mib}, // much left again
		{6, 9 * mib, 100 * mib, true, 45 * mib},
	} {
		before := p.told
		got, news := p.Next(fleet.Progress{Rounds: c.rounds, RemainingBytes: c.left, BytesPerSecond: c.speed}, time.Time{}, c.held)
		if got != c.want || news != (got != before) {
			t.Errorf("look %d: %d (news: %t), want %d", i, got, news, c.want)
		}
	}
}

// TestNeverOverUnseen: QEMU sends its share of a tenth of a second at once. No pass may
// begin and end between two samples, for a guest that changes little and has half its
// memory zero.
func TestNeverOverUnseen(t *testing.T) {
	const mib, page, look, line = 1 << 20, 4 << 10, 25 * time.Millisecond, 500 << 20 / 40 // bytes between samples
	for _, changes := range []int64{16 * page, 2 * mib} {                                 // between samples
		p, now, at := newPace(1<<40), fleet.Progress{Rounds: 1, RemainingBytes: 290 * mib}, time.Unix(1e9, 0)
		p.Next(now, at, false)
		dirty, inWindow := int64(0), int64(0)
		for i := range 240 {
			dirty += changes
			if i%int(window/look) == 0 {
				inWindow = 0
			}
			begun, sent := 0, int64(0)
			for sent < line && inWindow < p.told/10 {
				if now.RemainingBytes == 0 {
					now.RemainingBytes, dirty = dirty, 0
					now.Rounds++
					begun++
				}
				if now.RemainingBytes -= page; now.Rounds > 1 || now.RemainingBytes%(2*page) == 0 {
					sent, inWindow = sent+page+8, inWindow+page+8
				}
				if begun > 1 {
					t.Fatalf("%d bytes in 25 ms: round %d began and was over unseen", changes, now.Rounds-1)
				}
			}
			at = at.Add(look)
			now.SentBytes += sent
			p.Next(now, at, now.Rounds > 1)
		}
		if now.Rounds < 10 {
			t.Errorf("%d bytes in 25 ms: in six seconds there are %d rounds", changes, now.Rounds)
		}
	}
}

// An agent that takes over a held copy first sends at full speed.
func TestPaceOfAHeldCopy(t *testing.T) {
	for _, now := range []fleet.Progress{{Rounds: 7, RemainingBytes: 1 << 20}, {Rounds: 7, RemainingBytes: 1 << 20, BytesPerSecond: Least}} {
		if got, news := newPace(1<<30).Next(now, time.Time{}, false); got != 1<<30 || !news {
			t.Errorf("%+v: %d (news: %t)", now, got, news)
		}
	}
}

// A first pass of 75 ms, for which QEMU reports no speed, is also slow at its end.
func TestPaceOfASmallGuest(t *testing.T) {
	const mib = 1 << 20
	p, at := newPace(1<<40), time.Unix(1e9, 0)
	for i, c := range []struct {
		sent, left, want int64
	}{
		{0, 250 * mib, 1 << 40},
		{28 * mib, 200 * mib, 1 << 40}, // 1,120 MiB a second
		{56 * mib, 100 * mib, 500 * mib},
	} {
		if got, _ := p.Next(fleet.Progress{Rounds: 1, SentBytes: c.sent, RemainingBytes: c.left}, at, false); got != c.want {
			t.Errorf("look %d: %d, want %d", i, got, c.want)
		}
		at = at.Add(25 * time.Millisecond)
	}
}

func TestStall(t *testing.T) {
	var s stallGuard
	now := time.Now()
	for _, sent := range []int64{0, 0, 5, 5} {
		if err := s.Check(fleet.Progress{SentBytes: sent}, now); err != nil {
			t.Error(err)
		}
	}
	now = now.Add(Limit + time.Second)
	if s.Check(fleet.Progress{SentBytes: 5}, now) == nil {
		t.Error("nothing sent for so long is no stall")
	}
	if err := s.Check(fleet.Progress{SentBytes: 6}, now); err != nil {
		t.Error(err)
	}
}

// This file decides how fast a copy is sent whose guest shall not stop of
// its own accord.
//
// QEMU has no way to be told that a copy shall go on until somebody says
// otherwise: it stops the guest as soon as it finds next to nothing left to
// send. A guest that others of its move are waited for must not be suspended
// meanwhile, so it is never let come to that: near the end of a pass it is sent
// so slowly that the guest has changed something again by then, and what is
// left stays small because each pass but the first still takes no longer than Pass. Nor
// may it send more in a tenth of a second than is left of the pass: with the rest QEMU
// would begin the next one, and have it over before anybody looks.
// The first pass is slowed the more, since much of it may be zeroes, which cost nothing:
// by up to a second, which gangs wait for.
//
// It must not know QEMU's protocol. Its tests run against looks made by hand.

package qemu

import (
	"time"

	"pagurus/fleet"
)

// QEMU evens out what it sends over 100 ms. A pass of two of those leaves time
// to look at the next one before it is over.
const (
	Pass  = 200 * time.Millisecond // the slow end of a pass
	from  = 100 * time.Millisecond // of a pass, at full speed: where its slow end begins
	Least = 40 << 10               // bytes a second: a page in 100 ms, the least there is
	scrap = 1280 << 10             // bytes a second: 128 KiB in 100 ms, less than an idle guest was seen to change

	shortest = 5 * time.Millisecond // between looks from which a speed follows
)

// pacer is the state of one copy.
type pacer struct {
	full    int64   // bytes a second, the most
	told    int64   // bytes a second that Next said last; 0: nothing yet
	fastest float64 // bytes a second, as measured at full speed
	rounds  int
	sent    int64 // at the look before, which was then
	at      time.Time
}

// newPace gives the pace of a copy that may go as fast as full. How fast it goes now
// nobody knows: an agent that has died since may have held it.
func newPace(full int64) *pacer { return &pacer{full: full} }

// Next gives the bandwidth a copy in that state at that time should have, and
// whether that is news. How fast it goes is measured from look to look, too: QEMU
// itself says so only every 100 ms, and the first pass of a small guest may be over
// by then. Before the copy is good enough (held), the guest needs to be slowed only
// in its first pass: the second may find nothing left, and later ones begin only
// when much is.
func (p *pacer) Next(now fleet.Progress, at time.Time, held bool) (bytesPerSecond int64, news bool) {
	pass, before := now.Rounds != p.rounds, p.told
	if p.told == p.full {
		p.fastest = max(p.fastest, now.BytesPerSecond)
		if took := at.Sub(p.at); took >= shortest {
			p.fastest = max(p.fastest, float64(now.SentBytes-p.sent)/took.Seconds())
		}
	}
	p.rounds, p.sent, p.at = now.Rounds, now.SentBytes, at
	near := float64(now.RemainingBytes) <= p.fastest*from.Seconds()
	switch {
	case !near, !held && now.Rounds > 1:
		p.told = p.full
	case pass, p.told == p.full:
		p.told = min(p.full, max(Least, over(now.RemainingBytes, Pass)))
	case now.Rounds == 1: // much of it may be pages of zeroes, which are next to nothing
		p.told = min(p.told, max(scrap, over(now.RemainingBytes, Pass)))
	default: // and what pages are wrapped in
		p.told = min(p.told, max(Least, over(now.RemainingBytes+now.RemainingBytes/100, window)))
	}
	return p.told, p.told != before
}

// over is the speed, in bytes a second, at which that much takes so long.
func over(bytes int64, d time.Duration) int64 { return int64(float64(bytes) / d.Seconds()) }

// This file decides the bandwidth of a copy whose guest must not be suspended yet.
//
// QEMU before 8.1 cannot be told to continue a copy until further notice: it suspends the guest as
// soon as it finds almost nothing left to send. A guest that waits for its gang must not
// be suspended, so it never reaches that point. Later ones continue (awaitStop), and are paced
// once they are held, so that they do not take the guest's CPU. Near the end of a pass it is sent so
// slowly that the guest changes some memory meanwhile. The remaining pages stay few,
// because each pass but the first still takes no longer than Pass. A tenth of a second
// must not send more than the rest of the pass. Otherwise QEMU would begin the next pass
// and could finish it between two samples. The first pass is slowed more, since much of
// it may be zeroes, which cost nothing: by up to a second, which gangs wait for.
//
// It must not know QEMU's protocol. Its tests use artificial samples.

package qemu

import (
	"time"

	"pagurus/fleet"
)

// QEMU averages its sending over 100 ms. A pass of twice that leaves time to sample the
// next one before it ends.
const (
	Pass  = 200 * time.Millisecond // duration of a pass's slow end
	from  = 100 * time.Millisecond // duration at full speed that is left when the slow end begins
	Least = 2 << 10                // bytes a second: one page in 100 ms, or looks for changed ones if none is left
	scrap = 1280 << 10             // bytes a second: 128 KiB in 100 ms, less than an idle guest changed in tests

	shortest = 5 * time.Millisecond // minimum time between samples for a measurement
)

// pacer is the state of one copy.
type pacer struct {
	full    int64   // bytes a second, the limit
	told    int64   // bytes a second that Next last returned; 0: none yet
	fastest float64 // bytes a second, as measured at full speed
	rounds  int
	sent    int64 // at the last sample, taken at that time
	at      time.Time
}

// newPace returns the pace of a copy limited to full. The present bandwidth is unknown,
// because an earlier agent may have held the copy.
func newPace(full int64) *pacer { return &pacer{full: full} }

// Next returns the bandwidth for a copy in that state, and whether it has changed. Speed is
// also measured between samples, because QEMU reports it only every 100 ms. The first pass of
// a small guest may be over by then. Before the copy has converged (held), only the first pass
// is slowed: the second may find nothing left, and later ones begin only when much is left.
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
	case now.Rounds == 1: // much of it may be zero pages, which cost almost nothing
		p.told = min(p.told, max(scrap, over(now.RemainingBytes, Pass)))
	default: // allows for page headers
		p.told = min(p.told, max(Least, over(now.RemainingBytes+now.RemainingBytes/100, window)))
	}
	return p.told, p.told != before
}

// over is the bandwidth, in bytes a second, that sends bytes in d.
func over(bytes int64, d time.Duration) int64 { return int64(float64(bytes) / d.Seconds()) }

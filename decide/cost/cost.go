// Package cost predicts what a migration will cost before it starts. Whether
// a running one converges is for lifecycle.Copy to judge.
//
// It must not know how a copy is made, and package sim must not import it: a
// simulator that shares the predictor proves nothing. Its tests run against
// cases worked out by hand.
package cost

import (
	"math"
	"time"
)

// Profile is what is known of a guest before it moves.
type Profile struct {
	ResidentBytes       int64
	DirtyBytesPerSecond float64
}

// Estimate is a prediction.
type Estimate struct {
	Total     time.Duration // from the first byte until it runs at the target
	Downtime  time.Duration // of that, standing still
	Bytes     int64
	Rounds    int
	Converges bool // otherwise the rest of the estimate is zero
}

// Model holds what is the same for all guests. The zero Model knows no
// overhead and switches when 50 ms of sending are left.
type Model struct {
	Overhead time.Duration // per move: making the target's guest, switching, repointing
	Downtime time.Duration // what a switch may take
}

// mostRounds bounds the sum; a guest that needs more is dirtying nearly as
// fast as the link sends.
const (
	mostRounds      = 40
	defaultDowntime = 50 * time.Millisecond
)

// Predict estimates one migration over a link of so many bytes per second:
// each round sends what was dirtied while the round before it was sent.
func (m Model) Predict(p Profile, bytesPerSecond float64) Estimate {
	downtime := m.Downtime
	if downtime <= 0 {
		downtime = defaultDowntime
	}
	if !(bytesPerSecond > 0) || p.DirtyBytesPerSecond < 0 || p.DirtyBytesPerSecond >= bytesPerSecond {
		return Estimate{}
	}
	left, sent := math.Max(float64(p.ResidentBytes), 0), 0.0
	rounds := 0
	for rounds < mostRounds && left/bytesPerSecond > downtime.Seconds() {
		rounds++
		sent += left
		left = left / bytesPerSecond * p.DirtyBytesPerSecond
	}
	return Estimate{
		Total:    m.Overhead + seconds((sent+left)/bytesPerSecond),
		Downtime: seconds(left / bytesPerSecond),
		Bytes:    int64(sent + left), Rounds: rounds,
		Converges: left/bytesPerSecond <= downtime.Seconds(),
	}.orNothing()
}

func (e Estimate) orNothing() Estimate {
	if !e.Converges {
		return Estimate{}
	}
	return e
}

func seconds(s float64) time.Duration {
	return time.Duration(math.Min(s*float64(time.Second), math.MaxInt64/2))
}

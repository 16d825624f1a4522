package ranks

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"pagurus/fleet"
)

// The layout of a file, as in act/image/trace/trace.c. Changes must raise the version in
// both.
const (
	magic       = "PGTRACE\n"
	version     = 3
	versionAt   = 8
	seqAt       = 12 // u32: odd while gaps are written
	rankAt      = 16
	ranksAt     = 20
	peersAt     = 24 // u32: number of cells at the end
	pidAt       = 28
	begunAt     = 32 // i64, CLOCK_REALTIME
	beganAt     = 40 // i64, CLOCK_MONOTONIC
	lastAt      = 48 // i64, CLOCK_MONOTONIC
	insideAt    = 56 // u32: 1 + class
	endedAt     = 60
	outsideAt   = 64
	callsAt     = 80
	handedAt    = 144
	elsewhereAt = 160
	longestNAt  = 176
	shiftAt     = 180 // u32: a span is 2 to the power of this, in ns
	histogramAt = 184
	longestAt   = 1208
	recentAt    = 6840
	spansAt     = 51896
	newestAt    = 60088
	madeAt      = 61624 // u64: number of recorded calls
	sentAt      = 61632

	countBytes = 16
	gapBytes   = 88
	callBytes  = 24
	spansMax   = 256
	newestMax  = 64
	buckets    = 64
	longestMax = 64
	recentMax  = 256 // seconds
	mostPeers  = 4096
	// mostRanks is above any job's number; larger numbers are invalid.
	mostRanks = 1 << 24
)

// count is a number with the sum of bytes or nanoseconds.
type count struct{ n, sum uint64 }

func (c count) took() time.Duration { return time.Duration(min(c.sum, math.MaxInt64)) }

func (c count) sent(rank int) fleet.Sent {
	return fleet.Sent{Rank: rank, Messages: c.n, Bytes: c.sum}
}

// record is a file's valid content.
type record struct {
	rank, ranks, pid  int32
	begun             int64
	began, last       int64
	inside            uint32
	ended             bool
	outside           count
	calls             [4]count // in the order of fleet.CallClasses
	handed, elsewhere count
	histogram         [buckets]uint64 // of both kinds of gaps
	gaps              []fleet.Gap     // the longest of all times and of recent seconds, without duplicates
	recent            map[int64]int64 // by second, Unix time: the longest gap that ended in it, ns
	sent              []count         // by rank
	span              int64           // length of a span, ns; 0: invalid
	spans             spans
	newest            []call // oldest first
}

// call is one of the newest calls.
type call struct {
	start, took int64 // ns; CLOCK_MONOTONIC
	class       uint32
}

func u32(b []byte, at int) uint32 { return binary.LittleEndian.Uint32(b[at:]) }
func i64(b []byte, at int) int64  { return int64(binary.LittleEndian.Uint64(b[at:])) }

func countAt(b []byte, at int) count {
	return count{binary.LittleEndian.Uint64(b[at:]), binary.LittleEndian.Uint64(b[at+8:])}
}

// check checks a file's length and version.
func check(b []byte) error {
	switch {
	case len(b) < sentAt:
		return errors.New("is cut short, or is not a trace")
	case string(b[:len(magic)]) != magic:
		return errors.New("is not of the tracing library")
	case u32(b, versionAt) != version:
		return fmt.Errorf("is of version %d of the tracing library and this guest agent reads %d: build the image again", u32(b, versionAt), version)
	}
	return nil
}

// parse reads a file of any content.
func parse(b []byte) (*record, error) {
	if err := check(b); err != nil {
		return nil, err
	}
	r := &record{
		rank: int32(u32(b, rankAt)), ranks: int32(u32(b, ranksAt)), pid: int32(u32(b, pidAt)),
		begun: i64(b, begunAt), began: i64(b, beganAt), last: i64(b, lastAt), inside: u32(b, insideAt), ended: u32(b, endedAt) != 0,
		outside: countAt(b, outsideAt), handed: countAt(b, handedAt), elsewhere: countAt(b, elsewhereAt),
		recent: map[int64]int64{},
	}
	if r.rank < 0 || r.rank > mostRanks || r.ranks < 0 || r.ranks > mostRanks {
		return nil, fmt.Errorf("is of rank %d of %d, which is invalid", r.rank, r.ranks)
	}
	for i := range r.calls {
		r.calls[i] = countAt(b, callsAt+i*countBytes)
	}
	for i := range buckets {
		r.histogram[i] = binary.LittleEndian.Uint64(b[histogramAt+8*i:]) + binary.LittleEndian.Uint64(b[histogramAt+8*(buckets+i):])
	}
	r.readGaps(b)
	r.readCalls(b)
	for i := range min(int(min(u32(b, peersAt), mostPeers)), (len(b)-sentAt)/countBytes) {
		r.sent = append(r.sent, countAt(b, sentAt+i*countBytes))
	}
	return r, nil
}

// longestShift makes a span longer than any rank runs: 256 of them are 146 years.
const longestShift = 54

// readCalls reads when the rank did what.
func (r *record) readCalls(b []byte) {
	if shift := u32(b, shiftAt); shift > 0 && shift <= longestShift {
		r.span = 1 << shift
	}
	for i := range r.spans {
		for c := range r.spans[i] {
			r.spans[i][c] = binary.LittleEndian.Uint64(b[spansAt+8*(i*len(r.calls)+c):])
		}
	}
	made := binary.LittleEndian.Uint64(b[madeAt:])
	for i := range uint64(newestMax) {
		at := newestAt + int((made+i)%newestMax)*callBytes
		if c := (call{i64(b, at), i64(b, at+8), u32(b, at+16)}); c.start > 0 && c.took > 0 && c.start <= r.last-c.took {
			r.newest = append(r.newest, c)
		}
	}
	// One may have been added during reading.
	slices.SortStableFunc(r.newest, func(a, b call) int { return cmp.Compare(a.start, b.start) })
}

// readGaps reads the longest gaps of all times and of recent seconds.
func (r *record) readGaps(b []byte) {
	type name struct {
		at, took int64
		inside   bool
	}
	seen := map[name]bool{}
	take := func(b []byte) (end, took int64, ok bool) {
		g, ok := gap(b)
		if !ok {
			return 0, 0, false
		}
		g.Rank = int(r.rank)
		if n := (name{i64(b, 0), i64(b, 8), g.InMPI}); !seen[n] {
			seen[n] = true
			r.gaps = append(r.gaps, g)
		}
		return g.End().Unix(), int64(g.Took), true
	}
	for i := range int(min(u32(b, longestNAt), longestMax)) {
		take(b[longestAt+i*gapBytes:])
	}
	for i := range 2 * recentMax {
		if end, took, ok := take(b[recentAt+i*gapBytes:]); ok && end&(recentMax-1) == int64(i/2) {
			r.recent[end] = max(r.recent[end], took)
		}
	}
}

// gap reads one gap; false: none, or invalid.
func gap(b []byte) (fleet.Gap, bool) {
	start, took := i64(b, 0), i64(b, 8)
	if start <= 0 || took <= 0 || start > math.MaxInt64-took {
		return fleet.Gap{}, false
	}
	g := fleet.Gap{At: time.Unix(0, start).UTC(), Took: time.Duration(took), InMPI: u32(b, 16) != 0}
	if g.InMPI {
		g.Call = class(u32(b, 20))
	}
	g.Why = seen{
		took: took, inside: g.InMPI,
		over: i64(b, 24), delay: i64(b, 32), stolen: i64(b, 40), overRan: i64(b, 48), ran: i64(b, 56),
		sleeps: u32(b, 64), timeouts: u32(b, 68), probes: u32(b, 72), resent: u32(b, 76), delayed: u32(b, 80),
	}.causes()
	return g, true
}

func class(n uint32) fleet.CallClass {
	if n < uint32(len(fleet.CallClasses)) {
		return fleet.CallClasses[n]
	}
	return fleet.OtherCall
}

// normal is the length that 99 of 100 gaps do not exceed, rounded up to a power of two.
// With fewer gaps the longest is ignored.
func (r *record) normal() time.Duration {
	all := 0.0 // counts may be anything, and their sum may overflow
	for _, n := range r.histogram {
		all += float64(n)
	}
	if all < 1 {
		return 0
	}
	below, left := 0.0, math.Floor(0.99*(all-1))
	for i, n := range r.histogram[:buckets-2] {
		if below += float64(n); below > left {
			return time.Duration(int64(1) << (i + 1))
		}
	}
	return math.MaxInt64
}

// cells returns the ranks that this rank has sent to. If there are too many, the smallest
// are added to elsewhere.
func (r *record) cells(elsewhere fleet.Sent) ([]fleet.Sent, fleet.Sent) {
	var out []fleet.Sent
	for rank, c := range r.sent {
		if c.n > 0 {
			out = append(out, c.sent(rank))
		}
	}
	if len(out) > mostCells {
		slices.SortStableFunc(out, func(a, b fleet.Sent) int { return cmp.Compare(b.Bytes, a.Bytes) })
		for _, c := range out[mostCells:] {
			elsewhere.Messages += c.Messages
			elsewhere.Bytes += c.Bytes
		}
		out = out[:mostCells]
		slices.SortFunc(out, func(a, b fleet.Sent) int { return cmp.Compare(a.Rank, b.Rank) })
	}
	return out, elsewhere
}

// seconds returns the longest gap that ended in each of the last seconds, up to the
// present one.
func (r *record) seconds(now time.Time) []time.Duration {
	out := make([]time.Duration, recentMax)
	for i := range out {
		out[i] = time.Duration(r.recent[now.Unix()-int64(recentMax-1-i)])
	}
	return out
}

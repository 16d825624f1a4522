package ranks

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"pagurus/fleet"
)

// image is a file as the library makes it.
type image []byte

func newImage(rank, ranks int) image {
	b := make(image, sentAt+ranks*countBytes)
	copy(b, magic)
	b.u32(versionAt, version).u32(rankAt, uint32(rank)).u32(ranksAt, uint32(ranks)).u32(peersAt, uint32(ranks)).u32(pidAt, uint32(os.Getpid()))
	// Its last call ends later than any test: however late the file is read, no gap is open.
	return b.u32(shiftAt, 40).i64(beganAt, 1).i64(lastAt, monotonic()+int64(time.Hour))
}

func (b image) u32(at int, n uint32) image { binary.LittleEndian.PutUint32(b[at:], n); return b }
func (b image) i64(at int, n int64) image {
	binary.LittleEndian.PutUint64(b[at:], uint64(n))
	return b
}
func (b image) count(at int, n, sum int64) image { return b.i64(at, n).i64(at+8, sum) }

// gap writes a gap.
func (b image) gap(at int, end time.Time, took time.Duration, inside uint32) image {
	return b.i64(at, end.Add(-took).UnixNano()).i64(at+8, int64(took)).u32(at+16, inside).u32(at+20, 2)
}

// slot is where a gap is stored for its second.
func slot(end time.Time, inside int) int {
	return recentAt + (2*int(end.Unix()%recentMax)+inside)*gapBytes
}

func write(t *testing.T, dir, name string, b []byte) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, filePrefix+name), b, 0o600); err != nil {
		t.Fatal(err)
	}
}

func read(t *testing.T, dir string, q fleet.TraceQuery) []fleet.Trace {
	t.Helper()
	traces, err := Read(dir, q, t.Logf)
	if err != nil {
		t.Fatal(err)
	}
	for _, tr := range traces {
		if b, err := json.Marshal(tr); err != nil || len(b) > 56<<10 {
			t.Errorf("rank %d makes %d bytes of JSON: %v", tr.Rank, len(b), err)
		}
	}
	return traces
}

func TestAFileIsReadAsItWasWritten(t *testing.T) {
	dir := t.TempDir()
	end := time.Now().Add(-2 * time.Second)
	b := newImage(1, 3).count(outsideAt, 40, 900).count(callsAt, 10, 100).count(callsAt+3*countBytes, 1, 7).
		count(handedAt, 2, 16).count(sentAt, 17, 80700).count(sentAt+2*countBytes, 1, 40).
		u32(longestNAt, 1).gap(longestAt, end.Add(-time.Minute), 3*time.Second, 1).
		gap(slot(end, 0), end, 50*time.Millisecond, 0).
		gap(slot(end, 1), end, 20*time.Millisecond, 1).
		i64(histogramAt+8*10, 990).i64(histogramAt+8*30, 10)
	write(t, dir, "1.1", b)
	write(t, dir, "1.2", newImage(1, 3).i64(begunAt, -5)) // of an earlier program
	traces := read(t, dir, fleet.TraceQuery{})
	if len(traces) != 1 {
		t.Fatalf("%+v", traces)
	}
	tr := traces[0]
	if tr.Rank != 1 || tr.Ranks != 3 || tr.Ended || tr.Outside != 900 || tr.Calls[fleet.SendRecv] != (fleet.Calls{Count: 10, Took: 100}) ||
		tr.Calls[fleet.OtherCall].Count != 1 || tr.Handed.Bytes != 16 || tr.Normal != 2048 {
		t.Errorf("%+v", tr)
	}
	if len(tr.Sent) != 2 || tr.Sent[0] != (fleet.Sent{Rank: 0, Messages: 17, Bytes: 80700}) || tr.Sent[1] != (fleet.Sent{Rank: 2, Messages: 1, Bytes: 40}) {
		t.Errorf("sent %+v", tr.Sent)
	}
	if len(tr.Gaps) != 3 || tr.Gaps[0].Took != 3*time.Second || tr.Gaps[0].Call != fleet.WaitCall || tr.Gaps[2].Call != fleet.WaitCall || tr.Gaps[1].InMPI {
		t.Errorf("gaps %+v", tr.Gaps)
	}
	// The last is the second in which the file was read.
	if at := recentMax - 1 - int(tr.At.Unix()-end.Unix()); len(tr.Seconds) != recentMax || tr.Seconds[at] != 50*time.Millisecond {
		t.Errorf("second %d of %v", at, tr.Seconds)
	}
	// With a window, only overlapping gaps.
	tr = read(t, dir, fleet.TraceQuery{From: end.Add(-5 * time.Second), To: end})[0]
	if len(tr.Gaps) != 2 || tr.Sent != nil {
		t.Errorf("%+v", tr)
	}
}

// call writes one of the newest calls.
func (b image) call(i int, start, took int64, class uint32) image {
	at := newestAt + i*callBytes
	return b.i64(at, start).i64(at+8, took).u32(at+16, class)
}

func TestWhatItDidWhen(t *testing.T) {
	dir := t.TempDir()
	const span = 1 << 30
	began := monotonic() - 3*span
	b := newImage(0, 1).u32(shiftAt, 30).i64(beganAt, began).i64(lastAt, monotonic()).
		i64(spansAt+8*1, span/2).i64(spansAt+8*2, span/4). // of the first: half collective, a quarter waiting
		i64(spansAt+8*4*2, math.MaxInt64).                 // of the third: more than its length
		i64(madeAt, newestMax+2).call(1, began+900, 50, 2).call(2, began+100, 70, 1).call(3, 0, 9, 1).call(4, math.MaxInt64, 1, 1)
	write(t, dir, "0.1", b)
	tr := read(t, dir, fleet.TraceQuery{})[0]
	if tr.SpanLength != span || len(tr.Spans) != len(fleet.CallClasses) || fmt.Sprint(tr.Spans[fleet.Collective]) != "[50 0 0 0]" ||
		fmt.Sprint(tr.Spans[fleet.WaitCall]) != "[25 0 0 0]" || fmt.Sprint(tr.Spans[fleet.SendRecv]) != "[0 0 100 0]" {
		t.Errorf("spans of %s: %v", tr.SpanLength, tr.Spans)
	}
	if len(tr.Newest) != 2 || tr.Newest[0].Took != 70 || tr.Newest[0].Class != fleet.Collective || tr.Newest[1].Class != fleet.WaitCall ||
		tr.Newest[1].At.Sub(tr.Newest[0].At) != 800 || time.Since(tr.Newest[0].At) < 3*span {
		t.Errorf("newest %+v", tr.Newest)
	}
	if tr = read(t, dir, fleet.TraceQuery{From: time.Now(), To: time.Now()})[0]; tr.Spans != nil || tr.Newest != nil {
		t.Errorf("of a window: %+v", tr)
	}
	// One call so long that the reader must lengthen the spans.
	r, err := parse(b.i64(lastAt, began+2*span).u32(insideAt, 1+1))
	if err != nil {
		t.Fatal(err)
	}
	length, shares := r.shares(began + 1000*span)
	if got := shares[fleet.Collective]; length != 4*span || len(got) != 251 || got[0] != 62 || got[1] != 100 || got[249] != 100 {
		t.Errorf("%s: %v", length, got)
	}
}

func TestAGapThatGoesOnIsSeen(t *testing.T) {
	dir := t.TempDir()
	b := newImage(0, 1).i64(lastAt, monotonic()-int64(2*time.Second)).u32(insideAt, 3)
	write(t, dir, "0.1", b)
	g := read(t, dir, fleet.TraceQuery{})[0].Gaps
	if len(g) != 1 || !g[0].Open || g[0].Call != fleet.WaitCall || g[0].Took < 2*time.Second || g[0].Took > time.Minute {
		t.Errorf("%+v", g)
	}
	for name, b := range map[string]image{"ended": b.u32(endedAt, 1), "gone": newImage(0, 1).i64(lastAt, 5).u32(pidAt, math.MaxInt32)} {
		write(t, dir, "0.1", b)
		if g := read(t, dir, fleet.TraceQuery{})[0].Gaps; len(g) != 0 {
			t.Errorf("a program that has %s: %+v", name, g)
		}
	}
	r := record{last: 1, began: 1}
	if g, ok := r.open(moment{real: time.Now(), mono: int64(time.Second), state: 'T'}); !ok || len(g.Why) != 1 || g.Why[0].What != fleet.RankStopped {
		t.Errorf("%+v", g)
	}
}

func TestOfManyPeersTheLargestAreTold(t *testing.T) {
	dir := t.TempDir()
	b := newImage(0, mostPeers)
	for i := range mostPeers {
		b.count(sentAt+i*countBytes, 1, int64(i))
	}
	for i := range newestMax { // and the maximum of everything else
		b.call(i, monotonic()-int64(time.Minute), int64(time.Second), 0)
	}
	for i := range spansMax * len(fleet.CallClasses) {
		b.i64(spansAt+8*i, math.MaxInt64)
	}
	b.u32(shiftAt, 20).i64(beganAt, monotonic()-spansMax<<20+1<<19)
	write(t, dir, "0.1", b)
	tr := read(t, dir, fleet.TraceQuery{})[0]
	sum, messages := tr.Elsewhere.Bytes, tr.Elsewhere.Messages
	for _, s := range tr.Sent {
		sum, messages = sum+s.Bytes, messages+s.Messages
	}
	if len(tr.Sent) != mostCells || tr.Sent[0].Rank != mostPeers-mostCells || sum != mostPeers*(mostPeers-1)/2 || messages != mostPeers {
		t.Errorf("%d cells, %d bytes, %d messages", len(tr.Sent), sum, messages)
	}
}

// No content that programs write ends the guest agent, or makes it read without end.
func TestRubbish(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, "empty", nil)
	write(t, dir, "text", []byte(strings.Repeat("x", 200000)))
	write(t, dir, "old", append([]byte("PGTRACE1"), make([]byte, 200000)...))
	write(t, dir, "short", newImage(3, 1)[:sentAt-1])
	write(t, dir, "later", newImage(3, 1).u32(versionAt, version+1))
	write(t, dir, "nobody", newImage(-1, 1))
	write(t, dir, "busy", newImage(5, 1).u32(seqAt, 7))
	write(t, dir, "full", bytes.Repeat([]byte{0xff}, 200000))
	claims := newImage(6, 1).u32(peersAt, math.MaxUint32).u32(longestNAt, math.MaxUint32).u32(insideAt, math.MaxUint32)
	for i := range longestMax + 2*recentMax {
		at := longestAt + i*gapBytes
		claims.i64(at, math.MaxInt64-5).i64(at+8, math.MaxInt64)
	}
	write(t, dir, "claims", claims)
	ones := newImage(7, 2)
	for i := outsideAt; i < len(ones); i++ {
		ones[i] = 0xff
	}
	write(t, dir, "ones", ones)
	write(t, dir, "early", newImage(9, 1).u32(insideAt, 1).i64(beganAt, -9_200_000_000_000_000_000).i64(lastAt, 5))
	if err := unix.Mkfifo(filepath.Join(dir, filePrefix+"pipe"), 0o600); err != nil {
		t.Fatal(err)
	}
	os.Symlink("/dev/zero", filepath.Join(dir, filePrefix+"zero"))
	os.Mkdir(filepath.Join(dir, filePrefix+"folder"), 0o700)
	large := filepath.Join(dir, filePrefix+"large")
	write(t, dir, "large", newImage(8, 1))
	os.Truncate(large, 1<<40)
	traces := read(t, dir, fleet.TraceQuery{})
	var ranks []int
	for _, tr := range traces {
		ranks = append(ranks, tr.Rank)
	}
	if fmt.Sprint(ranks) != "[5 6 7 8 9]" {
		t.Errorf("ranks %v", ranks)
	}
	for i := range 3 * mostFiles {
		write(t, dir, fmt.Sprint("many.", i), newImage(i, 1)[:sentAt])
	}
	if n := len(read(t, dir, fleet.TraceQuery{})); n > mostFiles {
		t.Errorf("%d files were read", n)
	}
}

// Files with random bytes, entirely or in part.
func TestRandomBytes(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 300 {
		b := newImage(1, random.IntN(50))
		for range random.IntN(3000) {
			b[versionAt+4+random.IntN(len(b)-versionAt-4)] = byte(random.Uint32())
		}
		r, err := parse(b)
		if err != nil {
			continue
		}
		for _, q := range []fleet.TraceQuery{{}, {From: time.Now().Add(-time.Hour), To: time.Now()}} {
			tr := r.trace(q, moment{real: time.Now(), mono: monotonic(), state: 'R'})
			if text, err := json.Marshal(tr); err != nil || len(text) > 56<<10 {
				t.Fatalf("%d bytes of JSON: %v", len(text), err)
			}
			for _, g := range tr.Gaps {
				if g.Took <= 0 {
					t.Fatalf("%+v", g)
				}
			}
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(newImage(1, 4).gap(longestAt, time.Now(), time.Second, 1).u32(longestNAt, 1)))
	f.Fuzz(func(t *testing.T, b []byte) {
		if r, err := parse(b); err == nil {
			r.trace(fleet.TraceQuery{}, moment{real: time.Now(), mono: 5, state: 'S'})
		}
	})
}

func TestCauses(t *testing.T) {
	const ms = int64(time.Millisecond)
	for name, c := range map[string]struct {
		seen seen
		want string
	}{
		"nothing was sampled":         {seen{took: 500 * ms}, ""},
		"stopped between calls":       {seen{took: 800 * ms, overRan: 810 * ms, ran: 9 * ms, over: 900 * ms}, "rank-stopped"},
		"stopped inside":              {seen{took: 800 * ms, inside: true, overRan: 810 * ms, ran: 9 * ms, sleeps: 2}, "rank-stopped"},
		"waits and looks":             {seen{took: 800 * ms, inside: true, overRan: 810 * ms, ran: 9 * ms, sleeps: 40}, ""},
		"waits and spins":             {seen{took: 800 * ms, inside: true, overRan: 810 * ms, ran: 805 * ms}, ""},
		"computes":                    {seen{took: 800 * ms, overRan: 815 * ms, ran: 812 * ms}, "computing"},
		"lost":                        {seen{took: 210 * ms, inside: true, over: 500 * ms, timeouts: 1, resent: 2, overRan: 215 * ms, sleeps: 20}, "tcp-timeout tcp-resent"},
		"counters began again":        {seen{took: 210 * ms, inside: true, over: 500 * ms, timeouts: 1<<32 - 3, probes: 2, resent: 1<<32 - 1, overRan: 215 * ms, sleeps: 20}, "tcp-probe"},
		"held back":                   {seen{took: 41 * ms, inside: true, over: 500 * ms, delayed: 3, overRan: 42 * ms, sleeps: 3}, "tcp-delayed"},
		"not what was held back":      {seen{took: 400 * ms, inside: true, over: 500 * ms, delayed: 3, overRan: 401 * ms, sleeps: 30}, ""},
		"lost, and held back":         {seen{took: 210 * ms, inside: true, over: 500 * ms, timeouts: 1, delayed: 2, overRan: 215 * ms, sleeps: 20}, "tcp-timeout"},
		"TCP is of no concern to it":  {seen{took: 210 * ms, over: 500 * ms, timeouts: 1, overRan: 215 * ms, ran: 210 * ms}, "computing"},
		"stolen":                      {seen{took: 100 * ms, inside: true, over: 900 * ms, stolen: 60 * ms, overRan: 110 * ms, ran: 109 * ms}, "vcpu-stolen"},
		"shared":                      {seen{took: 100 * ms, over: 900 * ms, delay: 80 * ms, overRan: 110 * ms, ran: 30 * ms}, "cpu-shared computing"},
		"numbers that can not be":     {seen{took: 100 * ms, over: math.MinInt64, delay: math.MinInt64, stolen: math.MaxInt64, overRan: math.MaxInt64, ran: math.MinInt64}, "rank-stopped"},
		"numbers that can not be, II": {seen{took: 1, inside: true, over: 1, delay: -1, stolen: math.MinInt64, overRan: 1, ran: math.MaxInt64, sleeps: math.MaxUint32}, ""},
	} {
		var got []string
		for _, cause := range c.seen.causes() {
			got = append(got, string(cause.What))
			if cause.Took > time.Duration(c.seen.took) || cause.Took < 0 {
				t.Errorf("%s: %+v", name, cause)
			}
		}
		if strings.Join(got, " ") != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

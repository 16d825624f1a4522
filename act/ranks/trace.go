// Package ranks reads the tracing library's (act/image/trace) shared memory about the MPI
// calls of this guest's ranks.
//
// The job's programs may write anything to those files at any time: invalid data is
// clipped or skipped, and no file costs more memory or time than a valid one. It runs in
// the guest agent only on request, so an idle guest is not woken. Its tests use
// artificial files; cmd/pagurus-guest's read the library's, in real guests.
package ranks

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"pagurus/fleet"
)

// Folder is where the library keeps its files, one for each rank.
const Folder = "/dev/shm"

const (
	filePrefix = "pagurus-trace."
	// mostFiles limits the files read: more ranks than one guest would run.
	mostFiles = 512
	// tries limits retries of a file that its rank is changing. A change takes some
	// microseconds, unless the rank was ended during one.
	tries     = 20
	tryPause  = time.Millisecond
	mostGaps  = 16  // in one trace
	mostCells = 400 // of ranks it has sent to, so that a trace fits a message
	// notable is the minimum length of a reported open gap, as in trace.c.
	notable = 10 * time.Millisecond
)

// Read returns the traces of all ranks with files in a folder, by rank. If a rank has two
// files, from successive programs, the newer counts. say reports invalid files.
func Read(folder string, q fleet.TraceQuery, say func(format string, args ...any)) ([]fleet.Trace, error) {
	names, err := files(folder)
	if err != nil {
		return nil, err
	}
	youngest := map[int32]*record{}
	for _, name := range names {
		r, err := readFile(filepath.Join(folder, name))
		if err != nil {
			say("trace %s: %v", name, err)
			continue
		}
		if other := youngest[r.rank]; other == nil || other.begun < r.begun {
			youngest[r.rank] = r
		}
	}
	var out []fleet.Trace
	for _, r := range youngest {
		out = append(out, r.trace(q, moment{real: time.Now(), mono: monotonic(), state: processState(int(r.pid))}))
	}
	slices.SortFunc(out, func(a, b fleet.Trace) int { return cmp.Compare(a.Rank, b.Rank) })
	return out, nil
}

// files lists the ranks' files, at most mostFiles.
func files(folder string) ([]string, error) {
	d, err := os.Open(folder)
	if err != nil {
		return nil, fmt.Errorf("looking for traces: %w", err)
	}
	defer d.Close()
	var out []string
	for {
		names, err := d.Readdirnames(mostFiles)
		for _, n := range names {
			if strings.HasPrefix(n, filePrefix) && len(out) < mostFiles {
				out = append(out, n)
			}
		}
		if errors.Is(err, io.EOF) || len(out) == mostFiles {
			return out, nil
		}
		if err != nil {
			return nil, fmt.Errorf("looking for traces: %w", err)
		}
	}
}

// readFile reads one file, again if the rank was changing it.
func readFile(path string) (*record, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), path)
	defer f.Close()
	b := make([]byte, sentAt+mostPeers*countBytes)
	seq := make([]byte, 4)
	for range tries {
		n, err := f.ReadAt(b, 0)
		if err != nil && !errors.Is(err, io.EOF) {
			return nil, err
		}
		if err := check(b[:n]); err != nil {
			return nil, err
		}
		if _, err := f.ReadAt(seq, seqAt); err != nil {
			return nil, err
		}
		if now := u32(seq, 0); now&1 == 0 && now == u32(b, seqAt) {
			b = b[:n]
			break
		}
		time.Sleep(tryPause)
	}
	return parse(b)
}

// moment is when a file was read, with its rank's state.
type moment struct {
	real  time.Time
	mono  int64 // CLOCK_MONOTONIC, ns
	state byte  // of the process, as in /proc; 0: none
}

func monotonic() int64 {
	var t unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &t) // it cannot fail for this clock
	return t.Nano()
}

// processState returns a process's state letter: T is stopped.
func processState(pid int) byte {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return 0
	}
	// The name before it is in parentheses and may contain any.
	if _, after, ok := strings.Cut(string(b[max(0, strings.LastIndexByte(string(b), ')')):]), " "); ok && after != "" {
		return after[0]
	}
	return 0
}

// trace converts the record for a query.
func (r *record) trace(q fleet.TraceQuery, now moment) fleet.Trace {
	t := fleet.Trace{
		Rank: int(r.rank), Ranks: int(r.ranks), At: now.real.UTC().Round(0), Begun: time.Unix(0, r.begun).UTC(), Ended: r.ended,
		Outside: r.outside.took(), Calls: map[fleet.CallClass]fleet.Calls{}, Normal: r.normal(),
		Handed: r.handed.sent(0), Elsewhere: r.elsewhere.sent(0),
	}
	for i, c := range fleet.CallClasses {
		t.Calls[c] = fleet.Calls{Count: r.calls[i].n, Took: r.calls[i].took()}
	}
	last := now.mono
	if r.ended || now.state == 0 {
		last = r.last
	}
	t.Elapsed = time.Duration(max(last-r.began, 0))
	gaps := r.gaps
	if g, ok := r.open(now); ok {
		gaps = append(gaps[:len(gaps):len(gaps)], g)
	}
	if q.Window() {
		gaps = slices.DeleteFunc(slices.Clone(gaps), func(g fleet.Gap) bool { return g.At.After(q.To) || g.End().Before(q.From) })
	} else {
		t.Sent, t.Elsewhere = r.cells(t.Elsewhere)
		t.Newest = r.calledLast(now)
		t.SpanLength, t.Spans = r.shares(last)
	}
	slices.SortStableFunc(gaps, func(a, b fleet.Gap) int { return cmp.Compare(b.Took, a.Took) })
	t.Gaps = slices.Clone(gaps[:min(len(gaps), mostGaps)])
	t.Seconds = r.seconds(now.real)
	return t
}

// open returns the unfinished gap, if it is long enough.
func (r *record) open(now moment) (fleet.Gap, bool) {
	took := time.Duration(now.mono - r.last)
	if r.ended || now.state == 0 || now.state == 'Z' || r.last <= 0 || took < notable {
		return fleet.Gap{}, false
	}
	g := fleet.Gap{Rank: int(r.rank), At: now.real.Add(-took).UTC().Round(0), Took: took, Open: true, InMPI: r.inside > 0}
	if g.InMPI {
		g.Call = class(r.inside - 1)
	}
	if now.state == 'T' || now.state == 't' {
		g.Why = []fleet.Cause{{What: fleet.RankStopped, Took: took}}
	}
	return g, true
}

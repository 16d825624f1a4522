package main

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"pagurus/decide/stall"
	"pagurus/fleet"
	"pagurus/internal/testkit"
)

const patterns = "../../internal/testkit/pattern"

// checkTrace checks the traces of ranks on two guests, with the image's library: of a
// program with known traffic, in C and in Fortran, and of one that is stopped for a while.
func checkTrace(t *testing.T, guests []*vm) {
	for _, file := range []string{"pattern.c", "fortran.f"} {
		text, err := os.ReadFile(filepath.Join(patterns, file))
		if err != nil {
			t.Fatal(err)
		}
		guests[0].put(t, file, text)
	}
	guests[0].compile(t, "mpicc -O1 -o pattern pattern.c && mpif77 -o fortran fortran.f")
	checkMatrix(t, guests, "./pattern", func(rank, ranks int) []fleet.Sent {
		next, last := fleet.Sent{Rank: (rank + 1) % ranks, Messages: 17, Bytes: 10*8000 + 7*100}, fleet.Sent{Rank: ranks - 1, Messages: 1, Bytes: 40}
		if next.Rank == last.Rank {
			return []fleet.Sent{{Rank: last.Rank, Messages: 18, Bytes: next.Bytes + last.Bytes}}
		}
		return []fleet.Sent{next, last}
	}, fleet.Sent{Messages: 1, Bytes: 8})
	checkMatrix(t, guests, "./fortran", func(rank, ranks int) []fleet.Sent {
		return []fleet.Sent{{Rank: (rank + 1) % ranks, Messages: 3, Bytes: 3 * 40}}
	}, fleet.Sent{Messages: 1})
	checkLight(t, guests)
	checkAsking(t, guests)
	checkStopped(t, guests)
}

// checkLight starts a program that does not use MPI: the library that traces is in it, but
// not the MPI library with all that this needs, which each program would otherwise be moved with.
func checkLight(t *testing.T, guests []*vm) {
	t.Helper()
	o := guests[0].do(t, time.Minute, fleet.Program{Args: []string{"cat", "/proc/self/maps"}, Dir: guests[0].export, MPI: true, Ranks: 1, Trace: true}, "")
	if !strings.Contains(o.stdout, "libpagurus-") || strings.Contains(o.stdout, "libmpi") {
		t.Errorf("a program that does not use MPI has mapped\n%s", o.stdout)
	}
}

// checkAsking has a rank test for messages. With work between its tests it is not slowed;
// without work it sleeps where waiting ranks do.
func checkAsking(t *testing.T, guests []*vm) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(patterns, "asks.c"))
	if err != nil {
		t.Fatal(err)
	}
	guests[0].put(t, "asks.c", text)
	guests[0].compile(t, "mpicc -O1 -o asks asks.c")
	p := fleet.Program{Args: []string{"./asks"}, Dir: guests[0].export, MPI: true, Ranks: 2, Trace: true}
	o := guests[0].do(t, 2*time.Minute, p, "")
	var used float64
	var slept, asked int
	var waits string
	if _, err := fmt.Sscanf(o.stdout, "SLEPT %d USED %f ASKED %d WAITS %s", &slept, &used, &asked, &waits); err != nil {
		t.Fatalf("%v: %+v", err, o)
	}
	t.Logf("in a thousand questions with 0.1 ms of work between them it slept %d times; asking alone took %.0f %% of a processor, for %d questions", slept, 100*used, asked)
	if waits != "yes" {
		t.Error("these guests are emulated, and those who wait do not sleep")
	}
	if slept > 200 { // a sleep at each would be a thousand
		t.Errorf("in a thousand questions with work between them it slept %d times", slept)
	}
	if asked < 10000 { // likewise: 3000
		t.Errorf("%d questions in three seconds", asked)
	}
	if guests[0].setup.MPI != "mpich" && used > 0.9 { // MPICH does not yield
		t.Errorf("who only asks has %.0f %% of a processor", 100*used)
	}
}

// traces gives the traces of the latest program with that many ranks, by rank.
func traces(t *testing.T, guests []*vm, q fleet.TraceQuery, ranks int) []fleet.Trace {
	t.Helper()
	var out []fleet.Trace
	for _, g := range guests {
		some, err := g.Trace(t.Context(), q)
		if err != nil {
			t.Fatal(err)
		}
		for i := range some {
			some[i].Guest = g.setup.Guest
		}
		out = append(out, some...)
	}
	out = slices.DeleteFunc(out, func(tr fleet.Trace) bool { return tr.Ranks != ranks })
	slices.SortFunc(out, func(a, b fleet.Trace) int { return cmp.Or(a.Rank-b.Rank, b.Begun.Compare(a.Begun)) })
	return slices.CompactFunc(out, func(a, b fleet.Trace) bool { return a.Rank == b.Rank })
}

// checkMatrix runs a program to its end and compares its ranks' sent messages with the
// expected ones, byte by byte.
func checkMatrix(t *testing.T, guests []*vm, program string, want func(rank, ranks int) []fleet.Sent, handed fleet.Sent) {
	t.Helper()
	const ranks = 3
	p := fleet.Program{Args: []string{program}, Dir: guests[0].export, MPI: true, Ranks: ranks, Trace: true}
	if o := guests[0].do(t, 2*time.Minute, p, ""); o.exit.Code != 0 {
		t.Fatalf("%s: %+v", program, o)
	}
	all := traces(t, guests, fleet.TraceQuery{}, ranks)
	if len(all) != ranks {
		t.Fatalf("%s: %d traces: %+v", program, len(all), all)
	}
	for rank, tr := range all {
		if tr.Rank != rank || tr.Ranks != ranks || !tr.Ended || tr.Elsewhere != (fleet.Sent{}) || tr.Handed != handed {
			t.Errorf("%s: rank %d: %+v", program, rank, tr)
		}
		if w := want(rank, ranks); !slices.Equal(tr.Sent, w) {
			t.Errorf("%s: rank %d has sent %+v, want %+v", program, rank, tr.Sent, w)
		}
		spent := tr.Outside
		for _, c := range tr.Calls {
			spent += c.Took
		}
		if off := (tr.Elapsed - spent).Abs(); off > tr.Elapsed/100+time.Millisecond {
			t.Errorf("%s: rank %d has spent %v of %v in calls and between them", program, rank, spent, tr.Elapsed)
		}
	}
}

// checkStopped stops one rank for a second and finds that in both ranks' traces, of a
// program that ends when there is a file "stopped".
func checkStopped(t *testing.T, guests []*vm) {
	t.Helper()
	const ranks = 2
	for _, g := range guests {
		// The link's delay is the clock's error, and may be too long to tell which gaps are one.
		for try, took := 0, time.Minute; try < 20 && took > 100*time.Millisecond; try++ {
			begun := time.Now()
			g.join(t)
			took = time.Since(begun)
		}
	}
	p := fleet.Program{ID: "stopped", Args: []string{"./pattern", "200", "stopped"}, Dir: guests[0].export, MPI: true, Ranks: ranks, Trace: true}
	var o outcome
	wait := testkit.Meanwhile(t, func() { o = guests[0].do(t, 2*time.Minute, p, "") })
	idle := func(tr fleet.Trace) bool { return tr.Ended || tr.Handed.Messages <= 100 }
	testkit.Until(t, time.Minute, "the ranks go round", func() bool {
		time.Sleep(300 * time.Millisecond) // answers take the guests' time from the ranks
		all := traces(t, guests, fleet.TraceQuery{}, ranks)
		return len(all) == ranks && !slices.ContainsFunc(all, idle)
	})
	signal := func(name string) {
		script := fmt.Sprintf(`for p in /proc/[0-9]*; do read c < $p/comm; [ "$c" != pattern ] || kill -%s ${p#/proc/}; done`, name)
		if o := guests[1].do(t, time.Minute, guests[1].sh(script), ""); o.stderr != "" {
			t.Error(o.stderr)
		}
	}
	signal("STOP")
	time.Sleep(time.Second)
	during := traces(t, guests[1:], fleet.TraceQuery{From: time.Now().Add(-time.Minute), To: time.Now().Add(time.Minute)}, ranks)[0]
	signal("CONT")
	time.Sleep(time.Second) // other gaps follow
	guests[0].put(t, "stopped", nil)
	if g := stopped(during); !g.Open || g.Took < 900*time.Millisecond || len(g.Why) != 1 {
		t.Errorf("while rank 1 is stopped its gap is %+v", g)
	}
	wait()
	if !strings.Contains(o.stdout, "DONE") {
		t.Fatalf("%+v", o)
	}
	for rank, tr := range stall.Explain(traces(t, guests, fleet.TraceQuery{}, ranks), nil) {
		g := stopped(tr)
		t.Logf("rank %d: gap of %v, in MPI %t: %+v", rank, g.Took, g.InMPI, g.Why)
		if g.Took < 900*time.Millisecond {
			t.Errorf("rank %d: %+v", rank, tr.Gaps)
			continue
		}
		if whose := g.Why[0].Rank; (rank == 0) != (whose != nil && *whose == 1) {
			t.Errorf("rank %d says that it was stopped itself or not: %+v", rank, g)
		}
	}
}

// stopped is the longest gap that a stopped rank explains: a busy machine has longer ones of its
// own, as while the ranks begin.
func stopped(tr fleet.Trace) fleet.Gap {
	for _, g := range tr.Gaps {
		if len(g.Why) > 0 && g.Why[0].What == fleet.RankStopped {
			return g
		}
	}
	return fleet.Gap{}
}

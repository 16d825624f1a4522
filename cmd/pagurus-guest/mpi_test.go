package main

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"pagurus/fleet"
	"pagurus/internal/testkit"
)

// Two guests, one program, no flag: what a user of mpirun expects. Each of three launchers finds
// the other guests in its own way. TestGuest tests another, openmpi.
func TestMPI(t *testing.T) {
	guests := bootPair(t, "mpich")
	t.Run("programs", func(t *testing.T) { checkMPI(t, guests) })
	t.Run("trace", func(t *testing.T) { checkTrace(t, guests) })
}

// The third launcher. Its library is called as openmpi's is.
func TestLongMPI(t *testing.T) { checkMPI(t, bootPair(t, "openmpi4")) }

// bootPair gives the two guests of a job.
func bootPair(t *testing.T, image string) []*vm {
	t.Helper()
	testImage(t, image)
	h := network(t)
	guests := []*vm{bootVM(t, h, image, 0, 2), bootVM(t, h, image, 1, 2)}
	for _, g := range guests {
		g.setup.MPI = strings.TrimRight(image, "4")
	}
	joinAll(t, guests)
	return guests
}

func joinAll(t *testing.T, guests []*vm) {
	t.Helper()
	var all sync.WaitGroup
	for _, g := range guests {
		all.Go(func() { g.join(t) })
	}
	all.Wait()
	if t.Failed() {
		t.FailNow()
	}
}

// installWitness compiles the witness onto the job's files.
func installWitness(t *testing.T, guests []*vm) {
	t.Helper()
	source, err := os.ReadFile("../../internal/testkit/witness/witness.c")
	if err != nil {
		t.Fatal(err)
	}
	g := guests[0]
	if g.image != "openmpi" { // compiling in a guest is tested once
		g.put(t, "w.c", source)
		g.compile(t, "mpicc -O1 -o witness w.c")
		return
	}
	o := g.do(t, 3*time.Minute, g.sh("cat >w.c && mpicc -O1 -o witness w.c"), string(source))
	if o.exit.Code != 0 {
		t.Fatalf("compiling: %+v", o)
	}
}

// checkMPI runs few programs that each test much, since starting ranks on two emulated
// guests takes longest.
func checkMPI(t *testing.T, guests []*vm) {
	installWitness(t, guests)
	g := guests[0]
	mpi := func(ranks int, args ...string) fleet.Program {
		return fleet.Program{Args: args, Dir: g.export, MPI: true, Ranks: ranks}
	}
	checkMove(t, guests, mpi(2, "./witness", "200", "16", "10000", "moved"))
	checkPrompt(t, g, mpi(2, "sh", "-c", `echo "$(hostname) sees $COLOUR"; [ "${OMPI_COMM_WORLD_RANK:-$PMI_RANK}" != 0 ] || { cat; exit 7; }`))
	checkTyped(t, g, mpi)
	o := g.do(t, time.Minute, mpi(4, "./witness", "1"), "") // more ranks than slots
	t.Logf("oversubscribed: %v %v\n%s%s", o.took, o.exit, o.stdout, o.stderr)
	contains(t, "output of four ranks", o.stdout, "START ranks=4", "OK")
	o = g.do(t, time.Minute, mpi(2, "./nothing"), "")
	t.Logf("missing: %v %v\n%s%s", o.took, o.exit, o.stdout, o.stderr)
	if o.exit.Code != 127 {
		t.Errorf("a missing program: %+v", o)
	}
}

// typed are words that launchers and shells take for their own, which a program gets as they were typed.
var typed = []string{
	":", "", "-n", "5", "--", ":", "--help", "-x", "--app", "f", "$HOME", "`id`", "$(id)", "a b", "it's", "''", `"q"`, `\`, `\n`, "%h", "::", "*", "~",
	"#", ";", "|", "&", "{}", "=", "a=b", "@f", "two\nlines", "\ttab", " ", "é", "-", ":",
}

// checkTyped has a rank on each guest print its arguments, by programs whose names are as awkward.
func checkTyped(t *testing.T, g *vm, mpi func(int, ...string) fleet.Program) {
	t.Helper()
	g.compile(t, `printf '#!/bin/sh\necho $(printf "[%%s]" "$@" | od -An -v -tx1)\n' >"a=b's c" && chmod 755 "a=b's c"`) // one line of each rank
	for _, words := range [][]string{typed, slices.DeleteFunc(slices.Clone(typed), func(w string) bool { return w == ":" })} {
		want := fmt.Sprintf("% x\n", "["+strings.Join(words, "][")+"]")
		for _, trace := range []bool{false, true} {
			p := mpi(2, append([]string{"./a=b's c"}, words...)...)
			p.Trace = trace
			if o := g.do(t, time.Minute, p, ""); o.exit.Code != 0 || o.stdout != want+want {
				t.Errorf("traced %v: two ranks got %q, not twice %q: %+v", trace, o.stdout, want, o)
			}
		}
	}
}

// checkMove moves one guest after the other while their ranks communicate, which they do
// until there is a file "moved", and checks the gaps. No MPI program may have run in the
// guests before.
func checkMove(t *testing.T, guests []*vm, p fleet.Program) {
	t.Helper()
	p.Trace = true
	var o outcome
	wait := testkit.Meanwhile(t, func() { o = guests[0].do(t, 4*time.Minute, p, "") })
	testkit.Until(t, 2*time.Minute, "the ranks talk", func() bool {
		time.Sleep(200 * time.Millisecond) // answers take the guests' time from the ranks
		for _, g := range guests {
			if traces, err := g.Trace(t.Context(), fleet.TraceQuery{}); err != nil || len(traces) == 0 {
				return false
			}
		}
		return true
	})
	for _, g := range guests {
		g.move(t)
	}
	guests[0].put(t, "moved", nil)
	wait()
	t.Logf("moved: %v %v\n%s%s", o.took, o.exit, o.stdout, o.stderr)
	contains(t, "output of moved ranks", o.stdout, "START ranks=2", "host=guest0", "host=guest1", "OK")
	for i, g := range guests {
		traces, err := g.Trace(t.Context(), fleet.TraceQuery{})
		if err != nil || len(traces) != 1 || traces[0].Rank != i || len(traces[0].Gaps) < 10 {
			t.Errorf("trace of guest %d: %+v %v", i, traces, err)
			continue
		}
		if g := traces[0].Gaps[0]; g.Took <= 0 || time.Since(g.At).Abs() > o.took+time.Minute {
			t.Errorf("the longest gap of guest %d is %+v", i, g)
		}
	}
}

// checkPrompt has ranks on both guests write while rank 0 waits for input: output comes
// while a program runs, environment and input arrive, and rank 0's exit is the program's.
// Only rank 0 reads: MPICH never closes the others' input.
func checkPrompt(t *testing.T, g *vm, p fleet.Program) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	p.ID, p.Env = "prompt", []string{"COLOUR=deep blue"}
	if err := g.Launch(ctx, p); err != nil {
		t.Fatal(err)
	}
	var got []byte
	var err error
	for eof := false; !eof && err == nil && strings.Count(string(got), "deep blue\n") < 2; { // rank 0's end is also that of a rank that has not written
		var data []byte
		data, eof, err = g.Read(ctx, p.ID, fleet.Stdout, int64(len(got)))
		got = append(got, data...)
	}
	if err != nil || !strings.HasPrefix(string(got), "guest") {
		t.Errorf("output before the end: %q %v", got, err)
	}
	input := []byte("to rank 0\n")
	if next, err := g.Write(ctx, p.ID, 0, input, true); err != nil || next != int64(len(input)) {
		t.Errorf("of the input %d bytes were taken: %v", next, err)
	}
	for eof := false; !eof && err == nil; {
		var data []byte
		data, eof, err = g.Read(ctx, p.ID, fleet.Stdout, int64(len(got)))
		got = append(got, data...)
	}
	contains(t, "output of both", string(got), "guest0 sees deep blue\n", "guest1 sees deep blue\n", "to rank 0\n")
	if exit, werr := g.Wait(ctx, p.ID); err != nil || werr != nil || exit.Code != 7 {
		t.Errorf("the exit code is not the program's: %+v %v %v", exit, err, werr)
	}
}

package main

import (
	"context"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"pagurus/fleet"
)

// The images in which MPI programs have to start: each of the three launchers
// finds the other guests in a way of its own.
var mpiImages = []string{"openmpi", "mpich", "openmpi4"}

// Two guests, one program, no flag: what a user of mpirun expects.
func TestMPI(t *testing.T) {
	for _, name := range mpiImages {
		t.Run(name, func(t *testing.T) {
			folder := testImage(t, name)
			h := network(t)
			guests := []*vm{bootVM(t, h, folder, 0, 2), bootVM(t, h, folder, 1, 2)}
			for _, g := range guests {
				g.setup.MPI = strings.TrimRight(name, "4")
			}
			joinAll(t, guests)
			installWitness(t, guests)
			checkMPI(t, guests)
		})
	}
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

// installWitness compiles the witness in the first guest, on the job's files.
func installWitness(t *testing.T, guests []*vm) {
	t.Helper()
	source, err := os.ReadFile("../../internal/testkit/witness/witness.c")
	if err != nil {
		t.Fatal(err)
	}
	g := guests[0]
	o := g.do(t, 3*time.Minute, g.sh("cat >w.c && mpicc -O1 -o witness w.c"), string(source))
	if o.exit.Code != 0 {
		t.Fatalf("compiling: %+v", o)
	}
}

func checkMPI(t *testing.T, guests []*vm) {
	g := guests[0]
	mpi := func(ranks int, args ...string) fleet.Program {
		return fleet.Program{Args: args, Dir: g.export, MPI: true, Ranks: ranks}
	}
	o := g.do(t, 2*time.Minute, mpi(2, "hostname"), "")
	t.Logf("hostname: %v %v\n%s%s", o.took, o.exit, o.stdout, o.stderr)
	contains(t, "hostname of both", o.stdout, "guest0", "guest1")

	p := mpi(2, "./witness", "3", "4")
	p.Trace = true
	p.Env = []string{"COLOUR=deep blue"}
	o = g.do(t, 2*time.Minute, p, "")
	t.Logf("witness: %v %v\n%s%s", o.took, o.exit, o.stdout, o.stderr)
	contains(t, "output of the witness", o.stdout, "START ranks=2", "host=guest1", "OK")
	for i, other := range guests {
		gaps, err := other.Gaps(t.Context())
		if err != nil || len(gaps) < 10 || gaps[0].Rank != i || gaps[0].Took <= 0 || time.Since(gaps[0].At).Abs() > time.Minute {
			t.Errorf("gaps of guest %d: %v %v", i, gaps, err)
		}
	}

	p = mpi(2, "sh", "-c", `echo "$(hostname) sees $COLOUR"`)
	p.Env = []string{"COLOUR=deep blue"}
	o = g.do(t, time.Minute, p, "")
	contains(t, "environment of both", o.stdout, "guest0 sees deep blue", "guest1 sees deep blue")

	o = g.do(t, time.Minute, mpi(2, "sh", "-c", "exit 7"), "")
	if o.exit.Code != 7 {
		t.Errorf("exit code is not the program's: %+v", o)
	}
	o = g.do(t, time.Minute, mpi(4, "./witness", "1"), "") // more ranks than slots
	t.Logf("oversubscribed: %v %v\n%s%s", o.took, o.exit, o.stdout, o.stderr)
	contains(t, "output of four ranks", o.stdout, "START ranks=4", "OK")
	// Only rank 0: MPICH never closes the others' input.
	o = g.do(t, time.Minute, mpi(2, "sh", "-c", `[ "${OMPI_COMM_WORLD_RANK:-$PMI_RANK}" != 0 ] || cat`), "to rank 0\n")
	contains(t, "standard input of rank 0", o.stdout, "to rank 0")
	o = g.do(t, time.Minute, mpi(2, "./nothing"), "")
	t.Logf("missing: %v %v\n%s%s", o.took, o.exit, o.stdout, o.stderr)
	if o.exit.Code != 127 {
		t.Errorf("a missing program: %+v", o)
	}
	checkMove(t, guests, mpi(2, "./witness", "10", "16"))
	checkPrompt(t, g, mpi(2, "sh", "-c", `echo first; [ "${OMPI_COMM_WORLD_RANK:-$PMI_RANK}" != 0 ] || cat`))
}

// Output comes while the program runs.
func checkPrompt(t *testing.T, g *vm, p fleet.Program) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	p.ID = "prompt"
	if err := g.Launch(ctx, p); err != nil {
		t.Fatal(err)
	}
	data, _, err := g.Read(ctx, p.ID, fleet.Stdout, 0)
	if err != nil || !strings.HasPrefix(string(data), "first") {
		t.Errorf("output before the end: %q %v", data, err)
	}
	if _, err := g.Write(ctx, p.ID, 0, nil, true); err != nil {
		t.Error(err)
	}
	if _, err := g.Wait(ctx, p.ID); err != nil {
		t.Error(err)
	}
}

// checkMove moves one guest after the other while their ranks talk.
func checkMove(t *testing.T, guests []*vm, p fleet.Program) {
	t.Helper()
	var o outcome
	var job sync.WaitGroup
	job.Go(func() { o = guests[0].do(t, 4*time.Minute, p, "") })
	time.Sleep(4 * time.Second) // the ranks have started by then, or start later: nothing depends on it
	for _, g := range guests {
		g.move(t)
	}
	job.Wait()
	t.Logf("moved: %v %v\n%s%s", o.took, o.exit, o.stdout, o.stderr)
	contains(t, "output of moved ranks", o.stdout, "START ranks=2", "host=guest1", "OK")
}

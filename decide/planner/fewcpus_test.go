package planner

import (
	"slices"
	"strings"
	"testing"

	"pagurus/fleet"
)

// Ranks of Open MPI that have fewer CPUs than they are do not spin while they wait, and whoever asked for them is told.
func TestCrowdedRanksYield(t *testing.T) {
	const own = "OMPI_MCA_mpi_yield_when_idle=0"
	for name, c := range map[string]struct {
		before  int // guests of another job
		change  func(*fleet.Request)
		crowded bool
		told    bool
	}{
		"a CPU each":                {0, func(*fleet.Request) {}, false, false},
		"fewer in a guest":          {0, func(r *fleet.Request) { r.Spec.Ranks = 3 }, true, true},
		"as many in a guest":        {0, func(r *fleet.Request) { r.Spec.Ranks, r.Spec.Need.CPUs = 4, 2 }, false, false},
		"a cap":                     {0, func(r *fleet.Request) { r.Spec.Cap = 0.5 }, true, true},
		"a whole CPU as a cap":      {0, func(r *fleet.Request) { r.Spec.Cap = 1 }, false, false},
		"a machine that is full":    {3, func(*fleet.Request) {}, true, true},
		"one that becomes full":     {2, func(*fleet.Request) {}, false, false},
		"another MPI":               {3, func(r *fleet.Request) { r.Image.MPI = "mpich" }, true, false},
		"what its user says counts": {3, func(r *fleet.Request) { r.Spec.Env = []string{own} }, true, false},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, "host1", "host2") // of one machine with four CPUs
			if c.before > 0 {
				other := submission(c.before)
				other.ID = "other"
				w.must(other)
				w.answerAll()
			}
			r := submission(2)
			r.ID = "this"
			c.change(&r)
			a := w.must(r)
			j := w.s.Jobs[a.Job]
			told := slices.ContainsFunc(a.Notes, func(n string) bool { return strings.Contains(n, "fewer CPUs than they are") })
			if j.State != fleet.JobStarting || j.Crowded != c.crowded || told != c.told {
				t.Errorf("%s, crowded %t, told %q", j.State, j.Crowded, a.Notes)
			}
			env := j.Environment()
			if yields := slices.Contains(env, fleet.YieldWhenIdle); yields != (c.crowded && j.MPI == "openmpi") || len(j.Spec.Env) > 0 && env[len(env)-1] != own {
				t.Errorf("environment: %q", env)
			}
		})
	}
}

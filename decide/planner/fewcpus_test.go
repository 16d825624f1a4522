package planner

import (
	"slices"
	"strings"
	"testing"

	"pagurus/fleet"
)

// Ranks of Open MPI that have fewer CPUs than they are do not spin while they wait, and whoever asked for them is told.
func TestRanksWithFewCPUsYield(t *testing.T) {
	const own = "OMPI_MCA_mpi_yield_when_idle=0"
	for name, c := range map[string]struct {
		before int // guests of another job
		limit  float64
		change func(*fleet.Request)
		few    bool
		told   bool
	}{
		"a CPU each":                {0, 0, func(*fleet.Request) {}, false, false},
		"fewer in a guest":          {0, 0, func(r *fleet.Request) { r.Spec.Ranks = 3 }, true, true},
		"as many in a guest":        {0, 0, func(r *fleet.Request) { r.Spec.Ranks, r.Spec.Need.CPUs = 4, 2 }, false, false},
		"a cap":                     {0, 0, func(r *fleet.Request) { r.Spec.Cap = 0.5 }, true, true},
		"a whole CPU as a cap":      {0, 0, func(r *fleet.Request) { r.Spec.Cap = 1 }, false, false},
		"a machine that is full":    {3, 0, func(*fleet.Request) {}, true, true},
		"one that becomes full":     {2, 0, func(*fleet.Request) {}, false, false},
		"a limit for all guests":    {0, 0.5, func(*fleet.Request) {}, true, true},
		"another MPI":               {3, 0, func(r *fleet.Request) { r.Image.MPI = "mpich" }, true, false},
		"what its user says counts": {3, 0, func(r *fleet.Request) { r.Spec.Env = []string{own} }, true, false},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, "host1", "host2") // of one machine with four CPUs
			for id, h := range w.s.Hosts {
				h.Facts.CPULimit = c.limit
				w.s.Hosts[id] = h
			}
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
			if j.State != fleet.JobStarting || j.FewCPUs != c.few || told != c.told {
				t.Errorf("%s, few CPUs %t, told %q", j.State, j.FewCPUs, a.Notes)
			}
			env := j.Environment()
			if yields := slices.Contains(env, fleet.YieldWhenIdle); yields != (c.few && j.MPI == "openmpi") || len(j.Spec.Env) > 0 && env[len(env)-1] != own {
				t.Errorf("environment: %q", env)
			}
		})
	}
}

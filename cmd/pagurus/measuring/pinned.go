// This file has the processes of two guests share one core, each in a control
// group and of a class as the agent gives them, and measures what each gets of it.
// It is where `pagurus bench scheduler` runs.
//
// It must not know what may be concluded. Its tests run such processes on a core of
// this machine.

package measuring

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"pagurus/act/cgroup"

	"pagurus/bench"
	"pagurus/bench/stats"
	"pagurus/fleet"
)

// Off is the target whose guests have the weights of their classes, and the kernel's
// own time slices.
const Off = "slices-off"

// Target is the one in which the time slices of class normal are so long; those of the
// others follow. 0 is Off.
func Target(normal time.Duration) string {
	if normal == 0 {
		return Off
	}
	return "slices-" + normal.String()
}

// normalOf is the slice that a Target means.
func normalOf(target string) (time.Duration, error) {
	if target == Off {
		return 0, nil
	}
	return time.ParseDuration(strings.TrimPrefix(target, "slices-"))
}

// promised is what share of its due a guest's share of the core may be off.
const promised = 0.03

// pair are two guests on the core: what the first does, and of the second that it
// wants all it can get.
type pair struct {
	name          string
	first, second fleet.Class
	kind          string
}

// pairs are what is measured.
var pairs = []pair{
	{"gold+bronze", fleet.Gold, fleet.Bronze, spins},
	{"gold+normal", fleet.Gold, fleet.Normal, spins},
	{"normal+bronze", fleet.Normal, fleet.Bronze, spins},
	{"gold+bronze-threads", fleet.Gold, fleet.Bronze, spinsAndNaps},
	{"normal+normal-threads", fleet.Normal, fleet.Normal, spinsAndNaps},
	{"gold-wakes", fleet.Gold, fleet.Normal, sleeps},
	{"normal-wakes", fleet.Normal, fleet.Normal, sleeps},
	{"bronze-wakes", fleet.Bronze, fleet.Normal, sleeps},
}

// Programs are what is measured.
func Programs() (all []bench.Program) {
	for _, p := range pairs {
		all = append(all, p.program())
	}
	return all
}

// kinds are those of both guests.
func (p pair) kinds() [2]string {
	if p.kind == sleeps {
		return [2]string{sleeps, spins}
	}
	return [2]string{p.kind, p.kind}
}

func (p pair) program() bench.Program {
	rate := func(name string, of, beside fleet.Class) bench.Figure {
		return bench.Figure{Name: name, Says: fmt.Sprintf("%s's work in a second of CPU beside %s", of, beside), Unit: "Msteps/s", Sense: stats.Faster}
	}
	if p.kind == sleeps {
		wait := func(name, what string) bench.Figure {
			return bench.Figure{Name: name, Says: fmt.Sprintf("%s's wait for the core beside a busy %s, %s", p.first, p.second, what), Unit: "s", Sense: stats.Slower}
		}
		return bench.Program{
			Name: p.name, Command: fmt.Sprintf("a %s guest that wakes up every %s for a moment, beside a %s one that wants all it can get", p.first, nap, p.second), Read: readWakes,
			Figures: []bench.Figure{wait("wake_s", "mean"), wait("wake_p99_s", "99th percentile"), rate("beside_rate", p.second, p.first)},
		}
	}
	first, second := cgroup.Share(p.first), cgroup.Share(p.second)
	share := func(name string, of, beside fleet.Class, weight float64) bench.Figure {
		return bench.Figure{Name: name, Says: fmt.Sprintf("%s's share beside %s", of, beside), Unit: "%", Sense: stats.Faster, Due: 100 * weight / (first + second), Within: promised}
	}
	of := bench.Program{
		Name: p.name, Command: fmt.Sprintf("a %s guest and a %s one that want all they can get", p.first, p.second), Read: readShares,
		Figures: []bench.Figure{share("first_share", p.first, p.second, first), share("second_share", p.second, p.first, second)},
	}
	if p.kind == spinsAndNaps {
		of.Command += fmt.Sprintf(", each with another thread that wakes up every %s on any core", doze)
		of.Figures[0].Says += ", with threads"
		of.Figures[1].Says += ", with threads"
		if p.first == p.second {
			of.Figures[0].Says, of.Figures[1].Says = "one "+of.Figures[0].Says, "another "+of.Figures[1].Says
		}
		return of
	}
	of.Figures = append(of.Figures, rate("first_rate", p.first, p.second), rate("second_rate", p.second, p.first))
	return of
}

// least is what a guest is said to have of the core that got nothing: that is a
// figure, too.
const least = 1e-3 // %

func readShares(text string) (bench.Result, error) {
	d, err := read(text)
	if err != nil {
		return bench.Result{}, err
	}
	all := d[0].CPU + d[1].CPU
	return bench.Result{Figures: map[string]float64{
		"first_share": max(least, 100*d[0].CPU/all), "second_share": max(least, 100*d[1].CPU/all), "first_rate": d[0].rate(), "second_rate": d[1].rate(),
	}}, nil
}

func readWakes(text string) (bench.Result, error) {
	d, err := read(text)
	if err != nil {
		return bench.Result{}, err
	}
	return bench.Result{Figures: map[string]float64{"wake_s": d[0].WakeMean, "wake_p99_s": d[0].WakeLast, "beside_rate": d[1].rate()}}, nil
}

// Core is a core of this machine for two guests.
type Core struct {
	worker []string
	cpu    int
	lasts  time.Duration
	groups *cgroup.Groups
}

// group is that of all guests here. What one has left that was killed is removed by
// the next.
const group = "pagurus-bench-core"

// Open makes a group for guests on a CPU, who are measured for as long as lasts.
// Worker is the command line of what calls Work.
func Open(worker []string, cpu int, lasts time.Duration) (*Core, error) {
	if err := cgroup.Sweep(group); err != nil {
		return nil, fmt.Errorf("%w: does another `pagurus bench scheduler` run?", err)
	}
	g, err := cgroup.Open(group, 0)
	if err != nil {
		return nil, err
	}
	return &Core{worker: worker, cpu: cpu, lasts: lasts, groups: g}, nil
}

// Close removes the group.
func (c *Core) Close() error { return c.groups.Close() }

// NoSlices says why time slices have no effect here; empty: they have.
func (c *Core) NoSlices() string { return c.groups.Slices() }

// Took is how long a run takes.
func (c *Core) Took() time.Duration { return c.lasts + warm + settling }

// settling is from when workers are told until they begin.
const settling = 50 * time.Millisecond

// Open needs nothing to be made ready.
func (c *Core) Open(_ context.Context, p bench.Program, _ []string) (bench.Round, error) {
	i := slices.IndexFunc(pairs, func(of pair) bool { return of.name == p.Name })
	if i < 0 {
		return nil, fmt.Errorf("there are no guests called %q", p.Name)
	}
	return round{c, pairs[i]}, nil
}

type round struct {
	*Core
	of pair
}

// Close leaves nothing, as there is nothing.
func (round) Close() error { return nil }

// Run has the two share the core once. Afterwards, whatever happened, they are gone
// and so are their groups.
func (r round) Run(ctx context.Context, target string) (text string, err error) {
	ctx, stop := context.WithTimeout(ctx, r.Took()+patience)
	defer stop()
	kinds, classes := r.of.kinds(), [2]fleet.Class{r.of.first, r.of.second}
	var workers [2]*worker
	defer func() {
		for i, w := range workers {
			if w != nil {
				w.end()
				err = errors.Join(err, r.groups.Remove(guest(i)))
			}
		}
	}()
	for i := range workers {
		if workers[i], err = r.start(ctx, kinds[i]); err != nil {
			return "", err
		}
		if err := r.give(guest(i), workers[i].pids, classes[i], target); err != nil {
			return "", err
		}
	}
	begin := now() + int64(warm+settling)
	for _, w := range workers {
		if err := w.tell(begin, r.lasts); err != nil {
			return "", err
		}
	}
	for _, w := range workers {
		said, err := w.said(ctx)
		if err != nil {
			return "", err
		}
		text += said
	}
	return text, nil
}

// patience is what a busy machine may take beside.
const patience = 30 * time.Second

func guest(i int) fleet.GuestID { return fleet.GuestID(fmt.Sprintf("%d-%d", os.Getpid(), i)) }

// give puts processes into a guest's group and gives them what the class has.
func (c *Core) give(g fleet.GuestID, pids []int, class fleet.Class, target string) error {
	normal, err := normalOf(target)
	errs := []error{err}
	for _, pid := range pids {
		errs = append(errs, c.groups.Place(g, pid, 1))
	}
	c.groups.Slice = normal
	if err := errors.Join(append(errs, c.groups.Class(g, cgroup.Service{Class: class, CPUs: 1}, nil))...); err != nil || normal == 0 {
		return err
	}
	want := cgroup.SliceOf(class, normal)
	for _, pid := range pids {
		got, err := cgroup.ThreadSlice(pid)
		if err == nil && got != want {
			err = fmt.Errorf("a %s guest has time slices of %s instead of %s", class, got, want)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

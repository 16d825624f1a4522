package measuring

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"pagurus/bench"
	"pagurus/bench/noise"
	"pagurus/bench/stats"
	"pagurus/fleet"
	"pagurus/show/cli"
	"pagurus/show/view"
)

// noiseFound is what a measurement of noise leaves beside its record.
type noiseFound struct {
	Version  int           `json:"version"`
	Begun    time.Time     `json:"begun"`
	Complete bool          `json:"complete"` // false: it was cut off
	Machine  bench.Machine `json:"machine"`
	bench.Noise
}

// sizes are the jobs that noise is predicted for.
var sizes = []int{2, 4, 8, 16, 32, 64}

// noisy is what is asked for: its targets are cores.
type noisy struct {
	asked
	cores string
	in    string        // the kind of guest whose cores they are; empty: this machine's
	cpus  int           // of that guest
	lasts time.Duration // of all probes of a core
	found map[string]*noise.Core
	probe func(ctx context.Context, cpu int) (noise.Core, error) // for one turn
}

func noiseCommand(std Streams) *cobra.Command {
	o := noisy{asked: usual(std), lasts: 5 * time.Second, found: map[string]*noise.Core{}}
	o.runs = 10
	cmd := &cobra.Command{
		Use:   "noise",
		Short: short("noise"),
		Long: `Noise times a fixed quantum of work again and again on each core, one core after the
other in turn. It says how much time was lost, and to what. From that it predicts how
much longer a step of 2 to 64 ranks takes if all wait for the last, as in an Allreduce:
the more ranks, the more likely it is that one of them is interrupted. It takes all of
a core meanwhile. ` + "`pagurus bench compare`" + ` compares two records, such as one before and
one after ` + "`pagurus isolate`" + `.

With --in it starts a guest and probes the guest's cores, as the guest sees them. That
needs a cluster; without one it brings up a lab and takes it down again.`,
		Example: `  pagurus bench noise
  pagurus bench noise --cores 2-15 --for 30s --report bench/noise
  sudo pagurus bench noise --in vm-tuned --cpus 4`,
		Args: cli.NoArguments,
		RunE: measured(o.run),
	}
	o.flags(cmd, "turns of all cores")
	cmd.Flags().StringVar(&o.cores, "cores", "", "cores to probe, as 0-3,8 (default: all that this program, or the guest, may use)")
	cmd.Flags().StringVar(&o.in, "in", "", "probe the cores of a guest: "+strings.Join(guestTargets(), ", ")+" (default: this machine's)")
	cmd.Flags().IntVar(&o.cpus, "cpus", 1, "virtual CPUs of that guest")
	cmd.Flags().DurationVar(&o.lasts, "for", o.lasts, "how long to probe each core, all turns together")
	return cmd
}

func (o *noisy) run(ctx context.Context, cmd *cobra.Command) error {
	if err := o.check(); err != nil {
		return fmt.Errorf("%w; see `pagurus bench noise --help`", err)
	}
	o.show = func(r *bench.Record, what bench.Summary) error { return o.result(cmd, r, what) }
	open := o.here
	if o.in != "" {
		open = func(measure func() error) error { return o.inside(ctx, measure) }
	}
	return open(func() error {
		return o.measure(ctx, cmd, &bench.Experiment{Place: o, Spec: bench.Spec{Name: "noise", Ranks: 1, Programs: []bench.Program{quanta(o.turn())}}})
	})
}

// check says what is wrong with what is asked for, before anything is begun.
func (o *noisy) check() error {
	if least := time.Duration(o.runs) * 10 * noise.Quantum; o.lasts < least {
		return fmt.Errorf("--for has to be at least %s for %d turns", least, o.runs)
	}
	if o.in != "" && !slices.Contains(guestTargets(), o.in) {
		return fmt.Errorf("--in %q: guests are %s", o.in, strings.Join(guestTargets(), ", "))
	}
	if o.cpus < 1 {
		return errors.New("--cpus: a guest has at least one")
	}
	if o.cores != "" {
		if _, err := fleet.ParseCPUs(o.cores); err != nil {
			return fmt.Errorf("--cores: %w", err)
		}
	}
	o.targets = []string{"cpu"} // which there are is seen later
	if err := o.asked.check(); err != nil {
		return err
	}
	if o.in != "" && o.turn() > noise.LongestFar {
		return fmt.Errorf("--for: a turn of a guest's core would be %s, and may be at most %s", o.turn(), noise.LongestFar)
	}
	return nil
}

// here has cores probed where this program runs.
func (o *noisy) here(measure func() error) error {
	cpus, err := noise.CPUs()
	if err == nil {
		err = o.choose(cpus, noise.Reach)
	}
	if err != nil {
		return err
	}
	steps := noise.Calibrate()
	o.probe = func(ctx context.Context, cpu int) (noise.Core, error) {
		c, err := noise.Probe(ctx, cpu, steps, o.turn())
		o.own += c.Busy()
		return c, err
	}
	return measure()
}

// choose takes the cores that are asked for, or all there are. Each has to be in reach.
func (o *noisy) choose(all []int, reach func(cpu int) error) (err error) {
	if o.cores != "" {
		all, _ = fleet.ParseCPUs(o.cores) // check has tried it
	}
	o.targets = nil
	for _, c := range all {
		name := fmt.Sprintf("cpu%d", c)
		o.targets, o.found[name] = append(o.targets, name), &noise.Core{CPU: c}
		err = errors.Join(err, reach(c))
	}
	if err != nil {
		return fmt.Errorf("--cores: %w", err)
	}
	return nil
}

// turn is how long a core is probed at once.
func (o *noisy) turn() time.Duration { return o.lasts / time.Duration(o.runs) }

// quanta are what is measured of them, turn by turn.
func quanta(turn time.Duration) bench.Program {
	return bench.Program{
		Name: "quanta", Command: fmt.Sprintf("work of %s, again and again for %s", noise.Quantum, turn), Read: readQuanta,
		Figures: []bench.Figure{
			{Name: "slowed", Says: "a quantum takes, times its best", Sense: stats.Slower},
			{Name: "longest_s", Says: "the longest quantum", Unit: "s", Sense: stats.Slower},
			{Name: "step64", Says: "a step of 64 ranks takes, times its best", Sense: stats.Slower},
		},
	}
}

func readQuanta(text string) (bench.Result, error) {
	var c noise.Core
	if err := json.Unmarshal([]byte(text), &c); err != nil {
		return bench.Result{}, err
	}
	return bench.Result{Figures: map[string]float64{"slowed": 1 / (1 - c.Lost()), "longest_s": c.Longest() + c.Best(), "step64": c.Step(64)}}, nil
}

// Open has nothing to make ready.
func (o *noisy) Open(context.Context, bench.Program, []string) (bench.Round, error) { return o, nil }

// Close has nothing to end.
func (o *noisy) Close() error { return nil }

// Run probes a core for its share of the time. What was found before it is called
// off is kept, and is no run.
func (o *noisy) Run(ctx context.Context, target string) (string, error) {
	core := o.found[target]
	c, err := o.probe(ctx, core.CPU)
	if err != nil {
		return "", errors.Join(err, context.Cause(ctx))
	}
	core.Add(c)
	text, err := json.Marshal(c)
	return string(text), errors.Join(err, context.Cause(ctx))
}

// mostSources is how many sources of a core are printed.
const mostSources = 5

// result prints what was found, and keeps it beside the record.
func (o *noisy) result(cmd *cobra.Command, r *bench.Record, what bench.Summary) (err error) {
	found := noiseFound{Version: bench.Version, Begun: r.Begun, Complete: r.Complete, Machine: r.Machine, Noise: bench.Noise{Quantum: noise.Quantum, Predicted: map[int]stats.Interval{}}}
	for _, t := range o.targets {
		if c := o.found[t]; len(c.Quanta) > 0 {
			found.Cores = append(found.Cores, *c)
		}
	}
	for _, n := range sizes {
		if found.Predicted[n], err = bench.PredictStep(found.Cores, n, o.confidence, o.seed); err != nil {
			return err
		}
	}
	text, err := json.Marshal(found)
	if err != nil {
		return err
	}
	if asJSON, _ := cmd.Flags().GetBool("json"); asJSON {
		_, err = fmt.Fprintln(o.Out, string(text))
	} else {
		notes := view.Table{Notes: what.Notes}
		_, err = fmt.Fprint(o.Out, noiseText(found), notes.Text())
	}
	return errors.Join(err, bench.Whole(filepath.Join(o.report, bench.NoiseName), append(text, '\n')))
}

func noiseText(r noiseFound) string {
	cores := view.Table{Columns: []string{"CORE", "QUANTA", "AT BEST", "LOST", "LONGEST"}}
	sources := view.Table{Columns: []string{"CORE", "SOURCE", "TIMES", "TIME"}, Empty: "Nothing interrupted them that the kernel counts."}
	lengths := view.Table{Columns: []string{"CORE", "INTERRUPTED FOR", "QUANTA"}}
	for _, c := range r.Cores {
		name := fmt.Sprint(c.CPU)
		cores.Rows = append(cores.Rows, []string{name, fmt.Sprint(len(c.Quanta)), amount(c.Best(), "s"), fmt.Sprintf("%.2f %%", 100*c.Lost()), amount(c.Longest(), "s")})
		for i, src := range c.Sources {
			if i == mostSources {
				break
			}
			took := "-"
			if src.Seconds > 0 {
				took = amount(src.Seconds, "s")
			}
			sources.Rows = append(sources.Rows, []string{name, src.Name, fmt.Sprint(src.Count), took})
		}
		for _, b := range c.Histogram() {
			lengths.Rows = append(lengths.Rows, []string{name, "up to " + amount(b.To, "s"), fmt.Sprint(b.Count)})
		}
	}
	steps := view.Table{Columns: []string{"RANKS", "A STEP TAKES", "INTERVAL"}}
	for _, n := range sizes {
		p := r.Predicted[n]
		steps.Rows = append(steps.Rows, []string{fmt.Sprint(n), fmt.Sprintf("%.3f × its best", p.Value), fmt.Sprintf("%.3f to %.3f", p.Low, p.High)})
	}
	return fmt.Sprintf("%s\n%s\n%s\nPredicted, if each rank's core is interrupted as these, and a step is %s of work:\n%s",
		cores.Text(), lengths.Text(), sources.Text(), r.Quantum, steps.Text())
}

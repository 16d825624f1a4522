package measuring

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"pagurus/act/cgroup"

	"pagurus/bench"
	"pagurus/bench/noise"
	"pagurus/show/cli"
)

// scheduler is what is asked for.
type scheduler struct {
	asked
	core   int // -1: the last
	lasts  time.Duration
	slices []time.Duration // of class normal
}

func schedulerCommand(std Streams) *cobra.Command {
	o := scheduler{asked: usual(std), core: -1, lasts: time.Second, slices: []time.Duration{cgroup.UsualSlice, 10 * cgroup.UsualSlice}}
	o.trim = 0.1
	cmd := &cobra.Command{
		Use:   "scheduler",
		Short: "Measure what the service classes gold, normal and bronze get of a core",
		Long: `Scheduler has the processes of two guests share one core of this machine, each in a
control group and of a class as its agent would give it, in turn with the kernel's own
time slices and with those of the classes: as agents give them, and as long as Xen's
(--slices 3ms,30ms says class normal's; gold's are 30 % longer, bronze's shorter):

  gold+bronze, gold+normal, normal+bronze
                 both want all they can get: what share each has beside what its
                 weight is due (within 3 % is promised), and what each gets done
                 in a second of the core
  gold+bronze-threads, normal+normal-threads
                 the same, where each guest has another thread that wakes up every
                 10 ms on any core, as real guests have
  gold-wakes, normal-wakes, bronze-wakes
                 one wakes up every 5 ms for a moment beside a normal guest that
                 wants all it can get: how long it waits for the core

Means and ratios leave out 10 % of the runs at both ends. Time slices need Linux 6.12;
where they are missing that is said and only shares are measured. It takes all of one
core. Ctrl-C ends it and keeps what was measured.`,
		Example: `  sudo pagurus bench scheduler
  sudo pagurus bench scheduler --runs 200 --core 3 --report bench/classes`,
		Args: cli.NoArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, stop := untilSignal(cmd.Context())
			defer stop()
			return ended(ctx, o.run(ctx, cmd))
		},
	}
	o.flags(cmd, "runs of each pair of guests, with each length of slices")
	cmd.Flags().DurationSliceVar(&o.slices, "slices", o.slices, "time slices of class normal that the kernel's own are compared with")
	cmd.Flags().IntVar(&o.core, "core", o.core, "core that guests share (default: the last that this program may use)")
	cmd.Flags().DurationVar(&o.lasts, "for", o.lasts, "how long each run is")
	cmd.AddCommand(workCommand(std))
	return cmd
}

// workCommand is what the guests' processes are.
func workCommand(std Streams) *cobra.Command {
	return &cobra.Command{
		Use:     "work KIND CPU",
		Short:   "Be a guest's process (bench scheduler starts it)",
		Example: "  pagurus bench scheduler work spins 3",
		Hidden:  true,
		Args:    cli.Exactly(2, "what to do and on which CPU"),
		RunE:    func(_ *cobra.Command, args []string) error { return Work(args, os.Stdin, std.Out) },
	}
}

func (o *scheduler) run(ctx context.Context, cmd *cobra.Command) (err error) {
	if err := o.choose(); err != nil {
		return fmt.Errorf("%w: see `pagurus bench scheduler --help`", err)
	}
	if os.Geteuid() != 0 {
		return errors.New("control groups and time slices are root's to give: try `sudo pagurus bench scheduler`")
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	core, err := Open([]string{self, "bench", "scheduler", "work"}, o.core, o.lasts)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, core.Close()) }()
	if why := core.NoSlices(); why != "" {
		o.targets = o.targets[:1]
		o.notes = append(o.notes, "what time slices bring is not measured: "+why)
		o.say("time slices are not measured: %s", why)
	}
	o.guests = map[string]bench.Setting{}
	for _, t := range o.targets {
		o.guests[t] = bench.Setting{Kind: "process", Guests: 2, CPUs: 1}
	}
	all := Programs()
	o.say("on core %d for about %s", o.core, (time.Duration(o.runs*len(o.targets)*len(all)) * core.Took()).Round(time.Second))
	return o.measure(ctx, cmd, &bench.Experiment{Place: core, Spec: bench.Spec{Name: "scheduler", Ranks: 1, Programs: all}})
}

// Between these slices of all classes are as they were asked for.
const (
	shortestSlice = 150 * time.Microsecond
	longestSlice  = 75 * time.Millisecond
)

// shortest is how long a run has to be for guests to have some turns.
const shortest = 100 * time.Millisecond

// choose checks what is asked for, and chooses the core.
func (o *scheduler) choose() error {
	if o.lasts < shortest {
		return fmt.Errorf("--for has to be at least %s: guests would not have a turn each", shortest)
	}
	cpus, err := noise.CPUs()
	if err != nil {
		return err
	}
	if o.core < 0 {
		o.core = cpus[len(cpus)-1]
	}
	if !slices.Contains(cpus, o.core) {
		return fmt.Errorf("--core %d: this program may use %v", o.core, cpus)
	}
	o.targets = []string{Off}
	for _, normal := range o.slices {
		if normal < shortestSlice || normal > longestSlice {
			return fmt.Errorf("--slices %s: the kernel keeps slices between %s and %s, and so %s and %s are the limits of class normal's", normal, cgroup.LeastSlice, cgroup.MostSlice, shortestSlice, longestSlice)
		}
		o.targets = append(o.targets, Target(normal))
	}
	return o.check()
}

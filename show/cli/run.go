package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"pagurus/fleet"
	"pagurus/show/api"
	"pagurus/show/view"
)

// runFlags are the flags of `run`.
type runFlags struct {
	ranks, guests, cpus  int
	memory               int64
	image, kind, export  string
	class                string
	cap                  float64
	tune, net, device    string
	on, env, files       []string
	detach, verbose      bool
	trace, noTrace       bool
	now                  bool
	time                 time.Duration
	restarts, grow       int
	checkpoint           string
	plan                 *fleet.CheckpointPlan // checkpoint, parsed
	mirrored             fleet.Tune            // tune, parsed
	environment          []string              // env, parsed
	passed               fleet.Passthrough     // device, parsed
	directory, exportDir string
	directories          []fleet.Directory // files, parsed
	links                []fleet.Link      // of the directories' names
}

const runText = `Run starts guests on the cluster's hosts and PROGRAM in them, on RANKS ranks.

The current directory is the program's working directory in every guest, at the
same path and with your user and group. Output streams as it comes, standard
input goes to rank 0, Ctrl-C cancels the job (twice: leave at once), SIGUSR1 and
SIGUSR2 are passed on to every rank, and the exit code is the program's. PROGRAM is
found inside the guests, as mpirun does: ./a.out is the file here, a name without a
slash is a program of the image.

A job that finds no room now waits in a queue, first come, first served. With --time
a job may pass others where it delays none of them. What never fits is refused at once.

In a container (--kind container) a program's processor time (clock, getrusage)
starts again at 0 when its guest moves. Measure time with
CLOCK_MONOTONIC, as MPI_Wtime does.

Exit codes: the program's own; 125 when Pagurus could not run it to its end;
130 after Ctrl-C.`

func (a *app) runCommand() *cobra.Command {
	f := runFlags{memory: 512 << 20}
	cmd := &cobra.Command{
		Use:   "run -n RANKS [flags] [--] PROGRAM [ARGUMENT…]",
		Short: api.Summary("submitJob"),
		Long:  runText,
		Example: `  pagurus run -n 4 -- ./a.out input.txt
  pagurus run -n 8 --guests 4 --mem 1G --image mpich -- ./solver
  pagurus run -n 2 --on host1,host2 --env OMP_NUM_THREADS=1 -- ./a.out < deck
  pagurus run -n 4 --files /scratch/ada --files /data:ro -- ./a.out /data/mesh
  pagurus run -n 64 --time 2h --restarts 3 -- ./a.out
  pagurus run -n 4 --guests 2 --grow 8 -- ./spawns
  pagurus run -n 64 --restarts 3 --checkpoint every=30m,keep=2 -- ./a.out
  job=$(pagurus run -n 4 --detach -- ./a.out); pagurus logs -f $job; pagurus wait $job`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usage(cmd, "no program is named: write it after the flags, as in `pagurus run -n 4 -- ./a.out`")
			}
			if says := severalPrograms(f.ranks, args); says != "" {
				return usage(cmd, says)
			}
			return nil
		},
		ValidArgsFunction: func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
			return nil, cobra.ShellCompDirectiveDefault
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := f.check(args); err != nil {
				return own(err)
			}
			return own(a.run(cmd.Context(), &f, args))
		},
	}
	flags := cmd.Flags()
	flags.SetInterspersed(false) // arguments after PROGRAM are the program's
	flags.IntVarP(&f.ranks, ranksFlag, "n", 1, "ranks to start")
	flags.IntVar(&f.guests, fleet.GuestsFlag, 0, "guests to spread the ranks over (default: one on every usable host, no more than ranks)")
	Size(flags, &f.memory, fleet.MemFlag, "memory of each guest")
	flags.IntVar(&f.cpus, cpusFlag, 0, "virtual CPUs of each guest (default: one for each of its ranks, as far as hosts have them)")
	flags.StringVar(&f.image, imageFlag, "openmpi", "image the guests run; 'pagurus image ls' lists them")
	flags.StringVar(&f.kind, kindFlag, string(fleet.Usual), "kind of guest: "+strings.Join(fleet.KindNames(), ", ")+", or auto: "+fleet.AutoMeans)
	flags.StringVar(&f.class, classFlag, "", "the guests' share of the CPUs beside others: gold, normal or bronze (default: as normal)")
	Share(flags, &f.cap, fleet.CapFlag, "share of its CPUs that each guest may use at most, like 50% (default: no limit)")
	flags.StringVar(&f.tune, tuneFlag, "off", "what guests mirror of their hosts: hpc (all), off, or a list of numa, hugepages and pin; 'pagurus tune show HOST' says what they would get")
	flags.StringVar(&f.net, fleet.NetFlag, string(fleet.JobOnly), "what guests reach: job, which is each other and the job's files, or internet, too; hosts' owners decide whether there is a way")
	flags.StringVar(&f.device, fleet.DeviceFlag, "", "a device of its host that each guest has for itself: net, a virtual function of its network card, with which it still moves; or one by its address, like pci:0000:03:10.0, with which it does not; 'pagurus host ls --json' lists devices")
	flags.StringSliceVarP(&f.on, onFlag, "H", nil, "start on these hosts only")
	flags.StringArrayVarP(&f.env, envFlag, "x", nil, "NAME=VALUE for the program's environment; NAME alone takes yours")
	flags.StringVar(&f.export, fleet.ExportFlag, "", "directory the guests see at the same path: the current one (default) or one above it")
	flags.StringArrayVar(&f.files, fleet.FilesFlag, nil, "DIR or DIR:ro, another directory the guests see at the same path; :ro is to read only; may be repeated")
	Duration(flags, &f.time, fleet.TimeFlag, "the program is told to end after this time; with it, a job may pass waiting ones that it does not delay (default: no limit)")
	flags.IntVar(&f.restarts, fleet.RestartsFlag, 0, "how often the job begins again, from its newest checkpoint or its beginning, when it loses a host, or a guest by no fault of its program")
	flags.IntVar(&f.grow, fleet.GrowFlag, 0, "how many guests more its program may ask for while it runs, as by MPI_Comm_spawn with the info key pagurus; see docs/libpagurus.md")
	flags.StringVar(&f.checkpoint, fleet.CheckpointFlag, "off", "checkpoints of the job by themselves: auto (as often as it pays), off, or every=30m,keep=2")
	flags.BoolVar(&f.now, fleet.NowFlag, false, "do not wait for room: fail if there is none")
	flags.BoolVarP(&f.detach, "detach", "d", false, "print the job's ID and leave it running")
	flags.BoolVar(&f.trace, "trace", true, "let ranks count their MPI calls and gaps: 'pagurus job show' prints them")
	flags.BoolVar(&f.noTrace, fleet.NoTraceFlag, false, "do not trace: saves about 70 ns a call")
	flags.BoolVarP(&f.verbose, "verbose", "v", false, "report progress on standard error, even if it is not a terminal")
	complete := func(name string, with completion) {
		_ = cmd.RegisterFlagCompletionFunc(name, with) // fails only for an unknown flag
	}
	complete(onFlag, a.completeHosts)
	f.judge(cmd)
	return cmd
}

// judge has the flags refuse what no job can have.
func (f *runFlags) judge(cmd *cobra.Command) {
	flags := cmd.Flags()
	OneOf(cmd, classFlag, classes...)
	OneOf(cmd, kindFlag, kinds...)
	OneOf(cmd, fleet.NetFlag, fleet.Reaches...)
	NoLess(flags, ranksFlag, 1)
	NoLess(flags, fleet.GuestsFlag, 1)
	NoLess(flags, cpusFlag, 1)
	NoLess(flags, fleet.RestartsFlag, 0)
	NoLess(flags, fleet.GrowFlag, 0)
	JudgeTune(flags, tuneFlag)
	Judge(flags, fleet.CheckpointFlag, func(s string) error {
		if s == "" {
			return errors.New("its value is empty: write auto, off, or every=30m,keep=2")
		}
		_, err := ParseCheckpointPlan(s)
		return err
	})
	Judge(flags, onFlag, hostNames)
	Judge(flags, fleet.DeviceFlag, func(s string) error {
		if s == "" {
			return errors.New("its value is empty: write net, or a device like pci:0000:03:10.0, or leave --" + fleet.DeviceFlag + " out")
		}
		_, err := fleet.ParsePassthrough(s)
		return err
	})
	Judge(flags, envFlag, func(s string) error {
		_, err := environment([]string{s}, os.LookupEnv)
		return err
	})
}

// reach is what a job's guests reach; the usual is not written.
func reach(word string) fleet.Reach {
	if fleet.Reach(word) == fleet.JobOnly {
		return ""
	}
	return fleet.Reach(word)
}

// hostNames judges a list of hosts. mpirun's number of slots of a host has no meaning here.
func hostNames(s string) error {
	if err := notEmpty(true)(s); err != nil {
		return err
	}
	for name := range strings.SplitSeq(s, ",") {
		if host, _, slots := strings.Cut(name, ":"); slots {
			return fmt.Errorf("%q has a number of slots, and ranks are spread evenly over guests: write %s", name, host)
		}
		if fleet.HostID(name).Refused() != "" {
			return fmt.Errorf("%q cannot be the name of a host: `pagurus host ls` lists them", name)
		}
	}
	return nil
}

// run submits the job and, unless it is detached, stays until its end.
func (a *app) run(ctx context.Context, f *runFlags, args []string) error {
	cluster, err := a.read(ctx)
	if err != nil {
		return err
	}
	spec, err := a.spec(f, cluster, args)
	if err != nil {
		return err
	}
	request := fleet.Request{Verb: fleet.Submit, Spec: &spec, Now: f.now}
	if f.detach {
		answer, err := a.ask(ctx, request)
		if err != nil {
			return err
		}
		a.notes(answer)
		if err := a.closeInput(ctx, answer.Job); err != nil {
			return err
		}
		if a.json {
			return a.printJSON(answer)
		}
		_, err = fmt.Fprintln(a.Out, answer.Job)
		return err
	}
	c, err := a.dial()
	if err != nil {
		return err
	}
	// From here on no signal may leave an unknown job behind.
	signals := listen()
	defer signal.Stop(signals)
	answer, err := a.submit(ctx, request, signals)
	if err != nil {
		return err
	}
	s := &session{app: a, client: c, job: answer.Job, verbose: f.verbose || terminal(a.Err), outage: newOutage(a.Err)}
	if s.verbose {
		a.notes(answer)
	}
	return s.stay(ctx, signals)
}

// submit submits the job. A signal that comes meanwhile is kept until the job is known,
// unless no answer comes.
func (a *app) submit(ctx context.Context, r fleet.Request, signals chan os.Signal) (fleet.Answer, error) {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	var answer fleet.Answer
	var err error
	answered := make(chan struct{})
	go func() {
		answer, err = a.ask(ctx, r)
		close(answered)
	}()
	select {
	case <-answered:
		return answer, err
	case sig := <-signals:
		signals <- sig // it has room: this is the only reader
	}
	select {
	case <-answered:
		return answer, err
	case <-time.After(answerPatience):
		return fleet.Answer{}, Exit{Code: exitInterrupted, Err: errors.New("stopped before the controller answered: `pagurus job ls` shows whether the job exists")}
	}
}

// check checks what needs no cluster.
func (f *runFlags) check(args []string) error {
	var err error
	if f.guests > f.ranks {
		return fmt.Errorf("--"+fleet.GuestsFlag+" %d: each guest has one rank at least, and there are %d; ask for fewer guests, or for more ranks with -n", f.guests, f.ranks)
	}
	if f.mirrored, err = ParseTune(f.tune); err != nil {
		return fmt.Errorf("--"+tuneFlag+": %w", err)
	}
	if f.mirrored.On() && fleet.Kind(f.kind).Known() && !fleet.Kind(f.kind).Traits().Tunable {
		return errors.New("--" + tuneFlag + " is only for virtual machines: containers see the host as it is")
	}
	if f.environment, err = environment(f.env, os.LookupEnv); err != nil {
		return fmt.Errorf("--"+envFlag+": %w", err)
	}
	if f.plan, err = ParseCheckpointPlan(f.checkpoint); err != nil {
		return fmt.Errorf("--"+fleet.CheckpointFlag+": %w", err)
	}
	if err := f.findDirectories(); err != nil {
		return err
	}
	if i := slices.IndexFunc(args, func(arg string) bool { return !utf8.ValidString(arg) }); i >= 0 {
		return fmt.Errorf("the argument %q is not UTF-8 and would reach the program changed: give it in a file", args[i])
	}
	if f.passed, err = fleet.ParsePassthrough(f.device); err != nil {
		return fmt.Errorf("--"+fleet.DeviceFlag+": %w", err)
	}
	job := f.job(args)
	job.Guests, job.Need.CPUs = max(job.Guests, 1), max(job.Need.CPUs, 1) // before it is known how many fit
	if reason := job.Refused(); reason != "" {
		return errors.New(reason)
	}
	return nil
}

// job is what the flags say of the job.
func (f *runFlags) job(args []string) fleet.JobSpec {
	return fleet.JobSpec{
		Args: args, Env: f.environment, Dir: f.directory, Export: f.exportDir, Files: f.directories, Links: f.links,
		Ranks: f.ranks, Guests: f.guests, Need: fleet.Resources{CPUs: f.cpus, MemoryBytes: f.memory, Device: f.passed},
		Image: f.image, Kind: fleet.Kind(f.kind), Class: fleet.Class(f.class), Cap: f.cap, Trace: f.trace && !f.noTrace, Tune: f.mirrored,
		Time: f.time, Restarts: f.restarts, Grow: f.grow, Checkpoint: f.plan, Net: reach(f.net),
	}
}

// Values of flags that take one of a few words.
var (
	kinds   = append(fleet.KindNames(), string(fleet.Auto))
	classes = []string{string(fleet.Gold), string(fleet.Normal), string(fleet.Bronze)}
)

// spec makes the job from flags, defaults and the hosts.
func (a *app) spec(f *runFlags, c view.Cluster, args []string) (fleet.JobSpec, error) {
	on := make([]fleet.HostID, len(f.on))
	for i, name := range f.on {
		on[i] = fleet.HostID(name)
		if _, ok := c.Host(on[i]); !ok {
			return fleet.JobSpec{}, unknownHost(on[i])
		}
	}
	machine, err := a.Machine()
	if err != nil {
		return fleet.JobSpec{}, err
	}
	job := f.job(args)
	job.Machine, job.On = machine, on
	job.Source, job.Files, job.Clones = a.source(f.exportDir), a.sources(f.directories), a.clones(f.exportDir, f.directories)
	job.Guests, job.Need.CPUs = shape(f, usable(c, on, fleet.Kind(f.kind), f.passed))
	return job, nil
}

// usable lists the hosts that could start a guest of the kind now, and give it the device if it needs one.
func usable(c view.Cluster, on []fleet.HostID, kind fleet.Kind, device fleet.Passthrough) []view.Host {
	var hosts []view.Host
	for _, h := range c.Hosts {
		if Usable(h.Host, kind) && (len(on) == 0 || slices.Contains(on, h.ID)) && gives(h.Facts, device) {
			hosts = append(hosts, h)
		}
	}
	return hosts
}

// gives reports whether a host has a device for a guest; it has one for who needs none.
func gives(f fleet.Facts, device fleet.Passthrough) bool {
	switch found, has := f.FindDevice(device); device {
	case "":
		return true
	case fleet.NetFunction:
		_, functions := f.NetFunctions()
		return functions > 0
	default:
		return has && found.Trouble == ""
	}
}

// Usable reports whether a host could start a guest of a kind now.
func Usable(h fleet.Host, kind fleet.Kind) bool {
	return h.State == fleet.HostUp && h.Facts.Connected && runs(h.Facts, kind)
}

// runs reports whether a host runs guests of a kind.
func runs(f fleet.Facts, kind fleet.Kind) bool {
	if kind == fleet.Auto {
		return slices.ContainsFunc(fleet.Kinds[:], func(t fleet.KindTraits) bool { return runs(f, t.Kind) })
	}
	can, known := f.Abilities[kind]
	return known && can.Trouble == ""
}

// shape chooses the number of guests and of CPUs of each: a guest on every usable host, and
// a CPU for every rank as far as hosts have them. The planner refuses what does not fit.
func shape(f *runFlags, hosts []view.Host) (guests, cpus int) {
	guests = f.guests
	if guests == 0 {
		guests = max(1, min(f.ranks, len(hosts), fleet.MaxGuestsPerJob))
	}
	cpus = f.cpus
	if cpus == 0 {
		most := 0
		for _, h := range hosts {
			most = max(most, h.Facts.Capacity.CPUs)
		}
		cpus = CPUsEach(f.ranks, guests, most)
	}
	return guests, cpus
}

// CPUsEach is the default number of CPUs of each guest: one for each of its ranks, but at
// most most, the CPUs of the largest host.
func CPUsEach(ranks, guests, most int) int {
	return min((ranks+guests-1)/guests, max(1, most))
}

// environment turns every --env into NAME=VALUE.
func environment(given []string, lookup func(string) (string, bool)) ([]string, error) {
	var env []string
	for _, e := range given {
		name, _, assigned := strings.Cut(e, "=")
		if name == "" {
			return nil, fmt.Errorf("%q has no name: write NAME=VALUE, or NAME for yours", e)
		}
		if !assigned {
			value, ok := lookup(name)
			if !ok {
				return nil, fmt.Errorf("%s is not set here: write %s=VALUE", name, name)
			}
			e = name + "=" + value
		}
		env = append(env, e)
	}
	return env, nil
}

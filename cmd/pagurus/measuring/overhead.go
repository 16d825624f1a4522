package measuring

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"pagurus/bench"
	"pagurus/bench/drive"
	"pagurus/bench/noise"
	"pagurus/bench/programs"
	"pagurus/bench/stats"
	"pagurus/bench/targets"
	"pagurus/fleet"
	"pagurus/show/cli"
	"pagurus/show/view"
)

// kinds are the targets where programs are run, and what `pagurus run` is told there.
var kinds = map[string][]string{
	targets.Native:    nil,
	targets.Contained: {"--kind", string(fleet.Container)},
	"vm":              {"--kind", string(fleet.VM)},
	"vm-tuned":        {"--kind", string(fleet.VM), "--tune", "hpc"},
}

func targetNames() []string { return slices.Sorted(maps.Keys(kinds)) }

// suitePart is a word of --suite.
type suitePart struct {
	Name string `json:"name"`
	Says string `json:"says"`
}

func suite() []suitePart {
	return []suitePart{
		{"hpl", "HPC Challenge: solving dense linear equations, time"},
		{"stream", "STREAM's triad on all ranks at once, time for a GB"},
		{"randomaccess", "HPC Challenge: updates at random places over MPI"},
		{"ptrans", "HPC Challenge: transposing a matrix over MPI"},
		{"fft", "HPC Challenge: Fourier transform over MPI"},
		{"netpipe", "NetPIPE: latency and bandwidth of MPI over sizes of messages, of two ranks only"},
		{"npb", "the NAS Parallel Benchmarks that --npb DIR has for as many ranks as -n says"},
		{"app:'CMD'", "any command, last of the list; --figure finds its figure"},
	}
}

// hpcImage is the image that all programs are run of.
const hpcImage = "hpc"

// overhead is what is asked for.
type overhead struct {
	asked
	suite, npb, figure string
	more               bool
	ranks, among       int           // of each job, and the guests they are spread over; 0: as targets.Lab has them
	every              time.Duration // between two moves of a guest; 0: no target moves any
	rest               time.Duration // before native processes and the containers that lend them networks
	memory             int64         // of each guest
	image              string
	digest             string // of the image
	where              drive.Pagurus
	here               string // the user's folder
	hosts              map[fleet.HostID]fleet.Host
	lab                bool // it is on this machine
}

func overheadCommand(std Streams) *cobra.Command {
	o := overhead{asked: usual(std), ranks: targets.Ranks, among: targets.Ranks, memory: 768 << 20, image: hpcImage, every: 5 * time.Second}
	cmd := &cobra.Command{
		Use:   "overhead",
		Short: short("overhead"),
		Long: `Overhead runs programs in guests of each target, in turn, and compares the targets with
the first one. A program has -n ranks, spread over --guests guests as 'pagurus run'
spreads them. A guest has a CPU for each of its ranks, as far as hosts have them.
Targets are:

  native     as many processes in the networks of as many containers of a lab, of the
             same image, but without the other parts of a container
  container  guests that are containers
  vm         guests that are virtual machines; where KVM does not work they are
             emulated, which says nothing about the cost of virtualization
  vm-tuned   the same with --tune hpc: they mirror their hosts
  container-moved, vm-moved
             the same as container and vm, but while the program runs one of its
             guests moves to another host and back, begun every --every; they are
             compared with container and vm, which have to be targets, too; then the
             whole run time of the suite's programs counts, on every target

It needs a cluster; without one it brings up a lab of two hosts and takes it down
again. Ctrl-C ends it and keeps what was measured.`,
		Example: `  sudo pagurus bench overhead --targets native,container --suite hpl,stream,netpipe
  sudo pagurus bench overhead -n 4 --guests 2 --suite hpl,stream
  sudo pagurus bench overhead --suite npb --npb ~/npb/bin --runs 50 --report bench/npb
  sudo pagurus bench overhead --targets native,container,container-moved --suite hpl --every 2s
  pagurus bench overhead --targets container,vm --suite "app:./solver deck" --figure 'GFlops: ([0-9.]+)' --more-is-better`,
		Args: cli.NoArguments,
		RunE: measured(o.run),
	}
	f := cmd.Flags()
	f.IntVarP(&o.ranks, "ranks", "n", o.ranks, "ranks of each program")
	f.IntVar(&o.among, "guests", o.among, "guests to spread the ranks over")
	f.StringVar(&o.suite, "suite", "hpl,stream,netpipe", "what to run; pagurus bench ls lists it; netpipe only with two ranks")
	o.flags(cmd, "runs of each program on each target")
	o.guestFlags(cmd)
	f.DurationVar(&o.every, "every", o.every, "how often a guest is moved, on targets that move any")
	f.StringVar(&o.npb, "npb", "", "folder of the NAS Parallel Benchmarks as you have built them")
	f.StringVar(&o.figure, "figure", "", "regular expression whose first group is the figure of app; none: its time")
	f.BoolVar(&o.more, "more-is-better", false, "the figure of app is a rate, not a time")
	f.StringVar(&o.image, "image", o.image, "image to run; suites other than app need "+hpcImage)
	return cmd
}

// guestFlags are those of who runs programs on several targets.
func (o *overhead) guestFlags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringSliceVar(&o.targets, "targets", []string{targets.Native, targets.Contained}, "where to run: "+strings.Join(o.names(), ", ")+"; the others are compared with the first")
	cli.Size(f, &o.memory, "mem", "memory of each guest")
	f.DurationVar(&o.rest, "rest", targets.UsualRest, "how long this machine rests before each run on native, and on container if both are targets")
}

// place is where they run: of a lab always the same two hosts.
func (o *overhead) place() *targets.Lab {
	lab := &targets.Lab{Pagurus: o.where, Image: o.image, Ranks: o.ranks, Guests: o.among, Memory: fmt.Sprint(o.memory), Rest: o.rest, Every: o.every, Kinds: map[string][]string{}}
	for t, flags := range kinds {
		if flags != nil {
			lab.Kinds[t] = append(slices.Clone(flags), "--cpus", strconv.Itoa(o.cpus(flags)))
		}
	}
	if o.lab {
		lab.On = []string{"host1", "host2"}
	}
	return lab
}

// job is the shape of their jobs.
func (o *overhead) job() fleet.JobSpec {
	return (&targets.Lab{Ranks: o.ranks, Guests: o.among}).Job()
}

// cpus are those of each guest of a target with these flags: as many as 'pagurus run'
// would give it by itself. It is told, so that the record is right.
func (o *overhead) cpus(flags []string) int {
	most := 0
	for _, h := range o.hosts {
		if cli.Usable(h, fleet.Kind(flags[1])) {
			most = max(most, h.Facts.Capacity.CPUs)
		}
	}
	job := o.job()
	return cli.CPUsEach(job.Ranks, job.Guests, most)
}

// apart asks how far CPUs are from each other where ranks run on those of this machine;
// nil where they do not.
func (o *overhead) apart() func() time.Duration {
	if !o.lab {
		return nil
	}
	return noise.FarApart
}

// run measures, and prints and keeps what came of it, also after an error.
func (o *overhead) run(ctx context.Context, cmd *cobra.Command) error {
	err := errors.Join(o.check(), o.checkMoves())
	if err == nil {
		err = o.shape(cmd.Flags().Changed("suite"))
	}
	if err != nil {
		return fmt.Errorf("%w; see `pagurus bench overhead --help`", err)
	}
	two := ""
	if o.moving() {
		two = "move"
	}
	return o.within(ctx, two, func() error {
		if cpus := runtime.NumCPU(); o.lab && o.ranks > cpus {
			o.remark("%d ranks share %s of this machine: one that waits for another may take its time from it", o.ranks, view.Count(cpus, "CPU"))
		}
		confined := slices.ContainsFunc(slices.Collect(maps.Values(o.hosts)), func(h fleet.Host) bool { return h.Facts.Capacity.CPUs < runtime.NumCPU() })
		if slices.Contains(o.targets, targets.Native) && confined { // native is of a lab only
			o.remark("hosts of this lab have only some of its CPUs, and native processes all of them")
		}
		all, err := o.programs(ctx)
		if err != nil {
			return err
		}
		lab := o.place()
		if o.withApp() {
			lab.Export = o.here
		}
		o.guests = o.settings()
		return o.measure(ctx, cmd, &bench.Experiment{Place: lab, Apart: o.apart(), Spec: bench.Spec{Name: "overhead", Programs: all, Ranks: lab.Job().Ranks}})
	})
}

// within does something in a cluster, with a folder to run programs in. If two hosts are needed,
// two says for what.
func (o *overhead) within(ctx context.Context, two string, do func() error) (err error) {
	o.where.Meter = o.meter
	if o.where.Program, err = os.Executable(); err != nil {
		return err
	}
	here, err := os.Getwd()
	if err != nil {
		return err
	}
	if o.here, err = filepath.EvalSymlinks(here); err != nil {
		return err
	}
	folder := "/var/tmp"
	if o.withApp() {
		folder = o.here // so that guests can be shown a user's command and what it is run with
	}
	if o.where.Dir, err = os.MkdirTemp(folder, "pagurus-bench-"); err != nil {
		return fmt.Errorf("making a folder to run programs in: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(o.where.Dir)) }()
	if err := os.Chmod(o.where.Dir, 0o755); err != nil {
		return err
	}
	// All hosts share the CPUs that are measured, and encryption would take them.
	lab := drive.Lab{Flags: []string{"--hosts", "2", "--" + fleet.EncryptionFlag, string(fleet.NoEncryption)}, Instead: func() { o.say("there is no cluster: bringing up a lab of two hosts") }}
	return o.where.In(ctx, lab, func(s fleet.Snapshot, isLab bool) error {
		o.hosts, o.lab = s.Hosts, isLab
		if !o.lab && slices.Contains(o.targets, targets.Native) {
			return errors.New("the target native is for a lab, whose hosts are on this machine: leave it out, or measure without a cluster")
		}
		running := 0
		for _, j := range s.Jobs {
			if j.State != fleet.JobEnded {
				running++
			}
		}
		if running > 0 {
			o.say("jobs run in the cluster (%d): what they take, the programs do not get", running)
		}
		if err := o.room(two); err != nil {
			return err
		}
		return do()
	})
}

// room says if there are too few hosts for what needs two.
func (o *overhead) room(two string) error {
	if two != "" && len(o.hosts) < 2 {
		return fmt.Errorf("there are fewer than two hosts to %s between", two)
	}
	return nil
}

// withApp reports whether a command of the user's own is measured.
func (o *overhead) withApp() bool { return strings.Contains(o.suite, "app:") }

func (o *overhead) check() error {
	for _, t := range o.targets {
		if !slices.Contains(o.names(), t) {
			return fmt.Errorf("%q is no target: there are %s", t, strings.Join(o.names(), ", "))
		}
	}
	for _, t := range o.targets {
		of, _ := unmoved(t)
		if least := leastMemory(kinds[of]); o.memory < least {
			return fmt.Errorf("--mem: a guest of the target %s has at least %s", t, view.Bytes(least))
		}
	}
	if words, err := o.words(); err != nil || len(words) == 0 {
		return errors.Join(err, errors.New("no program is named"))
	}
	if _, err := regexp.Compile(o.figure); err != nil {
		return fmt.Errorf("--figure: %w", err)
	}
	if o.rest < 0 {
		return errors.New("--rest must not be negative")
	}
	return o.asked.check()
}

// leastMemory is what a guest of a target has at least.
func leastMemory(flags []string) int64 {
	if len(flags) < 2 {
		return 0
	}
	return fleet.Kind(flags[1]).Traits().LeastMemoryBytes
}

// shape checks how many ranks and guests are asked for. NetPIPE is for two ranks: for
// others it is refused if somebody has chosen the suite, or left out.
func (o *overhead) shape(chosen bool) error {
	switch {
	case o.ranks < 2:
		return fmt.Errorf("-n %d: programs are run with at least 2 ranks", o.ranks)
	case o.among < 1:
		return fmt.Errorf("--guests %d: at least 1 is needed", o.among)
	case o.among > o.ranks:
		return fmt.Errorf("--guests %d: %d ranks are too few for each to have one; use at most --guests %d, or more ranks with -n", o.among, o.ranks, o.ranks)
	}
	words, err := o.words()
	if err != nil || o.ranks == 2 || !slices.Contains(words, "netpipe") {
		return err
	}
	if chosen {
		return fmt.Errorf("--suite netpipe is for 2 ranks, not %d: leave it out, or use -n 2", o.ranks)
	}
	o.suite = strings.Join(slices.DeleteFunc(words, func(w string) bool { return w == "netpipe" }), ",")
	o.remark("netpipe is left out: it is for 2 ranks, not %d", o.ranks)
	return nil
}

// words are those of --suite; a command may have commas in it, so that it is the
// last.
func (o *overhead) words() (words []string, err error) {
	rest := o.suite
	for rest != "" {
		if strings.HasPrefix(rest, "app:") {
			return append(words, rest), nil
		}
		var word string
		word, rest, _ = strings.Cut(rest, ",")
		if word != "npb" && word != "stream" && word != "netpipe" && !slices.Contains(programs.HPCCParts(), word) {
			return nil, fmt.Errorf("--suite has no %q: `pagurus bench ls` lists what there is", word)
		}
		if word == "npb" && o.npb == "" {
			return nil, errors.New("--suite npb needs --npb DIR")
		}
		words = append(words, word)
	}
	return words, nil
}

// ability is what the hosts that take guests can do of a kind; the worst of them counts.
func (o *overhead) ability(kind fleet.Kind) (a fleet.Abilities) {
	for _, h := range o.hosts {
		if h.State != fleet.HostUp { // as this machine, in a lab of machines, serves files only
			continue
		}
		if can, ok := h.Facts.Abilities[kind]; ok && (a.Accelerator == "" || can.Accelerator == "tcg") {
			a = can
		}
	}
	return a
}

// size is how much there is to do.
func (o *overhead) size() programs.Size {
	vm := slices.ContainsFunc(o.targets, func(t string) bool { return strings.HasPrefix(t, "vm") })
	if !vm || o.ability(fleet.VM).Accelerator != "tcg" {
		return programs.Normal
	}
	o.say("KVM does not work here, so guests that are virtual machines are emulated: everything is measured with less to do")
	return programs.Emulated
}

// programs makes those that are asked for, and what they need in their folder.
func (o *overhead) programs(ctx context.Context) (all []bench.Program, err error) {
	size := o.size()
	words, err := o.words()
	if err != nil {
		return nil, err
	}
	var parts []string
	for _, w := range words {
		command, isApp := strings.CutPrefix(w, "app:")
		switch {
		case isApp:
			p, err := o.app(command)
			if err != nil {
				return nil, err
			}
			all = append(all, p)
		case w == "stream":
			all = append(all, programs.Stream(size))
		case w == "netpipe":
			all = append(all, programs.NetPIPE(size))
		case w == "npb":
			npb, err := o.parallel()
			if err != nil {
				return nil, err
			}
			all = append(all, npb...)
		default:
			parts = append(parts, w)
		}
	}
	if len(parts) > 0 {
		all = append(all, programs.HPCC(size, o.job().Ranks, parts...))
	}
	all = o.whole(all)
	if err := o.seeTo(ctx); err != nil {
		return nil, err
	}
	if slices.Contains(words, "stream") {
		err = o.where.Compile(ctx, o.image, programs.StreamName, programs.StreamSource, "mpicc", "-O3")
	}
	return all, err
}

// seeTo sees to it that the image is there. One that a user has made is as it is.
func (o *overhead) seeTo(ctx context.Context) (err error) {
	o.say("seeing to the image %s", o.image)
	if _, err := o.where.Type(ctx, "image", "build", o.image); err != nil && o.image == hpcImage {
		return err
	}
	if o.digest, err = o.where.Digest(ctx, o.image); err != nil {
		o.say("the record will not say what exactly the image is: %v", err)
	}
	return nil
}

// parallel are the NAS Parallel Benchmarks, brought to the programs' folder. Which of
// the user's are left out is said and kept.
func (o *overhead) parallel() ([]bench.Program, error) {
	ranks := o.job().Ranks
	all, others, err := programs.NPB(o.npb, ranks)
	if err != nil {
		return nil, err
	}
	if len(others) > 0 {
		o.remark("of %s left out are %s: they are not for %d ranks", o.npb, strings.Join(others, ", "), ranks)
	}
	return all, programs.Copy(o.where.Dir, o.npb, all)
}

func (o *overhead) app(command string) (bench.Program, error) {
	sense := stats.Slower
	if o.more {
		sense = stats.Faster
	}
	var figure *regexp.Regexp
	if o.figure != "" {
		figure = regexp.MustCompile(o.figure) // check has tried it
	}
	return programs.Command(o.here, command, figure, sense)
}

// settings say how each target's guests are made.
func (o *overhead) settings() map[string]bench.Setting {
	all := map[string]bench.Setting{}
	for _, t := range o.targets {
		s := bench.Setting{Kind: targets.Native, Image: o.image, Digest: o.digest}
		of, moved := unmoved(t)
		if flags := kinds[of]; flags != nil {
			can := o.ability(fleet.Kind(flags[1]))
			s = bench.Setting{Kind: flags[1], Guests: o.job().Guests, CPUs: o.cpus(flags), MemoryBytes: o.memory, Image: o.image, Digest: o.digest,
				Accelerator: can.Accelerator, Version: can.Version, CPU: can.CPU}
			if len(flags) > 3 {
				s.Tune = flags[3]
			}
		}
		if moved {
			s.Beside, s.MovesEvery = of, o.every
		}
		all[t] = s
	}
	return all
}

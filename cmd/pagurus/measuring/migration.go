package measuring

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"pagurus/bench"
	"pagurus/bench/drive"
	"pagurus/bench/programs"
	"pagurus/bench/stats"
	"pagurus/bench/targets"
	"pagurus/fleet"
	"pagurus/show/cli"
)

func migrationCommand(std Streams) *cobra.Command {
	o := overhead{asked: usual(std), memory: 256 << 20}
	var beside against
	cmd := &cobra.Command{
		Use:   "migration",
		Short: short("migration"),
		Long: `Migration runs STREAM on two guests of each target and moves one of them between
two hosts again and again. It measures how long a move takes, its downtime, the
stall (the longest gap of a rank), and how much is sent.

With --against qemu a virtual machine with a busy rank is moved from one host to
another, in turn by Pagurus and by QEMU driven by hand: two guests of the same size and
image run the same program there, in a network of bridges that learn, and
QEMU's own migrate moves one of them. The other one stays where it is, or --beside
on a third host. In a lab this needs nothing else. On other machines the agent's
program is run as root on all these hosts: --via says how. It leaves nothing there.
Where KVM does not work guests are emulated, and the record says so.`,
		Example: `  sudo pagurus bench migration
  sudo pagurus bench migration --targets container,vm,vm-tuned --runs 50 --mem 1G
  sudo pagurus bench migration --against qemu --runs 10
  sudo pagurus bench migration --against qemu --mem 512M --read 256M
  sudo pagurus bench migration --against qemu --page-cache drop --image mine
  sudo pagurus bench migration --against qemu --between host1,host2 --via 'ssh root@{address}'
  sudo pagurus bench migration --against qemu --between host2,host3 --beside host1`,
		Args: cli.NoArguments,
		RunE: measured(func(ctx context.Context, cmd *cobra.Command) error {
			for _, name := range []string{"mode", "page-cache"} {
				if f := cmd.Flags().Lookup(name); f.Changed {
					beside.how = append(beside.how, "--"+name, f.Value.String())
				}
			}
			if err := beside.check(cmd.Flags().Changed("targets")); err != nil {
				return fmt.Errorf("%w: see `pagurus bench migration --help`", err)
			}
			if beside.whom == "" {
				o.image = cmp.Or(o.image, hpcImage)
				return o.migrations(ctx, cmd)
			}
			o.image = cmp.Or(o.image, againstImage)
			return o.beside(ctx, cmd, beside)
		}),
	}
	f := cmd.Flags()
	f.StringSliceVar(&o.targets, "targets", []string{targets.Contained}, "kinds of guests to move: container, vm, vm-tuned")
	o.flags(cmd, "moves of each")
	cli.Size(f, &o.memory, "mem", "memory of each guest")
	f.StringVar(&beside.whom, "against", "", "what Pagurus's moves are compared with: "+byHand)
	f.StringVar(&o.image, "image", "", "image of the guests; it has to have MPI (default: "+hpcImage+", and with --against "+againstImage+")")
	f.String("mode", "", "how Pagurus moves, with --against: auto, pre-copy, post-copy or stop-and-copy")
	f.String("page-cache", "", "what Pagurus does with the page cache, with --against: auto, drop or send")
	cli.Size(f, &beside.read, "read", "how much of the image's files each rank reads before, with --against: it stays in the page cache")
	f.StringSliceVar(&beside.between, "between", nil, "the two hosts, with --against (default: the first two that run virtual machines)")
	f.StringVar(&beside.beside, "beside", "", "the host of the guest that stays, with --against (default: where the other one begins)")
	f.StringVar(&beside.via, "via", "", "how a command is run as root on a {host} or {address}, with --against (default: \"ssh {host} sudo\", and what a lab has)")
	return cmd
}

func (o *overhead) migrations(ctx context.Context, cmd *cobra.Command) error {
	o.suite = "stream"
	if err := o.check(); err != nil {
		return fmt.Errorf("%w; see `pagurus bench migration --help`", err)
	}
	if slices.Contains(o.targets, targets.Native) {
		return errors.New("native programs cannot be moved: that is what guests are for")
	}
	return o.within(ctx, "move", func() (err error) {
		if err := o.seeTo(ctx); err != nil {
			return err
		}
		if err := o.where.Compile(ctx, o.image, programs.StreamName, programs.StreamSource, "mpicc", "-O3"); err != nil {
			return err
		}
		m := &mover{Pagurus: o.where, memory: o.memory, image: o.image, jobs: map[string]string{}}
		defer func() { err = errors.Join(err, m.end()) }()
		o.guests = o.settings()
		return o.measure(ctx, cmd, &bench.Experiment{Place: m, Spec: bench.Spec{Name: "migration", Ranks: targets.Ranks, Programs: []bench.Program{moveProgram()}}})
	})
}

// mover is a bench.Place that moves a guest where others run a program. Each target has one
// job, which runs until the end.
type mover struct {
	drive.Pagurus
	memory int64
	image  string
	jobs   map[string]string // by target
}

// moveProgram is the program of the record: its figures are those of a move.
func moveProgram() bench.Program {
	return bench.Program{
		Name: "move", Command: endless, Read: readMove,
		Figures: []bench.Figure{
			{Name: "total_s", Says: "time of a move", Unit: "s", Sense: stats.Slower},
			{Name: "down_s", Says: "downtime of the guest", Unit: "s", Sense: stats.Slower},
			{Name: "handed_s", Says: "of that, until its source has handed it over", Unit: "s", Sense: stats.Slower},
			{Name: "stall_s", Says: "stall: longest gap of a rank", Unit: "s", Sense: stats.Slower},
			{Name: "sent_mib", Says: "memory sent", Unit: "MiB", Sense: stats.Slower},
			{Name: "rounds", Says: "rounds of the copy", Sense: stats.Slower},
		},
	}
}

// endless is STREAM on vectors that fit any cache, for longer than any measurement. Its ranks
// wait for each other after each iteration.
var endless = fmt.Sprintf("./%s 20000 2000000000", programs.StreamName)

// stallPatience is how long the stall of a move may take to be known, and settleTime how long
// a job runs undisturbed before its guest is moved.
const (
	stallPatience = 10 * time.Second
	settleTime    = 2 * time.Second
)

// Open starts the jobs that are not there yet.
func (m *mover) Open(ctx context.Context, p bench.Program, names []string) (bench.Round, error) {
	n := strconv.Itoa(targets.Ranks)
	for _, t := range names {
		if m.jobs[t] != "" {
			continue
		}
		args := append([]string{"run", "--detach", "-n", n, "--guests", n, "--mem", fmt.Sprint(m.memory), "--image", m.image}, kinds[t]...)
		job, err := m.Type(ctx, append(args, "--", "sh", "-c", "exec "+p.Command)...)
		if err != nil {
			return nil, err
		}
		m.jobs[t] = job
		if err := m.Running(ctx, job); err != nil {
			return nil, err
		}
	}
	return m, nil
}

// Close leaves the jobs for the next round.
func (m *mover) Close() error { return nil }

// end ends the jobs.
func (m *mover) end() error {
	var errs []error
	for _, job := range m.jobs {
		errs = append(errs, m.Discard(context.Background(), job))
	}
	return errors.Join(errs...)
}

// Run moves a guest to a host that the controller chooses, and returns the migration as JSON.
func (m *mover) Run(ctx context.Context, target string) (string, error) {
	if err := drive.Pause(ctx, settleTime); err != nil {
		return "", err
	}
	if _, err := m.Type(ctx, "migrate", m.jobs[target]+"g0", "--wait"); err != nil {
		return "", err
	}
	for begun := time.Now(); ; {
		s, err := m.Snapshot(ctx)
		if err != nil {
			return "", err
		}
		last := newestMigration(s, fleet.GuestID(m.jobs[target]+"g0"))
		if last.Stall != nil {
			text, err := json.Marshal(last)
			return string(text), err
		}
		if time.Since(begun) > stallPatience {
			return "", errors.New("what its ranks saw of the move is not known")
		}
		if err := drive.Pause(ctx, settleTime/10); err != nil {
			return "", err
		}
	}
}

// newestMigration is the guest's last migration.
func newestMigration(s fleet.Snapshot, guest fleet.GuestID) (last fleet.Migration) {
	for _, m := range s.Migrations {
		if m.Guest == guest && len(m.Entered) > 0 && (len(last.Entered) == 0 || m.Entered[0].At.After(last.Entered[0].At)) {
			last = m
		}
	}
	return last
}

// readMove reads the figures of a migration. An aborted one has none to compare.
func readMove(text string) (bench.Result, error) {
	var m fleet.Migration
	if err := json.Unmarshal([]byte(text), &m); err != nil {
		return bench.Result{}, err
	}
	if m.Phase != fleet.Finished || len(m.Entered) < 2 || m.Stall == nil {
		return bench.Result{}, fmt.Errorf("the migration is %s: %s", m.Phase, m.Cause)
	}
	still := m.BlackoutTime()
	return bench.Result{Figures: map[string]float64{
		"total_s": m.Entered[len(m.Entered)-1].At.Sub(m.Entered[0].At).Seconds(), "down_s": still.Seconds(), "handed_s": m.Cost.Downtime.Seconds(),
		"stall_s": m.Stall.Took.Seconds(), "sent_mib": float64(m.Cost.SentBytes) / (1 << 20), "rounds": float64(m.Cost.Rounds),
	}, Parts: map[string][]bench.Part{"total_s": phases(m), "stall_s": stallParts(m, still)}, Curves: map[string][]bench.Point{bench.CopyRounds: copyRounds(m)}}, nil
}

// copyRounds are how many MiB were left as each round of the copy began, by seconds since the
// first one did.
func copyRounds(m fleet.Migration) (all []bench.Point) {
	for _, p := range m.Rounds {
		all = append(all, bench.Point{X: p.At.Seconds(), Y: float64(p.LeftBytes) / (1 << 20)})
	}
	return all
}

// phases are how long a migration was in each.
func phases(m fleet.Migration) (all []bench.Part) {
	for i, e := range m.Entered[:len(m.Entered)-1] {
		all = append(all, bench.Part{Name: string(e.Phase), Value: m.Entered[i+1].At.Sub(e.At).Seconds()})
	}
	return all
}

// stallParts returns the parts of a stall, if it was at the switch: the
// guest was suspended, and then its rank needed time to go on.
func stallParts(m fleet.Migration, still time.Duration) []bench.Part {
	if m.Stall.Took != m.Stall.AtSwitch || m.Stall.Took < still {
		return nil
	}
	return []bench.Part{
		{Name: "until the source had handed it over", Value: m.Cost.Downtime.Seconds()},
		{Name: "until it ran at the target", Value: (still - m.Cost.Downtime).Seconds()},
		{Name: "until its rank got on", Value: (m.Stall.Took - still).Seconds()},
	}
}

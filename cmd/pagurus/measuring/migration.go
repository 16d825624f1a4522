package measuring

import (
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
	o := overhead{asked: usual(std), memory: 256 << 20, image: hpcImage}
	cmd := &cobra.Command{
		Use:   "migration",
		Short: short("migration"),
		Long: `Migration runs STREAM on two guests of each target and moves one of them between
two hosts again and again: how long a move takes, its downtime,
how long its ranks saw nothing, and how much is sent.`,
		Example: `  sudo pagurus bench migration
  sudo pagurus bench migration --targets container,vm,vm-tuned --runs 50 --mem 1G`,
		Args: cli.NoArguments,
		RunE: measured(o.migrations),
	}
	f := cmd.Flags()
	f.StringSliceVar(&o.targets, "targets", []string{targets.Contained}, "kinds of guests to move: container, vm, vm-tuned")
	o.flags(cmd, "moves of each")
	cli.Size(f, &o.memory, "mem", "memory of each guest")
	return cmd
}

func (o *overhead) migrations(ctx context.Context, cmd *cobra.Command) error {
	o.suite = "stream"
	if err := o.check(); err != nil {
		return fmt.Errorf("%w: see `pagurus bench migration --help`", err)
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
		return o.measure(ctx, cmd, &bench.Experiment{Place: m, Spec: bench.Spec{Name: "migration", Ranks: targets.Ranks, Programs: []bench.Program{moves()}}})
	})
}

// mover is a place where to run a program is to move a guest of a job, of which
// each target has one that goes on until the end.
type mover struct {
	drive.Pagurus
	memory int64
	image  string
	jobs   map[string]string // by target
}

// moves are what is measured of them.
func moves() bench.Program {
	return bench.Program{
		Name: "move", Command: endless, Read: readMove,
		Figures: []bench.Figure{
			{Name: "total_s", Says: "time of a move", Unit: "s", Sense: stats.Slower},
			{Name: "down_s", Says: "downtime of the guest", Unit: "s", Sense: stats.Slower},
			{Name: "handed_s", Says: "of that, until its source has handed it over", Unit: "s", Sense: stats.Slower},
			{Name: "stall_s", Says: "longest silence of a rank", Unit: "s", Sense: stats.Slower},
			{Name: "sent_mib", Says: "memory sent", Unit: "MiB", Sense: stats.Slower},
			{Name: "rounds", Says: "passes over memory", Sense: stats.Slower},
		},
	}
}

// endless is STREAM on vectors that fit any cache, for longer than anybody waits:
// its ranks wait for each other after each pass.
var endless = fmt.Sprintf("./%s 20000 2000000000", programs.StreamName)

// stallPatience is how long what ranks saw of a move may take to be known, and
// settleTime how long a job is left alone before its guest is moved.
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

// Run moves a guest to where the controller chooses, and gives the migration.
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
		last := newest(s, fleet.GuestID(m.jobs[target]+"g0"))
		if last.Stall != nil {
			text, err := json.Marshal(last)
			return string(text), err
		}
		if time.Since(begun) > stallPatience {
			return "", errors.New("nobody knows what its ranks saw of the move")
		}
		if err := drive.Pause(ctx, settleTime/10); err != nil {
			return "", err
		}
	}
}

// newest is the guest's last migration.
func newest(s fleet.Snapshot, guest fleet.GuestID) (last fleet.Migration) {
	for _, m := range s.Migrations {
		if m.Guest == guest && len(m.Entered) > 0 && (len(last.Entered) == 0 || m.Entered[0].At.After(last.Entered[0].At)) {
			last = m
		}
	}
	return last
}

// readMove reads what a migration has cost. One that was aborted has cost
// nothing that could be compared.
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
	}, Parts: map[string][]bench.Part{"total_s": phases(m), "stall_s": silence(m, still)}, Curves: map[string][]bench.Point{bench.Passes: passes(m)}}, nil
}

// passes are how many MiB were left as each pass over memory began, by seconds since the
// first one did.
func passes(m fleet.Migration) (all []bench.Point) {
	for _, p := range m.Passes {
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

// silence is what the longest silence of a rank is made of, if it was that of the
// switch: the guest was suspended, and then its rank had nothing to say yet.
func silence(m fleet.Migration, still time.Duration) []bench.Part {
	if m.Stall.Took != m.Stall.AtSwitch || m.Stall.Took < still {
		return nil
	}
	return []bench.Part{
		{Name: "until the source had handed it over", Value: m.Cost.Downtime.Seconds()},
		{Name: "until it ran at the target", Value: (still - m.Cost.Downtime).Seconds()},
		{Name: "until its rank got on", Value: (m.Stall.Took - still).Seconds()},
	}
}

package cli

import (
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"pagurus/fleet"
	"pagurus/show/api"
)

// migrateFlags is what `migrate` is told besides guests.
type migrateFlags struct {
	job, to, site string
	wait, dry     bool
	limit         time.Duration
	limits        limitFlags
}

// migrateText is the text of `migrate --help`.
const migrateText = `Migrate moves guests to other hosts while their program runs on. Without --to
the controller chooses the hosts. It prints the move's ID and returns; with
--wait it shows the move and exits with 1 if a guest did not arrive. With --dry-run
it says what the move would cost, like ` + "`pagurus predict`" + `, and does nothing.

Several guests, or all of a job, are one move: all of them find room or none
goes, their memory is copied so that they are ready together, and they switch at
the same moment. Guests that are on HOST already stay.

--mode says how memory is sent. Pre-copy sends it while the guest runs, in rounds,
until little is left. Nothing is at risk before the switch, but a guest that changes
memory faster than it is sent never converges. Post-copy sends it once, resumes the
guest at the target, and then sends the rest, first what the guest waits for. It
always ends, but until all memory has arrived neither host alone has the guest. If a
host or the network between them fails then, the guest is lost, and its job fails.
Such a move cannot be cancelled. Stop-and-copy suspends the guest for the whole copy.
Auto takes pre-copy if that is expected to be ready within --max-downtime and --deadline,
else post-copy if the targets can, else stop-and-copy if that fits. It says why
(` + "`pagurus move show`, --dry-run" + `). If none fits, the move is refused.

--deadline limits how long guests may take until they are ready to switch. Guests
that are not ready by then stay where they are, and the ready ones go without them.
If none is ready, the move is cancelled. Without --deadline, guests
that are not ready 5 minutes after the first one stay.`

func (a *app) migrateCommand() *cobra.Command {
	f := migrateFlags{limit: usualWait}
	cmd := &cobra.Command{
		Use:   "migrate GUEST…|--job JOB [--to HOST|--to-site SITE] [--wait | --dry-run]",
		Short: api.Summary("migrate"),
		Long:  migrateText + transferHelp(),
		Example: `  pagurus migrate j3g1 --to host2 --wait
  pagurus migrate j3g0 j3g1 j3g2 --to host2          # together
  pagurus migrate --job j3 --bandwidth 200M --deadline 30s
  pagurus migrate --job j3 --to-site basement
  pagurus move show $(pagurus migrate j3g1)`,
		Args: func(cmd *cobra.Command, args []string) error {
			if (len(args) == 0) == (f.job == "") {
				return usage(cmd, "name guests, `pagurus guest ls` lists them, or a job with --"+jobFlag+", and not both")
			}
			if f.to != "" && f.site != "" {
				return usage(cmd, "a move goes to one host, --"+toFlag+", or to any host of one site, --"+toSiteFlag+": leave one of them out")
			}
			if err := namesAll(cmd, args); err != nil {
				return err
			}
			return idleWait(cmd, f.wait, f.dry)
		},
		ValidArgsFunction: a.completeGuests,
		RunE: func(cmd *cobra.Command, args []string) error {
			r, err := f.request(cmd, args)
			if err != nil {
				return err
			}
			if f.dry {
				return a.predict(cmd.Context(), r)
			}
			answer, err := a.ask(cmd.Context(), r)
			if err != nil {
				return err
			}
			if !f.wait {
				return a.answer(answer)
			}
			a.notes(answer)
			return a.awaitMoves(cmd.Context(), answer.Moves, f.limit)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&f.job, jobFlag, "", "move all guests of this job")
	flags.StringVar(&f.to, toFlag, "", "the host to move to (default: the controller chooses)")
	flags.StringVar(&f.site, toSiteFlag, "", "the site to move to: the controller chooses a host there")
	f.limits.add(cmd, fleet.LimitFlags)
	dryRun(flags, &f.dry)
	flags.BoolVar(&f.wait, waitFlag, false, "show the move until it is over")
	waitLimit(flags, &f.limit, "wait no longer than this; the move continues")
	_ = cmd.RegisterFlagCompletionFunc(toFlag, a.completeHosts)
	_ = cmd.RegisterFlagCompletionFunc(toSiteFlag, a.completeSites)
	_ = cmd.RegisterFlagCompletionFunc(jobFlag, func(cmd *cobra.Command, _ []string, typed string) ([]string, cobra.ShellCompDirective) {
		return a.completeJobs(openJob)(cmd, nil, typed)
	})
	return cmd
}

// request is what the command line asks for.
func (f *migrateFlags) request(cmd *cobra.Command, args []string) (fleet.Request, error) {
	r := fleet.Request{Verb: fleet.Migrate, Job: fleet.JobID(f.job), To: fleet.HostID(f.to), ToSite: f.site}
	for _, g := range args {
		r.Guests = append(r.Guests, fleet.GuestID(g))
	}
	var err error
	r.Limits, err = f.limits.limits(cmd)
	return r, err
}

func (a *app) showMoveCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "show MOVE",
		Short: api.Summary("showMove"),
		Long: `Show prints everything about one move. DOWNTIME is the time from suspending the guest
until the source has handed it over, beside the predicted one. BLACKOUT is the time
until the guest runs at the target, if both hosts have the same clock. A line for
each guest says how long each part took.`,
		Example:           "  pagurus move show m3\n  pagurus move show m3 --json | jq .skew",
		Args:              Exactly(1, oneMove),
		ValidArgsFunction: a.completeMoves,
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.read(cmd.Context())
			if err != nil {
				return err
			}
			m, ok := c.Move(fleet.MoveID(args[0]))
			if !ok {
				return fmt.Errorf("there is no move %q: `pagurus move ls` lists them", args[0])
			}
			if a.json {
				return a.printJSON(m)
			}
			_, err = io.WriteString(a.Out, m.Show(c.At))
			return err
		},
	}
}

func (a *app) cancelMoveCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "cancel MOVE",
		Short: api.Summary("cancelMove"),
		Long: `Cancel ends a move: its guests stay where they are, and what the targets have
received is discarded. It returns when the controller has accepted it, and may be
repeated. Once guests have begun to switch, it is refused, because the move ends in
a moment. ` + "`pagurus migrate`" + ` then moves them back.`,
		Example:           "  pagurus move cancel m3",
		Args:              Exactly(1, oneMove),
		ValidArgsFunction: a.completeMoves,
		RunE: func(cmd *cobra.Command, args []string) error {
			answer, err := a.ask(cmd.Context(), fleet.Request{Verb: fleet.CancelMove, Move: fleet.MoveID(args[0])})
			if err != nil {
				return err
			}
			return a.answer(answer)
		},
	}
}

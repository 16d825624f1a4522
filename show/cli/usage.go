package cli

import (
	"encoding/csv"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"pagurus/fleet"
	"pagurus/show/api"
	"pagurus/show/view"
)

// usageSpan is how far back usage looks, if nothing is said.
const usageSpan = 30 * 24 * time.Hour

// usageFlags are what usage was asked for.
type usageFlags struct {
	span       time.Duration
	by         string
	user, host string
	csv, sacct bool
}

func (a *app) usageCommand() *cobra.Command {
	f := usageFlags{span: usageSpan, by: string(view.UsageByUser)}
	cmd := &cobra.Command{
		Use:   "usage",
		Short: api.Summary("showUsage"),
		Long: `Usage adds up what jobs' guests used. CPU is the time that processors worked for them, and
MEMORY the hosts' memory that they occupied; CPU-HELD and MEMORY-HELD are what was theirs, busy or
not. STOOD-STILL is how long guests did not run because they were moved, or suspended for a host's
owner. ENERGY is their part of what hosts' processors used, by the processors' own counters (RAPL),
shared by processor time; most virtual machines have no such counters.

The controller keeps a record for each job and day in UTC for two months, and then one for each
user, host and month for three years. A day counts whole if its end lies in the time asked for.
Users see their own jobs, administrators everybody's.

With --sacct there is a line for each job that has ended, as Slurm's sacct writes it
(--parsable2 --noheader --allocations), with the fields that Open XDMoD's shredder reads:
xdmod-shredder -r CLUSTER -f slurm -i FILE.`,
		Example: `  pagurus usage --since 7d
  pagurus usage --by job --user ada
  pagurus usage --by host --csv > hosts.csv
  pagurus usage --since 1d --sacct > jobs.log`,
		Args: NoArguments,
		RunE: func(cmd *cobra.Command, _ []string) error { return a.showUsage(cmd, f) },
	}
	flags := cmd.Flags()
	Duration(flags, &f.span, "since", "how far back")
	flags.StringVar(&f.by, "by", f.by, "what to add up by: user, job or host")
	OneOf(cmd, "by", view.UsageBys...)
	flags.StringVar(&f.user, "user", "", "only this user: a name as in user ls, or a uid")
	flags.StringVar(&f.host, fleet.HostFlag, "", "only what was used on this host")
	flags.BoolVar(&f.csv, "csv", false, "print comma-separated values, with seconds, bytes and joules")
	flags.BoolVar(&f.sacct, "sacct", false, "print ended jobs as Slurm's sacct does, for importers")
	_ = cmd.RegisterFlagCompletionFunc("user", a.completeUsers)
	_ = cmd.RegisterFlagCompletionFunc(fleet.HostFlag, a.completeHosts)
	return cmd
}

// showUsage asks the controller and prints the answer.
func (a *app) showUsage(cmd *cobra.Command, f usageFlags) error {
	forms := 0
	for _, given := range []bool{f.csv, f.sacct, a.json} {
		if given {
			forms++
		}
	}
	switch {
	case forms > 1:
		return usage(cmd, "give only one of --csv, --sacct and --json")
	case f.sacct && (f.host != "" || cmd.Flags().Changed("by")):
		return usage(cmd, "--sacct has a line for each job, on all its hosts: leave out --by and --"+fleet.HostFlag)
	}
	c, err := a.dial()
	if err != nil {
		return err
	}
	since := time.Now().Add(-f.span)
	answer, err := c.Usage(cmd.Context(), since)
	if err != nil {
		return err
	}
	if f.user != "" {
		if answer, err = view.OnlyUser(answer, f.user); err != nil {
			return err
		}
	}
	by := view.UsageBy(f.by)
	rows := view.UsageRows(answer, by, fleet.HostID(f.host))
	switch {
	case f.sacct:
		for _, line := range view.SacctLines(answer, since, api.MachineNames) {
			if _, err := fmt.Fprintln(a.Out, line); err != nil {
				return err
			}
		}
		return nil
	case f.csv:
		return csv.NewWriter(a.Out).WriteAll(view.UsageCSV(rows))
	case a.json:
		return a.printJSON(api.UsageReport{Since: since.UTC(), Until: answer.At, By: f.by, Rows: rows, NoPower: answer.NoPower})
	}
	_, err = io.WriteString(a.Out, view.UsageTable(answer, rows, by).Text())
	return err
}

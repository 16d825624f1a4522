package cli

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"pagurus/fleet"
	"pagurus/show/api"
	"pagurus/show/view"
)

func (a *app) predictCommand() *cobra.Command {
	var job, host, to string
	score := false
	cmd := &cobra.Command{
		Use:   "predict GUEST | --job JOB | --host HOST | --score",
		Short: api.Summary("predictMove"),
		Long: `Predict says where a guest, every guest of a job, or every guest of a host would
go if it had to leave now. It predicts the total time, the downtime and the bytes to
be sent, each with the interval that holds nine of ten outcomes. If a move would not
converge, it says why and what would help.

It first samples each guest's memory for four seconds, without disturbing it. While
guests move, it uses their last sample. Predictions improve with each move, because
every move keeps its prediction beside its cost. --score shows how good they are.`,
		Example: `  pagurus predict j3g1
  pagurus predict --job j3 --to host2
  pagurus predict --host host1 --json | jq '.total_ns.high'
  pagurus predict --score`,
		Args: func(cmd *cobra.Command, args []string) error {
			named := len(args)
			for _, set := range []bool{job != "", host != "", score} {
				if set {
					named++
				}
			}
			if named != 1 {
				return usage(cmd, "name one guest, or --"+jobFlag+", --"+fleet.HostFlag+" or --"+scoreFlag)
			}
			switch {
			case host != "" && to != "":
				return usage(cmd, "with a host the controller chooses the targets: --"+toFlag+" goes with a guest or --"+jobFlag)
			case score && to != "":
				return usage(cmd, "--"+scoreFlag+" is about past moves: leave --"+toFlag+" out")
			}
			return namesAll(cmd, args)
		},
		ValidArgsFunction: a.completeGuests,
		RunE: func(cmd *cobra.Command, args []string) error {
			r := fleet.Request{Verb: fleet.Migrate, Job: fleet.JobID(job), To: fleet.HostID(to)}
			switch {
			case score:
				return a.score(cmd.Context())
			case host != "":
				r = fleet.Request{Verb: fleet.Drain, Host: fleet.HostID(host)}
			case len(args) == 1:
				r.Guest = fleet.GuestID(args[0])
			}
			return a.predict(cmd.Context(), r)
		},
	}
	f := cmd.Flags()
	f.StringVar(&job, jobFlag, "", "every guest of this job")
	f.StringVar(&host, fleet.HostFlag, "", "every guest of this host")
	f.StringVar(&to, toFlag, "", "the host to move to (default: the controller chooses)")
	f.BoolVar(&score, scoreFlag, false, "show how good past predictions were")
	_ = cmd.RegisterFlagCompletionFunc(toFlag, a.completeHosts)
	_ = cmd.RegisterFlagCompletionFunc(fleet.HostFlag, a.completeHosts)
	_ = cmd.RegisterFlagCompletionFunc(jobFlag, a.completeJobs(openJob))
	return cmd
}

// dryRun adds the flag that makes a command only predict.
func dryRun(flags *pflag.FlagSet, dry *bool) {
	flags.BoolVar(dry, dryRunFlag, false, "predict what it would cost, and do nothing")
}

// idleWait refuses to wait for a mere prediction, and to bound a wait that there is not.
func idleWait(cmd *cobra.Command, wait, dry bool) error {
	if wait && dry {
		return usage(cmd, "with --"+dryRunFlag+" there is nothing that --"+waitFlag+" could wait for: leave one of them out")
	}
	if cmd.Flags().Changed(timeoutFlag) && !wait {
		return usage(cmd, "--"+timeoutFlag+" is how long --"+waitFlag+" waits: add --"+waitFlag+", or leave it out")
	}
	return nil
}

// waitLimit adds the flag that bounds a wait.
func waitLimit(flags *pflag.FlagSet, limit *time.Duration, usage string) {
	Duration(flags, limit, timeoutFlag, usage)
	Judge(flags, timeoutFlag, func(s string) error {
		if d, err := ParseDuration(s); err == nil && d == 0 {
			return fmt.Errorf("%s is no time to wait: give something like 5m", s)
		}
		return nil
	})
}

// predict prints a request's predicted effect.
func (a *app) predict(ctx context.Context, r fleet.Request) error {
	c, err := a.dial()
	if err != nil {
		return err
	}
	f, err := c.Predict(ctx, r)
	if err != nil {
		return err
	}
	if a.json {
		return a.printJSON(f)
	}
	v := view.Forecast{Forecast: f}
	text := v.Table().Text()
	if basis := v.Basis(); basis != "" {
		text += basis + "\n"
	}
	_, err = io.WriteString(a.Out, text)
	return err
}

// score prints how good past predictions were.
func (a *app) score(ctx context.Context) error {
	c, err := a.dial()
	if err != nil {
		return err
	}
	k, err := c.Score(ctx)
	if err != nil {
		return err
	}
	if a.json {
		return a.printJSON(k)
	}
	_, err = fmt.Fprint(a.Out, view.CalibrationTable(k).Text())
	return err
}

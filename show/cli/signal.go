package cli

import (
	"context"
	"crypto/rand"
	"fmt"
	"os"
	"regexp"
	"syscall"

	"github.com/spf13/cobra"

	"pagurus/fleet"
	"pagurus/show/api"
)

// isJob matches the ID of a job.
var isJob = regexp.MustCompile(`^j[0-9]+$`)

// passedOn are the signals that `run` passes to the job's program, as mpirun does.
var passedOn = []os.Signal{syscall.SIGUSR1, syscall.SIGUSR2}

func (a *app) cancelCommand() *cobra.Command {
	grace := fleet.UsualGrace
	cmd := &cobra.Command{
		Use:   "cancel JOB…",
		Short: api.Summary("cancelJob"),
		Long: `Cancel ends the jobs' programs and guests. Every rank in every guest gets SIGTERM.
Output until the program ends, or until the grace time is over, is kept. Then all
processes that still run are killed. Cancel returns when the controller has accepted
it; ` + "`pagurus wait JOB`" + ` waits for the end.

A second cancel can only shorten the grace time: with --grace 0s the job ends at once.
Under Open MPI a rank that ends with an exit code other than 0, or without
MPI_Finalize, makes mpirun end the others a second or two later.`,
		Example: `  pagurus cancel j3 && pagurus wait j3
  pagurus cancel --grace 2m j3    # its program needs time to save its state
  pagurus cancel --grace 0s j3    # at once`,
		Args:              AtLeast(1, someJob),
		ValidArgsFunction: a.completeJobs(openJob),
		RunE: func(cmd *cobra.Command, args []string) error {
			if reason := fleet.RefusedGrace(grace); reason != "" {
				return usage(cmd, reason)
			}
			for _, id := range args {
				answer, err := a.ask(cmd.Context(), fleet.Request{Verb: fleet.Cancel, Job: fleet.JobID(id), Grace: &grace})
				if err != nil {
					return err
				}
				if err := a.answer(answer); err != nil {
					return err
				}
			}
			return nil
		},
	}
	Duration(cmd.Flags(), &grace, "grace", "time for the programs to end after SIGTERM, up to "+fleet.ShortDuration(fleet.MostGrace))
	_ = cmd.RegisterFlagCompletionFunc("grace", cobra.FixedCompletions([]string{"0s", "10s", "1m"}, cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

func (a *app) signalCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "signal JOB SIGNAL",
		Short: api.Summary("signalJob"),
		Long: `Signal sends SIGNAL once to every rank of the job, in all guests. A program that
mpirun did not start gets it directly. It returns when all have been sent it, even
while guests move. SIGNAL is a name with or without SIG, or a number.

KILL and STOP are refused: ` + "`pagurus cancel --grace 0s`" + ` ends a job at once, and TSTP
stops a program until it gets CONT. SIGUSR1 and SIGUSR2 that a running
` + "`pagurus run`" + ` gets are sent on the same way.`,
		Example: `  pagurus signal j3 USR1
  pagurus signal j3 SIGHUP
  pagurus signal j3 12`,
		Args: Exactly(2, "a job and a signal: `pagurus job ls` lists the jobs"),
		ValidArgsFunction: func(cmd *cobra.Command, args []string, typed string) ([]string, cobra.ShellCompDirective) {
			switch len(args) {
			case 0:
				return a.completeJobs(openJob)(cmd, args, typed)
			case 1:
				return fleet.SignalNames(), cobra.ShellCompDirectiveNoFileComp
			}
			return nil, cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if _, err := fleet.ReadSignal(args[1]); err != nil {
				if isJob.MatchString(args[1]) {
					return usage(cmd, fmt.Sprintf("the job comes first: `pagurus signal %s %s`", args[1], args[0]))
				}
				return err
			}
			answer, err := a.sendSignal(cmd.Context(), fleet.JobID(args[0]), args[1], newOutage(a.Err))
			if err != nil {
				return err
			}
			return a.answer(answer)
		},
	}
}

// sendSignal sends a signal to a job. It asks again after a controller restart with the same
// ID, so that guests deliver the signal once.
func (a *app) sendSignal(ctx context.Context, job fleet.JobID, signal string, outage *outage) (fleet.Answer, error) {
	c, err := a.dial()
	if err != nil {
		return fleet.Answer{}, err
	}
	q := fleet.Request{ID: fleet.RequestID(rand.Text()), Verb: fleet.SendSignal, Job: job, Signal: signal}
	for {
		answer, err := c.Ask(ctx, q)
		if err == nil {
			outage.Over()
			return answer, nil
		}
		if err := outage.Wait(ctx, err); err != nil {
			return fleet.Answer{}, err
		}
	}
}

// pass passes a signal of this process to the job.
func (s *session) pass(ctx context.Context, sig os.Signal) {
	number, ok := sig.(syscall.Signal)
	if !ok {
		return
	}
	if _, err := s.sendSignal(ctx, s.job, fleet.SignalName(int(number)), s.outage); err != nil && ctx.Err() == nil {
		_, _ = fmt.Fprintf(s.Err, "pagurus: SIG%s was not sent to the job: %v\n", fleet.SignalName(int(number)), err)
	}
}

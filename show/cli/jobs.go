package cli

import (
	"context"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"sync"

	"github.com/spf13/cobra"

	"pagurus/fleet"
	"pagurus/serve/wire"
	"pagurus/show/api"
	"pagurus/show/view"
)

func (a *app) logsCommand() *cobra.Command {
	followIt := false
	cmd := &cobra.Command{
		Use:   "logs [-f] JOB",
		Short: api.Summary("readOutput"),
		Long: `Logs prints the output of the job's program so far, its standard output to
standard output and its standard error to standard error, byte for byte.`,
		Example:           "  pagurus logs j3\n  pagurus logs -f j3 2>/dev/null",
		Args:              Exactly(1, someJob),
		ValidArgsFunction: a.completeJobs(anyJob),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.logs(cmd.Context(), fleet.JobID(args[0]), followIt)
		},
	}
	cmd.Flags().BoolVarP(&followIt, "follow", "f", false, "continue until the job ends")
	return cmd
}

// logs prints both streams of a job; with followIt until both end.
func (a *app) logs(ctx context.Context, job fleet.JobID, followIt bool) error {
	cluster, err := a.read(ctx)
	if err != nil {
		return err
	}
	if _, ok := cluster.Job(job); !ok {
		return unknownJob(job)
	}
	c, err := a.dial()
	if err != nil {
		return err
	}
	s := &session{app: a, client: c, job: job, outage: newOutage(a.Err)}
	streams := []struct {
		name string
		to   io.Writer
	}{{fleet.Stdout, a.Out}, {fleet.Stderr, a.Err}}
	if !followIt {
		for _, st := range streams {
			if err := s.copySoFar(ctx, st.name, st.to); err != nil {
				return err
			}
		}
		return nil
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	var all sync.WaitGroup
	for _, st := range streams {
		all.Go(func() {
			if err := s.copy(ctx, st.name, st.to); err != nil {
				s.noteError(err)
				stop() // a failure to write one stream ends both
			}
		})
	}
	all.Wait()
	return s.lost
}

// copySoFar writes the present content of a stream.
func (s *session) copySoFar(ctx context.Context, stream string, to io.Writer) error {
	var offset int64
	for {
		data, err := s.client.PeekStream(ctx, wire.Place{Job: s.job, Stream: stream, Offset: offset})
		if err != nil {
			return err
		}
		if len(data) == 0 {
			return nil
		}
		if _, err := to.Write(data); err != nil {
			return unwritten{stream, err}
		}
		offset += int64(len(data))
	}
}

func (a *app) showJobCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "show JOB",
		Short: api.Summary("showJob"),
		Long: `Show prints a job's moves with the stall of its ranks, how each rank spent its time,
which ranks exchanged how much, and the longest gaps with their causes. Messages
between ranks are counted at the sender; collective calls are counted separately. It
works while the job runs, and afterwards until the controller forgets the job. --json
prints everything, also what does not fit on a screen.`,
		Example:           "  pagurus job show j3\n  pagurus job show j3 --json | jq '.traces[] | {rank, sent}'",
		Args:              Exactly(1, oneJob),
		ValidArgsFunction: a.completeJobs(anyJob),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.showJob(cmd.Context(), fleet.JobID(args[0]))
		},
	}
}

func (a *app) showJob(ctx context.Context, id fleet.JobID) error {
	cluster, err := a.read(ctx)
	if err != nil {
		return err
	}
	job, ok := cluster.Job(id)
	if !ok {
		return unknownJob(id)
	}
	c, err := a.dial()
	if err != nil {
		return err
	}
	var traces []fleet.Trace
	if job.Spec.Trace {
		if traces, err = c.Trace(ctx, id); err != nil {
			return err
		}
	}
	detail := cluster.Detail(job, traces)
	if a.json {
		return a.printJSON(detail)
	}
	_, err = io.WriteString(a.Out, detail.Text(cluster))
	return err
}

func (a *app) waitCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "wait JOB…",
		Short: api.Summary("waitForJob"),
		Long: `Wait returns when every job named has ended. It exits as the last of them that
did not succeed: with the program's exit code, or 125 when Pagurus could not run
it to its end, or waiting was not possible. With --json it prints each job as it
ends.`,
		Example:           "  pagurus wait j3 && echo fine",
		Args:              AtLeast(1, someJob),
		ValidArgsFunction: a.completeJobs(openJob),
		RunE: func(cmd *cobra.Command, args []string) error {
			return own(a.wait(cmd.Context(), args))
		},
	}
}

func (a *app) wait(ctx context.Context, args []string) error {
	cluster, err := a.read(ctx)
	if err != nil {
		return err
	}
	for _, id := range args {
		if _, ok := cluster.Job(fleet.JobID(id)); !ok {
			return unknownJob(fleet.JobID(id))
		}
	}
	c, err := a.dial()
	if err != nil {
		return err
	}
	ended := map[fleet.JobID]view.Job{}
	err = followClient(ctx, c, newOutage(a.Err), func(c view.Cluster) (bool, error) {
		for _, arg := range args {
			id := fleet.JobID(arg)
			j, ok := c.Job(id)
			if _, done := ended[id]; done || (ok && j.State != fleet.JobEnded) {
				continue
			}
			if !ok {
				return true, fmt.Errorf("the controller no longer knows %s", id)
			}
			ended[id] = j
			if a.json {
				if err := a.printJSON(j); err != nil {
					return true, err
				}
			}
		}
		return len(ended) == len(unique(args)), nil
	})
	if err != nil {
		return err
	}
	var last error
	for _, arg := range args {
		if err := exitOf(ended[fleet.JobID(arg)].Job); err != nil {
			last = err
		}
	}
	return last
}

func unique(list []string) map[string]bool {
	set := map[string]bool{}
	for _, s := range list {
		set[s] = true
	}
	return set
}

// answer prints a request's result: IDs on standard output, notes for people on standard
// error.
func (a *app) answer(answer fleet.Answer) error {
	if a.json {
		return a.printJSON(answer)
	}
	a.notes(answer)
	for _, m := range answer.Moves {
		if _, err := fmt.Fprintln(a.Out, m); err != nil {
			return err
		}
	}
	return nil
}

// The arguments that commands ask for if they are missing.
const (
	oneHost  = "one host: `pagurus host ls` lists them"
	oneGuest = "one guest: `pagurus guest ls` lists them"
	oneMove  = "one move: `pagurus move ls` lists them"
	oneJob   = "one job: `pagurus job ls` lists them"
	someJob  = "a job: `pagurus job ls` lists them"
)

func unknownJob(id fleet.JobID) error {
	return fmt.Errorf("there is no job %q: `pagurus job ls` lists them", string(id))
}

func unknownHost(id fleet.HostID) error {
	return fmt.Errorf("there is no host %q: `pagurus host ls` lists them", string(id))
}

// Exactly requires n arguments; its error asks for what.
func Exactly(n int, what string) cobra.PositionalArgs { return between(n, n, what) }

// AtLeast requires at least n arguments.
func AtLeast(n int, what string) cobra.PositionalArgs { return between(n, math.MaxInt, what) }

// AtMost allows at most n arguments.
func AtMost(n int, what string) cobra.PositionalArgs { return between(0, n, what) }

func between(least, most int, what string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) < least || len(args) > most {
			return usage(cmd, "name "+what)
		}
		return namesAll(cmd, args)
	}
}

// namesAll refuses arguments that are empty, as those of a script whose variable is not set.
func namesAll(cmd *cobra.Command, args []string) error {
	if i := slices.IndexFunc(args, func(arg string) bool { return strings.TrimSpace(arg) == "" }); i >= 0 {
		return usage(cmd, fmt.Sprintf("argument %d of `%s` is empty: give a name, or leave it out", i+1, cmd.CommandPath()))
	}
	return nil
}

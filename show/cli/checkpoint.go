package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"pagurus/fleet"
	"pagurus/show/api"
	"pagurus/show/view"
)

const fromFlag = "from" // of restart

const oneCheckpoint = "one checkpoint: `pagurus checkpoint ls` lists them"

// checkpointNoun is `checkpoint`, which makes one where a job is named.
func (a *app) checkpointNoun() Noun {
	wait, to, ls := false, "", a.listCheckpointsCommand()
	cmd := &cobra.Command{
		Use: "checkpoint [JOB]", Aliases: []string{"checkpoints"}, Short: api.Summary("makeCheckpoint"),
		Long: `Checkpoint keeps the state of all guests of a running job as at one moment, in the
vaults of other hosts. The guests are suspended for a fraction of a second, longer on
busy hosts; writing and storing goes on while they run. The job can begin again from there: by itself when it
loses a host (run --` + fleet.RestartsFlag + `), or with ` + "`pagurus restart`" + `. What you ask for stays until you
remove it. ` + "`pagurus run --checkpoint`" + ` has checkpoints made by themselves.

It prints the checkpoint's ID; with --wait it waits until it is kept. With --to it also
copies it, with your rights, into a directory of this machine, which has to be empty:
` + "`pagurus restart JOB --from DIR`" + ` takes it back, also when all vaults are lost. Without
a job it lists all checkpoints.`,
		Example:           "  pagurus checkpoint j3 --wait\n  pagurus checkpoint ls j3\n  pagurus checkpoint show j3c1\n  pagurus checkpoint rm j3c1\n  pagurus restart j3 --from j3c1\n  pagurus checkpoint j3 --to ~/kept/j3 && pagurus restart j3 --from ~/kept/j3",
		Args:              AtMost(1, oneJob),
		ValidArgsFunction: a.completeJobs(openJob),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return ls.RunE(cmd, args)
			}
			r := fleet.Request{Verb: fleet.MakeCheckpoint, Job: fleet.JobID(args[0])}
			if !cmd.Flags().Changed(toFlag) {
				return a.cut(cmd.Context(), r, wait)
			}
			dir, err := a.folderFor(to, "")
			if err != nil {
				return err
			}
			return a.cutTo(cmd.Context(), r, dir)
		},
	}
	cmd.Flags().BoolVar(&wait, "wait", false, "wait until it is kept, and say what it cost")
	cmd.Flags().StringVar(&to, toFlag, "", "wait until it is kept, and copy it to this directory")
	_ = cmd.MarkFlagDirname(toFlag)
	cmd.Flags().AddFlagSet(ls.Flags())
	return Noun{
		Title: "Jobs:", Command: cmd,
		Verbs: verbs(a.listCheckpointsCommand, a.showCheckpointCommand, a.copyCheckpointCommand, a.removeCheckpointCommand),
	}
}

// cut makes a checkpoint and prints its ID, or how it went.
func (a *app) cut(ctx context.Context, r fleet.Request, wait bool) error {
	answer, err := a.ask(ctx, r)
	if err != nil {
		return err
	}
	if !wait {
		if a.json {
			return a.printJSON(answer)
		}
		a.notes(answer)
		_, err = fmt.Fprintln(a.Out, answer.Checkpoint)
		return err
	}
	a.notes(answer)
	last, err := a.followCut(ctx, r, answer.Checkpoint)
	switch {
	case err != nil:
		return err
	case a.json:
		return a.printJSON(last)
	}
	_, err = fmt.Fprintln(a.Out, last.Told())
	return err
}

// cutTo makes a checkpoint and copies it into a folder.
func (a *app) cutTo(ctx context.Context, r fleet.Request, dir string) error {
	answer, err := a.ask(ctx, r)
	if err != nil {
		return err
	}
	a.notes(answer)
	last, err := a.followCut(ctx, r, answer.Checkpoint)
	if err != nil {
		return err
	}
	if !a.json {
		if _, err := fmt.Fprintln(a.Out, last.Told()); err != nil {
			return err
		}
	}
	if err := a.copyTo(ctx, last.ID, dir); err != nil {
		return fmt.Errorf("%s is kept in vaults, and not copied: %w", last.ID, err)
	}
	return a.copied(last.ID, dir)
}

// followCut waits until a checkpoint is kept, and the job suspended if that was asked for. Anything else is an error.
func (a *app) followCut(ctx context.Context, r fleet.Request, id fleet.CheckpointID) (last view.Checkpoint, err error) {
	c, err := a.dial()
	if err != nil {
		return last, err
	}
	err = followClient(ctx, c, newOutage(a.Err), func(c view.Cluster) (bool, error) {
		p, there := c.Checkpoint(id)
		if !there {
			return true, fmt.Errorf("the controller no longer knows %s", id)
		}
		last = p
		if r.Verb == fleet.SuspendJob && p.WasKept {
			j, _ := c.Job(p.Job)
			return j.State == fleet.JobSuspended || j.State == fleet.JobEnded, nil
		}
		return p.WasKept || p.Phase.Ended(), nil
	})
	if err == nil && !last.WasKept {
		err = errors.New(last.Told())
	}
	return last, err
}

func (a *app) listCheckpointsCommand() *cobra.Command {
	var job fleet.JobID
	cmd := a.list(&cobra.Command{
		Use:               "ls [JOB]",
		Short:             api.Summary("listCheckpoints"),
		Example:           "  pagurus ls j3\n  pagurus ls -w        # until Ctrl-C\n  pagurus ls --json | jq -r '.[] | select(.phase == \"kept\") | .id'",
		ValidArgsFunction: a.completeJobs(anyJob),
	}, listing{
		func(c view.Cluster) view.Table { return c.CheckpointTable(c.CheckpointsOf(job)) },
		func(c view.Cluster) any { return c.CheckpointsOf(job) },
	})
	run := cmd.RunE
	cmd.Args = AtMost(1, oneJob)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if job = ""; len(args) == 1 {
			job = fleet.JobID(args[0])
		}
		return run(cmd, nil)
	}
	return cmd
}

func (a *app) showCheckpointCommand() *cobra.Command {
	return &cobra.Command{
		Use:               "show CHECKPOINT",
		Short:             api.Summary("showCheckpoint"),
		Example:           "  pagurus show j3c1",
		Args:              Exactly(1, oneCheckpoint),
		ValidArgsFunction: a.completeCheckpoints,
		RunE: func(cmd *cobra.Command, args []string) error {
			cluster, err := a.read(cmd.Context())
			if err != nil {
				return err
			}
			p, there := cluster.Checkpoint(fleet.CheckpointID(args[0]))
			switch {
			case !there:
				return fmt.Errorf("there is no checkpoint %q: `pagurus checkpoint ls` lists them", args[0])
			case a.json:
				return a.printJSON(p)
			}
			_, err = io.WriteString(a.Out, p.Text(cluster))
			return err
		},
	}
}

func (a *app) removeCheckpointCommand() *cobra.Command {
	return &cobra.Command{
		Use:               "rm CHECKPOINT…",
		Aliases:           []string{"remove"},
		Short:             api.Summary("removeCheckpoint"),
		Example:           "  pagurus rm j3c1 j3c2",
		Args:              AtLeast(1, oneCheckpoint),
		ValidArgsFunction: a.completeCheckpoints,
		RunE: func(cmd *cobra.Command, args []string) error {
			for _, id := range args {
				answer, err := a.ask(cmd.Context(), fleet.Request{Verb: fleet.RemoveCheckpoint, Checkpoint: fleet.CheckpointID(id)})
				if err == nil {
					err = a.answer(answer)
				}
				if err != nil {
					return err
				}
			}
			return nil
		},
	}
}

func (a *app) suspendCommand() *cobra.Command {
	wait := false
	cmd := &cobra.Command{
		Use:   "suspend JOB",
		Short: api.Summary("suspendJob"),
		Long: `Suspend makes a checkpoint of a running job and ends its guests once it is kept. The job
takes no memory of any host then, and goes on from there with ` + "`pagurus resume`" + `. What its
program does between the checkpoint and the end of its guests it does again.`,
		Example:           "  pagurus suspend j3 --wait\n  pagurus resume j3",
		Args:              Exactly(1, oneJob),
		ValidArgsFunction: a.completeJobs(openJob),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.cut(cmd.Context(), fleet.Request{Verb: fleet.SuspendJob, Job: fleet.JobID(args[0])}, wait)
		},
	}
	cmd.Flags().BoolVar(&wait, "wait", false, "wait until the job is suspended")
	return cmd
}

func (a *app) resumeCommand() *cobra.Command {
	var on []string
	cmd := &cobra.Command{
		Use:   "resume JOB",
		Short: api.Summary("resumeJob"),
		Long: `Resume lets a suspended job wait for room and go on from its checkpoint: on the hosts that it
may use since it was submitted, or on those named with --on, from now on. Hosts need what the
guests had: ` + "`pagurus explain JOB`" + ` says which lacks what.`,
		Example:           "  pagurus resume j3 && pagurus logs -f j3\n  pagurus resume j3 --on host4,host5",
		Args:              Exactly(1, oneJob),
		ValidArgsFunction: a.completeJobs(func(j view.Job) bool { return j.State == fleet.JobSuspended }),
		RunE: func(cmd *cobra.Command, args []string) error {
			r := fleet.Request{Verb: fleet.ResumeJob, Job: fleet.JobID(args[0])}
			for _, host := range on {
				r.On = append(r.On, fleet.HostID(host))
			}
			answer, err := a.ask(cmd.Context(), r)
			if err != nil {
				return err
			}
			return a.answer(answer)
		},
	}
	cmd.Flags().StringSliceVarP(&on, onFlag, "H", nil, "go on on these hosts only, from now on")
	Judge(cmd.Flags(), onFlag, hostNames)
	_ = cmd.RegisterFlagCompletionFunc(onFlag, a.completeHosts)
	return cmd
}

func (a *app) restartCommand() *cobra.Command {
	r := fleet.Request{Verb: fleet.Restart}
	from := ""
	cmd := &cobra.Command{
		Use:   "restart JOB",
		Short: api.Summary("restartJob"),
		Long: `Restart ends what runs of a job and begins it again: from the checkpoint named with
--from, else from the newest that is kept, else from its beginning. --from also takes the
directory of a copy that ` + "`pagurus checkpoint --to`" + ` made (write ./j3c1 for one that is called
like a checkpoint): it goes to vaults first, and the job is left as it is until all of it
is there. A job that has ended
can be restarted as long as ` + "`pagurus job ls`" + ` lists it with its guests, about an hour. Its
output goes on where the checkpoint was made.`,
		Example:           "  pagurus restart j3\n  pagurus restart j3 --from j3c1\n  pagurus restart j3 --from ~/kept/j3\n  pagurus restart j3 --from-beginning",
		Args:              Exactly(1, oneJob),
		ValidArgsFunction: a.completeJobs(anyJob),
		RunE: func(cmd *cobra.Command, args []string) error {
			if r.Job, r.Checkpoint = fleet.JobID(args[0]), fleet.CheckpointID(from); isFolder(from) {
				var err error
				if r.Checkpoint, err = a.takeBack(cmd.Context(), r.Job, from); err != nil {
					return err
				}
			}
			answer, err := a.ask(cmd.Context(), r)
			if err != nil {
				return err
			}
			return a.answer(answer)
		},
	}
	cmd.Flags().StringVar(&from, fromFlag, "", "checkpoint to begin at, or directory with a copy of one (default: the newest that is kept)")
	Judge(cmd.Flags(), fromFlag, refusedFrom)
	cmd.Flags().BoolVar(&r.Beginning, "from-beginning", false, "begin at the beginning of the program")
	cmd.MarkFlagsMutuallyExclusive(fromFlag, "from-beginning")
	_ = cmd.RegisterFlagCompletionFunc(fromFlag, func(cmd *cobra.Command, _ []string, typed string) ([]string, cobra.ShellCompDirective) {
		return a.completeCheckpoints(cmd, nil, typed)
	})
	return cmd
}

// completeCheckpoints completes checkpoints that are not yet on the command line.
func (a *app) completeCheckpoints(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	return a.offer(cmd, func(c view.Cluster) (words []string) {
		for _, p := range c.Checkpoints {
			if !p.Phase.Ended() && !slices.Contains(args, string(p.ID)) {
				words = append(words, string(p.ID)+"\t"+string(p.Phase)+", "+view.Clean(p.Why))
			}
		}
		return words
	})
}

// ParseCheckpointPlan reads the flag for a job's checkpoints: auto, off, or every=30m,keep=2.
func ParseCheckpointPlan(text string) (*fleet.CheckpointPlan, error) {
	switch text {
	case "", "off":
		return nil, nil
	case "auto":
		return &fleet.CheckpointPlan{}, nil
	}
	var plan fleet.CheckpointPlan
	for word := range strings.SplitSeq(text, ",") {
		name, value, _ := strings.Cut(word, "=")
		var err error
		switch name {
		case "auto":
		case "every":
			plan.Every, err = ParseDuration(value)
		case "keep":
			plan.Keep, err = strconv.Atoi(value)
		default:
			err = errors.New("it is not known")
		}
		if err != nil {
			return nil, fmt.Errorf("%q cannot be read (%w): write auto, off, or every=30m,keep=2", word, err)
		}
	}
	if reason := plan.Refused(); reason != "" {
		return nil, errors.New(reason)
	}
	return &plan, nil
}

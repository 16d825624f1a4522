package cli

import (
	"io"
	"slices"
	"strconv"

	"github.com/spf13/cobra"

	"pagurus/fleet"
	"pagurus/show/api"
	"pagurus/show/view"
)

func (a *app) removeJobCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "rm JOB…",
		Aliases: []string{"remove"},
		Short:   api.Summary("removeJob"),
		Long: `Rm removes jobs that have ended: their output, their ranks' traces, and what the
controller knows of them. What they wrote into their directory stays. You remove your
own jobs, an administrator those of anybody. A job that runs has to be cancelled first.`,
		Example:           "  pagurus rm j3 j4\n  pagurus quota          # which have how much output",
		Args:              AtLeast(1, someJob),
		ValidArgsFunction: a.completeJobs(overJob),
		RunE: func(cmd *cobra.Command, args []string) error {
			for _, id := range args {
				answer, err := a.ask(cmd.Context(), fleet.Request{Verb: fleet.RemoveJob, Job: fleet.JobID(id)})
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
}

func (a *app) quotaCommand() *cobra.Command {
	user := ""
	cmd := &cobra.Command{
		Use:   "quota",
		Short: api.Summary("showQuota"),
		Long: `Quota shows how much the controller keeps of what jobs' programs have printed and read,
and how much it may keep. At a limit a user's programs wait as they print. At the limit of all,
and on a full disk, everybody's do. They go on when there is room. With --drop-oldest-output the
oldest ended jobs of who waits are removed, and their output is lost. It also shows how much
vaults keep of checkpoints, and how much images take; at a limit of these no more are made. And it
shows by how many guests jobs have grown (run --grow); at the limit they get no more. At last it
shows how much of their shares of changes, and of what these put into the controller's store,
users have used up; all of it comes back within a minute. Beyond it they are refused until then. Users see
their own part, and what all take together; administrators see everybody's.

An administrator sets the limits: --output-per-user, --output-in-all, --keep-output and
--drop-oldest-output, --checkpoints-per-user, --checkpoints-in-all, --images-per-user,
--images-in-all, --growth-per-user, --requests-per-user, --stored-per-user and --stored-in-all of
` + "`pagurus controller`" + `, or the same keys in its configuration.`,
		Example: `  pagurus quota
  pagurus quota --user ada
  pagurus quota --json | jq -r '.users[].jobs[] | select(.ended) | .job'`,
		Args: NoArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := a.dial()
			if err != nil {
				return err
			}
			o, err := c.Output(cmd.Context())
			if err != nil {
				return err
			}
			if user != "" {
				o = ofOne(o, user)
			}
			if a.json {
				return a.printJSON(o)
			}
			text := view.OutputTable(o).Text()
			if k := o.Checkpoints; k.Bytes > 0 || k.Limits != (fleet.CheckpointLimits{}) {
				text += "\n" + view.CheckpointsTable(k).Text()
			}
			if k := o.Images; k.Bytes > 0 || k.Limits != (fleet.ImageLimits{}) {
				text += "\n" + view.ImagesTable(k).Text()
			}
			if g := o.Growth; g.Guests > 0 || g.Each > 0 {
				text += "\n" + view.GrowthTable(g).Text()
			}
			if k := o.Changes; len(k.Users) > 0 {
				text += "\n" + view.ChangesTable(k).Text()
			}
			_, err = io.WriteString(a.Out, text)
			return err
		},
	}
	cmd.Flags().StringVar(&user, "user", "", "only this user: a name as in user ls, or a uid")
	_ = cmd.RegisterFlagCompletionFunc("user", a.completeUsers)
	return cmd
}

// ofOne is what concerns one user, who is named as in user ls, or by a uid.
func ofOne(o fleet.Output, user string) fleet.Output {
	other := func(id fleet.UserID, uid uint32) bool {
		return string(id) != user && strconv.FormatUint(uint64(uid), 10) != user
	}
	o.Users = slices.DeleteFunc(o.Users, func(u fleet.UserOutput) bool { return other(u.User, u.UID) })
	o.Images.Users = slices.DeleteFunc(o.Images.Users, func(u fleet.UserImages) bool { return other(u.User, u.UID) })
	o.Checkpoints.Users = slices.DeleteFunc(o.Checkpoints.Users, func(u fleet.UserCheckpoints) bool { return other(u.User, u.UID) })
	o.Growth.Users = slices.DeleteFunc(o.Growth.Users, func(u fleet.UserGrowth) bool { return other(u.User, u.UID) })
	o.Changes.Users = slices.DeleteFunc(o.Changes.Users, func(u fleet.UserChanges) bool { return other(u.User, u.UID) })
	return o
}

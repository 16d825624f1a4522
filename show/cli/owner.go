package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"pagurus/fleet"
	"pagurus/serve/wire"
	"pagurus/show/view"
)

// ownerNoun is what the owner of this machine sees and says. It asks the agent here, not the controller.
func (a *app) ownerNoun() Noun {
	socket := ""
	cmd := &cobra.Command{
		Use: "owner", Short: "For the owner of this machine: see what guests do here, and pause them",
		Long: `Owner asks the agent of this machine: no login, no token and no root is needed, only to be
one of the users whom root named ([agent] owners). It also works while the controller is away.
Without a verb it shows the status.`,
		Example: "  pagurus owner\n  pagurus owner pause 1h\n  pagurus owner resume\n  pagurus owner policy --vacate suspend --hours 19:00-07:00\n  pagurus owner history",
	}
	cmd.PersistentFlags().StringVar(&socket, "owner-socket", wire.DefaultOwnerSocket, "where the agent of this machine listens for its owner")
	status := a.ownerStatusCommand(&socket)
	cmd.Args, cmd.RunE = OnlyVerbs, status.RunE
	return Noun{Title: "Hosts:", Command: cmd, Verbs: verbs(
		func() *cobra.Command { return status },
		func() *cobra.Command { return a.ownerPauseCommand(&socket) },
		func() *cobra.Command { return a.ownerResumeCommand(&socket) },
		func() *cobra.Command { return a.ownerPolicyCommand(&socket) },
		func() *cobra.Command { return a.ownerHistoryCommand(&socket) },
		func() *cobra.Command { return a.ownerNotifyCommand(&socket) },
		func() *cobra.Command { return a.ownerPageCommand(&socket) },
	)}
}

// askAgent asks the agent and prints what a text makes of its answer.
func (a *app) askAgent(ctx context.Context, socket string, q fleet.OwnerAsk, text func(fleet.OwnerAnswer) string) error {
	got, err := wire.AskAgent(ctx, socket, q)
	if err != nil {
		return err
	}
	if a.json {
		return a.printJSON(got)
	}
	for line := range strings.SplitSeq(strings.TrimRight(text(got), "\n"), "\n") {
		if _, err := fmt.Fprintln(a.Out, view.Clean(line)); err != nil {
			return err
		}
	}
	return nil
}

func (a *app) ownerStatusCommand(socket *string) *cobra.Command {
	return &cobra.Command{
		Use: "status", Short: "Show whether you count as there, and which guests are on this machine",
		Example: "  pagurus owner status",
		Args:    NoArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.askAgent(cmd.Context(), *socket, fleet.OwnerAsk{Verb: fleet.OwnerStatus}, view.OwnerStatus)
		},
	}
}

func (a *app) ownerPauseCommand(socket *string) *cobra.Command {
	return &cobra.Command{
		Use: "pause [TIME]", Short: "Say that you need this machine now, for a time or until resume",
		Long: `Pause has you count as there whatever the sensors report. Guests give way at once, and then
leave, are suspended or stay, as the policy says. It lasts across restarts of the agent.`,
		Example: "  pagurus owner pause\n  pagurus owner pause 1h",
		Args:    AtMost(1, "one time, such as 1h"),
		RunE: func(cmd *cobra.Command, args []string) error {
			q := fleet.OwnerAsk{Verb: fleet.OwnerPause}
			if len(args) > 0 {
				length, err := ParseDuration(args[0])
				if err == nil && length < time.Second {
					err = errors.New("a pause is a second or longer")
				}
				if err != nil {
					return usage(cmd, fmt.Sprintf("%q is not how long: %s", args[0], err))
				}
				q.For = length
			}
			if reason := q.Refused(); reason != "" {
				return usage(cmd, reason)
			}
			return a.askAgent(cmd.Context(), *socket, q, view.OwnerStatus)
		},
	}
}

func (a *app) ownerResumeCommand(socket *string) *cobra.Command {
	return &cobra.Command{
		Use: "resume", Short: "End a pause",
		Long:    "Resume ends `pagurus owner pause`. Guests may use the machine again, unless its sensors report you.",
		Example: "  pagurus owner resume",
		Args:    NoArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.askAgent(cmd.Context(), *socket, fleet.OwnerAsk{Verb: fleet.OwnerResume}, view.OwnerStatus)
		},
	}
}

func (a *app) ownerPolicyCommand(socket *string) *cobra.Command {
	var f ownerFlags
	cmd := &cobra.Command{
		Use: "policy [flags]", Short: "Show or set what happens to guests here when you are there",
		Long: `Policy shows or sets what you agree to, as ` + "`pagurus host policy`" + ` does. A setting whose flag is left
out stays as it is. It counts on this machine at once, and the controller takes it when it is heard.`,
		Example: "  pagurus owner policy\n  pagurus owner policy --vacate suspend --hours 19:00-07:00",
		Args:    NoArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			changed, err := f.Amend(cmd.Flags(), &fleet.OwnerPolicy{}) // before anybody is asked
			if err != nil {
				return err
			}
			q := fleet.OwnerAsk{Verb: fleet.OwnerStatus}
			if changed {
				now, err := wire.AskAgent(cmd.Context(), *socket, q)
				if err != nil {
					return err
				}
				if _, err := f.Amend(cmd.Flags(), &now.Policy); err != nil {
					return err
				}
				q.Verb, q.Policy = fleet.OwnerAgrees, &now.Policy
			}
			return a.askAgent(cmd.Context(), *socket, q, view.OwnerPolicyText)
		},
	}
	f.Add(cmd)
	return cmd
}

func (a *app) ownerHistoryCommand(socket *string) *cobra.Command {
	return &cobra.Command{
		Use: "history", Short: "Show who came and went on this machine: you, and guests",
		Example: "  pagurus owner history",
		Args:    NoArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.askAgent(cmd.Context(), *socket, fleet.OwnerAsk{Verb: fleet.OwnerHistory}, func(got fleet.OwnerAnswer) string { return view.OwnerHistory(got).Text() })
		},
	}
}

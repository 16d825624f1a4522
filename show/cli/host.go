package cli

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"pagurus/fleet"
	"pagurus/show/api"
	"pagurus/show/view"
)

// claimCommand marks a host's owner as present by hand.
func (a *app) claimCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "claim HOST",
		Short: api.Summary("claimHost"),
		Long: `Claim deprioritises the host's guests at once. They leave, are suspended or stay, as
the host's policy says, until ` + "`pagurus host release`" + `.`,
		Example:           "  pagurus host claim office3",
		Args:              Exactly(1, oneHost),
		ValidArgsFunction: a.completeHostArgument,
		RunE:              a.aboutHost(fleet.Claim),
	}
}

// releaseCommand undoes claimCommand.
func (a *app) releaseCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "release HOST",
		Short: api.Summary("releaseHost"),
		Long: `Release ends ` + "`pagurus host claim`" + `. The host takes guests again, unless its sensors
still report its owner.`,
		Example:           "  pagurus host release office3",
		Args:              Exactly(1, oneHost),
		ValidArgsFunction: a.completeHostArgument,
		RunE:              a.aboutHost(fleet.Release),
	}
}

func (a *app) policyCommand() *cobra.Command {
	var f ownerFlags
	cmd := &cobra.Command{
		Use:   "policy HOST [flags]",
		Short: api.Summary("setHostPolicy"),
		Long: `Policy says whether a host has an owner and what the owner agreed to. A setting whose
flag is left out stays as it is. Without flags it prints the policy.

At the first sign of the owner (a key, their programs, little free memory) guests get
the lowest CPU class. If the owner stays, guests evacuate (leave for other hosts while
they run), are suspended (their memory stays, they do not execute), or stay. Without a
sign of the owner for --idle-after, the host is the cluster's again.`,
		Example: `  pagurus host policy office3 --owner yes
  pagurus host policy office3 --vacate suspend --cap 50% --preset boinc
  pagurus host policy office3 --hours 19:00-07:00 --exclusive blender,steam
  pagurus host policy office3 --owner no`,
		Args:              Exactly(1, oneHost),
		ValidArgsFunction: a.completeHostArgument,
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.policy(cmd.Context(), cmd.Flags(), f, fleet.HostID(args[0]))
		},
	}
	f.Add(cmd)
	return cmd
}

// policy changes a host's policy, or prints it.
func (a *app) policy(ctx context.Context, flags *pflag.FlagSet, f ownerFlags, id fleet.HostID) error {
	changed, err := f.Amend(flags, &fleet.OwnerPolicy{}) // before anybody is asked
	if err != nil {
		return err
	}
	c, err := a.read(ctx)
	if err != nil {
		return err
	}
	h, ok := c.Host(id)
	if !ok {
		return unknownHost(id)
	}
	if _, err := f.Amend(flags, &h.Policy); err != nil {
		return err
	}
	if changed {
		p := h.Policy
		answer, err := a.ask(ctx, fleet.Request{Verb: fleet.SetPolicy, Host: id, Policy: &p})
		if err != nil {
			return err
		}
		a.notes(answer)
	}
	if a.json {
		return a.printJSON(h.Policy)
	}
	_, err = fmt.Fprintln(a.Out, view.Clean(c.PolicyText(h)))
	return err
}

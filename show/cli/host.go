package cli

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"pagurus/fleet"

	"pagurus/show/view"
)

// hostCommand is what a host's owner has to say.
func (a *app) hostCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "host policy|claim|release HOST",
		Short: "Say what a host's owner agrees to, and that they are there",
		Long: `Host is for machines that belong to somebody who uses them. Guests are deprioritised
at once for the owner; what becomes of them if the owner stays is the host's policy.
'pagurus hosts' shows what is known of each owner and what happens next.`,
		Example: `  pagurus host policy office3 --owner yes --hours 19:00-07:00
  pagurus host claim office3      # I need it now
  pagurus host release office3    # I am done`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usage(cmd, "say policy, claim or release, and a host")
			}
			return usage(cmd, fmt.Sprintf("there is no command %q", args[0]))
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(a.policyCommand(), a.claimCommand(fleet.Claim), a.claimCommand(fleet.Release))
	return cmd
}

// claimCommand says by hand that the owner is there, or gone.
func (a *app) claimCommand(verb fleet.RequestVerb) *cobra.Command {
	cmd := &cobra.Command{
		Use:               "claim HOST",
		Short:             "Say that a host's owner needs it now, whatever its sensors see",
		Long:              "Claim deprioritises guests at once; they leave, suspend or stay as the host's policy says, until `pagurus host release`.",
		Example:           "  pagurus host claim office3",
		Args:              Exactly(1, "one host: `pagurus hosts` lists them"),
		ValidArgsFunction: a.completeHostArgument,
		RunE:              a.aboutHost(verb),
	}
	if verb == fleet.Release {
		cmd.Use, cmd.Short = "release HOST", "Say that a host's owner is done with it"
		cmd.Long = "Release ends `pagurus host claim`. The host takes guests again unless its sensors still see somebody."
		cmd.Example = "  pagurus host release office3"
	}
	return cmd
}

func (a *app) policyCommand() *cobra.Command {
	var f ownerFlags
	cmd := &cobra.Command{
		Use:   "policy HOST [flags]",
		Short: "Say what becomes of guests when a host's owner is there",
		Long: `Policy says whether a host has an owner and what they agreed to. What is not
named stays as it was; without any flag it prints what there is.

As soon as there is a sign of the owner (a key, their programs, memory running
short) guests fall to the lowest class of CPU. If the owner stays, they evacuate:
they leave for other hosts while they run; or they suspend: they all but stand
still; or they stay. When there has been no sign for --idle-after, the host is
the cluster's again.`,
		Example: `  pagurus host policy office3 --owner yes
  pagurus host policy office3 --vacate suspend --cap 50% --preset boinc
  pagurus host policy office3 --hours 19:00-07:00 --exclusive blender,steam
  pagurus host policy office3 --owner no`,
		Args:              Exactly(1, "one host: `pagurus hosts` lists them"),
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
	c, err := a.read(ctx)
	if err != nil {
		return err
	}
	h, ok := c.Host(id)
	if !ok {
		return fmt.Errorf("there is no host %s: `pagurus hosts` lists them", id)
	}
	changed, err := f.Amend(flags, &h.Policy)
	if err != nil {
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

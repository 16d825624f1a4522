package cli

import (
	"context"
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	"pagurus/fleet"
	"pagurus/show/api"
	"pagurus/show/view"
)

func (a *app) setPolicyCommand() *cobra.Command {
	var placement string
	cmd := &cobra.Command{
		Use:   "set NAME",
		Short: api.Summary("setPolicy"),
		Long: `Set changes the cluster's policy at once. Guests that are already suspended or
leaving follow it within a second.`,
		Example:           "  pagurus policy set predictive",
		Args:              Exactly(1, "a policy: `pagurus policy ls` lists them"),
		ValidArgsFunction: completePolicies,
		RunE: func(cmd *cobra.Command, args []string) error {
			rules := fleet.Rules{Vacate: fleet.Vacate(args[0]), Placement: placement}
			if reason := rules.Refused(); reason != "" {
				return usage(cmd, reason)
			}
			return a.setPolicy(cmd.Context(), rules)
		},
	}
	cmd.Flags().StringVar(&placement, "placement", "", "how hosts are chosen: spread (most room first) or longest-idle (owner away longest first) (default: the policy's own)")
	OneOf(cmd, "placement", fleet.Placements()...)
	return cmd
}

func (a *app) showPolicyCommand() *cobra.Command {
	return &cobra.Command{
		Use:               "show [NAME]",
		Short:             api.Summary("showPolicy"),
		Long:              "Show explains a policy. Without a name it explains the policy in force.",
		Example:           "  pagurus policy show",
		Args:              AtMost(1, "one policy: `pagurus policy ls` lists them"),
		ValidArgsFunction: completePolicies,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				if reason := (fleet.Rules{Vacate: fleet.Vacate(args[0])}).Refused(); reason != "" {
					return usage(cmd, reason)
				}
			}
			return a.showPolicy(cmd.Context(), args)
		},
	}
}

func (a *app) showPolicy(ctx context.Context, args []string) error {
	c, err := a.read(ctx)
	if err != nil {
		return err
	}
	all := view.Policies(c.Rules)
	i := slices.IndexFunc(all, func(p view.Policy) bool {
		return p.InForce && len(args) == 0 || len(args) > 0 && string(p.Name) == args[0]
	})
	if i < 0 {
		return fmt.Errorf("there is no policy %q: `pagurus policy ls` lists them", args[0])
	}
	if a.json {
		return a.printJSON(all[i])
	}
	_, err = fmt.Fprintln(a.Out, all[i].Text())
	return err
}

func (a *app) setPolicy(ctx context.Context, r fleet.Rules) error {
	if _, err := a.ask(ctx, fleet.Request{Verb: fleet.SetRules, Rules: &r}); err != nil {
		return err
	}
	return a.showPolicy(ctx, nil)
}

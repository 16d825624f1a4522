package cli

import (
	"context"
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	"pagurus/fleet"

	"pagurus/show/view"
)

// policiesCommand is what holds in the cluster for hosts of whose owners nothing
// else is known.
func (a *app) policiesCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "policy ls|show|set [NAME]",
		Short: "See and say what becomes of guests when owners return",
		Long: `The cluster's policy says what becomes of guests on a host whose owner stays, and
how hosts are chosen for guests. What a host's owner has agreed to counts more:
see 'pagurus host policy'. 'pagurus simulate' compares the policies.`,
		Example: `  pagurus policy ls
  pagurus policy show predictive
  pagurus policy set evacuate --placement longest-idle`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usage(cmd, "say ls, show or set")
			}
			return usage(cmd, fmt.Sprintf("there is no command %q", args[0]))
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	var placement string
	set := &cobra.Command{
		Use:               "set NAME",
		Short:             "Say which policy is in force, from now on",
		Long:              "Set says which policy is in force in the cluster. Guests that are suspended or leave already follow it with the controller's next look, a second later at most.",
		Example:           "  pagurus policy set predictive",
		Args:              Exactly(1, "a policy: `pagurus policy ls` lists them"),
		ValidArgsFunction: completePolicies,
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.setPolicy(cmd.Context(), fleet.Rules{Vacate: fleet.Vacate(args[0]), Placement: placement})
		},
	}
	set.Flags().StringVar(&placement, "placement", "", "how hosts are chosen: spread (most room first) or longest-idle (owner away longest first); the policy's own way if not given")
	cmd.AddCommand(&cobra.Command{
		Use: "ls", Short: "List the policies there are", Long: "Ls lists all policies, and says which is in force.", Example: "  pagurus policy ls", Args: Exactly(0, "nothing else"),
		RunE: func(cmd *cobra.Command, _ []string) error { return a.listPolicies(cmd.Context()) },
	}, &cobra.Command{
		Use: "show [NAME]", Short: "Say what a policy does", Long: "Show says what a policy does, without a name the one in force.", Example: "  pagurus policy show",
		Args: cobra.MaximumNArgs(1), ValidArgsFunction: completePolicies,
		RunE: func(cmd *cobra.Command, args []string) error { return a.showPolicy(cmd.Context(), args) },
	}, set)
	return cmd
}

func (a *app) listPolicies(ctx context.Context) error {
	c, err := a.read(ctx)
	if err != nil {
		return err
	}
	if a.json {
		return a.printJSON(view.Policies(c.Rules))
	}
	_, err = fmt.Fprint(a.Out, view.PolicyTable(c.Rules).Text())
	return err
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

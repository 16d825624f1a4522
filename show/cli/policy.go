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

const cpuLevelFlag = "cpu-level"

// ownCPU is the word for no level.
const ownCPU = "own"

func (a *app) setPolicyCommand() *cobra.Command {
	var placement, level string
	cmd := &cobra.Command{
		Use:   "set [NAME]",
		Short: api.Summary("setPolicy"),
		Long: `Set changes the cluster's policy at once. Guests that are already suspended or
leaving follow it within a second.

With --cpu-level virtual machines that start from then on, where KVM runs them, have the CPU of that level,
so that they move between all hosts whose processors have it, and start on no others.`,
		Example:           "  pagurus policy set predictive\n  pagurus policy set --cpu-level x86-64-v3",
		Args:              AtMost(1, "one policy: `pagurus policy ls` lists them"),
		ValidArgsFunction: completePolicies,
		RunE: func(cmd *cobra.Command, args []string) error {
			byLevel := cmd.Flags().Changed(cpuLevelFlag)
			if len(args) == 0 && (!byLevel || placement != "") {
				return usage(cmd, "name a policy: `pagurus policy ls` lists them")
			}
			if len(args) > 0 {
				if reason := (fleet.Rules{Vacate: fleet.Vacate(args[0])}).Refused(); reason != "" {
					return usage(cmd, reason)
				}
			}
			c, err := a.read(cmd.Context())
			if err != nil {
				return err
			}
			rules := c.Rules
			if len(args) > 0 {
				rules.Vacate, rules.Placement = fleet.Vacate(args[0]), placement
			}
			if byLevel {
				rules.CPU = level
				if level == ownCPU {
					rules.CPU = ""
				}
			}
			return a.setPolicy(cmd.Context(), rules)
		},
	}
	cmd.Flags().StringVar(&level, cpuLevelFlag, "", "the CPU of virtual machines that start: a level; host, their host's; or own, what each host's agent is told (default: as it is)")
	OneOf(cmd, cpuLevelFlag, append(slices.Clone(fleet.ChosenCPUs), ownCPU)...)
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
	text := all[i].Text()
	if cpu := c.CPUText(); cpu != "" && all[i].InForce {
		text += "\n" + view.Clean(cpu)
	}
	_, err = fmt.Fprintln(a.Out, text)
	return err
}

func (a *app) setPolicy(ctx context.Context, r fleet.Rules) error {
	if _, err := a.ask(ctx, fleet.Request{Verb: fleet.SetRules, Rules: &r}); err != nil {
		return err
	}
	return a.showPolicy(ctx, nil)
}

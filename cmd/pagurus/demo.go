package main

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"pagurus/cmd/roles"
	"pagurus/serve/wire"
	"pagurus/show/cli"
	"pagurus/show/demo"
)

// demoSteps is the melt's first length: enough for two moves during it on two cores with
// emulated guests. If it is too short the demo uses more.
const demoSteps = 250

func demoCommand(std streams) *cobra.Command {
	length := demoSteps
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Show it all: a lab, LAMMPS, moves under it, and whether the results are the same",
		Example: `  sudo pagurus demo
  sudo pagurus demo --steps 1000`,
		Hidden: true,
		Args:   cli.NoArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			self, err := os.Executable()
			if err != nil {
				return fmt.Errorf("finding this program: %w", err)
			}
			client, err := wire.Dial(wire.Config{Address: "unix:" + wire.DefaultSocket})
			if err != nil {
				return err
			}
			ctx, stop := roles.Until(cmd.Context())
			defer stop()
			d := demo.Demo{Pagurus: self, Cluster: client, Out: std.out, Steps: length, Fixed: cmd.Flags().Changed("steps")}
			return d.Run(ctx)
		},
	}
	cmd.Flags().IntVar(&length, "steps", length, "time steps of the melt; if not given, more where these are over too soon")
	return cmd
}

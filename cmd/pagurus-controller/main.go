// Command pagurus-controller is the head of a cluster. It is a separate program because its
// store takes longer to start than most commands take in total, and no host needs it.
//
// It decides nothing itself. The system ring runs it.
package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"pagurus/cmd/roles"
	"pagurus/serve/identity"
	"pagurus/show/cli"
)

// version is set by the build.
var version = "unknown"

func main() {
	root := roles.ControllerCommand(roles.ControllerProgram, func(cmd *cobra.Command, f roles.Controller) error {
		ctx, stop := roles.Until(cmd.Context())
		defer stop()
		return run(ctx, f, roles.Log(cmd.ErrOrStderr(), f.Verbose))
	})
	root.CompletionOptions.DisableDefaultCmd = true
	root.AddCommand(roles.InitCommand(func(cmd *cobra.Command, f roles.Controller, name string) error {
		authority, err := identity.OpenNamed(f.StateDir, name)
		switch {
		case err != nil:
			return err
		case name != "" && authority.Name() != name:
			return fmt.Errorf("there is a cluster in %s already, %s: a name is for good, since certificates have it; leave out --name", f.StateDir, cmp.Or(authority.Name(), "without a name"))
		}
		_, err = fmt.Fprintln(cmd.OutOrStdout(), authority.Fingerprint())
		return err
	}))
	root.AddCommand(roles.RestoreCommand(func(cmd *cobra.Command, f roles.Controller, r roles.Restore) error {
		ctx, stop := roles.Until(cmd.Context())
		defer stop()
		return restore(ctx, f, r, printing{out: cmd.OutOrStdout(), err: cmd.ErrOrStderr()})
	}))
	cli.Program(root, cli.Options{Version: version, In: os.Stdin, Out: os.Stdout, Err: os.Stderr})
	cli.JudgeFlags(root)
	err := root.ExecuteContext(context.Background())
	if errors.Is(err, errAnew) { // or another leads: begin as one that does not
		err = again()
	}
	os.Exit(cli.Say(os.Stderr, err))
}

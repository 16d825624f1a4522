// Command pagurus-controller is the head of a cluster. It is a separate program because its
// store takes longer to start than most commands take in total, and no host needs it.
//
// It decides nothing itself. The system ring runs it.
package main

import (
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
	root.AddCommand(roles.InitCommand(func(cmd *cobra.Command, f roles.Controller) error {
		authority, err := identity.OpenAuthority(f.StateDir)
		if err == nil {
			_, err = fmt.Fprintln(cmd.OutOrStdout(), authority.Fingerprint())
		}
		return err
	}))
	cli.Program(root, cli.Options{Version: version, In: os.Stdin, Out: os.Stdout, Err: os.Stderr})
	cli.JudgeFlags(root)
	err := root.ExecuteContext(context.Background())
	if errors.Is(err, errAnew) {
		err = again()
	}
	os.Exit(cli.Say(os.Stderr, err))
}

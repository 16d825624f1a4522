// This file has the command `pagurus version`, which says what this program speaks and what
// the controller speaks. It must not know where either matters. A script of the system ring
// tests it.

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"runtime/debug"
	"time"

	"github.com/spf13/cobra"

	"pagurus/fleet"
	"pagurus/serve/wire"
	"pagurus/show/cli"
	"pagurus/show/view"
)

// versionLimit is how long a controller may take to say its version.
const versionLimit = 3 * time.Second

// spoken is what `pagurus version` says.
type spoken struct {
	Client     wire.Spoken  `json:"client"`
	Controller *wire.Spoken `json:"controller,omitempty"` // nil: none answers
}

func versionCommand(std streams) *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the versions of this program and of the controller",
		Long: `Version prints the build of this program and the version of the protocol that it speaks,
and the same of the controller, if one answers. Versions of the protocol that are one apart
work together.`,
		Example: "  pagurus version\n  pagurus version --json | jq .controller.protocol",
		Args:    cli.NoArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			s := spoken{Client: wire.Spoken{Protocol: fleet.Protocol(), Version: version}}
			at, err := cli.Controller(cmd.Flags(), wire.UserCredentials())
			if err == nil {
				s.Controller, err = askVersion(cmd.Context(), at)
			}
			if asJSON, _ := cmd.Flags().GetBool("json"); asJSON {
				return json.NewEncoder(std.out).Encode(s)
			}
			if err != nil && at.Address != "unix:"+wire.DefaultSocket { // that machines have no controller is usual
				std.say(err.Error())
			}
			return s.print(std.out, at.Address)
		},
	}
}

// askVersion asks a controller for its version.
func askVersion(ctx context.Context, at wire.Config) (*wire.Spoken, error) {
	ctx, stop := context.WithTimeout(ctx, versionLimit)
	defer stop()
	client, err := wire.Dial(at)
	if err != nil {
		return nil, err
	}
	defer func() { _ = client.Close() }()
	said, err := client.Controller(ctx)
	if err != nil {
		return nil, err
	}
	return &said, nil
}

func (s spoken) print(out io.Writer, address string) error {
	built := ""
	if info, ok := debug.ReadBuildInfo(); ok {
		built = " (" + info.GoVersion + ")"
	}
	if _, err := fmt.Fprintf(out, "pagurus %s%s, protocol %d\n", s.Client.Version, built, s.Client.Protocol); err != nil || s.Controller == nil {
		return err
	}
	theirs := "from before versions" // of the protocol, with which builds came, too
	if s.Controller.Version != "" {
		theirs = view.Clean(s.Controller.Version)
	}
	_, err := fmt.Fprintf(out, "controller %s, protocol %d, at %s\n", theirs, s.Controller.Protocol, address)
	if err != nil {
		return err
	}
	us, them := fleet.Speaker{Name: "this pagurus", Protocol: s.Client.Protocol}, fleet.Speaker{Name: "the controller", Protocol: s.Controller.Protocol}
	if says := fleet.Apart(us, them) + fleet.Behind(us, them); says != "" { // at most one of both says something
		_, err = fmt.Fprintln(out, says)
	}
	return err
}

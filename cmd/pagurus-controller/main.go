// Command pagurus-controller is what `pagurus controller` and `pagurus up` become:
// the same commands, with a store to keep a cluster in.
package main

import (
	"context"
	"errors"
	"os"

	"pagurus/act/machine"
	"pagurus/cmd/roles"
	"pagurus/show/cli"
)

// version is set by the build.
var version = "unknown"

func main() {
	root := cli.Root(cli.Options{Version: version, Machine: machine.ID, In: os.Stdin, Out: os.Stdout, Err: os.Stderr})
	r := roles.Roles{Version: version, Head: run}
	root.AddCommand(r.Up(), r.Controller())
	err := root.ExecuteContext(context.Background())
	if errors.Is(err, errAnew) {
		err = again()
	}
	os.Exit(cli.Say(os.Stderr, err))
}

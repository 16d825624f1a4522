// Command pagurus is the command line. It assembles the other packages and decides nothing
// itself.
//
// Agent and controller are the programs pagurus-agent and pagurus-controller beside it. The
// lab, `pagurus up` and the doctor are here, since they start and judge both. Its tests run
// the real binary.
package main

import (
	"context"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"pagurus/act/host/written"
	"pagurus/act/machine"
	"pagurus/cmd/pagurus/measuring"
	"pagurus/cmd/roles"
	"pagurus/show/cli"
	"pagurus/sim"
)

// version is set by the build.
var version = "unknown"

// streams are a command's input and outputs.
type streams struct {
	in  io.Reader
	out io.Writer
	err io.Writer
}

// say tells the user about progress.
func (s streams) say(what string) { _, _ = fmt.Fprintln(s.err, "pagurus: "+what) }

// source says what a directory is, if hosts can share it.
func source(path string) string {
	is, _, _ := machine.Source(path) // after an error it is not known
	return is
}

func main() {
	std := streams{os.Stdin, os.Stdout, os.Stderr}
	os.Exit(cli.Say(std.err, execute(context.Background(), std)))
}

func execute(ctx context.Context, std streams) error { return command(std).ExecuteContext(ctx) }

// command is the whole command line.
func command(std streams) *cobra.Command {
	root := cli.Root(cli.Options{Version: version, Machine: machine.ID, Source: source, Clones: written.CanClone, Missing: missing, Mend: mend(std), StartAgent: startAgent(std), Copies: copies{std}, In: std.in, Out: std.out, Err: std.err})
	cli.AddNoun(root, imageNoun(std))
	cli.AddGroup(root, "Guests:", tuneCommand(std.out))
	cli.AddGroup(root, "This machine:", upCommand(std), controllerCommand(std), agentCommand(), labCommand(std), doctorCommand(), backupCommand(std), restoreCommand(std))
	cli.AddNoun(root, clusterNoun(std))
	cli.AddNoun(root, configNoun(std))
	isolate := func() *cobra.Command { return isolateCommand(std.out, std.say) }
	cli.AddGroup(root, "Hosts:", isolate())
	measured := measuring.Streams{Out: std.out, Err: std.err, Version: version, Beside: roles.Beside}
	for _, verb := range []struct {
		noun string
		verb *cobra.Command
	}{
		{"host", isolate()}, {"host", tuneVerb(std.out, "HOST", "host1")}, {"guest", tuneVerb(std.out, "GUEST", "j3g0")}, {"job", measuring.Trace(measured)},
	} {
		if noun, _, err := root.Find([]string{verb.noun}); err == nil {
			cli.AddVerb(noun, verb.verb)
		}
	}
	root.AddCommand(versionCommand(std), demoCommand(std), sim.Command(std.out, std.say, cli.Size), measuring.Bench(measured), measuring.Trace(measured))
	completeImageFlags(root)
	cli.Finish(root)
	return root
}

// completeImageFlags has --image complete the images of this machine.
func completeImageFlags(cmd *cobra.Command) {
	if cmd.Flags().Lookup(imageFlag) != nil {
		folder := roles.Images
		_ = cmd.RegisterFlagCompletionFunc(imageFlag, func(cmd *cobra.Command, _ []string, typed string) ([]string, cobra.ShellCompDirective) {
			return completeImages(&folder, 1)(cmd, nil, typed)
		})
	}
	for _, sub := range cmd.Commands() {
		completeImageFlags(sub)
	}
}

// afterDash removes a leading "--" from a command. Where flags may not follow arguments,
// cobra leaves it in.
func afterDash(args []string) []string {
	if len(args) > 0 && args[0] == "--" {
		return args[1:]
	}
	return args
}

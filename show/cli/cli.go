// Package cli is the command line: it sends requests to the controller, waits, and prints
// what show/view gives. It makes no decision for the cluster. It knows nothing of drivers,
// hosts or files, except the caller's directory.
//
// Its tests run the commands against a real controller's protocol on real sockets; scripts
// in the system ring run the real binaries.
package cli

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/term"

	"pagurus/fleet"
	"pagurus/serve/wire"
	"pagurus/show/view"
)

// A command's exit codes, besides the program's own.
const (
	exitFailed      = 1   // refused or failed
	exitOwn         = 125 // `run` and `wait`: Pagurus, not the program, failed
	exitInterrupted = 130 // Ctrl-C
)

// Options configures the command line.
type Options struct {
	Version    string
	Machine    func() (string, error)                                // this machine's ID, as fleet.Facts.Machine of a host with the same files
	Missing    func(context.Context) ([]string, error)               // what guests need and this machine lacks
	Mend       func(context.Context) error                           // installs it, and says how far it is
	StartAgent func(ctx context.Context, restart bool) (bool, error) // starts this machine's agent by systemd, and restarts one that runs if so told; false: it has no unit
	Args       []string                                              // the command line without the program; nil: this process's
	Source     func(path string) string                              // what a directory is, if hosts can share it, as fleet.Directory.Source; nil: not known
	Clones     func(path string) bool                                // whether a directory's file system can clone files; nil: not known
	Copies     Copies                                                // folders with copies of checkpoints; nil: none are made
	In         io.Reader
	Out        io.Writer
	Err        io.Writer
}

// app is the state that commands share: the global flags and the output streams.
type app struct {
	Options
	flags *pflag.FlagSet // the global flags
	json  bool
}

// Root gives the command `pagurus` with all commands for users of a cluster. The caller adds
// the commands that run its roles.
func Root(o Options) *cobra.Command {
	a := &app{Options: o}
	root := &cobra.Command{
		Use:   "pagurus",
		Short: "Run MPI programs in guests that move between hosts while they run",
		Long: `Pagurus runs unmodified MPI programs in guests spread over hosts, and moves the guests
from host to host while the program runs. Guests are small virtual machines or
containers.`,
		Example: `  pagurus lab up                        # a cluster of three hosts on this machine
  pagurus run -n 4 -- ./a.out           # like mpirun, in guests
  pagurus guest ls                      # where they are
  pagurus migrate j1g2 --to host3 --wait
  pagurus drain host1                   # empty a host and keep it empty`,
		Args: OnlyVerbs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	Program(root, o)
	f := root.PersistentFlags()
	a.flags = f
	f.BoolVar(&a.json, "json", false, "print JSON")
	for _, n := range append(a.nouns(), a.memberNouns()...) {
		AddNoun(root, n)
	}
	AddGroup(root, "Jobs:", a.quotaCommand(), a.usageCommand())
	AddGroup(root, "Jobs, guests, hosts and moves:", a.explainCommand(), a.topCommand(), a.pageCommand())
	AddGroup(root, "Hosts:", a.kindsCommand(), a.sitesCommand(), a.healthCommand())
	AddGroup(root, "Members:", a.auditCommand())
	root.AddCommand(manCommand(root))
	return root
}

// Program makes a command the root of a program: it reports errors and its version as all
// programs of Pagurus do, and has the flags that locate the controller.
func Program(root *cobra.Command, o Options) {
	root.Version, root.SilenceUsage, root.SilenceErrors = o.Version, true, true
	root.SetIn(o.In)
	root.SetOut(o.Out)
	root.SetErr(o.Err)
	root.SetVersionTemplate("pagurus {{.Version}}\n")
	typed := os.Args[1:]
	if o.Args != nil {
		typed = o.Args
		root.SetArgs(typed)
	}
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error { return flagError(cmd, err, typed) })
	Locate(root.PersistentFlags())
}

// Locate defines the flags that locate the controller.
func Locate(f *pflag.FlagSet) {
	f.String(controllerFlag, "", "the controller: unix:PATH or HOST:PORT (or PAGURUS_CONTROLLER; default unix:"+wire.DefaultSocket+")")
	f.String(credentialsFlag, "", "folder of the certificate that login or join got, for a controller on another machine (or PAGURUS_CREDENTIALS)")
}

func usage(cmd *cobra.Command, what string) error {
	code := exitFailed
	if cmd.Name() == "run" || cmd.Name() == "wait" {
		code = exitOwn
	}
	if strings.HasSuffix(what, "?") {
		return Exit{Code: code, Err: fmt.Errorf("%s See `%s --help`", what, cmd.CommandPath())}
	}
	return Exit{Code: code, Err: fmt.Errorf("%s; see `%s --help`", what, cmd.CommandPath())}
}

// own gives an error the exit code 125, for commands that otherwise exit with the program's
// code.
func own(err error) error {
	if err == nil || errors.As(err, new(Exit)) {
		return err
	}
	return Exit{Code: exitOwn, Err: err}
}

// Exit is an error with an exit code. Err may be nil: then nothing is printed.
type Exit struct {
	Code int
	Err  error
}

// Error gives the error's text.
func (e Exit) Error() string {
	if e.Err == nil {
		return fmt.Sprintf("exit %d", e.Code)
	}
	return e.Err.Error()
}

// Unwrap gives the inner error.
func (e Exit) Unwrap() error { return e.Err }

// Say writes err for people and returns the exit code.
func Say(w io.Writer, err error) int {
	if err == nil {
		return 0
	}
	var e Exit
	if !errors.As(err, &e) {
		e = Exit{Code: exitFailed, Err: err}
	}
	if e.Err != nil {
		_, _ = fmt.Fprintf(w, "pagurus: %s\n", strings.TrimSpace(e.Err.Error())+advice(e.Err))
	}
	return e.Code
}

// The global flags that locate the controller.
const (
	controllerFlag  = "controller"
	credentialsFlag = "credentials"

	tokenFlag     = "token" // of join and login
	tokenFileFlag = "token-file"
)

// dial gives a client of the controller without using the network.
func (a *app) dial() (*wire.Client, error) {
	at, err := Controller(a.flags, wire.UserCredentials())
	if err != nil {
		return nil, err
	}
	return wire.Dial(at)
}

// ask puts one request to the controller.
func (a *app) ask(ctx context.Context, r fleet.Request) (fleet.Answer, error) {
	c, err := a.dial()
	if err != nil {
		return fleet.Answer{}, err
	}
	r.ID = fleet.RequestID(rand.Text())
	return c.Ask(ctx, r)
}

// read gives the present cluster state.
func (a *app) read(ctx context.Context) (view.Cluster, error) {
	c, err := a.dial()
	if err != nil {
		return view.Cluster{}, err
	}
	s, err := c.Snapshot(ctx)
	return view.Read(s), err
}

// notes prints an answer's notes for people.
func (a *app) notes(answer fleet.Answer) {
	for _, n := range answer.Notes {
		_, _ = fmt.Fprintln(a.Err, "pagurus: "+view.Clean(n))
	}
}

// printJSON writes one value on one line.
func (a *app) printJSON(v any) error { return json.NewEncoder(a.Out).Encode(v) }

// terminal reports whether a stream is a terminal.
func terminal(stream any) bool {
	f, ok := stream.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

func orElse(s, otherwise string) string {
	if s == "" {
		return otherwise
	}
	return s
}

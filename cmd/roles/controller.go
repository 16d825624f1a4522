package roles

import (
	"context"
	"errors"
	"log/slog"
	"path/filepath"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"pagurus/serve/wire"
	"pagurus/show/cli"
)

// defaultPort is where a controller listens for agents on other machines.
const defaultPort = "7461"

// Controller is what a controller is told.
type Controller struct {
	RunDir, StateDir, ImageDir string   // folders
	Socket                     string   // for people on this machine
	Listen                     string   // TCP address for others; empty: none
	Etcd                       []string // endpoints of an external one
	Purpose                    string   // whose controller it is, for the one who wants to start another
}

func (f *Controller) add(flags *pflag.FlagSet) {
	flags.StringVar(&f.Socket, "socket", "", "UNIX socket for people on this machine (default: controller.sock in --run)")
	flags.StringSliceVar(&f.Etcd, "etcd", nil, "endpoints of an external etcd (default: one embedded in this process)")
	flags.StringVar(&f.Purpose, "purpose", "a controller", "")
	_ = flags.MarkHidden("purpose")
}

func (f *Controller) finish() {
	if f.ImageDir == "" {
		f.ImageDir = filepath.Join(f.StateDir, "images")
	}
	if f.Socket == "" {
		f.Socket = filepath.Join(f.RunDir, "controller.sock")
	}
}

// Lock is the file that the one controller of a socket holds.
func Lock(socket string) string { return socket + ".lock" }

// Controller is the command that is the head of a cluster.
func (r Roles) Controller() *cobra.Command {
	var f Controller
	verbose := false
	cmd := &cobra.Command{
		Use:   "controller",
		Short: "Be the head of a cluster: decide what runs where",
		Long: `Controller keeps the cluster's state, decides where guests run and sends orders to
the hosts' agents. Everything is in its state folder. It may be killed and restarted
at any time; jobs keep running. Agents on other machines need a copy of its token
file.`,
		Example: "  pagurus controller --listen :" + defaultPort,
		Args:    cli.NoArguments,
	}
	f.add(cmd.Flags())
	folders(cmd.Flags(), &f.RunDir, &f.StateDir, &f.ImageDir)
	cmd.Flags().StringVar(&f.Listen, "listen", ":"+defaultPort, "TCP address for agents and people on other machines; empty: none")
	cmd.Flags().BoolVar(&verbose, "verbose", false, "log more")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if r.Head == nil {
			return becomeHead()
		}
		f.finish()
		ctx, stop := Until(cmd.Context())
		defer stop()
		return r.Head(ctx, f, daemonLog(cmd.ErrOrStderr(), verbose), func() {})
	}
	return cmd
}

// Up is the command that is both.
func (r Roles) Up() *cobra.Command {
	var f Controller
	h := hostFlags{version: r.Version}
	verbose := false
	cmd := &cobra.Command{
		Use:   "up",
		Short: "Make this machine a cluster of one host: controller and agent in one process",
		Long: `Up is a controller and an agent in one process. When it ends, guests keep running,
and the next one finds them again. To let more hosts join, give --listen, and start ` + "`pagurus agent`" + ` on them with a copy of the token file.`,
		Example: "  sudo pagurus up",
		Args:    cli.NoArguments,
	}
	h.add(cmd.Flags())
	f.add(cmd.Flags())
	folders(cmd.Flags(), &f.RunDir, &f.StateDir, &f.ImageDir)
	cmd.Flags().StringVar(&f.Listen, "listen", "", "TCP address for agents and people on other machines (default: none)")
	cmd.Flags().BoolVar(&verbose, "verbose", false, "log more")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := h.finish(); err != nil {
			return err
		}
		if r.Head == nil {
			return becomeHead()
		}
		f.finish()
		f.Purpose = "`pagurus up`"
		h.run, h.state, h.images = f.RunDir, f.StateDir, f.ImageDir
		if h.address == "" {
			h.address = loopback
		}
		ctx, stop := Until(cmd.Context())
		defer stop()
		return r.both(ctx, f, h, daemonLog(cmd.ErrOrStderr(), verbose))
	}
	return cmd
}

// both is a controller and, once that serves, an agent beside it. When one
// ends the other does.
func (r Roles) both(ctx context.Context, f Controller, h hostFlags, log *slog.Logger) error {
	client, err := wire.Dial(wire.Config{Address: "unix:" + f.Socket})
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	serving := make(chan struct{})
	controller := make(chan error, 1)
	go func() {
		controller <- r.Head(ctx, f, log, func() { close(serving) })
		stop()
	}()
	select {
	case <-serving:
	case err := <-controller:
		return err
	}
	err = runAgent(ctx, h, client, log)
	stop()
	return errors.Join(err, <-controller)
}

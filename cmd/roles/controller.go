package roles

import (
	"errors"
	"fmt"
	"net"
	"path/filepath"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"pagurus/act/daemon"
	"pagurus/show/cli"
)

// defaultPort is the controller's port for agents on other machines.
const defaultPort = "7461"

// Controller holds the configuration of a controller.
type Controller struct {
	RunDir, StateDir, ImageDir string   // folders
	Socket                     string   // for users on this machine
	Listen                     string   // TCP address for others; empty: none
	Etcd                       []string // endpoints of an external one
	Purpose                    string   // names this controller in the error of a second one
	Verbose                    bool
}

// Add defines the flags of a controller.
func (f *Controller) Add(flags *pflag.FlagSet, listen string) {
	flags.StringVar(&f.Socket, "socket", "", "UNIX socket for people on this machine (default: controller.sock in --run)")
	flags.StringSliceVar(&f.Etcd, "etcd", nil, "endpoints of an external etcd (default: one embedded in this process)")
	flags.StringVar(&f.Listen, "listen", listen, "TCP address for agents and people on other machines; empty: none")
	cli.Judge(flags, "listen", func(s string) error {
		if _, _, err := net.SplitHostPort(s); s != "" && err != nil {
			return fmt.Errorf("%q has no port: write it like :%s or 10.0.0.5:%s", s, defaultPort, defaultPort)
		}
		return nil
	})
	flags.StringVar(&f.Purpose, "purpose", "a controller", "")
	_ = flags.MarkHidden("purpose")
	cli.MayBeEmpty(flags, "socket", "etcd", "listen", "purpose")
	folders(flags, &f.RunDir, &f.StateDir, &f.ImageDir)
	flags.BoolVar(&f.Verbose, "verbose", false, "log more")
}

// InitVerb is the command that makes a controller's authority without starting the controller.
const InitVerb = "init"

// InitCommand returns the controller's command that makes its authority; run does it.
func InitCommand(run func(cmd *cobra.Command, f Controller, name string) error) *cobra.Command {
	name := ""
	cmd := ControllerCommand(InitVerb, func(cmd *cobra.Command, f Controller) error { return run(cmd, f, name) })
	AddName(cmd.Flags(), &name)
	cmd.Short, cmd.Long, cmd.Example = "Make the cluster's authority, unless it exists", "", "  pagurus-controller init"
	return cmd
}

// NameFlag is the flag that names a new cluster.
const NameFlag = "name"

// AddName defines NameFlag.
func AddName(flags *pflag.FlagSet, name *string) {
	flags.StringVar(name, NameFlag, "", "what people call the cluster: whoami shows it, and certificates have it for good")
}

// Finish sets defaults that depend on other flags.
func (f *Controller) Finish() {
	if f.ImageDir == "" {
		f.ImageDir = filepath.Join(f.StateDir, "images")
	}
	if f.Socket == "" {
		f.Socket = filepath.Join(f.RunDir, "controller.sock")
	}
}

// Lock returns the path of the lock file of a socket's one controller.
func Lock(socket string) string { return socket + ".lock" }

// HoldLock takes the lock of a socket for a controller, which then holds it.
func HoldLock(socket, purpose string) (*daemon.Lock, error) {
	lock, err := daemon.HoldLock(Lock(socket), purpose)
	if held := (daemon.Held{}); errors.As(err, &held) {
		return nil, fmt.Errorf("%w: end it first, or give this controller its own --run and --state", err)
	}
	return lock, err
}

// ControllerCommand returns the command of a controller; it calls run.
func ControllerCommand(use string, run func(cmd *cobra.Command, f Controller) error) *cobra.Command {
	var f Controller
	cmd := &cobra.Command{
		Use:   use,
		Short: "Be the head of a cluster: decide what runs where",
		Long: `Controller keeps the cluster's state, decides where guests run and sends orders to
the hosts' agents. Everything is in its state folder. It may be killed and restarted
at any time; jobs keep running. Other machines join with a token: ` + "`pagurus token create`" + `.
The program is pagurus-controller; systemd units may name it.`,
		Example: "  pagurus controller --listen :" + defaultPort,
		Args:    cli.NoArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := configure(cmd.Flags(), ControllerTable); err != nil {
				return err
			}
			f.Finish()
			return run(cmd, f)
		},
	}
	f.Add(cmd.Flags(), ":"+defaultPort)
	AddConfig(cmd.Flags())
	return cmd
}

package roles

import (
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"pagurus/act/daemon"
	"pagurus/fleet"
	"pagurus/show/cli"
)

// defaultPort is the controller's port for agents on other machines.
const defaultPort = "7461"

// Controller holds the configuration of a controller.
type Controller struct {
	RunDir, StateDir, ImageDir string   // folders
	Socket                     string   // for users on this machine
	Listen                     string   // TCP address for others; empty: none
	HTTP                       string   // TCP address for programs; empty: none of its own
	Peer                       string   // TCP address for other controllers' stores; empty: there are none
	PeerName                   string   // this controller's name among them
	Etcd                       []string // endpoints of an external one
	Config                     string   // the file that it was configured by, which may be missing; empty: none
	Purpose                    string   // names this controller in the error of a second one
	Encryption                 fleet.Encryption
	Output                     fleet.OutputLimits
	Checkpoints                fleet.CheckpointLimits
	Images                     fleet.ImageLimits
	Changes                    fleet.ChangeLimits
	Audit                      int64       // bytes that the audit takes at the most
	VLANs                      fleet.VLANs // of hosts' cards, for jobs whose guests have virtual functions of them
	GrowEach                   int         // by how many guests all jobs of a user may grow together; 0: no limit
	Metrics                    string      // TCP address for monitoring; empty: none
	Notices                    Notices
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
	flags.StringVar(&f.HTTP, HTTPFlag, "", "TCP address for programs that ask by HTTP with a token, like 127.0.0.1:"+HTTPPort+"; over TLS where it is not loopback's (default: none; the socket and --listen serve them, too)")
	cli.Judge(flags, HTTPFlag, func(s string) error {
		if _, _, err := net.SplitHostPort(s); s != "" && err != nil {
			return fmt.Errorf("%q has no port: write it like 127.0.0.1:%s", s, HTTPPort)
		}
		return nil
	})
	flags.StringVar(&f.Peer, PeerFlag, "", "ADDRESS:PORT of this machine for the cluster's other controllers; others can join then (default: as it joined, else none)")
	cli.Judge(flags, PeerFlag, RefusedPeer)
	flags.StringVar(&f.PeerName, PeerNameFlag, "", "this controller's name among several (default: as it joined, else this machine's name)")
	AddEncryption(flags, &f.Encryption)
	addOutput(flags, &f.Output)
	cli.Size(flags, &f.Checkpoints.Each, "checkpoints-per-user", "the most that vaults keep of one user's checkpoints; then no more are made until the user removes some (default: what vaults have)")
	cli.Size(flags, &f.Checkpoints.All, "checkpoints-in-all", "the most that vaults keep of all users' checkpoints (default: what vaults have)")
	cli.Size(flags, &f.Images.Each, "images-per-user", "the most that one user's images take; then no more are built for that user until some are removed (default: no limit)")
	cli.Size(flags, &f.Images.All, "images-in-all", "the most that all images take, root's too (default: what the disk has)")
	f.Changes = fleet.ChangeLimits{Requests: 3000, Stored: 32 << 20, StoredAll: 64 << 20}
	flags.IntVar(&f.Changes.Requests, requestsEachFlag, f.Changes.Requests, "how many changes one user may ask for in a minute, as to submit, cancel and move jobs; 0: no limit")
	cli.NoLess(flags, requestsEachFlag, 0)
	cli.Size(flags, &f.Changes.Stored, "stored-per-user", "the most that one user's requests put into the controller's store in a minute, by arguments and environments of jobs above all")
	cli.Size(flags, &f.Changes.StoredAll, "stored-in-all", "the most that all users' do")
	flags.IntVar(&f.GrowEach, growEachFlag, 0, "by how many guests all jobs of one user may grow together (run --"+fleet.GrowFlag+"); 0: no limit")
	cli.NoLess(flags, growEachFlag, 0)
	flags.Var((*vlansValue)(&f.VLANs), fleet.VLANsFlag, "VLANs of hosts' cards, like 100-199, that are jobs' networks where guests have virtual functions (run --"+fleet.DeviceFlag+" "+string(fleet.NetFunction)+"), one for each job; nothing else uses them (default: none)")
	f.Audit = 1 << 30
	cli.Size(flags, &f.Audit, "audit-size", "the most that the audit takes on disk; then its oldest records go, and it says which")
	addMetrics(flags, &f.Metrics)
	f.Notices.add(flags)
	flags.StringVar(&f.Purpose, "purpose", "a controller", "")
	_ = flags.MarkHidden("purpose")
	cli.MayBeEmpty(flags, "socket", "etcd", "listen", "purpose", HTTPFlag, PeerFlag, PeerNameFlag, fleet.VLANsFlag)
	folders(flags, &f.RunDir, &f.StateDir, &f.ImageDir)
	flags.BoolVar(&f.Verbose, "verbose", false, "log more")
}

// DiskReserve is how many bytes of a disk on which a controller's store may be are left free by output and images. It is several times what the
// store needs for another change, since many programs may write at once and others fill the disk, too.
const DiskReserve = 192 << 20

// HTTPFlag is the flag of the address for programs, HTTPPort its usual port.
const (
	HTTPFlag = "http"
	HTTPPort = "7480"
)

const (
	growEachFlag     = "growth-per-user"
	requestsEachFlag = "requests-per-user"
)

// Flags of a controller among several.
const (
	PeerFlag     = "peer"
	PeerNameFlag = "peer-name"
	// PeerPort is the usual port of controllers' stores.
	PeerPort = "7463"
)

// RefusedPeer says what is wrong with an address for other controllers: it is also where they call.
func RefusedPeer(s string) error {
	if host, port, err := net.SplitHostPort(s); s != "" && (err != nil || host == "" || port == "" || port == "0") {
		return fmt.Errorf("%q is not an address at which other controllers reach this machine: write it like 10.0.0.5:%s", s, PeerPort)
	}
	return nil
}

// Seat is what a controller that joined others knows of that, in its state folder.
type Seat struct {
	Name  string `json:"name"`
	Peer  string `json:"peer"`  // ADDRESS:PORT
	Store string `json:"store"` // what its store has to know of the others, at its first start
}

// SeatFile has a Seat.
const SeatFile = "controller.json"

// RemovedFile is in the state folder of a controller that was removed from its cluster.
const RemovedFile = "controller.removed"

// ExitRemoved is the exit status of a controller that was removed from its cluster: its service does not start it again.
const ExitRemoved = 78

// leastKept is the least time for which output is kept.
const leastKept = 30 * time.Second

// addOutput defines the flags that bound what is kept of programs' output.
func addOutput(flags *pflag.FlagSet, to *fleet.OutputLimits) {
	to.Each, to.Keep = 16<<30, 30*24*time.Hour
	cli.Size(flags, &to.Each, "output-per-user", "the most that is kept of the output and input of one user's jobs; then their programs wait until the user removes some")
	cli.Size(flags, &to.All, "output-in-all", "the most that is kept of all users' (default: what the disk has)")
	cli.Duration(flags, &to.Keep, "keep-output", "how long ended jobs and their output are kept; their users may remove them before")
	cli.Judge(flags, "keep-output", func(s string) error {
		if d, err := cli.ParseDuration(s); err == nil && d < leastKept {
			return fmt.Errorf("%s is too short for those who wait for a job's end and then read its output: keep it for %s or longer", s, fleet.ShortDuration(leastKept))
		}
		return nil
	})
	flags.BoolVar(&to.Oldest, "drop-oldest-output", false, "remove the oldest ended jobs, with their output, of a user who has reached a limit of output, in place of waiting")
}

// AddEncryption defines the flag that says how a cluster's hosts encrypt.
func AddEncryption(flags *pflag.FlagSet, to *fleet.Encryption) {
	encryption(flags, to, "auto, wireguard or none: how traffic between hosts is encrypted: by WireGuard, in the kernel or else by wireguard-go; by the kernel's WireGuard alone; or not at all. A change waits until there is no job")
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

// RestoreVerb puts a backup in the place of a controller's state.
const RestoreVerb = "restore"

// Restore is what is to be restored, and how.
type Restore struct {
	File   string
	Force  bool // over a state that is there, which is kept beside
	Check  bool // only read the file
	AsJSON bool
}

// Add defines the flags.
func (r *Restore) Add(flags *pflag.FlagSet) {
	flags.BoolVar(&r.Force, "force", false, "restore over the state of a cluster that is here, and keep that beside")
	flags.BoolVar(&r.Check, "check", false, "read and verify the file, and change nothing")
}

// RestoreCommand is the controller's command that restores a backup; run does it.
func RestoreCommand(run func(cmd *cobra.Command, f Controller, r Restore) error) *cobra.Command {
	var r Restore
	present := func(flags *pflag.FlagSet) Config { // a backup may have the file that is missing
		path, _ := ConfigPath(flags)
		return ReadConfigFile(path, false)
	}
	cmd := controllerCommand(RestoreVerb+" FILE", present, func(cmd *cobra.Command, f Controller) error {
		r.File = cmd.Flags().Arg(0)
		return run(cmd, f, r)
	})
	r.Add(cmd.Flags())
	cmd.Flags().BoolVar(&r.AsJSON, "json", false, "print JSON")
	cmd.Args = cli.Exactly(1, "the file of a backup")
	cmd.Short, cmd.Long, cmd.Example = "Put a backup in the place of this controller's state", "", "  pagurus-controller restore cluster.backup"
	return cmd
}

// AddFolders defines the flags of a controller that say where its state is.
func (f *Controller) AddFolders(flags *pflag.FlagSet) {
	folders(flags, &f.RunDir, &f.StateDir, &f.ImageDir)
	flags.StringSliceVar(&f.Etcd, "etcd", nil, "endpoints of an external etcd (default: one embedded in the controller)")
	cli.MayBeEmpty(flags, "etcd")
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
	return controllerCommand(use, ReadConfig, run)
}

func controllerCommand(use string, read func(*pflag.FlagSet) Config, run func(cmd *cobra.Command, f Controller) error) *cobra.Command {
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
			if err := read(cmd.Flags()).Apply(ControllerTable, cmd.Flags()); err != nil {
				return err
			}
			f.Finish()
			f.Config, _ = ConfigPath(cmd.Flags())
			return run(cmd, f)
		},
	}
	f.Add(cmd.Flags(), ":"+defaultPort)
	AddConfig(cmd.Flags())
	return cmd
}

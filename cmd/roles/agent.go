package roles

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"
	"unicode"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"pagurus/act/cgroup"
	"pagurus/act/machine"
	"pagurus/act/owner"
	"pagurus/fleet"
	"pagurus/serve/wire"
	"pagurus/show/cli"
)

// loopback is the address of a host that nobody else has to reach.
const loopback = "127.0.0.1"

// daemonLog writes what an administrator should see, and no more.
func daemonLog(w io.Writer, verbose bool) *slog.Logger {
	level := slog.LevelInfo
	if verbose {
		level = slog.LevelDebug
	}
	return slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{Level: level}))
}

// add makes the flags of an agent's host.
func (f *hostFlags) add(flags *pflag.FlagSet) {
	name, err := os.Hostname()
	if err != nil {
		name = "host"
	}
	flags.StringVar(&f.name, fleet.HostFlag, name, "this host's name")
	flags.StringVar(&f.address, addressFlag, "", "this host's IP address on the network that hosts share (default: the one it reaches the controller from)")
	flags.StringVar(&f.site, fleet.SiteFlag, "", "this host's site, such as a room or a rack, for pagurus migrate --to-site")
	flags.Float64Var(&f.cpus, cpusFlag, 0, "CPUs that all guests together may use (default: no limit)")
	cli.Duration(flags, &f.slice, "slice", "time slice of guests with a class or a ceiling; 30ms suits those that mostly wait for messages (0: the kernel's own)")
	cli.Rate(flags, &f.bandwidth, fleet.BandwidthFlag, "send at most this many bytes a second for each guest that leaves this host, like 200M (default: no limit)")
	flags.StringVar(&f.accelerator, "accelerator", "", "kvm or tcg (default: what a probe finds)")
	flags.IntVar(&f.snapshots, snapshotsFlag, 4, "snapshots of booted guests to keep with each image, so that the next emulated guest starts in a second (0: none)")
	flags.StringVar(&f.group, "group", "", "")
	flags.IntVar(&f.firstCore, firstCoreFlag, 0, "")
	for _, name := range []string{"group", "first-core"} { // for several hosts on one machine
		_ = flags.MarkHidden(name)
	}
	flags.StringVar(&f.ownerCPU, ownerCPUFlag, string(owner.Machine), "which CPU use counts as the owner's: machine (all but Pagurus's), network (of processes in this network namespace) or cgroup:PATH")
	cli.Size(flags, &f.memory, "memory", "memory for guests (default: all but 1 GiB, or half of it if that is less)")
}

// longestSite keeps tables readable.
const longestSite = 32

// finish reads what the flags mean.
func (f *hostFlags) finish() error {
	if f.cpus < 0 {
		return errors.New("--" + cpusFlag + " must not be negative")
	}
	if f.slice > 0 {
		if why := cgroup.SlicesMissing(); why != "" {
			return fmt.Errorf("--slice has no effect here: %s", why)
		}
	}
	if len(f.site) > longestSite || strings.ContainsFunc(f.site, func(r rune) bool { return !unicode.IsPrint(r) }) {
		return fmt.Errorf("--"+fleet.SiteFlag+" takes a name of at most %d printable characters", longestSite)
	}
	if f.firstCore < 0 {
		return errors.New("--" + firstCoreFlag + " must not be negative")
	}
	if f.snapshots < 0 {
		return errors.New("--" + snapshotsFlag + " must not be negative")
	}
	if f.group == "" {
		f.group = Group(f.name)
	}
	if _, err := owner.ParseScope(f.ownerCPU); err != nil {
		return fmt.Errorf("--"+ownerCPUFlag+" %w", err)
	}
	return nil
}

// folders makes the flags that every role has.
func folders(flags *pflag.FlagSet, run, state, images *string) {
	flags.StringVar(run, fleet.RunFlag, Run, "folder for what lives as long as the machine is up")
	flags.StringVar(state, "state", State, "folder for what stays")
	flags.StringVar(images, "images", "", "folder of the images (default: images in --state)")
}

// Agent is the command that is a host.
func (r Roles) Agent() *cobra.Command {
	f := hostFlags{version: r.Version}
	sweep, verbose := false, false
	cmd := &cobra.Command{
		Use:   "agent",
		Short: "Be a host: run guests for a controller",
		Long: `Agent makes this machine a host of a cluster. It connects to the controller, so it
works behind a firewall. Guests keep running when it ends, and it finds them again.`,
		Example: "  pagurus agent --controller head:7461 --token-file /etc/pagurus/token",
		Args:    cli.NoArguments,
	}
	f.add(cmd.Flags())
	folders(cmd.Flags(), &f.run, &f.state, &f.images)
	cmd.Flags().BoolVar(&verbose, "verbose", false, "log more")
	cmd.Flags().BoolVar(&sweep, "sweep", false, "end everything of Pagurus on this host, and return")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := f.finish(); err != nil {
			return err
		}
		if f.images == "" {
			f.images = filepath.Join(f.state, "images")
		}
		log := daemonLog(cmd.ErrOrStderr(), verbose)
		if sweep {
			return sweepHost(cmd.Context(), f, log)
		}
		at, err := cli.Controller(cmd.Flags())
		if err != nil {
			return err
		}
		client, err := wire.Dial(at)
		if err != nil {
			return err
		}
		if f.address == "" {
			f.address = cmp.Or(machine.Towards(at.Address), loopback)
		}
		ctx, stop := Until(cmd.Context())
		defer stop()
		return runAgent(ctx, f, client, log)
	}
	return cmd
}

// runAgent is a host until ctx ends.
func runAgent(ctx context.Context, f hostFlags, client *wire.Client, log *slog.Logger) error {
	h, err := openHost(ctx, f, log)
	if err != nil {
		return err
	}
	log.Info("agent begins", "host", f.name, "address", f.address, "version", f.version)
	go stayLean(ctx, log)
	err = h.agent(client, log).Run(ctx)
	log.Info("agent ends; guests run on", "host", f.name)
	return errors.Join(err, h.close(), client.Close())
}

// When an agent gives back memory that it had to have once, small hosts in mind:
// soon after it has begun, and then now and then. It has no ceiling: looking for
// garbage to stay below one took most of the processor while guests moved.
const (
	leanFirst = 3 * time.Second
	leanEvery = 15 * time.Second
)

// stayLean keeps the agent's memory small until ctx ends.
func stayLean(ctx context.Context, log *slog.Logger) {
	for next := leanFirst; ; next = leanEvery {
		select {
		case <-ctx.Done():
			return
		case <-time.After(next):
		}
		if err := machine.Shed(); err != nil {
			log.Warn("the agent has more memory than it needs", "cause", err)
			return
		}
	}
}

func sweepHost(ctx context.Context, f hostFlags, log *slog.Logger) error {
	if f.address == "" {
		f.address = loopback
	}
	f.accelerator = "tcg" // nothing is started: a probe would be for nothing
	h, err := openHost(ctx, f, log)
	if err != nil {
		return err
	}
	return errors.Join(h.sweep(ctx), h.close())
}

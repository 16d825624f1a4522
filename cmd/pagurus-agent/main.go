// Command pagurus-agent is a host of a cluster: it runs guests for a controller. Here each
// driver meets the interface that it satisfies.
//
// It decides nothing itself. Its tests start it where it cannot run; the system ring runs
// the real program.
package main

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"pagurus/act/host/lean"
	"pagurus/act/machine"
	"pagurus/cmd/roles"
	"pagurus/fleet"
	"pagurus/internal/pause"
	"pagurus/serve/wire"
	"pagurus/show/cli"
)

// version is set by the build.
var version = "unknown"

func main() {
	root := roles.AgentCommand(roles.AgentProgram, be)
	root.CompletionOptions.DisableDefaultCmd = true
	root.AddCommand(commands()...)
	cli.Program(root, cli.Options{Version: version, In: os.Stdin, Out: os.Stdout, Err: os.Stderr})
	cli.JudgeFlags(root)
	os.Exit(cli.Say(os.Stderr, root.ExecuteContext(context.Background())))
}

// be runs an agent until it is told to end, or sweeps the host.
func be(cmd *cobra.Command, f roles.Agent, sweep bool) error {
	if os.Geteuid() != 0 {
		return errors.New("an agent makes networks and guests, and only root may: start it with sudo")
	}
	log := roles.Log(cmd.ErrOrStderr(), f.Verbose)
	at, err := controllerOf(cmd, &f)
	if err != nil {
		return err
	}
	if sweep {
		return sweepHost(cmd.Context(), f, log)
	}
	client, err := wire.Dial(at)
	if err != nil {
		return err
	}
	leased := f.Address == ""
	if leased {
		f.Address = ownAddress(at.Address)
	}
	ctx, stop := until(cmd.Context(), &f)
	defer stop()
	from := calling{leased: leased, server: at.Address}
	if strings.HasPrefix(at.Address, "unix:") {
		from.server = ""
		certify(ctx, client, f, log)
	}
	return runAgent(ctx, f, client, from, log)
}

// controllerOf says where the controller is. A host that has joined is called what it
// joined as, and stands where its token said, unless flags say otherwise.
func controllerOf(cmd *cobra.Command, f *roles.Agent) (wire.Config, error) {
	at, err := cli.Controller(cmd.Flags(), filepath.Join(f.StateDir, cli.HostCredentials))
	if err != nil {
		return at, err
	}
	joined, err := wire.ReadLogin(at.Credentials)
	if err != nil || joined.Host == "" {
		return at, err
	}
	if !roles.Chosen(cmd.Flags(), fleet.HostFlag) {
		f.Name = string(joined.Host)
		if !roles.Chosen(cmd.Flags(), roles.GroupFlag) {
			f.Group = roles.Group(f.Name)
		}
	}
	f.Site = cmp.Or(f.Site, joined.Site)
	return at, nil
}

// ownCertificate is the folder, in that of the state, with the certificate of a host whose agent calls on the controller's socket.
const ownCertificate = "certificate"

// A controller that starts at the same time answers soon.
const (
	certifyLimit = 30 * time.Second
	certifyAgain = 500 * time.Millisecond
)

// certify gets a certificate for other hosts. Without one the host runs guests, and keeps checkpoints of its own alone.
func certify(ctx context.Context, client *wire.Client, f roles.Agent, log *slog.Logger) {
	ctx, stop := context.WithTimeout(ctx, certifyLimit)
	defer stop()
	for {
		err := client.Certify(ctx, filepath.Join(f.StateDir, ownCertificate), fleet.HostID(f.Name))
		if err == nil {
			return
		}
		if !errors.Is(err, wire.ErrNoController) || pause.For(ctx, certifyAgain) != nil {
			log.Warn("other hosts cannot be asked, nor ask here, about checkpoints and files until this agent starts again", "cause", err)
			return
		}
	}
}

// Certificates are looked at so often, and renewed when half of their time has passed.
const (
	renewEvery = 10 * time.Minute
	renewLimit = time.Minute
)

// renew keeps the host's certificate fresh until ctx ends. The client does so by itself, but
// only with a request, and an attached agent may make none for months.
func renew(ctx context.Context, client *wire.Client, log *slog.Logger) {
	for wait := time.Duration(0); ; wait = renewEvery {
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
		if at := client.RenewAt(); at.IsZero() || time.Now().Before(at) {
			asking, stop := context.WithTimeout(ctx, renewLimit)
			_, _ = client.WhoAmI(asking) // its answer names all controllers; some may be new
			stop()
			continue
		}
		trying, stop := context.WithTimeout(ctx, renewLimit)
		if err := client.Renew(trying); err != nil {
			log.Warn("the host's certificate is not renewed yet", "cause", err)
		} else {
			log.Info("renewed the host's certificate", "next", client.RenewAt())
		}
		stop()
	}
}

// calling is how a host calls the controller.
type calling struct {
	leased bool   // its address is the one that it calls from, also when that changes
	server string // where the controller says how it sees this host, host:port; empty: nowhere
}

// runAgent is a host until ctx ends.
func runAgent(ctx context.Context, f roles.Agent, client *wire.Client, from calling, log *slog.Logger) error {
	h, err := openLending(ctx, f, log)
	if err != nil {
		return err
	}
	if from.leased {
		h.calls = client.Here
	}
	if err := h.guard.seek(h.address, from.server, log); err != nil {
		return errors.Join(err, h.close(), client.Close())
	}
	log.Info("agent begins", "host", f.Name, "address", f.Address, "version", version)
	go stayLean(ctx, f.Small, log)
	go renew(ctx, client, log)
	a := h.agent(client, roles.NewSupervisor(ctx, log).Alive, log)
	ended, err := showMeasures(ctx, f.Metrics, a, log)
	if err == nil {
		err = a.Run(ctx)
		<-ended
	}
	log.Info("agent ends; guests run on", "host", f.Name)
	return errors.Join(err, h.close(), client.Close())
}

// When an agent returns unused memory, for small hosts: soon after its start, and then
// periodically. It has no memory limit: collecting garbage to stay below one took most of
// the CPU while guests moved.
const (
	leanFirst = 3 * time.Second
	leanEvery = 15 * time.Second

	// A small agent looks more often, and collects garbage when its heap has grown by a
	// quarter. The heap is a few MiB, so that this costs little. It gives nothing back while it
	// has less in all.
	smallEvery  = 5 * time.Second
	smallGrowth = 25 // per cent
	smallMost   = 18 << 20
)

// stayLean keeps the agent's memory small until ctx ends.
func stayLean(ctx context.Context, small bool, log *slog.Logger) {
	every, most := leanEvery, int64(0)
	if small {
		every, most = smallEvery, smallMost
		debug.SetGCPercent(smallGrowth)
	}
	for next := leanFirst; ; next = every {
		select {
		case <-ctx.Done():
			return
		case <-time.After(next):
		}
		if err := lean.Shed(most); err != nil {
			log.Warn("the agent has more memory than it needs", "cause", err)
			return
		}
	}
}

// ownAddress is the address by which other hosts reach this one: where it reaches the
// controller from, or on the controller's machine the one that other machines reach.
func ownAddress(controller string) string {
	if towards := machine.Towards(controller); towards != "" {
		return towards
	}
	if here, err := machine.Facts(); err == nil && here.Address.IsValid() {
		return here.Address.String()
	}
	return roles.Loopback
}

func sweepHost(ctx context.Context, f roles.Agent, log *slog.Logger) error {
	if f.Address == "" {
		f.Address = roles.Loopback
	}
	f.Accelerator = "tcg" // nothing is started, so skip the probe
	h, err := openLending(ctx, f, log)
	if err != nil {
		return err
	}
	return errors.Join(h.sweep(ctx), h.close())
}

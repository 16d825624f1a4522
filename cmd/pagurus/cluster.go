package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"pagurus/cmd/roles"
	"pagurus/internal/note"
	"pagurus/show/cli"
)

// listenFlag is the controller's too.
const listenFlag = "listen"

// clusterNoun is the command that makes this machine the head of a cluster.
func clusterNoun(std streams) cli.Noun {
	return cli.Noun{
		Title: "This machine:",
		Command: &cobra.Command{
			Use:     "cluster",
			Short:   "Make this machine the head of a new cluster",
			Example: "  sudo pagurus cluster init",
			Args:    cli.OnlyVerbs,
			RunE:    func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
		},
		Verbs: []func() *cobra.Command{func() *cobra.Command { return clusterInitCommand(std) }},
	}
}

// clusterName is what a cluster may be called; nothing is one.
var clusterName = regexp.MustCompile(`^([A-Za-z0-9][A-Za-z0-9.-]{0,62})?$`)

func clusterInitCommand(std streams) *cobra.Command {
	listen, name := "", ""
	cmd := &cobra.Command{
		Use:   "init",
		Short: "Make this machine the head of a new cluster",
		Long: `Init makes the cluster's certificate authority in the controller's state folder, and
writes conf.d/10-cluster.toml beside the configuration file. It starts the systemd units
of controller and agent if they are installed, and otherwise says how to start them.
A second run changes nothing.`,
		Example: "  sudo pagurus cluster init --name physics\n  sudo pagurus cluster init --listen 10.0.0.1:7461",
		Args:    cli.NoArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if os.Geteuid() != 0 {
				return errors.New("the head's configuration and keys are root's: try `sudo pagurus cluster init`")
			}
			if _, _, err := net.SplitHostPort(listen); err != nil {
				return fmt.Errorf("--"+listenFlag+" takes an address and a port, like :7461, not %q", listen)
			}
			if !clusterName.MatchString(name) {
				return fmt.Errorf("--"+roles.NameFlag+" %q cannot be a cluster's name: give at most 63 letters, digits, dots and hyphens", name)
			}
			return initCluster(cmd, std, listen)
		},
	}
	roles.AddName(cmd.Flags(), &name)
	cmd.Flags().StringVar(&listen, listenFlag, ":7461", "TCP address for agents and people on other machines")
	roles.AddConfig(cmd.Flags())
	return cmd
}

// initCluster makes the authority, and then the file that says that it did. After an error
// it may be done again.
func initCluster(cmd *cobra.Command, std streams, listen string) error {
	path, _ := roles.ConfigPath(cmd.Flags())
	if path == "" {
		return errors.New("a cluster's head has a configuration file: choose one by --config")
	}
	fingerprint, err := makeAuthority(cmd)
	if err != nil {
		return err
	}
	file := roles.ClusterFile(path)
	switch _, err := os.Stat(file); {
	case err == nil:
		return alreadyHead(cmd, std, listen, file)
	case !errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("looking for the cluster's configuration: %w", err)
	}
	text := fmt.Sprintf("# Written by `pagurus cluster init`.\n[%s]\n%s = %q\n", roles.ControllerTable, listenFlag, listen)
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return fmt.Errorf("writing the cluster's configuration: %w", err)
	}
	if err := note.WriteDurably(file, []byte(text), 0o644); err != nil {
		return fmt.Errorf("writing the cluster's configuration: %w", err)
	}
	if _, err := fmt.Fprintf(std.out, "made a cluster: %s has its address, its authority is %.16s\n", file, fingerprint); err != nil {
		return err
	}
	return startHead(cmd.Context(), std)
}

// alreadyHead says that there is nothing to make, unless something else is asked for.
func alreadyHead(cmd *cobra.Command, std streams, listen, file string) error {
	flags := roles.Tables()[roles.ControllerTable]
	if err := roles.ReadConfig(cmd.Flags()).Apply(roles.ControllerTable, flags); err != nil {
		return err
	}
	if now := flags.Lookup(listenFlag); cmd.Flags().Changed(listenFlag) && roles.Value(now) != listen {
		return fmt.Errorf("the cluster was initialised already, with %s = %q (%s): edit that, and restart the controller", listenFlag, roles.Value(now), roles.Source(now))
	}
	if _, err := fmt.Fprintf(std.out, "the cluster was initialised already (%s)\n", file); err != nil {
		return err
	}
	return startHead(cmd.Context(), std) // an init that was cut off had not come to that
}

// makeAuthority has the controller's program make the authority, and gives its fingerprint.
func makeAuthority(cmd *cobra.Command) (string, error) {
	path, err := roles.Beside(roles.ControllerProgram)
	if err != nil {
		return "", err
	}
	var said strings.Builder
	chosen := pflag.NewFlagSet("", pflag.ContinueOnError)
	roles.AddConfig(chosen)
	roles.AddName(chosen, new(string))
	program := exec.CommandContext(cmd.Context(), path, append([]string{roles.InitVerb}, roles.Given(cmd.Flags(), chosen)...)...)
	program.Stderr = &said
	out, err := program.Output()
	if err != nil {
		return "", fmt.Errorf("making the cluster's authority: %s", cmp.Or(strings.TrimPrefix(strings.TrimSpace(said.String()), "pagurus: "), err.Error()))
	}
	return strings.TrimSpace(string(out)), nil
}

// agentUnit is the systemd unit of a host.
const agentUnit = roles.AgentProgram + ".service"

// headUnits are those of a head that is also a host.
var headUnits = []string{roles.ControllerProgram + ".service", agentUnit}

// startHead starts controller and agent by systemd if their units are installed, and says
// how to start them otherwise.
func startHead(ctx context.Context, std streams) error {
	started, err := startUnits(ctx, std, false, headUnits...)
	switch {
	case err != nil:
		return err
	case !started:
		_, err = fmt.Fprintln(std.out, "start its controller with `pagurus controller`, and with `pagurus agent` this machine is a host, too")
	default:
		_, err = fmt.Fprintln(std.out, "its controller and this machine's agent run; `pagurus token create --role host` lets others join")
	}
	return err
}

// startAgent starts the agent of a machine that has joined.
func startAgent(std streams) func(context.Context, bool) (bool, error) {
	return func(ctx context.Context, restart bool) (bool, error) { return startUnits(ctx, std, restart, agentUnit) }
}

// startUnits starts units by systemd, now and at each boot; false: systemd does not run here, or
// they are not installed. Those that run go on, or are restarted, which guests outlive.
func startUnits(ctx context.Context, std streams, restart bool, units ...string) (bool, error) {
	_, err := os.Stat("/run/systemd/system") // exists where systemd is the first process
	if err != nil || exec.CommandContext(ctx, "systemctl", append([]string{"cat"}, units...)...).Run() != nil {
		return false, nil
	}
	verb := "start"
	if restart {
		verb = "restart" // starts those that do not run
	}
	for _, verb := range []string{"enable", verb} {
		start := exec.CommandContext(ctx, "systemctl", append([]string{verb}, units...)...)
		start.Stdout, start.Stderr = std.err, std.err
		if err := start.Run(); err != nil {
			return false, fmt.Errorf("starting %s: %w: `journalctl -u %s` says why", strings.Join(units, " and "), err, units[0])
		}
	}
	return true, nil
}

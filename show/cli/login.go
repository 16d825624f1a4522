package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"pagurus/fleet"
	"pagurus/serve/wire"
	"pagurus/show/api"
)

// HostCredentials is the folder of a host's certificate in its agent's state folder.
const HostCredentials = "credentials"

// Controller says where the controller is and who asks it: by the flags of the command
// line, otherwise by the environment, otherwise by the credentials that are in folder,
// otherwise it is this machine's.
func Controller(flags *pflag.FlagSet, folder string) (wire.Config, error) {
	address, _ := flags.GetString(controllerFlag)
	credentials, _ := flags.GetString(credentialsFlag)
	return wire.Resolve(wire.Config{Address: address, Credentials: credentials}, folder)
}

// tokenFlags are a token on the command line or in a file.
type tokenFlags struct{ text, file string }

func (f *tokenFlags) Add(flags *pflag.FlagSet) {
	flags.StringVar(&f.text, tokenFlag, "", "the join token that pagurus token create printed")
	flags.StringVar(&f.file, tokenFileFlag, "", "a file that holds it, so that it does not show in ps")
}

func (f tokenFlags) read() (string, error) {
	switch {
	case f.text != "" && f.file != "":
		return "", fmt.Errorf("both --%s and --%s are given: leave one of them out", tokenFlag, tokenFileFlag)
	case f.text != "":
		return f.text, nil
	case f.file == "":
		return "", fmt.Errorf("give --%s or --%s: an administrator makes a token with `pagurus token create`", tokenFlag, tokenFileFlag)
	}
	file, err := os.Open(f.file)
	if errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("--%s: there is no file %s: write the line into it that `pagurus token create` prints", tokenFileFlag, f.file)
	}
	if err != nil {
		return "", fmt.Errorf("reading the token: %w", err)
	}
	defer func() { _ = file.Close() }()
	if about, err := file.Stat(); err == nil && about.IsDir() {
		return "", fmt.Errorf("--%s %s is a folder: name the file in it that holds the token", tokenFileFlag, f.file)
	}
	text, err := io.ReadAll(io.LimitReader(file, longestToken+1)) // it may be a device without an end
	switch {
	case err != nil:
		return "", fmt.Errorf("reading the token: %w", err)
	case strings.TrimSpace(string(text)) == "":
		return "", fmt.Errorf("%s is empty: write the line into it that `pagurus token create` prints", f.file)
	case len(text) > longestToken:
		return "", fmt.Errorf("%s is too long for a token: write nothing into it but the line that `pagurus token create` prints", f.file)
	}
	return strings.TrimSpace(string(text)), nil
}

// oneAddress requires the address of a controller.
func oneAddress(cmd *cobra.Command, args []string) error {
	if err := Exactly(1, "the controller's address, HEAD:PORT")(cmd, args); err != nil {
		return err
	}
	if host, port, err := net.SplitHostPort(args[0]); err != nil || host == "" || port == "" {
		return usage(cmd, fmt.Sprintf("%q is not the address of a controller: write it like head:7461%s", args[0], wire.Bracketed(args[0])))
	}
	return nil
}

// longestToken is more than the file of a token has.
const longestToken = 4 << 10

func (a *app) joinCommand() *cobra.Command {
	var token tokenFlags
	var j wire.Joining
	name, _ := os.Hostname()
	folder := ""
	var mend mending
	cmd := &cobra.Command{
		Use:   "join HEAD:PORT",
		Short: "Make this machine a host of a cluster",
		Long: `Join shows a token to the cluster's controller and keeps the certificate that this
machine gets for it. The key is made here and never leaves. A second join with the same key
changes nothing.

Join says what guests need and this machine lacks. On a terminal it asks whether to
install that, as ` + "`pagurus doctor --fix`" + ` does. Then it starts the agent's systemd unit if
that is installed, and otherwise says how to start the agent, which needs no token.`,
		Example: "  sudo pagurus join head:7461 --token TOKEN\n  sudo pagurus join head:7461 --token-file token --fix",
		Args:    oneAddress,
		RunE: func(cmd *cobra.Command, args []string) error {
			if os.Geteuid() != 0 && !cmd.Flags().Changed(credentialsFlag) {
				return fmt.Errorf("a host's certificate is root's: try `sudo pagurus join %s`, with the same flags", args[0])
			}
			if reason := fleet.HostID(name).Refused(); reason != "" {
				return usage(cmd, reason)
			}
			text, err := token.read()
			if err != nil {
				return err
			}
			before, err := wire.ReadLogin(folder)
			if err == nil && before.Host != "" && !cmd.Flags().Changed(fleet.HostFlag) {
				name = string(before.Host) // as it joined before
			}
			if j.Machine, err = a.Machine(); err != nil {
				return err
			}
			j.Host = fleet.HostID(name)
			if _, err := wire.Enrol(cmd.Context(), args[0], text, folder, j); err != nil {
				return err
			}
			l := wire.Login{Controller: args[0], Host: j.Host}
			// The unit's agent has the usual folder. One that runs has read what was there before.
			start := func(ctx context.Context) (bool, error) {
				if a.StartAgent == nil || cmd.Flags().Changed(credentialsFlag) {
					return false, nil
				}
				return a.StartAgent(ctx, before.Host != l.Host || before.Controller != l.Controller)
			}
			return a.joined(cmd.Context(), l, wire.ClusterOf(folder), mend, start)
		},
	}
	token.Add(cmd.Flags())
	mend.Add(cmd)
	cmd.Flags().StringVar(&name, fleet.HostFlag, name, "this host's name in the cluster")
	cmd.Flags().StringVar(&j.Address, "address", "", "this host's IP address on the network that hosts share, if it calls the controller from another")
	Judge(cmd.Flags(), "address", func(s string) error {
		if reason := fleet.RefusedAddress(s); reason != "" {
			return errors.New(reason)
		}
		return nil
	})
	cmd.Flags().StringVar(&folder, credentialsFlag, filepath.Join("/var/lib/pagurus", HostCredentials), "folder for the certificate and its key")
	return cmd
}

// joined says that this machine is a host, mends what it lacks, and starts its agent by systemd
// if start can.
func (a *app) joined(ctx context.Context, l wire.Login, cluster string, m mending, start func(context.Context) (bool, error)) (err error) {
	say := func(format string, args ...any) {
		if !a.json && err == nil {
			_, err = fmt.Fprintf(a.Out, format, args...)
		}
	}
	if say("%s joined the cluster %sof %s\n", l.Host, named(cluster), l.Controller); err != nil {
		return err
	}
	if err := a.lacks(ctx, m); err != nil {
		return err
	}
	started, err := start(ctx)
	switch {
	case err != nil:
		return err
	case a.json:
		return a.printJSON(l)
	case started:
		say("its agent runs\n")
	default:
		say("start its agent with `pagurus agent`\n")
	}
	return err
}

func (a *app) loginCommand() *cobra.Command {
	var token tokenFlags
	cmd := &cobra.Command{
		Use:   "login HEAD:PORT",
		Short: "Become known to a cluster's controller",
		Long: `Login shows a token to the controller and keeps the certificate that you get for it.
Commands of this account then ask that controller, until ` + "`pagurus logout`" + `. On the
controller's own machine you need no login: the kernel tells the controller who you are.`,
		Example: "  pagurus login head:7461 --token-file token\n  pagurus whoami",
		Args:    oneAddress,
		RunE: func(cmd *cobra.Command, args []string) error {
			text, err := token.read()
			if err != nil {
				return err
			}
			joined, err := wire.Enrol(cmd.Context(), args[0], text, a.credentials(), wire.Joining{})
			if err != nil {
				return err
			}
			if a.json {
				return a.printJSON(wire.Login{Controller: args[0], User: joined.User})
			}
			_, err = fmt.Fprintf(a.Out, "logged in to %s%s as %s\n", named(wire.ClusterOf(a.credentials())), args[0], joined.User)
			return err
		},
	}
	token.Add(cmd.Flags())
	return cmd
}

// credentials is the folder of this account's certificate.
func (a *app) credentials() string {
	given, _ := a.flags.GetString(credentialsFlag)
	return orElse(orElse(given, os.Getenv(wire.CredentialsVariable)), wire.UserCredentials())
}

func (a *app) logoutCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "logout",
		Short:   api.Summary("logOut"),
		Long:    "Logout tells the controller that the certificate no longer counts, and removes it with\nits key. It removes them even if the controller cannot be reached.",
		Example: "  pagurus logout",
		Args:    NoArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			l, err := wire.ReadLogin(a.credentials())
			if err == nil && l.Controller == "" {
				_, err = fmt.Fprintln(a.Out, "nobody is logged in")
				return err
			}
			if _, err := a.ask(cmd.Context(), fleet.Request{Verb: fleet.Logout}); err != nil {
				_, _ = fmt.Fprintf(a.Err, "pagurus: the controller was not told: %v\n", err)
			}
			if err := wire.RemoveLogin(a.credentials()); err != nil {
				return err
			}
			_, err = fmt.Fprintf(a.Out, "logged out of %s\n", l.Controller)
			return err
		},
	}
}

func (a *app) whoamiCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "whoami",
		Short:   api.Summary("whoAmI"),
		Example: "  pagurus whoami",
		Args:    NoArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := a.dial()
			if err != nil {
				return err
			}
			by, err := c.WhoAmI(cmd.Context())
			if err != nil {
				return err
			}
			if a.json {
				return a.printJSON(by)
			}
			of := ""
			if by.Cluster != "" {
				of = ", of the cluster " + by.Cluster
			}
			if by.Host != "" {
				_, err = fmt.Fprintf(a.Out, "host %s%s\n", by.Host, of)
				return err
			}
			name, role := orElse(string(by.User), fmt.Sprintf("uid %d", by.UID)), fleet.UserRole
			if by.Admin {
				role = fleet.AdminRole
			}
			_, err = fmt.Fprintf(a.Out, "%s (%s), jobs run as uid %d, gid %d%s\n", name, role, by.UID, by.GID, of)
			return err
		},
	}
}

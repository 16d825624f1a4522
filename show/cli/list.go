package cli

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"pagurus/show/api"
	"pagurus/show/view"
)

// redrawEvery keeps the ages in a watched table up to date.
const redrawEvery = time.Second

// listing is a command that shows one table.
type listing struct {
	table func(view.Cluster) view.Table
	rows  func(view.Cluster) any // for --json
}

// list completes a command that shows a table, once or repeatedly.
func (a *app) list(cmd *cobra.Command, l listing) *cobra.Command {
	watch := false
	cmd.Flags().BoolVarP(&watch, "watch", "w", false, "print the table again on every change, until Ctrl-C")
	cmd.Args = NoArguments
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if watch {
			return a.watch(cmd.Context(), l)
		}
		c, err := a.read(cmd.Context())
		if err != nil {
			return err
		}
		if a.json {
			return a.printJSON(l.rows(c))
		}
		_, err = io.WriteString(a.Out, l.table(c).Text())
		return err
	}
	return cmd
}

// NoArguments refuses arguments with an error for people.
func NoArguments(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return usage(cmd, fmt.Sprintf("`%s` takes no argument; leave %q out%s", cmd.CommandPath(), args[0], like(cmd, args[0])))
	}
	return nil
}

// watch shows the table again on every change: redrawn on a terminal, one JSON value per
// line with --json, otherwise one after the other.
func (a *app) watch(ctx context.Context, l listing) error {
	if _, err := a.read(ctx); err != nil {
		return err // unreachable from the start: report it at once
	}
	c, err := a.dial()
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	clusters := make(chan view.Cluster)
	ended := make(chan error, 1)
	go func() {
		ended <- followClient(ctx, c, newOutage(a.Err), func(c view.Cluster) (bool, error) {
			select {
			case clusters <- c:
			case <-ctx.Done():
			}
			return false, nil
		})
	}()
	tick := time.NewTicker(redrawEvery)
	defer tick.Stop()
	var now view.Cluster
	var seen time.Time
	last := ""
	for {
		select {
		case err := <-ended:
			return err
		case now = <-clusters:
			seen = time.Now()
			if a.json {
				if err := a.printJSON(l.rows(now)); err != nil {
					return err
				}
				continue
			}
		case <-tick.C:
			if a.json || seen.IsZero() || !terminal(a.Out) {
				continue
			}
		}
		aged := now
		aged.At = now.At.Add(time.Since(seen))
		text := l.table(aged).Text()
		if text == last {
			continue
		}
		last = text
		if err := a.draw(text); err != nil {
			return err
		}
	}
}

// Escape sequences that redraw a text without flicker: cursor home, clear the line's end,
// clear below.
const (
	cursorHome = "\x1b[H"
	clearLine  = "\x1b[K"
	clearBelow = "\x1b[J"
)

func (a *app) draw(text string) error {
	if terminal(a.Out) {
		text = cursorHome + strings.ReplaceAll(text, "\n", clearLine+"\n") + clearBelow
	} else {
		text += "\n"
	}
	_, err := io.WriteString(a.Out, text)
	return err
}

// kindsCommand shows what the kinds of guest can do.
func (a *app) kindsCommand() *cobra.Command {
	return a.list(&cobra.Command{
		Use:   "kinds",
		Short: api.Summary("listKinds"),
		Long: `Kinds shows what each kind of guest can do on the hosts of this cluster: a virtual machine
by KVM, an emulated one, a container. "2 of 3" is said of what only some hosts can, and below
the table is why the others cannot. docs/hypervisors.md has the same table for hosts that
have everything.`,
		Example: "  pagurus kinds\n  pagurus kinds --json | jq '.[].can[] | select(.why) | {name, why}'",
	}, listing{view.Cluster.KindTable, func(c view.Cluster) any { return c.Kinds() }})
}

// sitesCommand shows the paths between sites.
func (a *app) sitesCommand() *cobra.Command {
	return a.list(&cobra.Command{
		Use:   "sites",
		Short: api.Summary("listSites"),
		Long: `Sites shows the paths between sites, as hosts measure them all the time: whether they
reach each other directly or by a host that relays, the latency of a round trip, the share
of echoes that was lost, and the most that passed in each direction lately.`,
		Example: "  pagurus sites\n  pagurus sites --watch\n  pagurus sites --json | jq '.[] | {sites, kind, latency_ns}'",
	}, listing{view.Cluster.SiteTable, func(c view.Cluster) any { return c.SitePaths() }})
}

// healthCommand shows the hosts that may fail.
func (a *app) healthCommand() *cobra.Command {
	return a.list(&cobra.Command{
		Use:   "health",
		Short: api.Summary("listHealth"),
		Long: `Health shows what hosts count that comes before a failure: memory errors, machine checks,
errors of disks, file systems and links, swap storms, heat, and what an administrator's own
check says (` + "`health-check`" + ` in the agent's configuration). A host with a grave sign is emptied
live until the sign is over; ` + "`pagurus undrain HOST`" + ` has it take guests all the same.`,
		Example: "  pagurus health\n  pagurus health --watch\n  pagurus health --json | jq '.[] | select(.signs[].grave) | .host'",
	}, listing{view.Cluster.HealthTable, func(c view.Cluster) any { return c.Unwell() }})
}

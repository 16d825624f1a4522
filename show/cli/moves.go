package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"pagurus/fleet"
	"pagurus/serve/wire"
	"pagurus/show/api"
	"pagurus/show/view"
)

// stuckAfter is how long `drain --wait` waits while a draining host has movable guests and
// none moves. Then it reports that they have no target. It is some turns of the planner,
// which runs about once a second.
const stuckAfter = 3 * time.Second

// usualWait is the default time that a command waits for moves.
const usualWait = 30 * time.Minute

// awaitMoves shows moves until they are over. Its error lists the guests that did not
// arrive.
func (a *app) awaitMoves(ctx context.Context, ids []fleet.MoveID, limit time.Duration) error {
	c, err := a.dial()
	if err != nil {
		return err
	}
	ctx, stop := attend(ctx, limit)
	defer stop()
	bar := &progressBar{Out: a.Out, Err: a.Err, JSON: a.json, Live: terminal(a.Err)}
	defer bar.Clear()
	var moves []view.Move
	err = followClient(ctx, c, newOutage(a.Err), func(c view.Cluster) (bool, error) {
		moves = moves[:0]
		over := true
		for _, id := range ids {
			m, ok := c.Move(id)
			if !ok {
				return true, fmt.Errorf("the controller no longer knows %s", id)
			}
			moves = append(moves, m)
			over = over && m.Over()
		}
		return over, bar.Show(c.At, moves)
	})
	bar.Clear()
	if err != nil {
		return timedOut(err, limit, fmt.Sprintf("`pagurus move ls -w` shows its progress, `pagurus move cancel %s` cancels it", view.List(ids)))
	}
	if err := a.printMoves(moves); err != nil {
		return err
	}
	return notArrived(moves)
}

// printMoves prints each move as JSON if requested. Otherwise the bar has shown the guests,
// and only the skew of a gang is printed.
func (a *app) printMoves(moves []view.Move) error {
	for _, m := range moves {
		if !a.json {
			if line := m.Together(); line != "" {
				if _, err := fmt.Fprintln(a.Out, line); err != nil {
					return err
				}
			}
			continue
		}
		if err := a.printJSON(m); err != nil {
			return err
		}
	}
	return nil
}

// notArrived is an error if some guests did not arrive.
func notArrived(moves []view.Move) error {
	var causes []error
	for _, m := range moves {
		for _, p := range m.Parts {
			switch p.Phase {
			case fleet.Aborted:
				causes = append(causes, fmt.Errorf("%s stays at %s: %s", p.Guest, p.From, orElse(view.Clean(p.Cause), "the cause is unknown")))
			case fleet.Lost:
				causes = append(causes, fmt.Errorf("%s is lost, see `pagurus explain %s`: %s", p.Guest, p.Guest, orElse(view.Clean(p.Cause), "the cause is unknown")))
			}
		}
	}
	return errors.Join(causes...)
}

// attend gives a context for waiting that ends after a limit or on Ctrl-C. What it waits for
// goes on.
func attend(ctx context.Context, limit time.Duration) (context.Context, context.CancelFunc) {
	ctx, done := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	ctx, stop := context.WithTimeout(ctx, limit)
	return ctx, func() { stop(); done() }
}

// timedOut explains an error if the wait took too long or was interrupted.
func timedOut(err error, limit time.Duration, then string) error {
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("not finished after %s, and it goes on: %s", view.Took(limit), then)
	case errors.Is(err, context.Canceled):
		return Exit{Code: exitInterrupted, Err: fmt.Errorf("no longer waiting, and it goes on: %s", then)}
	}
	return err
}

func (a *app) drainCommand() *cobra.Command {
	wait, dry, limit := false, false, usualWait
	var bounds limitFlags
	cmd := &cobra.Command{
		Use:   "drain HOST [--wait | --dry-run]",
		Short: api.Summary("drainHost"),
		Long: `Drain moves every guest off a host and starts none there until ` + "`pagurus undrain`" + `.
The guests of one job leave together, one job after the other; those that find
no room stay until there is some. It prints the IDs of the moves and says which
guests have nowhere to go, and why.

With --wait it shows the moves until the host is empty, and exits with 1 when only
guests are left that cannot leave. It waits for guests that still start, and for
those whose move was cancelled and is tried again. With --json it prints each move at the
end. With --dry-run it says what that would cost, like ` + "`pagurus predict --host`" + `, and does nothing.` + transferHelp(),
		Example: "  pagurus drain host1 --wait && sudo reboot\n  pagurus drain host1 --bandwidth 200M",
		Args: func(cmd *cobra.Command, args []string) error {
			if err := Exactly(1, oneHost)(cmd, args); err != nil {
				return err
			}
			return idleWait(cmd, wait, dry)
		},
		ValidArgsFunction: a.completeHostArgument,
		RunE: func(cmd *cobra.Command, args []string) error {
			host := fleet.HostID(args[0])
			given, err := bounds.limits(cmd)
			if err != nil {
				return err
			}
			request := fleet.Request{Verb: fleet.Drain, Host: host, Limits: given}
			if dry {
				return a.predict(cmd.Context(), request)
			}
			answer, err := a.ask(cmd.Context(), request)
			if err != nil {
				return err
			}
			if !wait {
				return a.answer(answer)
			}
			a.notes(answer)
			return a.awaitEmpty(cmd.Context(), host, limit)
		},
	}
	cmd.Flags().BoolVar(&wait, waitFlag, false, "show the moves until the host is empty")
	waitLimit(cmd.Flags(), &limit, "wait no longer than this; the host stays draining")
	bounds.add(cmd, drainFlags())
	dryRun(cmd.Flags(), &dry)
	return cmd
}

// awaitEmpty shows the moves off a host until it is empty or nothing moves any more.
func (a *app) awaitEmpty(ctx context.Context, host fleet.HostID, limit time.Duration) error {
	c, err := a.dial()
	if err != nil {
		return err
	}
	ctx, stop := attend(ctx, limit)
	defer stop()
	bar := &progressBar{Out: a.Out, Err: a.Err, JSON: a.json, Live: terminal(a.Err)}
	defer bar.Clear()
	var still time.Time // since when guests are here and none moves; controller's clock
	var stuck []fleet.GuestID
	begun := time.Time{}
	var leaving []view.Move
	err = followClient(ctx, c, newOutage(a.Err), func(c view.Cluster) (bool, error) {
		if begun.IsZero() {
			begun = c.At
		}
		h, ok := c.Host(host)
		if !ok || h.State != fleet.HostDraining {
			return true, fmt.Errorf("%s is no longer draining", host)
		}
		leaving = c.Leaving(host, begun)
		if err := bar.Show(c.At, leaving); err != nil {
			return true, err
		}
		// After the switch the guest's home is the target, but the move goes on until this
		// host has nothing left of the guest.
		if slices.ContainsFunc(leaving, func(m view.Move) bool { return !m.Over() }) {
			still = time.Time{}
			return false, nil
		}
		if len(h.GuestIDs) == 0 || slices.ContainsFunc(h.GuestIDs, func(g fleet.GuestID) bool { return leavesLater(c, g) }) {
			still = time.Time{}
			return len(h.GuestIDs) == 0, nil
		}
		if still.IsZero() {
			still = c.At
		}
		stuck = h.GuestIDs
		return c.At.Sub(still) > stuckAfter, nil
	})
	bar.Clear()
	if err != nil {
		return timedOut(err, limit, fmt.Sprintf("`pagurus move ls -w` shows its progress, `pagurus undrain %s` cancels it", host))
	}
	if err := a.printMoves(leaving); err != nil {
		return err
	}
	if !still.IsZero() {
		return a.whyStuck(ctx, host, stuck)
	}
	return nil
}

// leavesLater reports whether a guest may still leave: it starts or ends, or another try is
// scheduled.
func leavesLater(c view.Cluster, id fleet.GuestID) bool {
	g, _ := c.Guest(id)
	return g.State != fleet.GuestRunning || g.RetryAt.After(c.At)
}

// whyStuck says which guests cannot leave a draining host, and why.
func (a *app) whyStuck(ctx context.Context, host fleet.HostID, stuck []fleet.GuestID) error {
	why := []error{fmt.Errorf("%s still has %s", host, view.List(stuck))}
	c, err := a.dial()
	if err != nil {
		return err
	}
	for _, g := range stuck {
		lines, err := c.Explain(ctx, wire.About{Guest: g})
		if err != nil {
			return errors.Join(append(why, err)...)
		}
		for _, line := range lines {
			why = append(why, errors.New("  "+view.Clean(line)))
		}
	}
	return errors.Join(append(why, fmt.Errorf("  it drains further when there is room; `pagurus undrain %s` cancels it", host))...)
}

func (a *app) undrainCommand() *cobra.Command {
	return &cobra.Command{
		Use:               "undrain HOST",
		Short:             api.Summary("undrainHost"),
		Long:              "Undrain lets a host take guests again. It cancels the moves that the drain began, except those that have begun to switch.",
		Example:           "  pagurus undrain host1",
		Args:              Exactly(1, oneHost),
		ValidArgsFunction: a.completeHostArgument,
		RunE:              a.aboutHost(fleet.Undrain),
	}
}

func (a *app) forgetCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "forget HOST",
		Short: api.Summary("forgetHost"),
		Long: `Forget removes a host that will not come back. Its certificate no longer counts. Make
sure that the machine is off, or its guests keep running without Pagurus. For a host
whose agent runs, use ` + "`pagurus host rm`" + `.`,
		Example:           "  pagurus forget host7",
		Args:              Exactly(1, oneHost),
		ValidArgsFunction: a.completeHostArgument,
		RunE:              a.aboutHost(fleet.Forget),
	}
}

// removeHostCommand is drain --wait and forget.
func (a *app) removeHostCommand() *cobra.Command {
	limit := usualWait
	cmd := &cobra.Command{
		Use: "rm HOST", Aliases: []string{"remove"},
		Short: "Empty a host and remove it from the cluster",
		Long: `Rm moves all guests off a host, waits until it is empty, and removes it: its
certificate no longer counts, and its agent is turned away. If guests stay, the host is
not removed and keeps draining. It may join again with a new token.`,
		Example:           "  pagurus host rm host7",
		Args:              Exactly(1, oneHost),
		ValidArgsFunction: a.completeHostArgument,
		RunE: func(cmd *cobra.Command, args []string) error {
			host := fleet.HostID(args[0])
			answer, err := a.ask(cmd.Context(), fleet.Request{Verb: fleet.Drain, Host: host})
			if err != nil {
				return err
			}
			a.notes(answer)
			if err := a.awaitEmpty(cmd.Context(), host, limit); err != nil {
				return err
			}
			_, err = a.ask(cmd.Context(), fleet.Request{Verb: fleet.Forget, Host: host})
			return err
		},
	}
	waitLimit(cmd.Flags(), &limit, "wait no longer than this; the host stays draining")
	return cmd
}

// aboutHost sends a request about the named host.
func (a *app) aboutHost(verb fleet.RequestVerb) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		answer, err := a.ask(cmd.Context(), fleet.Request{Verb: verb, Host: fleet.HostID(args[0])})
		if err != nil {
			return err
		}
		return a.answer(answer)
	}
}

// explainVerb is explain of one kind of things, below its noun.
func (a *app) explainVerb(what, id, one string, complete completion, aliases ...string) func() *cobra.Command {
	return func() *cobra.Command {
		cmd := a.explainCommand()
		cmd.Use, cmd.Aliases = "explain "+what, aliases
		cmd.Args, cmd.ValidArgsFunction = Exactly(1, one), complete
		cmd.Example = "  pagurus explain " + id
		return cmd
	}
}

func (a *app) explainCommand() *cobra.Command {
	return &cobra.Command{
		Use:               "explain GUEST|JOB|HOST|MOVE",
		Short:             api.Summary("explainJob"),
		Example:           "  pagurus explain j3g1\n  pagurus explain host2\n  pagurus explain m4",
		Args:              Exactly(1, "a guest, a job, a host or a move"),
		ValidArgsFunction: a.completeAnything,
		RunE: func(cmd *cobra.Command, args []string) error {
			lines, err := a.explain(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			if a.json {
				return a.printJSON(map[string][]string{"lines": lines})
			}
			for _, l := range lines {
				if _, err := fmt.Fprintln(a.Out, view.Clean(l)); err != nil {
					return err
				}
			}
			return nil
		},
	}
}

// explain finds the subject of id and has it explained.
func (a *app) explain(ctx context.Context, id string) ([]string, error) {
	cluster, err := a.read(ctx)
	if err != nil {
		return nil, err
	}
	if m, ok := cluster.Move(fleet.MoveID(id)); ok {
		return m.Explain(cluster.At), nil
	}
	var about wire.About
	if _, ok := cluster.Guest(fleet.GuestID(id)); ok {
		about.Guest = fleet.GuestID(id)
	} else if _, ok := cluster.Job(fleet.JobID(id)); ok {
		about.Job = fleet.JobID(id)
	} else if _, ok := cluster.Host(fleet.HostID(id)); ok {
		about.Host = fleet.HostID(id)
	} else {
		return nil, fmt.Errorf("there is no guest, job, host or move %q: `pagurus job ls`, `guest ls`, `host ls` and `move ls` list them", id)
	}
	c, err := a.dial()
	if err != nil {
		return nil, err
	}
	return c.Explain(ctx, about)
}

// This file has the command `pagurus isolate`: some of a host's CPUs for guests alone. The
// controller stores the request, and the host's agent carries it out.
//
// It must not change anything itself. Its tests use a scripted controller on a real socket.

package main

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"pagurus/fleet"
	"pagurus/serve/wire"
	"pagurus/show/api"
	"pagurus/show/cli"
	"pagurus/show/view"
)

// asking is one call of the command.
type asking struct {
	out  io.Writer
	say  func(string) // messages that are not results
	json bool
	wire *wire.Client
	host fleet.HostID
}

// isolateCommand makes the command `pagurus isolate`.
func isolateCommand(out io.Writer, say func(string)) *cobra.Command {
	var cores string
	var boot booting
	cmd := &cobra.Command{
		Use:   "isolate HOST [on|off]",
		Short: api.Summary("isolateCPUs"),
		Long: `Isolate keeps everything but guests off some CPUs of a host: other programs,
interrupts, kernel threads, work queues, watchdog and timers. It says what could not
be moved and why; 'pagurus isolate HOST' says it again later. Off puts everything
back, even if an agent was killed halfway. The setting survives restarts of the agent
and the host.

The settings are those of the whole machine. So it is refused where a host is only a
part of a machine: in a lab, or if the agent runs in a container.

What only a kernel's command line can do is prepared with --boot, on the machine itself and
by root: from its next boot on the kernel stops the timer tick of these CPUs and keeps its
callbacks and interrupts off them. It says what it will change; --dry-run changes nothing.`,
		Example: `  pagurus isolate host1 on                 # all cores but the first
  pagurus isolate host1 on --cores 2-15
  pagurus isolate host1                    # the state, and what was left alone
  pagurus isolate host1 off
  pagurus isolate --boot --dry-run         # what would change on this machine
  sudo pagurus isolate --boot --cores 2-15
  sudo pagurus isolate --boot --undo`,
		Args: func(cmd *cobra.Command, args []string) error {
			if boot.on || boot.undo || boot.dry || boot.domain {
				return boot.check(cmd, args)
			}
			if len(args) < 1 || len(args) > 2 || len(args) == 2 && args[1] != "on" && args[1] != "off" {
				return fmt.Errorf("name one host, and on or off, as in `pagurus isolate host1 on`; see `%s --help`", cmd.CommandPath())
			}
			return cli.AtLeast(1, "one host: `pagurus host ls` lists them")(cmd, args)
		},
		ValidArgsFunction: completeIsolate,
		RunE: func(cmd *cobra.Command, args []string) error {
			if boot.on {
				boot.json, _ = cmd.Flags().GetBool("json")
				boot.out, boot.say = out, say
				return boot.run(cmd.Context(), cores)
			}
			q, err := isolateWish(cmd, args, cores)
			if err != nil {
				return err
			}
			a := asking{out: out, say: say, host: fleet.HostID(args[0])}
			a.json, _ = cmd.Flags().GetBool("json")
			if a.wire, err = dial(cmd); err != nil {
				return err
			}
			defer a.wire.Close()
			return a.run(cmd.Context(), q)
		},
	}
	cmd.Flags().StringVar(&cores, fleet.CoresFlag, "", "CPUs for guests, as the kernel numbers them: 2-15 or 1,4-7 (default: all but the first core)")
	boot.add(cmd.Flags())
	return cmd
}

// isolateWish reads the request; nil: only show the state.
func isolateWish(cmd *cobra.Command, args []string, cores string) (*fleet.IsolationRequest, error) {
	given := cmd.Flags().Changed(fleet.CoresFlag)
	if given && (len(args) < 2 || args[1] == "off") {
		return nil, fmt.Errorf("--"+fleet.CoresFlag+" goes only with on, as in `pagurus isolate %s on --"+fleet.CoresFlag+" %s`: off always puts back all CPUs", args[0], cores)
	}
	if len(args) < 2 {
		return nil, nil
	}
	cpus, err := fleet.ParseCPUs(cores)
	if err == nil && given && len(cpus) == 0 {
		err = errors.New("names no CPU: write something like 2-15")
	}
	if err != nil {
		return nil, fmt.Errorf("--"+fleet.CoresFlag+" %w", err)
	}
	return &fleet.IsolationRequest{On: args[1] == "on", CPUs: cpus}, nil
}

func dial(cmd *cobra.Command) (*wire.Client, error) {
	at, err := cli.Controller(cmd.Flags(), wire.UserCredentials())
	if err != nil {
		return nil, err
	}
	return wire.Dial(at)
}

func (a asking) run(ctx context.Context, q *fleet.IsolationRequest) error {
	h, err := a.read(ctx)
	if err != nil {
		return err
	}
	if q != nil {
		answer, err := a.wire.Ask(ctx, fleet.Request{ID: fleet.RequestID(rand.Text()), Verb: fleet.Isolate, Host: a.host, Isolation: q})
		if err != nil {
			return err
		}
		for _, n := range answer.Notes {
			a.say(view.Clean(n))
		}
		if h, err = a.awaitIsolation(ctx); err != nil {
			return err
		}
	}
	if err := a.print(h); err != nil {
		return err
	}
	if s := h.Facts.Isolation; q != nil && s != nil && s.Trouble != "" {
		return cli.Exit{Code: 1}
	}
	return nil
}

func (a asking) read(ctx context.Context) (fleet.Host, error) {
	s, err := a.wire.Snapshot(ctx)
	if err != nil {
		return fleet.Host{}, err
	}
	h, ok := s.Hosts[a.host]
	if !ok {
		return h, fmt.Errorf("there is no host %s: `pagurus host ls` lists them", a.host)
	}
	return h, nil
}

// An agent reports the result of a request within a second or two, and later on a busy
// machine with thousands of processes.
const (
	settleLimit = 20 * time.Second
	settleEvery = 200 * time.Millisecond
)

// awaitIsolation waits until the host's agent has done what was requested, or could not.
func (a asking) awaitIsolation(ctx context.Context) (fleet.Host, error) {
	for begun := time.Now(); ; {
		h, err := a.read(ctx)
		if err != nil {
			return h, err
		}
		q := h.Facts.Isolation
		switch {
		case q != nil && slices.Equal(q.Wanted, h.IsolatedCPUs) && (q.Trouble != "" || slices.Equal(q.CPUs, h.IsolatedCPUs)):
			return h, nil
		case !h.Facts.Connected:
			a.say(fmt.Sprintf("the agent of %s is not connected: it does this when it connects", a.host))
			return h, nil
		case q == nil || q.Unable != "" && len(h.IsolatedCPUs) == 0:
			return h, nil // there is nothing to restore
		case time.Since(begun) > settleLimit:
			a.say(fmt.Sprintf("the agent of %s has not reported a result in %s: look again with `pagurus isolate %s`", a.host, settleLimit, a.host))
			return h, nil
		}
		select {
		case <-ctx.Done():
			return h, ctx.Err()
		case <-time.After(settleEvery):
		}
	}
}

func (a asking) print(h fleet.Host) error {
	if a.json {
		q := fleet.Isolation{}
		if h.Facts.Isolation != nil {
			q = *h.Facts.Isolation
		}
		return json.NewEncoder(a.out).Encode(q)
	}
	lines := view.IsolationText(h)
	if len(lines) == 0 {
		lines = []string{fmt.Sprintf("no CPU of %s is isolated", h.ID)}
		if q := h.Facts.Isolation; q != nil && q.Unable != "" {
			lines[0] += "; none can be: " + q.Unable
		}
	}
	for _, l := range lines {
		if _, err := fmt.Fprintln(a.out, view.Clean(l)); err != nil {
			return err
		}
	}
	return nil
}

func completeIsolate(cmd *cobra.Command, args []string, typed string) ([]string, cobra.ShellCompDirective) {
	if len(args) == 1 {
		return []string{"on\tisolate CPUs for guests", "off\tput everything back"}, cobra.ShellCompDirectiveNoFileComp
	}
	return cli.CompleteHost(cmd, args, typed)
}

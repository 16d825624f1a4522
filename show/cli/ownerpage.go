package cli

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os/exec"
	"strconv"

	"github.com/spf13/cobra"

	"pagurus/fleet"
	"pagurus/serve/wire"
	"pagurus/show/page"
)

// ownerPageCommand serves the owner's page to the owner's browser, until it is ended.
func (a *app) ownerPageCommand(socket *string) *cobra.Command {
	port, show := uint16(0), false
	cmd := &cobra.Command{
		Use: "page", Short: "See and pause guests in a browser on this machine",
		Long: `Page serves a page with the status, the policy, the history, and buttons to pause and resume, until you
end it by Ctrl-C. It listens on 127.0.0.1, and answers browsers of your own user only. The link that it
prints works once, for the tab that opens it first. No root and no token is needed, only to be one
of the users whom root named ([agent] owners).`,
		Example: "  pagurus owner page\n  pagurus owner page --open     # in your browser",
		Args:    NoArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ask := func(ctx context.Context, q fleet.OwnerAsk) (fleet.OwnerAnswer, error) {
				return wire.AskAgent(ctx, *socket, q)
			}
			if _, err := ask(cmd.Context(), fleet.OwnerAsk{Verb: fleet.OwnerStatus}); err != nil {
				return err // who may not ask the agent is told so now
			}
			l, err := net.Listen("tcp4", net.JoinHostPort("127.0.0.1", strconv.Itoa(int(port))))
			if err != nil {
				return fmt.Errorf("the page needs a port of its own, and --port %d is not free: %w", port, err)
			}
			serves := page.NewOwner(ask)
			link := serves.Link(l.Addr())
			if a.json {
				err = a.printJSON(map[string]string{"url": link})
			} else {
				_, err = fmt.Fprintf(a.Out, "%s\nThis link works once, in a browser of your own user on this machine. Ctrl-C ends the page.\n", link)
			}
			if show && err == nil {
				err = openBrowser(cmd.Context(), link)
			}
			if err != nil {
				return errors.Join(err, l.Close())
			}
			return serves.Serve(cmd.Context(), l)
		},
	}
	cmd.Flags().Uint16Var(&port, "port", 0, "the port; 0: a free one")
	cmd.Flags().BoolVar(&show, "open", false, "open it in your browser, by xdg-open")
	return cmd
}

// openBrowser has the desktop open an address. Others may see the address meanwhile: what it opens must not be theirs by that.
func openBrowser(ctx context.Context, link string) error {
	if out, err := exec.CommandContext(ctx, "xdg-open", link).CombinedOutput(); err != nil {
		return fmt.Errorf("xdg-open, which opens browsers, does not work here: leave --open out, and open the link by hand: %w: %s", err, out)
	}
	return nil
}

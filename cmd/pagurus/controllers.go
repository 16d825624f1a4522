package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"pagurus/cmd/roles"
	"pagurus/internal/note"
	"pagurus/serve/wire"
	"pagurus/show/api"
	"pagurus/show/cli"
	"pagurus/show/view"
)

// joinLimit bounds how long a controller waits to be let in by others that are not all connected.
const joinLimit = time.Minute

// controllerVerbs are the commands of a cluster with several controllers.
func controllerVerbs(std streams) []*cobra.Command {
	return []*cobra.Command{joinControllerCommand(std), listControllersCommand(std), removeControllerCommand(std)}
}

func joinControllerCommand(std streams) *cobra.Command {
	var f roles.Controller
	var seat roles.Seat
	token := ""
	cmd := &cobra.Command{
		Use:   "join HEAD:PORT",
		Short: "Make this machine one more controller of a cluster",
		Long: `Join shows a token to a controller of the cluster, and gets the cluster's authority and a place among
its controllers. Start the controller then; it fetches the store, and leads when one that led has gone.
Three controllers survive the loss of one. One that was removed may join again; its store and its copies
of output are put aside, in the state folder. The one that is there already has to be reached by others:
start it with --peer ADDRESS:PORT.`,
		Example: "  sudo pagurus controller join head:7461 --token TOKEN --peer 10.0.0.6:" + roles.PeerPort,
		Args:    cli.Exactly(1, "the address of a controller, HEAD:PORT"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if seat.Peer == "" {
				return errors.New("give --" + roles.PeerFlag + " ADDRESS:" + roles.PeerPort + ", where the other controllers reach this machine")
			}
			if err := roles.RefusedPeer(seat.Peer); err != nil {
				return err
			}
			if text, err := os.ReadFile(token); err == nil { // a file that holds it does not show in ps
				token = strings.TrimSpace(string(text))
			}
			if err := joinControllers(cmd.Context(), args[0], token, f.StateDir, seat); err != nil {
				return err
			}
			_, err := fmt.Fprintf(std.out, "%s is a controller of the cluster of %s: start it with `pagurus controller`, or `systemctl enable --now %s`\n", seat.Name, args[0], roles.ControllerProgram)
			return err
		},
	}
	here, _ := os.Hostname()
	cmd.Flags().StringVar(&token, "token", "", "the join token that pagurus token create --role controller printed, or a file that holds it")
	cmd.Flags().StringVar(&seat.Peer, roles.PeerFlag, "", "ADDRESS:PORT at which the other controllers reach this machine")
	cmd.Flags().StringVar(&seat.Name, roles.PeerNameFlag, here, "this controller's name among them")
	f.AddFolders(cmd.Flags())
	return cmd
}

// joinControllers gets a place among a cluster's controllers, and keeps it in the state folder of a new one.
func joinControllers(ctx context.Context, address, token, state string, seat roles.Seat) error {
	ctx, stop := context.WithTimeout(ctx, joinLimit)
	defer stop()
	removed := filepath.Join(state, roles.RemovedFile)
	_, was := os.Stat(removed)
	if _, err := os.Stat(filepath.Join(state, "etcd", "data")); err == nil && was != nil {
		return fmt.Errorf("%s has the store of a controller already: give another --state folder; if that controller was removed from its cluster, start it once, and it will say so, then join again", state)
	}
	joined, err := wire.EnrolController(ctx, address, token, state, wire.Joining{Controller: seat.Name, Peer: seat.Peer})
	if err != nil {
		return err
	}
	if was == nil {
		if err := putAside(state); err != nil {
			return err
		}
	}
	seat.Store = joined.Store
	if err := note.Replace(filepath.Join(state, roles.SeatFile), seat); err != nil {
		return fmt.Errorf("keeping the place among the controllers: %w", err)
	}
	if err := os.Remove(removed); err != nil && !errors.Is(err, fs.ErrNotExist) { // last: until then the controller does not start
		return fmt.Errorf("joining: %w", err)
	}
	return nil
}

// putAside moves the store, and the copies of output, of a controller that was removed into a folder beside.
func putAside(state string) error {
	to := filepath.Join(state, "removed-"+time.Now().UTC().Format("20060102-150405"))
	if err := os.MkdirAll(to, 0o700); err != nil {
		return fmt.Errorf("putting aside what a removed controller had: %w", err)
	}
	for _, name := range []string{"etcd", "spool", "spool.term"} {
		if err := os.Rename(filepath.Join(state, name), filepath.Join(to, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("putting aside what a removed controller had: %w", err)
		}
	}
	return nil
}

func listControllersCommand(std streams) *cobra.Command {
	asJSON := false
	cmd := &cobra.Command{
		Use:     "ls",
		Short:   api.Summary("listControllers"),
		Example: "  pagurus controller ls",
		Args:    cli.NoArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := dial(cmd)
			if err != nil {
				return err
			}
			defer func() { _ = c.Close() }()
			list, err := c.Heads(cmd.Context())
			if err != nil {
				return err
			}
			if asJSON {
				return json.NewEncoder(std.out).Encode(list)
			}
			table := view.Table{Columns: []string{"CONTROLLER", "STATE", "ADDRESS", "PEER"}}
			for _, h := range list {
				state := "away"
				switch {
				case h.Leads:
					state = "leads"
				case h.Joining:
					state = "joining"
				case h.Up:
					state = "up"
				}
				table.Rows = append(table.Rows, []string{dash(h.Name), state, dash(h.Address), dash(h.Peer)})
			}
			text := table.Text()
			for _, h := range list {
				if h.Trouble != "" {
					text += fmt.Sprintf("%s: %s\n", h.Name, h.Trouble)
				}
			}
			_, err = fmt.Fprint(std.out, text)
			return err
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

func removeControllerCommand(std streams) *cobra.Command {
	return &cobra.Command{
		Use:     "remove CONTROLLER",
		Short:   api.Summary("removeController"),
		Example: "  pagurus controller remove head3",
		Args:    cli.Exactly(1, "the name of a controller"),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := dial(cmd)
			if err != nil {
				return err
			}
			defer func() { _ = c.Close() }()
			if err := c.RemoveHead(cmd.Context(), args[0]); err != nil {
				return err
			}
			_, err = fmt.Fprintf(std.out, "removed controller %s\n", args[0])
			return err
		},
	}
}

package cli

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"pagurus/fleet"
	"pagurus/serve/wire"
	"pagurus/show/top"
	"pagurus/show/view"
)

// topRest is between two looks at a cluster that changes all the time: faster than people read.
const topRest = 250 * time.Millisecond

// topCommand is the cluster on one screen.
func (a *app) topCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "top",
		Short: "Watch the cluster on one screen, and drain, move and cancel by keys",
		Long: `Top shows hosts, sites, guests, jobs and moves with their stalls on one screen of a terminal, as
they change. Keys sort, filter and drill down: Enter on a job lists its guests, on a guest its
moves. d drains a host, m moves a guest or a job, c cancels a job or a move: each says what
it will cost, as ` + "`pagurus predict`" + ` does, and asks. ? lists the keys.

With NO_COLOR in the environment it uses no colours.`,
		Example: "  pagurus top",
		Args:    NoArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			in, isFile := a.In.(*os.File)
			out, _ := a.Out.(*os.File)
			if a.json || !isFile || !terminal(a.In) || !terminal(a.Out) {
				return errors.New("top draws on a terminal, which this is not: programs read `pagurus host ls --json`, `job ls`, `guest ls` and `move ls`, with --watch as it changes")
			}
			c, err := a.dial()
			if err != nil {
				return err
			}
			if _, err := c.Snapshot(cmd.Context()); err != nil {
				return err // unreachable from the start: no screen
			}
			err = top.Run(cmd.Context(), watched{a, c}, top.Terminal{In: in, Out: out, Color: os.Getenv("NO_COLOR") == ""})
			if killed := (top.Killed{}); errors.As(err, &killed) {
				return Exit{Code: 128 + int(killed.Signal)}
			}
			return err
		},
	}
}

// watched is the controller of a screen.
type watched struct {
	app    *app
	client *wire.Client
}

// FollowCluster shows the cluster as it changes.
func (w watched) FollowCluster(ctx context.Context, each func(view.Cluster) error, away func(string)) error {
	return followClient(ctx, w.client, newOutage(lines(away)), func(c view.Cluster) (bool, error) {
		if err := each(c); err != nil {
			return true, err
		}
		select {
		case <-ctx.Done():
			return true, ctx.Err()
		case <-time.After(topRest):
			return false, nil
		}
	})
}

// lines takes what is written about an outage.
type lines func(string)

// Write takes one message.
func (l lines) Write(p []byte) (int, error) {
	l(strings.TrimPrefix(strings.TrimSpace(string(p)), "pagurus: "))
	return len(p), nil
}

// Predict says what a request would cost.
func (w watched) Predict(ctx context.Context, r fleet.Request) (fleet.Forecast, error) {
	return w.client.Predict(ctx, r)
}

// Ask makes a request.
func (w watched) Ask(ctx context.Context, r fleet.Request) (fleet.Answer, error) {
	r.ID = fleet.RequestID(rand.Text())
	return w.client.Ask(ctx, r)
}

// Explain explains a guest, a job or a host.
func (w watched) Explain(ctx context.Context, id string) ([]string, error) {
	said, err := w.app.explain(ctx, id)
	if err != nil {
		return nil, fmt.Errorf("explaining %s: %w", id, err)
	}
	return said, nil
}

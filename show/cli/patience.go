// This file waits for a controller that does not answer: a controller restart only delays
// waiting clients.

package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"

	"pagurus/fleet"
	"pagurus/serve/wire"
	"pagurus/show/view"
)

const (
	// outagePatience bounds the controller's absence while a client waits for a job. It is
	// longer than a restart of its machine.
	outagePatience = 10 * time.Minute
	// outageGrace is how long it may be absent before the user gets a message.
	outageGrace = 2 * time.Second
	// outagePause is between two tries to reach it.
	outagePause = 200 * time.Millisecond
)

// refused reports whether the controller has refused the request, so that repeating it is
// useless. Whoever has asked for too much has not been refused for good.
func refused(err error) bool {
	var e *wire.Error
	return errors.As(err, &e) && e.Status < http.StatusInternalServerError && e.Status != http.StatusTooManyRequests
}

// outage is one period in which the controller cannot be reached, shared by all who wait.
type outage struct {
	err io.Writer // gets a message about a long one

	mu    sync.Mutex
	since time.Time // zero: the controller answers
	said  bool
}

// newOutage gives an outage that has not begun. It writes messages to err.
func newOutage(err io.Writer) *outage { return &outage{err: err} }

// Wait is called after an error. It returns nil if another try makes sense, after a pause.
func (o *outage) Wait(ctx context.Context, cause error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if refused(cause) {
		return cause
	}
	o.mu.Lock()
	if o.since.IsZero() {
		o.since = time.Now()
	}
	away := time.Since(o.since)
	if away > outageGrace && !o.said {
		o.said = true
		what := "the controller does not answer"
		if e := (*wire.Error)(nil); errors.As(cause, &e) && e.Status == http.StatusTooManyRequests {
			what = e.Reason
		}
		_, _ = fmt.Fprintf(o.err, "pagurus: %s; jobs run on, trying again\n", what)
	}
	o.mu.Unlock()
	if away > outagePatience {
		return fmt.Errorf("the controller has not answered for %s: %w", view.Took(away), cause)
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(outagePause):
		return nil
	}
}

// Over is called when the controller answers.
func (o *outage) Over() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.said {
		_, _ = fmt.Fprintln(o.err, "pagurus: the controller answers again")
	}
	o.since, o.said = time.Time{}, false
}

// silenceLimit is how long a watched controller may send nothing before it is asked. Agents
// send facts every second, so silence means a broken connection or an idle cluster.
const silenceLimit = 3 * time.Second

// followClient calls each with the cluster at once and after every change, until enough is
// true. It waits through restarts of the controller.
func followClient(ctx context.Context, c *wire.Client, o *outage, each func(view.Cluster) (enough bool, err error)) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	var snapshots <-chan fleet.Snapshot
	for {
		if snapshots == nil {
			var err error
			if snapshots, err = c.Watch(ctx); err != nil { // reconnects by itself from then on
				if err := o.Wait(ctx, err); err != nil {
					return err
				}
				continue
			}
		}
		var s fleet.Snapshot
		select {
		case <-ctx.Done():
			return ctx.Err()
		case s = <-snapshots:
			if ctx.Err() != nil {
				return ctx.Err()
			}
		case <-time.After(silenceLimit):
			var err error
			if s, err = c.Snapshot(ctx); err != nil {
				if err := o.Wait(ctx, err); err != nil {
					return err
				}
				continue
			}
		}
		o.Over()
		if enough, err := each(view.Read(s)); enough || err != nil {
			return err
		}
	}
}

package controller

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"time"

	"pagurus/decide/desired"
	"pagurus/fleet"
	"pagurus/serve/wire"
)

const (
	// signalLimit is how long a signal may take to reach all ranks. A guest gets it after
	// its move.
	signalLimit = time.Minute
	signalPause = 200 * time.Millisecond
)

// signal has guest 0 of a job send a signal to the ranks. It is not stored: a client that
// gets no answer, because this controller ended, asks again with the same ID, and guests
// deliver it once. After an error some ranks may have it.
func (c *Controller) signal(ctx context.Context, q fleet.Request) error {
	number, err := fleet.ReadSignal(q.Signal)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, signalLimit)
	defer cancel()
	ask := wire.Query{Signal: &fleet.Signal{ID: string(q.ID) + q.Asks, Number: number}, To: desired.GuestID(q.Job, 0), Program: q.Job}
	for {
		s, err := c.Snapshot(ctx)
		if err != nil {
			return err
		}
		before := s.Guests[ask.To]
		_, unsent := c.query(ctx, before, ask)
		if unsent == nil {
			return nil
		}
		if s, err = c.Snapshot(ctx); err != nil {
			return err
		} else if now := s.Guests[ask.To]; !unseen(unsent) && before.State != fleet.GuestMoving && now.Home == before.Home && now.State == before.State {
			return &wire.Error{Status: http.StatusConflict, Reason: fmt.Sprintf("job %s was not sent the signal: %v", q.Job, unsent)}
		}
		select {
		case <-time.After(signalPause): // it was moving to another host, or has just begun
		case <-ctx.Done():
			return &wire.Error{Status: http.StatusConflict, Reason: fmt.Sprintf("job %s was not sent the signal within %s; its guests move, try again", q.Job, signalLimit)}
		}
	}
}

// unseen reports that a host has not yet inspected a guest that has just begun there.
func unseen(err error) bool { return strings.Contains(err.Error(), fleet.ErrAbsent.Error()) }

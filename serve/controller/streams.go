package controller

import (
	"context"
	"fmt"
	"net/http"

	"pagurus/decide/access"
	"pagurus/decide/desired"
	"pagurus/fleet"
	"pagurus/serve/wire"
)

// Streams gives access to jobs' streams and checks who may have it.
type Streams struct{ c *Controller }

// Streams gives the jobs' streams.
func (c *Controller) Streams() Streams { return Streams{c} }

// Read gives bytes of a stream to the job's owner and to the host that runs its program.
func (s Streams) Read(ctx context.Context, by fleet.Caller, at wire.Place) ([]byte, bool, error) {
	j, err := s.may(ctx, by, at, false)
	if err != nil {
		return nil, false, err
	}
	st, err := s.c.spool.stream(at.Job, at.Stream)
	if err != nil {
		return nil, false, err
	}
	if access.RoleOf(by) != fleet.UserRole && at.Stream == fleet.Stdin {
		if err := current(j, at); err != nil {
			return nil, false, err
		}
		st.took(at.Offset) // what is before it will not be asked for again
	}
	return st.read(ctx, at.Offset)
}

// may gives the job of a stream, to those who may pass it.
func (s Streams) may(ctx context.Context, by fleet.Caller, at wire.Place, write bool) (fleet.Job, error) {
	snap, err := s.c.Snapshot(context.WithoutCancel(ctx)) // ctx is how long to wait for bytes, maybe not at all
	if err != nil {
		return fleet.Job{}, err
	}
	j, known := snap.Jobs[at.Job]
	if !known {
		return j, &wire.Error{Status: http.StatusNotFound, Reason: fmt.Sprintf("there is no job %s: `pagurus job ls` lists them", at.Job)}
	}
	guest0 := snap.Guests[desired.GuestID(j.ID, 0)]
	if reason := access.MayPass(by, access.Stream{Job: j, Guest0: guest0, Migration: snap.Migrations[guest0.Migration], Name: at.Stream}, write); reason != "" {
		return j, &wire.Error{Status: http.StatusForbidden, Reason: reason}
	}
	return j, nil
}

// Write takes input from the job's owner, and output from the host that runs its program.
func (s Streams) Write(ctx context.Context, by fleet.Caller, at wire.Place, data []byte, eof bool) (int64, error) {
	j, err := s.may(ctx, by, at, true)
	if err != nil {
		return 0, err
	}
	st, err := s.c.spool.stream(at.Job, at.Stream)
	if err != nil {
		return 0, err
	}
	if at.Stream == fleet.Stdin {
		if j.State == fleet.JobEnded {
			return 0, &wire.Error{Status: http.StatusGone, Reason: fmt.Sprintf("job %s has ended and takes no input", j.ID)}
		}
		if !st.awaitReader(ctx) {
			data, eof = nil, false // answer only with the next offset
		}
	} else if err := current(j, at); err != nil {
		return 0, err
	} else {
		return st.deliverOutput(ctx, at, data, eof)
	}
	end, err := st.write(at.Offset, data, eof)
	if err != nil {
		return 0, err
	}
	return st.spread(ctx, end)
}

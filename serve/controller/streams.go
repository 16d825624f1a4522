package controller

import (
	"context"
	"fmt"
	"net/http"

	"pagurus/fleet"
	"pagurus/serve/wire"
)

// Streams gives access to jobs' streams and checks who may have it.
type Streams struct{ c *Controller }

// Streams gives the jobs' streams.
func (c *Controller) Streams() Streams { return Streams{c} }

// Read gives bytes of a stream to the job's owner and to agents.
func (s Streams) Read(ctx context.Context, by fleet.Caller, at wire.Place) ([]byte, bool, error) {
	lead := context.WithoutCancel(ctx) // ctx limits only the wait for bytes, perhaps to nothing
	if _, err := s.c.owned(lead, by, at.Job); err != nil {
		return nil, false, err
	}
	st, err := s.c.spool.stream(at.Job, at.Stream)
	if err != nil {
		return nil, false, err
	}
	if by.Admin && at.Stream == fleet.Stdin {
		st.took(at.Offset) // bytes before it will not be asked for again
	}
	return st.read(ctx, at.Offset)
}

// Write takes input from the job's owner, and output from agents.
func (s Streams) Write(ctx context.Context, by fleet.Caller, at wire.Place, data []byte, eof bool) (int64, error) {
	lead := context.WithoutCancel(ctx)
	j, err := s.c.owned(lead, by, at.Job)
	if err != nil {
		return 0, err
	}
	if at.Stream != fleet.Stdin && !by.Admin {
		return 0, &wire.Error{Status: http.StatusForbidden, Reason: "output is written by agents only"}
	}
	st, err := s.c.spool.stream(at.Job, at.Stream)
	if err != nil {
		return 0, err
	}
	if at.Stream == fleet.Stdin {
		if j.State == fleet.JobEnded {
			return 0, &wire.Error{Status: http.StatusGone, Reason: fmt.Sprintf("job %s has ended and takes no input", j.ID)}
		}
		if !st.room(ctx) {
			data, eof = nil, false // answer only with the next offset
		}
	}
	return st.write(at.Offset, data, eof)
}

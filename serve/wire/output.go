package wire

import (
	"context"
	"net/http"

	"pagurus/fleet"
)

// Output says how much is kept of programs' output, as far as the caller may see it.
type Output func(context.Context, fleet.Caller) (fleet.Output, error)

var errNoOutput = &Error{http.StatusNotImplemented, "this controller does not say how much output it keeps"}

func (s *server) output(id Peer, w http.ResponseWriter, r *http.Request) error {
	if s.Output == nil {
		return errNoOutput
	}
	o, err := s.Output(r.Context(), id.Caller)
	if err != nil {
		return err
	}
	return reply(w, o)
}

// Output says how much is kept of programs' output.
func (c *Client) Output(ctx context.Context) (fleet.Output, error) {
	var o fleet.Output
	err := c.call(ctx, http.MethodGet, "/v1/output", nil, &o)
	return o, err
}

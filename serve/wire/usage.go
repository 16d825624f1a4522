package wire

import (
	"context"
	"net/http"
	"net/url"
	"time"

	"pagurus/fleet"
)

// Usage says what jobs used since a time, as far as the caller may see it.
type Usage func(ctx context.Context, by fleet.Caller, since time.Time) (fleet.UsageAnswer, error)

var errNoUsage = &Error{http.StatusNotImplemented, "this controller does not keep what jobs use"}

func (s *server) usage(id Peer, w http.ResponseWriter, r *http.Request) error {
	if s.Usage == nil {
		return errNoUsage
	}
	since, err := time.Parse(time.RFC3339Nano, r.URL.Query().Get("since"))
	if err != nil {
		return &Error{http.StatusBadRequest, "since is no time: " + err.Error()}
	}
	a, err := s.Usage(r.Context(), id.Caller, since)
	if err != nil {
		return err
	}
	return reply(w, a)
}

// Usage says what jobs used since a time.
func (c *Client) Usage(ctx context.Context, since time.Time) (fleet.UsageAnswer, error) {
	var a fleet.UsageAnswer
	err := c.call(ctx, http.MethodGet, "/v1/usage?since="+url.QueryEscape(since.UTC().Format(time.RFC3339Nano)), nil, &a)
	return a, err
}

package wire

import (
	"context"
	"net"
	"net/http"
)

// Through has the client connect by dial instead of by this machine's network. It is called before the first
// request.
func (c *Client) Through(dial func(context.Context) (net.Conn, error)) {
	t, plain := c.http.Transport.(*http.Transport)
	if !plain {
		t = c.renewal.under.Load()
	}
	t.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) { return dial(ctx) }
}

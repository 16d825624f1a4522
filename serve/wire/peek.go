package wire

import (
	"context"
	"fmt"
	"io"
	"net/http"
)

// PeekStream gives what there is of a stream from a place on now. It does not
// wait for more, as ReadStream does.
func (c *Client) PeekStream(ctx context.Context, at Place) ([]byte, error) {
	r, err := c.send(ctx, http.MethodGet, at.path(), nil)
	if err != nil {
		return nil, err
	}
	defer func() { _ = r.Body.Close() }()
	data, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, fmt.Errorf("reading %s of %s: %w", at.Stream, at.Job, err)
	}
	return data, nil
}

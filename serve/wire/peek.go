package wire

import (
	"context"
	"fmt"
	"io"
	"net/http"
)

// PeekStream gives a stream's bytes from an offset. Unlike ReadStream it does not wait.
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

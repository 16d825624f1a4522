package wire

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"

	"pagurus/fleet"
)

// FetchImageFile copies a file of an image to w.
func (c *Client) FetchImageFile(ctx context.Context, d fleet.Digest, file string, w io.Writer) error {
	return c.fetchFile(ctx, "/v1/images/", d, file, w)
}

func (c *Client) fetchFile(ctx context.Context, under string, d fleet.Digest, file string, w io.Writer) error {
	r, err := c.send(ctx, http.MethodGet, under+url.PathEscape(string(d))+"/"+url.PathEscape(file), nil)
	if err != nil {
		return err
	}
	defer r.Body.Close()
	n, err := io.Copy(w, r.Body)
	if err != nil {
		return fmt.Errorf("fetching %s of image %s: %w", file, d, err)
	}
	if want, err := strconv.ParseInt(r.Header.Get("Content-Length"), 10, 64); err == nil && want != n {
		return fmt.Errorf("fetching %s of image %s: %d of %d bytes came", file, d, n, want)
	}
	return nil
}

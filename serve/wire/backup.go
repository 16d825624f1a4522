package wire

import (
	"context"
	"io"
	"net/http"

	"pagurus/decide/access"
	"pagurus/fleet"
)

// Backup writes a backup of the cluster. It calls begin once nothing but the writing can fail any
// more; what was begun and is cut off is no backup, and its reader notices.
type Backup func(ctx context.Context, begin func() io.Writer) error

// backup is answered on this machine alone: a backup holds the authority's key, which does not
// leave the machine by any network.
func (s *server) backup(id Peer, w http.ResponseWriter, r *http.Request) error {
	if id.From != "" {
		return &Error{http.StatusForbidden, "a backup holds the cluster's keys: make it on the controller's own machine"}
	}
	if s.Backup == nil {
		return &Error{http.StatusNotImplemented, "this controller makes no backups"}
	}
	begun := false
	err := s.Backup(r.Context(), func() io.Writer {
		begun = true
		w.Header().Set("Content-Type", "application/x-tar")
		return w
	})
	s.record(id, fleet.AuditRecord{Did: string(access.BackUp)}, err)
	if begun && err != nil {
		s.Log.Warn("a backup was cut off", "cause", err)
		return nil
	}
	return err
}

// Backup reads a backup of the cluster, an archive that is not compressed. The caller closes it.
func (c *Client) Backup(ctx context.Context) (io.ReadCloser, error) {
	r, err := c.send(ctx, http.MethodGet, "/v1/backup", nil)
	if err != nil {
		return nil, err
	}
	return r.Body, nil
}

package wire

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"

	"pagurus/decide/access"
	"pagurus/fleet"
)

// Audit keeps who did what.
type Audit interface {
	Append(fleet.AuditRecord) error
	// Read gives each record since a time, oldest first, and counts what is damaged.
	Read(ctx context.Context, since time.Time, each func(fleet.AuditRecord) error) (damaged int, err error)
}

// Of refusals only so many are kept, since whoever may do nothing may try it often.
const (
	refusalsEvery  = 100 * time.Millisecond // on average, of each caller
	refusalsAtOnce = 100
	// recordedBytes is the most of each text. What a caller names may be as long as a request, and who may do
	// nothing could fill the disk with it.
	recordedBytes = 1 << 10
)

// record keeps what a caller did, or why it was not done. It is in the log as well, should the
// disk be full.
func (s *server) record(id Peer, r fleet.AuditRecord, err error) {
	if s.Audit == nil {
		return
	}
	r.At, r.By, r.From, r.On = time.Now(), id.Caller, id.From, clippedTo(r.On, recordedBytes)
	switch e := (*Error)(nil); {
	case err == nil:
	case !errors.As(err, &e) || e.Status >= http.StatusInternalServerError:
		r.Failed = clippedTo(err.Error(), recordedBytes)
	default:
		if r.Refused = clippedTo(e.Error(), recordedBytes); s.paces.refusals.TakeTokens(id.name()+r.From, 1, r.At) > 0 {
			return
		}
	}
	s.Log.Info("audit", "who", r.Who(), "from", r.From, "did", r.Did, "on", r.On, "result", r.Result())
	if err := s.Audit.Append(r); err != nil {
		s.Log.Error("what was done could not be kept", "who", r.Who(), "did", r.Did, "on", r.On, "cause", err)
	}
}

// recordForbidden keeps that somebody tried what they may not do.
func (s *server) recordForbidden(id Peer, what access.Call, r *http.Request, err error) {
	if e := (*Error)(nil); errors.As(err, &e) && e.Status == http.StatusForbidden {
		s.record(id, fleet.AuditRecord{Did: string(what), On: r.URL.Path}, err)
	}
}

// AuditLine is a line of the answer to a question for the audit.
type AuditLine struct {
	Record  *fleet.AuditRecord `json:"record,omitempty"`
	Damaged int                `json:"damaged,omitempty"` // in the last line: how many records could not be read
	End     bool               `json:"end,omitempty"`     // it is the last line
}

var errNoAudit = &Error{http.StatusNotImplemented, "this controller keeps no audit"}

func (s *server) audit(_ Peer, w http.ResponseWriter, r *http.Request) error {
	if s.Audit == nil {
		return errNoAudit
	}
	since, err := time.Parse(time.RFC3339Nano, r.URL.Query().Get("since"))
	if err != nil {
		return &Error{http.StatusBadRequest, "since is no time: " + err.Error()}
	}
	w.Header().Set("Content-Type", "application/x-ndjson")
	lines := json.NewEncoder(w)
	damaged, err := s.Audit.Read(r.Context(), since, func(rec fleet.AuditRecord) error { return lines.Encode(AuditLine{Record: &rec}) })
	if err != nil {
		s.Log.Warn("the audit was not read to its end", "cause", err)
		return nil // the reader misses the last line
	}
	_ = lines.Encode(AuditLine{Damaged: damaged, End: true}) // the reader may be gone
	return nil
}

// Audit gives each record since a time, oldest first. damaged: how many could not be read.
func (c *Client) Audit(ctx context.Context, since time.Time, each func(fleet.AuditRecord) error) (damaged int, err error) {
	r, err := c.send(ctx, http.MethodGet, "/v1/audit?since="+url.QueryEscape(since.UTC().Format(time.RFC3339Nano)), nil)
	if err != nil {
		return 0, err
	}
	defer r.Body.Close()
	for lines := json.NewDecoder(r.Body); ; {
		var line AuditLine
		switch err := lines.Decode(&line); {
		case errors.Is(err, io.EOF):
			return damaged, errors.New("the audit was cut off: the controller's log says why")
		case err != nil:
			return damaged, fmt.Errorf("reading the audit: %w", err)
		case line.End:
			return line.Damaged, nil
		case line.Record == nil:
			continue
		}
		if err := each(*line.Record); err != nil {
			return damaged, err
		}
	}
}

package api

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"time"

	"pagurus/fleet"
	"pagurus/serve/wire"
	"pagurus/show/view"
)

// How far back is read if nothing is said.
const (
	auditSpan = 24 * time.Hour
	usageSpan = 30 * 24 * time.Hour
)

// mostRecords bounds an answer; whoever wants more asks again from the last one.
const mostRecords = 10_000

// since is the time that a query names, or so long ago.
func since(q Asked, span time.Duration) (time.Time, error) {
	said := q.Query.Get("since")
	if said == "" {
		return time.Now().Add(-span), nil
	}
	at, err := time.Parse(time.RFC3339Nano, said)
	if err != nil {
		return at, &wire.Error{Status: http.StatusBadRequest, Reason: fmt.Sprintf("since is not a time like 2026-01-31T15:00:00Z: %q", said)}
	}
	return at, nil
}

func readAudit(ctx context.Context, c Cluster, q Asked) ([]fleet.AuditRecord, error) {
	from, err := since(q, auditSpan)
	if err != nil {
		return nil, err
	}
	out := []fleet.AuditRecord{}
	_, err = c.Audit(ctx, from, func(r fleet.AuditRecord) error {
		if len(out) < mostRecords {
			out = append(out, r)
		}
		return nil
	})
	return out, err
}

func readUsage(ctx context.Context, c Cluster, q Asked) (out UsageReport, err error) {
	out.By = orSame(q.Query.Get("by"), string(view.UsageByUser))
	if !slices.Contains(view.UsageBys, out.By) {
		return out, wrong("by is one of %v, not %q", view.UsageBys, out.By)
	}
	if out.Since, err = since(q, usageSpan); err != nil {
		return out, err
	}
	used, err := c.Usage(ctx, out.Since)
	out.Since, out.Until, out.NoPower = out.Since.UTC(), used.At, used.NoPower
	out.Rows = view.UsageRows(used, view.UsageBy(out.By), fleet.HostID(q.Query.Get("host")))
	return out, err
}

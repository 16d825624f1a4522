package api

import (
	"context"
	"encoding/csv"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os/user"
	"slices"
	"strconv"
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

// MachineNames are the users and groups that this machine knows.
var MachineNames = view.Names{User: userName, Group: groupName}

func userName(uid uint32) string {
	if u, err := user.LookupId(strconv.FormatUint(uint64(uid), 10)); err == nil {
		return u.Username
	}
	return ""
}

func groupName(gid uint32) string {
	if g, err := user.LookupGroupId(strconv.FormatUint(uint64(gid), 10)); err == nil {
		return g.Name
	}
	return ""
}

// Parameters of what was used.
var (
	usedSince = Parameter{"since", "string", "RFC 3339; 30 days ago if it is left out"}
	usedBy    = Parameter{"by", "string", "user, job or host; user if it is left out"}
	usedOf    = Parameter{"user", "string", "only this user's: a name as listUsers has it, or a uid"}
	usedOn    = Parameter{"host", "string", "only what was used there"}
)

// used reads what a query asks for.
func used(ctx context.Context, c Cluster, q url.Values) (a fleet.UsageAnswer, from time.Time, err error) {
	if from, err = since(Asked{Query: q}, usageSpan); err != nil {
		return a, from, err
	}
	if a, err = c.Usage(ctx, from); err != nil || q.Get("user") == "" {
		return a, from, err
	}
	if a, err = view.OnlyUser(a, q.Get("user")); err != nil {
		return a, from, &wire.Error{Status: http.StatusUnprocessableEntity, Reason: err.Error()}
	}
	return a, from, nil
}

func readUsage(ctx context.Context, c Cluster, q Asked) (out UsageReport, err error) {
	out.By = orSame(q.Query.Get("by"), string(view.UsageByUser))
	if !slices.Contains(view.UsageBys, out.By) {
		return out, wrong("by is one of %v, not %q", view.UsageBys, out.By)
	}
	a, from, err := used(ctx, c, q.Query)
	if err != nil {
		return out, err
	}
	out.Since, out.Until, out.NoPower = from.UTC(), a.At, a.NoPower
	out.Rows = view.UsageRows(a, view.UsageBy(out.By), fleet.HostID(q.Query.Get("host")))
	return out, nil
}

// exportUsage writes the rows of readUsage as comma-separated values.
func exportUsage(c *call) error {
	report, err := readUsage(c.r.Context(), c.by, Asked{Query: c.r.URL.Query()})
	if err != nil {
		return err
	}
	c.w.Header().Set("Content-Type", "text/csv; charset=utf-8; header=present")
	c.w.Header().Set("Content-Disposition", `attachment; filename="usage.csv"`)
	_ = csv.NewWriter(c.w).WriteAll(view.UsageCSV(report.Rows)) // the client may be gone
	return nil
}

// exportSacct writes a line for each job that has ended, for importers of Slurm's.
func exportSacct(c *call) error {
	a, from, err := used(c.r.Context(), c.by, c.r.URL.Query())
	if err != nil {
		return err
	}
	c.w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	c.w.Header().Set("Content-Disposition", `attachment; filename="jobs.log"`)
	for _, line := range view.SacctLines(a, from, MachineNames) {
		_, _ = io.WriteString(c.w, line+"\n") // the client may be gone
	}
	return nil
}

package controller

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"pagurus/decide/lifecycle"
	"pagurus/decide/stall"
	"pagurus/fleet"
	"pagurus/internal/note"
	"pagurus/serve/wire"
)

const (
	traceLimit = 10 * time.Second // how long agents have to answer
	// stallAfter is the delay between a move and the query to the job's ranks: a gap is
	// known only when it is over.
	stallAfter = 2 * time.Second
	// stallUntil bounds the tries: ranks remember each second of the last few minutes.
	stallUntil = 2 * time.Minute
	stallTries = 3
	stallsMost = 4 // queries at the same time: they take the guests' time
	// longestGap bounds gaps so that their sums stay durations.
	longestGap = 10000 * time.Hour
	mostSpans  = 256 // of a rank

	tracePrefix = "trace." // of the files beside a job's streams, one per guest
)

// Trace gives the MPI traces of a job's ranks: from the agents of its guests, or for stopped
// guests from their last report.
func (c *Controller) Trace(ctx context.Context, by fleet.Caller, id fleet.JobID) ([]fleet.Trace, error) {
	j, err := c.owned(ctx, by, id)
	if err != nil {
		return nil, err
	}
	if !j.Spec.Trace {
		return nil, &wire.Error{Status: http.StatusConflict, Reason: fmt.Sprintf("job %s is not traced, since it was submitted with --"+fleet.NoTraceFlag, id)}
	}
	s := c.current.Load()
	traces := c.spool.traces(id)
	var failure error
	if j.State == fleet.JobRunning || j.State == fleet.JobStopping {
		var live []fleet.Trace
		live, failure = c.askTraces(ctx, *s, id, fleet.TraceQuery{})
		traces = append(live, traces...)
	}
	if failure != nil && len(traces) == 0 {
		return nil, &wire.Error{Status: http.StatusGatewayTimeout, Reason: failure.Error()}
	}
	traces = stall.Explain(byRank(traces), migrationsOf(*s, id))
	for i := range traces {
		traces[i].Seconds = nil // for stalls, not for people
	}
	return traces, nil
}

// byRank sorts traces, and drops all but those of the latest program: a job may run several
// one after the other, with a rank in another guest before.
func byRank(traces []fleet.Trace) []fleet.Trace {
	slices.SortStableFunc(traces, func(a, b fleet.Trace) int { return cmp.Or(cmp.Compare(a.Rank, b.Rank), b.Begun.Compare(a.Begun)) })
	var youngest fleet.Trace
	for _, t := range traces {
		if t.Begun.After(youngest.Begun) {
			youngest = t
		}
	}
	traces = slices.CompactFunc(traces, func(a, b fleet.Trace) bool { return a.Rank == b.Rank })
	return slices.DeleteFunc(traces, func(t fleet.Trace) bool { return youngest.Ranks > 0 && t.Rank >= youngest.Ranks })
}

func migrationsOf(s fleet.Snapshot, id fleet.JobID) []fleet.Migration {
	var out []fleet.Migration
	for _, m := range s.Migrations {
		if m.Job == id {
			out = append(out, m)
		}
	}
	return out
}

// askTraces asks the agents of a job's guests. With an error it also gives the traces that
// came.
func (c *Controller) askTraces(ctx context.Context, s fleet.Snapshot, id fleet.JobID, q fleet.TraceQuery) ([]fleet.Trace, error) {
	ctx, cancel := context.WithTimeout(ctx, traceLimit)
	defer cancel()
	type part struct {
		traces []fleet.Trace
		err    error
	}
	parts := make(chan part)
	asked := 0
	for _, g := range s.Guests {
		if g.Job != id || g.State.Ended() {
			continue
		}
		asked++
		go func() {
			traces, err := c.guestTraces(ctx, g, q)
			parts <- part{traces, err}
		}()
	}
	var out []fleet.Trace
	var failures []error
	for range asked {
		p := <-parts
		out = append(out, p.traces...)
		if p.err != nil {
			failures = append(failures, p.err)
		}
	}
	return byRank(out), errors.Join(failures...)
}

// guestTraces asks the agent of the guest's host.
func (c *Controller) guestTraces(ctx context.Context, g fleet.Guest, q fleet.TraceQuery) ([]fleet.Trace, error) {
	r, err := c.query(ctx, g, wire.Query{Trace: g.ID, About: q})
	if err != nil {
		return nil, err
	}
	return plausible(r.Traces, g.ID), nil
}

// plausible sets the traces' guest and bounds their values: guests may send anything.
func plausible(traces []fleet.Trace, g fleet.GuestID) []fleet.Trace {
	sane := func(d time.Duration) time.Duration { return min(max(d, 0), longestGap) }
	for i := range traces {
		t := &traces[i]
		t.Guest, t.Elapsed, t.Outside, t.Normal = g, sane(t.Elapsed), sane(t.Outside), sane(t.Normal)
		for k := range t.Gaps {
			t.Gaps[k].Rank, t.Gaps[k].Took = t.Rank, sane(t.Gaps[k].Took)
		}
		for k := range t.Seconds {
			t.Seconds[k] = sane(t.Seconds[k])
		}
		t.SpanLength = sane(t.SpanLength)
		for c, shares := range t.Spans {
			t.Spans[c] = shares[:min(len(shares), mostSpans)]
		}
		for k := range t.Newest {
			t.Newest[k].Took = sane(t.Newest[k].Took)
		}
	}
	return traces
}

// stalls tracks queries for migrations' stalls.
type stalls struct {
	tries map[fleet.MigrationID]int
	under int // queries under way
}

// measureStalls asks the ranks of jobs whose guests have moved for the stall, while they can
// be asked. It runs in the loop and does not wait.
func (c *Controller) measureStalls(ctx context.Context) {
	at := now()
	for id, m := range c.snap().Migrations {
		since := at.Sub(m.Since)
		if m.Phase != fleet.Finished || m.Stall != nil || since < stallAfter {
			continue
		}
		j := c.snap().Jobs[m.Job]
		if since > stallUntil || !j.Spec.Trace {
			delete(c.stalls.tries, id)
			continue
		}
		if j.State == fleet.JobStopping { // soon everything is known
			continue
		}
		if c.stalls.under >= stallsMost || c.stalls.tries[id] >= stallTries {
			continue
		}
		c.stalls.tries[id]++
		c.stalls.under++
		go c.measureStall(ctx, c.whole(), m)
	}
}

// measureStall asks about one migration and records the answer. Without an answer it is
// tried again.
func (c *Controller) measureStall(ctx context.Context, s fleet.Snapshot, m fleet.Migration) {
	var seen fleet.Stall
	q, ok := stall.Window(m)
	if ok {
		traces, err := c.spool.traces(m.Job), error(nil)
		if s.Jobs[m.Job].State != fleet.JobEnded {
			traces, err = c.askTraces(ctx, s, m.Job, q)
		}
		if err != nil {
			c.Log.Debug("not all ranks sent their traces of a move", "migration", m.ID, "cause", err)
		}
		seen, ok = stall.Measure(m, migrationsOf(s, m.Job), traces)
	}
	// After the loop's end this is not needed.
	_ = c.do(ctx, forItself, func(ctx context.Context) {
		c.stalls.under--
		if ok {
			c.record(ctx, m.ID, seen)
		}
	})
}

func (c *Controller) record(ctx context.Context, id fleet.MigrationID, seen fleet.Stall) {
	delete(c.stalls.tries, id)
	_, err := c.step(ctx, fleet.Observation{At: now(), Migration: id, Stall: &seen})
	c.noteStoreError(err)
}

// lastWords keeps the traces of a stopped guest's ranks. Reports that count for nothing else come
// here too: traces are taken from the host that was told to stop the guest, and from no other.
func (c *Controller) lastWords(r fleet.Report) {
	g, ok := c.snap().Guests[r.Order.Guest]
	if len(r.Traces) == 0 || !ok || !lifecycle.ToldToStop(g, r.Order) {
		return
	}
	if err := c.spool.keepTraces(g.Job, g.ID, plausible(r.Traces, g.ID)); err != nil {
		c.Log.Warn("the traces of a guest's ranks are not kept", "guest", g.ID, "cause", err)
	}
}

// keepTraces keeps a guest's traces until its job is forgotten. After an error the earlier
// ones remain, or none.
func (s *spool) keepTraces(job fleet.JobID, g fleet.GuestID, traces []fleet.Trace) error {
	text, err := json.Marshal(traces)
	if err != nil {
		return fmt.Errorf("encoding traces: %w", err)
	}
	if !jobForm.MatchString(string(job)) || !jobForm.MatchString(string(g)) {
		return fmt.Errorf("guest %q of job %q cannot have a file of its own", g, job)
	}
	path := filepath.Join(s.dir, string(job), tracePrefix+string(g))
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return fmt.Errorf("keeping traces: %w", err)
	}
	if err := note.Write(path, text, 0o600); err != nil {
		return fmt.Errorf("keeping traces: %w", err)
	}
	return nil
}

// traces gives a job's kept traces, by rank. Unreadable files are skipped.
func (s *spool) traces(job fleet.JobID) []fleet.Trace {
	if !jobForm.MatchString(string(job)) {
		return nil
	}
	files, err := os.ReadDir(filepath.Join(s.dir, string(job)))
	if err != nil {
		return nil
	}
	var out []fleet.Trace
	for _, f := range files {
		if !strings.HasPrefix(f.Name(), tracePrefix) {
			continue
		}
		text, err := os.ReadFile(filepath.Join(s.dir, string(job), f.Name()))
		var traces []fleet.Trace
		if err == nil && json.Unmarshal(text, &traces) == nil {
			out = append(out, traces...)
		}
	}
	return byRank(out)
}

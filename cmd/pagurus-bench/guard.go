package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"pagurus/bench"
	"pagurus/bench/drive"
)

const (
	guardRecord = "dist/bench-guard.json"
	figuresKept = "docs/figures"
)

// guarded is a part whose figures matter to users, and what of it is looked at.
type guarded struct {
	part    string
	arms    []string // nil: all
	samples []string // that are judged
	record  string   // in docs/figures, whose commit it is held against; empty: since
	since   string   // a commit, where there is no record
	turns   int      // of each commit
}

// guardedParts take about forty minutes on two CPUs: virtual machines are emulated there. Moves by hand, and
// comparisons without Pagurus in them, are left out: they are the same of both commits.
var guardedParts = []guarded{
	{"container-small", nil, []string{"small_running_s", "small_suspended_s", "small_stall_s"}, "container-small", "", 6},
	{"container-sizes", []string{"500 MiB ours"}, []string{"500 MiB ours_running_s", "500 MiB ours_stall_s"}, "container-sizes", "", 4},
	{"container-start", nil, []string{"container_run_s"}, "container-start", "", 6},
	{"start", []string{"run"}, []string{"run_s"}, "container-start", "", 3},
	{"stall", []string{"stall_move"}, []string{"stall_move_s"}, "stall", "", 3},
	{"stall-container", []string{"stall_container"}, []string{"stall_container_s"}, "stall", "", 3},
	{"page-cache", []string{"page_cache_move"}, []string{"page_cache_move_s", "page_cache_move_bytes"}, "page-cache", "", 3},
	{"checkpoint-stop", nil, []string{"vm_stop_s", "container_stop_s"}, "checkpoint-stop", "", 3},
	{"encryption", []string{"encrypted"}, []string{"encrypted_latency_s", "encrypted_transfer_s", "encrypted_move_s"}, "encryption", "", 3},
	{"idle", nil, []string{"idle_agent_none_mib", "idle_agent_one_mib", "idle_agent_one_cpu_percent"}, "idle", "", 3},
	{"simulate", nil, []string{"simulate_s"}, "", "0d52e18e", 6},
}

// held is a guarded part with the commit that it is held against.
type heldPart struct {
	guarded
	older older
}

// guards are the parts that are asked for, with the commits of their records, which are built.
func (b *experiments) guards(ctx context.Context, a asked) (all []heldPart, err error) {
	if err := buildHere(ctx); err != nil {
		return nil, err
	}
	for _, g := range guardedParts {
		if a.only != "" && g.part != a.only {
			continue
		}
		h := heldPart{guarded: g}
		name, last := g.since, ""
		if g.record != "" {
			if name, last, err = commitOfRecord(ctx, filepath.Join(figuresKept, g.record+".json")); err != nil {
				return nil, err
			}
		}
		h.older, err = openOlder(ctx, name)
		if err != nil && last != "" && ctx.Err() == nil {
			fmt.Printf("%s: %v: the last commit of its record, %s, is taken instead\n", g.part, err, last)
			h.older, err = openOlder(ctx, last)
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", g.part, err)
		}
		all = append(all, h)
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("%s is none of the figures that are guarded", a.only)
	}
	return all, nil
}

// commitOfRecord is the commit that a record's newest figures are of, without what says that files
// differed from it, and the last that changed the record.
func commitOfRecord(ctx context.Context, file string) (commit, last string, err error) {
	r, err := bench.Load(file)
	if err != nil {
		return "", "", err
	}
	out, err := exec.CommandContext(ctx, "git", "log", "-1", "--format=%h", "--", file).Output()
	if err != nil {
		return "", "", fmt.Errorf("asking git for the last commit of %s: %w", file, err)
	}
	commit = r.Machine.Commit
	if n := len(r.Sittings); n > 0 {
		commit = r.Sittings[n-1].Commit
	}
	return strings.TrimSuffix(commit, "-dirty"), strings.TrimSpace(string(out)), nil
}

// guard measures parts one after another, each against its commit, and prints one table. A part that
// cannot be measured does not keep others from it.
func (b *experiments) guard(ctx context.Context, a asked, parts []heldPart) error {
	var errs []error
	begun, commits := time.Now(), []string{}
	for _, p := range parts {
		if !slices.Contains(commits, p.older.commit) {
			commits = append(commits, p.older.commit)
		}
		turns := p.turns
		if b.Repeat > 0 {
			turns = b.Repeat
		}
		b.Forget(p.part)
		b.Arms = p.arms
		if err := b.against(ctx, p.part, turns, p.older); err != nil {
			errs = append(errs, err)
		}
		for _, left := range b.Left {
			errs = append(errs, fmt.Errorf("of %s: %s", p.older.commit, left))
		}
		b.Left = nil
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
	b.Record.Sittings[len(b.Record.Sittings)-1].Against = strings.Join(commits, ", ")
	changes := matter(b.Record.Changes(a.tolerance))
	b.promiseChanges(changes)
	table := guardTable(drive.Commit(), time.Now().UTC(), changes, errs)
	fmt.Printf("\nafter %s:\n%s", time.Since(begun).Round(time.Second), table)
	errs = append(errs, os.WriteFile(strings.TrimSuffix(a.out, ".json")+".txt", []byte(table), 0o644))
	return errors.Join(append(errs, worse(changes))...)
}

// matter are those changes that are judged.
func matter(all []bench.Change) []bench.Change {
	return slices.DeleteFunc(all, func(c bench.Change) bool {
		return !slices.ContainsFunc(guardedParts, func(g guarded) bool { return g.part == c.Part && slices.Contains(g.samples, c.Sample) })
	})
}

// guardTable has what became of all figures.
func guardTable(commit string, at time.Time, changes []bench.Change, errs []error) string {
	var text bytes.Buffer
	fmt.Fprintf(&text, "Figures of %s beside those of the commits of their records, in turn, on %s.\n", commit, at.Format("2006-01-02"))
	if len(changes) > 0 {
		fmt.Fprintf(&text, "Ratios below 1 are better. A figure got worse if the whole interval (%.0f %%) is above %g.\n\n", 100*bench.Confidence, changes[0].Tolerance)
	}
	w := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "PART\tFIGURE\tAGAINST\tWAS\tIS\tRATIO\tINTERVAL\tTURNS\tVERDICT")
	for _, c := range changes {
		if c.Failure != "" {
			fmt.Fprintf(w, "%s\t%s\t%s\t\t\t\t\t\tno ratio: %s\n", c.Part, c.Sample, c.Commit, c.Failure)
			continue
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%.3g\t%.3g\t%.2f\t%.2f to %.2f\t%d\t%s\n", c.Part, c.Sample, c.Commit, c.Was, c.Is, c.Ratio.Value, c.Ratio.Low, c.Ratio.High, c.Ratio.Samples, c.Verdict())
	}
	_ = w.Flush() // to memory
	for _, err := range errs {
		fmt.Fprintf(&text, "not measured: %v\n", err)
	}
	return text.String()
}

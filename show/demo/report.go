package demo

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"pagurus/fleet"
)

// run is what was seen of the program with its two melts.
type run struct {
	job          fleet.Job
	final        fleet.Snapshot
	gaps         []fleet.Gap
	from, until  time.Time     // of the undisturbed melt's steps
	quiet, moved time.Duration // what LAMMPS says the steps took
	places       map[fleet.GuestID][]place
}

// place says since when a guest was at home on a host.
type place struct {
	host fleet.HostID
	at   time.Time
}

// note remembers where the job's guests are if that has changed.
func (r *run) note(s fleet.Snapshot, job fleet.JobID) {
	if r.places == nil {
		r.places = map[fleet.GuestID][]place{}
	}
	for id, g := range s.Guests {
		if g.Job != job {
			continue
		}
		if seen := r.places[id]; len(seen) == 0 || seen[len(seen)-1].host != g.Home {
			r.places[id] = append(seen, place{g.Home, s.At})
		}
	}
}

// silence is the longest gap any rank saw in the undisturbed melt; ok is false
// when no rank told of one.
func (r *run) silence() (longest time.Duration, ok bool) {
	for _, g := range r.gaps {
		if g.At.After(r.from) && g.At.Add(g.Took).Before(r.until) {
			longest, ok = max(longest, g.Took), true
		}
	}
	return longest, ok
}

func report(w io.Writer, r run, same comparison, took time.Duration) {
	fmt.Fprintln(w)
	t := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	fmt.Fprintln(t, "GUEST\tWAS ON")
	start := r.job.Started
	for _, id := range sortedKeys(r.places) {
		var where []string
		for _, p := range r.places[id] {
			if at := p.at.Sub(start); at > 0 && len(where) > 0 {
				where = append(where, fmt.Sprintf("%s from %.1f s", p.host, at.Seconds()))
			} else {
				where = append(where, string(p.host))
			}
		}
		fmt.Fprintf(t, "%s\t%s\n", id, strings.Join(where, ", "))
	}
	fmt.Fprintln(t, "\nGUEST\tFROM\tTO\tTOTAL TIME\tDOWNTIME\tSTALL\tSENT")
	for _, m := range migrations(r) {
		total := "under way"
		if n := len(m.Entered); n > 0 && m.Phase.Ended() {
			total = millis(m.Entered[n-1].At.Sub(m.Entered[0].At))
		}
		seen := "not known"
		if m.Stall != nil {
			seen = millis(m.Stall.Took)
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\t%.0f MiB\n", m.Guest, m.From, m.To, total, millis(m.Cost.Downtime), seen,
			float64(m.Cost.SentBytes)/(1<<20))
	}
	t.Flush()
	beside := "" // what a stall is to be held against
	if s, ok := r.silence(); ok {
		beside = "; the longest silence of a rank undisturbed was " + millis(s)
	}
	fmt.Fprintf(w, "\nThe steps took %.1f s undisturbed and %.1f s with %d moves%s.\n", r.quiet.Seconds(), r.moved.Seconds(), len(migrations(r)), beside)
	if same.Differs == "" {
		fmt.Fprintf(w, "The results are equal: all %d lines of the two logs that are not timings, %d of them thermodynamic.\n", same.Lines, same.Thermo)
	} else {
		fmt.Fprintf(w, "THE RESULTS DIFFER: %s\n", same.Differs)
	}
	fmt.Fprintf(w, "All of it took %.0f s.\n", took.Seconds())
}

func migrations(r run) []fleet.Migration {
	var out []fleet.Migration
	for _, m := range r.final.Migrations {
		if m.Job == r.job.ID {
			out = append(out, m)
		}
	}
	slices.SortFunc(out, func(a, b fleet.Migration) int { return a.Entered[0].At.Compare(b.Entered[0].At) })
	return out
}

func millis(d time.Duration) string { return fmt.Sprintf("%d ms", d.Milliseconds()) }

func sortedKeys[V any](m map[fleet.GuestID]V) []fleet.GuestID {
	out := make([]fleet.GuestID, 0, len(m))
	for k := range m {
		out = append(out, k)
	}
	slices.Sort(out)
	return out
}

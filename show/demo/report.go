package demo

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"pagurus/fleet"
)

// run is what the demo saw of the program with its two melts.
type run struct {
	job                fleet.Job
	final              fleet.Snapshot
	gaps               []fleet.Gap
	from, until        time.Time     // of the undisturbed melt's steps
	undisturbed, moved time.Duration // the steps' duration as LAMMPS reports it
	without            time.Duration // from a host's loss of power until the job ran again
	log                string        // of the undisturbed melt
	steps              int
	places             map[fleet.GuestID][]place
}

// place is a guest's home since a time.
type place struct {
	host fleet.HostID
	at   time.Time
}

// noteHosts notes the homes of the job's guests if they have changed.
func (r *run) noteHosts(s fleet.Snapshot, job fleet.JobID) {
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

// undisturbedGap is the longest gap of any rank in the undisturbed melt; ok is false if there is
// none.
func (r *run) undisturbedGap() (longest time.Duration, ok bool) {
	for _, g := range r.gaps {
		if g.At.After(r.from) && g.At.Add(g.Took).Before(r.until) {
			longest, ok = max(longest, g.Took), true
		}
	}
	return longest, ok
}

func report(w io.Writer, r run, same comparison) {
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
	if r.without > 0 {
		t.Flush()
		fmt.Fprintf(w, "\nThe job ran again %.1f s after the power was cut.\n", r.without.Seconds())
		equal(w, same)
		return
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
	beside := "" // for comparison with the stalls
	if s, ok := r.undisturbedGap(); ok {
		beside = "; the longest gap of a rank undisturbed was " + millis(s)
	}
	fmt.Fprintf(w, "\nThe steps took %.1f s undisturbed and %.1f s with %d moves%s.\n", r.undisturbed.Seconds(), r.moved.Seconds(), len(migrations(r)), beside)
	equal(w, same)
}

func equal(w io.Writer, same comparison) {
	if same.Differs == "" {
		fmt.Fprintf(w, "The results are equal: all %d lines of the two logs that are not timings, %d of them thermodynamic.\n", same.Lines, same.Thermo)
	} else {
		fmt.Fprintf(w, "THE RESULTS DIFFER: %s\n", same.Differs)
	}
}

// beside prints what the same work and the moves took in the two kinds of guests. It
// compares their results as far as both go, and returns an error if these differ.
func beside(w io.Writer, vm, container run) error {
	t := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	fmt.Fprintln(t, "\n\tVM\tCONTAINER")
	row := func(what string, of func(run) time.Duration) {
		fmt.Fprintf(t, "%s\t%s\t%s\n", what, brief(of(vm)), brief(of(container)))
	}
	row("from run to the program's start", func(r run) time.Duration { return r.job.Started.Sub(r.job.Submitted) })
	row("a step, undisturbed", func(r run) time.Duration { return r.undisturbed / time.Duration(max(r.steps, 1)) })
	for _, c := range []struct {
		what string
		of   func(fleet.Migration) time.Duration
	}{
		{"longest total time of a move", func(m fleet.Migration) time.Duration {
			return m.Entered[len(m.Entered)-1].At.Sub(m.Entered[0].At)
		}},
		{"longest downtime", func(m fleet.Migration) time.Duration { return m.Cost.Downtime }},
		{"longest stall", func(m fleet.Migration) time.Duration {
			if m.Stall == nil {
				return 0
			}
			return m.Stall.Took
		}},
	} {
		row(c.what, func(r run) (most time.Duration) {
			for _, m := range migrations(r) {
				most = max(most, c.of(m))
			}
			return most
		})
	}
	t.Flush()
	one, two := thermo(vm.log), thermo(container.log)
	n := min(len(one), len(two))
	for i := range n {
		if one[i] != two[i] {
			return fmt.Errorf("the results of the two kinds differ: %q in virtual machines, %q in containers", one[i], two[i])
		}
	}
	if n == 0 {
		return errors.New("one of the two logs has no thermodynamic output")
	}
	fmt.Fprintf(w, "\nThe results of the two kinds are equal: all %d thermodynamic lines that both have.\n", n)
	return nil
}

// brief writes a duration in a fitting unit.
func brief(d time.Duration) string {
	switch {
	case d >= 10*time.Second:
		return fmt.Sprintf("%.1f s", d.Seconds())
	case d >= 10*time.Millisecond:
		return millis(d)
	}
	return fmt.Sprintf("%.2f ms", 1e3*d.Seconds())
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

package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"pagurus/bench"
)

// record has every run that was kept, oldest first. It only grows: a run that found something
// stays, with the commit that mended it.
type record struct {
	Runs []entry `json:"runs"`
}

// entry is one run in the record.
type entry struct {
	Kind   string       `json:"kind"`
	Seed   uint64       `json:"seed"`
	Commit string       `json:"commit"`
	Began  time.Time    `json:"began"`
	Took   int          `json:"took_s"`
	Faults map[kind]int `json:"faults"` // that were injected
	Counts tally        `json:"counts"`
	Found  string       `json:"found,omitempty"` // why the run failed, in one line
	After  string       `json:"after,omitempty"` // what was done about it: people write it
}

// mostFound is how much of a finding the record has.
const mostFound = 300

// entryOf is the record's part of a report.
func entryOf(r report) entry {
	e := entry{Kind: r.Kind, Seed: r.Seed, Commit: r.Commit, Began: r.Began.UTC().Truncate(time.Second), Took: int(r.Took / time.Second), Faults: map[kind]int{}, Counts: r.Counts}
	for _, k := range r.Faults {
		e.Faults[k.Kind]++
	}
	if text := []rune(strings.Join(strings.Fields(r.Wrong), " ")); len(text) > mostFound {
		e.Found = string(text[:mostFound]) + "…"
	} else {
		e.Found = string(text)
	}
	return e
}

// injected is how many faults the run injected.
func (e entry) injected() (n int) {
	for _, of := range e.Faults {
		n += of
	}
	return n
}

// add puts a run in its place. The same run, added twice, is there once, with what people
// wrote about it.
func (r *record) add(e entry) {
	for i, had := range r.Runs {
		if had.Kind == e.Kind && had.Seed == e.Seed && had.Began.Equal(e.Began) {
			e.After = cmp.Or(e.After, had.After)
			r.Runs[i] = e
			return
		}
	}
	r.Runs = append(r.Runs, e)
	slices.SortStableFunc(r.Runs, func(a, b entry) int { return a.Began.Compare(b.Began) })
}

// addTo adds a run to the record in a file, and prints the record's table beside it. Runs that
// end at the same time wait for each other.
func addTo(file string, e entry) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("adding the run to %s: %w", file, err)
		}
	}()
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return err
	}
	folder, err := os.Open(filepath.Dir(file))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, folder.Close()) }()
	if err := unix.Flock(int(folder.Fd()), unix.LOCK_EX); err != nil { // until it is closed
		return err
	}
	r, err := readRecord(file)
	if err != nil {
		return err
	}
	r.add(e)
	text, err := json.MarshalIndent(r, "", " ")
	if err != nil {
		return err
	}
	if err := bench.Whole(file, append(text, '\n')); err != nil {
		return err
	}
	return bench.Whole(tableOf(file), []byte(r.table()))
}

// tableOf is the file of a record's table.
func tableOf(file string) string { return strings.TrimSuffix(file, filepath.Ext(file)) + ".txt" }

// readRecord reads a record; a missing one is empty.
func readRecord(file string) (r record, err error) {
	text, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return r, nil
	}
	if err == nil {
		err = json.Unmarshal(text, &r)
	}
	return r, err
}

// addReport adds the run of a report, which was made elsewhere, to a record.
func addReport(from, file string) error {
	if file == "" {
		return errors.New("--add: to which record? give --record, too")
	}
	var r report
	text, err := os.ReadFile(from)
	if err == nil {
		err = json.Unmarshal(text, &r)
	}
	if err == nil && (r.Seed == 0 || r.Kind == "" || r.Began.IsZero()) {
		err = errors.New("it is no report of a run")
	}
	if err != nil {
		return fmt.Errorf("reading %s: %w", from, err)
	}
	return addTo(file, entryOf(r))
}

// columns of the table, after what names the run.
var columns = []struct {
	name string
	of   func(entry) int
}{
	{"FAULTS", entry.injected},
	{"MOVED", func(e entry) int { return e.Counts.Finished }},
	{"RIGHT", func(e entry) int { return e.Counts.Jobs }},
	{"AGAIN", func(e entry) int { return e.Counts.Again }},
	{"FROM", func(e entry) int { return e.Counts.FromCheckpoint }},
	{"RIGHT-C", func(e entry) int { return e.Counts.RightAfterCheckpoint }},
	{"KILLED", func(e entry) int { return e.Counts.Killed }},
	{"LOST", func(e entry) int { return e.Counts.Lost }},
	{"DOUBLED", func(e entry) int { return e.Counts.Doubled }},
	{"WRONG", func(e entry) int { return e.Counts.Wrong }},
}

const recordHead = `# Every run of chaos that was kept, and what came of it; make chaos prints it from chaos.json.
# FAULTS were injected, guests MOVED, jobs ended RIGHT, jobs began AGAIN after a loss, of these went on
# FROM a checkpoint, of the jobs that ended right these (RIGHT-C) had done so, guests ended because their own process was KILLED;
# guests were LOST though no fault had hit them or their host, guests ran DOUBLED, jobs had a WRONG result.
`

// table is the record for people.
func (r record) table() string {
	var b strings.Builder
	b.WriteString(recordHead)
	line := func(date, commit, kind, seed string, n func(i int) string) {
		fmt.Fprintf(&b, "%-10s %-14s %-9s %-20s", date, commit, kind, seed)
		for i := range columns {
			fmt.Fprintf(&b, " %7s", n(i))
		}
		b.WriteString("\n")
	}
	line("DATE", "COMMIT", "KIND", "SEED", func(i int) string { return columns[i].name })
	sums := map[string][]int{}
	by := map[kind]map[string]int{}
	var found []string
	for _, e := range r.Runs {
		line(e.Began.Format(time.DateOnly), e.Commit, e.Kind, fmt.Sprint(e.Seed), func(i int) string { return fmt.Sprint(columns[i].of(e)) })
		for _, of := range []string{e.Kind, "all"} {
			if sums[of] == nil {
				sums[of] = make([]int, len(columns))
			}
			for i, c := range columns {
				sums[of][i] += c.of(e)
			}
		}
		for k, n := range e.Faults {
			if by[k] == nil {
				by[k] = map[string]int{}
			}
			by[k][e.Kind] += n
			by[k]["all"] += n
		}
		if e.Found != "" {
			found = append(found, fmt.Sprintf("%s, seed %d: %s", e.Kind, e.Seed, e.Found), "  "+cmp.Or(e.After, "Nothing was done about it yet."))
		}
	}
	names := slices.DeleteFunc(slices.Sorted(maps.Keys(sums)), func(of string) bool { return of == "all" })
	names = append(names, "all")
	b.WriteString("\n")
	for _, of := range names {
		if sums[of] != nil {
			line("total", "", of, "", func(i int) string { return fmt.Sprint(sums[of][i]) })
		}
	}
	fmt.Fprintf(&b, "\n%-20s", "FAULT")
	for _, of := range names {
		fmt.Fprintf(&b, " %9s", strings.ToUpper(of))
	}
	for _, k := range slices.Sorted(maps.Keys(by)) {
		fmt.Fprintf(&b, "\n%-20s", k)
		for _, of := range names {
			fmt.Fprintf(&b, " %9d", by[k][of])
		}
	}
	b.WriteString("\n")
	if len(found) > 0 {
		b.WriteString("\nRuns that ended early because something was found:\n" + strings.Join(found, "\n") + "\n")
	}
	return b.String()
}

// Package timeline writes what a job's ranks did with MPI: their gaps and the causes, their
// newest calls, how they spent their time, and how much each rank sent to each other. The
// timeline is in Chrome's trace-event format, which ui.perfetto.dev opens. The tables are CSV.
//
// It must not know where traces come from. Its tests write traces and read them back.
package timeline

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"pagurus/fleet"
)

// Files returns the timeline, the tables and the traces themselves, by the names of their files.
func Files(traces []fleet.Trace, words Words) (map[string][]byte, error) {
	events, err1 := eventsOf(traces, words)
	all, err2 := json.MarshalIndent(traces, "", " ")
	files, errs := map[string][]byte{"timeline.json": append(events, '\n'), "traces.json": all}, []error{err1, err2}
	for name, lines := range map[string][][]string{
		"gaps.csv": gapsTable(traces, words), "sent.csv": sentTable(traces), "calls.csv": callsTable(traces), "spans.csv": spansTable(traces),
	} {
		var b bytes.Buffer
		errs = append(errs, csv.NewWriter(&b).WriteAll(lines))
		files[name] = b.Bytes()
	}
	return files, errors.Join(errs...)
}

// Words explains gaps to people.
type Words struct {
	Why func([]fleet.Cause) string
}

// event is one of Chrome's trace events. A rank is a process. Its gaps and its calls are two
// threads, because events of one thread must not overlap.
type event struct {
	Name  string         `json:"name"`
	Phase string         `json:"ph"`
	TS    float64        `json:"ts"` // µs since the first rank began
	Dur   float64        `json:"dur,omitempty"`
	PID   int            `json:"pid"`
	TID   int            `json:"tid"`
	Args  map[string]any `json:"args,omitempty"`
}

// The phases of events, and the threads of a rank.
const (
	complete = "X"
	counter  = "C"
	metadata = "M"

	gapThread  = 1
	callThread = 2
)

// eventsOf writes the timeline of a job: one JSON array of trace events. Every gap and
// every call is an event; the share of time in each class of calls is a counter.
func eventsOf(traces []fleet.Trace, words Words) ([]byte, error) {
	begun := began(traces)
	all := []event{}
	for _, tr := range traces {
		at := func(t time.Time) float64 { return micros(t.Sub(begun)) }
		name := func(of string, thread int, is string) {
			all = append(all, event{Name: of, Phase: metadata, PID: tr.Rank, TID: thread, Args: map[string]any{"name": is}})
		}
		name("process_name", 0, fmt.Sprintf("rank %d, %s", tr.Rank, tr.Guest))
		name("thread_name", gapThread, "gaps")
		name("thread_name", callThread, "newest calls")
		for _, g := range tr.Gaps {
			all = append(all, event{called(g), complete, at(g.At), micros(g.Took), tr.Rank, gapThread, map[string]any{"why": words.Why(g.Why)}})
		}
		for _, c := range tr.Newest {
			all = append(all, event{string(c.Class), complete, at(c.At), micros(c.Took), tr.Rank, callThread, nil})
		}
		for i := range longest(tr.Spans) {
			shares := map[string]any{}
			for _, class := range fleet.CallClasses {
				shares[string(class)] = share(tr, class, i)
			}
			all = append(all, event{"percent of time in MPI", counter, at(tr.Begun.Add(time.Duration(i) * tr.SpanLength)), 0, tr.Rank, 0, shares})
		}
	}
	return json.MarshalIndent(all, "", " ")
}

func micros(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }

// began returns when the first rank began.
func began(traces []fleet.Trace) (from time.Time) {
	for i, tr := range traces {
		if i == 0 || tr.Begun.Before(from) {
			from = tr.Begun
		}
	}
	return from
}

func called(g fleet.Gap) string {
	if !g.InMPI {
		return "between calls"
	}
	return "in MPI, " + string(g.Call)
}

// gapsTable has a line for every gap.
func gapsTable(traces []fleet.Trace, words Words) [][]string {
	lines := [][]string{{"rank", "guest", "at", "took_s", "where", "causes"}}
	for _, tr := range traces {
		for _, g := range tr.Gaps {
			lines = append(lines, []string{fmt.Sprint(g.Rank), string(tr.Guest), g.At.UTC().Format(time.RFC3339Nano), fmt.Sprint(g.Took.Seconds()), called(g), words.Why(g.Why)})
		}
	}
	return lines
}

// sentTable has a line for every pair of ranks that have exchanged messages.
func sentTable(traces []fleet.Trace) [][]string {
	lines := [][]string{{"from", "to", "messages", "bytes"}}
	for _, tr := range traces {
		for _, s := range tr.Sent {
			lines = append(lines, []string{fmt.Sprint(tr.Rank), fmt.Sprint(s.Rank), fmt.Sprint(s.Messages), fmt.Sprint(s.Bytes)})
		}
	}
	return lines
}

// callsTable has a line for each of the ranks' newest calls.
func callsTable(traces []fleet.Trace) [][]string {
	lines := [][]string{{"rank", "guest", "at", "took_s", "class"}}
	for _, tr := range traces {
		for _, c := range tr.Newest {
			lines = append(lines, []string{fmt.Sprint(tr.Rank), string(tr.Guest), c.At.UTC().Format(time.RFC3339Nano), fmt.Sprint(c.Took.Seconds()), string(c.Class)})
		}
	}
	return lines
}

// spansTable has a line for each rank and each of its recorded spans, which are equally long.
func spansTable(traces []fleet.Trace) [][]string {
	head := []string{"rank", "guest", "after_s", "for_s"}
	for _, class := range fleet.CallClasses {
		head = append(head, string(class)+"_percent")
	}
	lines := [][]string{head}
	for _, tr := range traces {
		for i := range longest(tr.Spans) {
			line := []string{fmt.Sprint(tr.Rank), string(tr.Guest), fmt.Sprint((time.Duration(i) * tr.SpanLength).Seconds()), fmt.Sprint(tr.SpanLength.Seconds())}
			for _, class := range fleet.CallClasses {
				line = append(line, fmt.Sprint(share(tr, class, i)))
			}
			lines = append(lines, line)
		}
	}
	return lines
}

func longest(spans map[fleet.CallClass][]int) (n int) {
	for _, s := range spans {
		n = max(n, len(s))
	}
	return n
}

// share returns the percentage of a span that a rank spent in calls of a class.
func share(tr fleet.Trace, class fleet.CallClass, span int) int {
	if all := tr.Spans[class]; span < len(all) {
		return all[span]
	}
	return 0
}

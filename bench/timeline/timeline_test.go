package timeline

import (
	"encoding/json"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"pagurus/fleet"
)

func traces() []fleet.Trace {
	begun := time.Unix(1000, 0)
	return []fleet.Trace{
		{Rank: 1, Ranks: 2, Guest: "j1g1", Begun: begun, At: begun.Add(10 * time.Second), Outside: 9 * time.Second},
		{
			Rank: 0, Ranks: 2, Guest: "j1g0", Begun: begun, At: begun.Add(10 * time.Second), Outside: 5 * time.Second,
			Calls: map[fleet.CallClass]fleet.Calls{fleet.Collective: {Count: 9, Took: 5 * time.Second}},
			Sent:  []fleet.Sent{{Rank: 1, Messages: 7, Bytes: 4096}}, Handed: fleet.Sent{Bytes: 8},
			SpanLength: 4 * time.Second, Spans: map[fleet.CallClass][]int{fleet.Collective: {50, 0, 100}, fleet.WaitCall: {25, 0, 7}},
			Newest: []fleet.Call{{At: begun.Add(8 * time.Second), Took: time.Second, Class: fleet.Collective}, {At: begun.Add(9500 * time.Millisecond), Took: 500 * time.Millisecond, Class: fleet.WaitCall}},
			Gaps: []fleet.Gap{
				{Rank: 0, At: begun.Add(2 * time.Second), Took: 200 * time.Millisecond, InMPI: true, Call: fleet.Collective, Why: []fleet.Cause{{What: fleet.TCPTimeout, Count: 1}}},
				{Rank: 0, At: begun.Add(5 * time.Second), Took: time.Second},
			},
		},
	}
}

var words = Words{Why: func(all []fleet.Cause) string {
	if len(all) == 0 {
		return ""
	}
	return "<" + string(all[0].What) + ">"
}}

func TestEvents(t *testing.T) {
	text, err := eventsOf(traces(), words)
	if err != nil {
		t.Fatal(err)
	}
	var all []event
	if err := json.Unmarshal(text, &all); err != nil {
		t.Fatal(err)
	}
	for _, want := range []event{
		{"in MPI, collective", "X", 2e6, 2e5, 0, gapThread, map[string]any{"why": "<tcp-timeout>"}},
		{"between calls", "X", 5e6, 1e6, 0, gapThread, map[string]any{"why": ""}},
		{"collective", "X", 8e6, 1e6, 0, callThread, nil},
		{"wait", "X", 9.5e6, 5e5, 0, callThread, nil},
		{"percent of time in MPI", "C", 8e6, 0, 0, 0, map[string]any{"send-recv": 0.0, "collective": 100.0, "wait": 7.0, "other": 0.0}},
		{"process_name", "M", 0, 0, 1, 0, map[string]any{"name": "rank 1, j1g1"}},
	} {
		if !slices.ContainsFunc(all, func(e event) bool { return reflect.DeepEqual(e, want) }) {
			t.Errorf("%+v is not in\n%s", want, text)
		}
	}
}

func TestNoEvents(t *testing.T) {
	if text, err := eventsOf(nil, words); err != nil || string(text) != "[]" {
		t.Errorf("%v\n%s", err, text)
	}
}

func TestTables(t *testing.T) {
	files, err := Files(traces(), words)
	if err != nil || !strings.Contains(string(files["gaps.csv"]), `0,j1g0,1970-01-01T00:16:42Z,0.2,"in MPI, collective",<tcp-timeout>`) {
		t.Errorf("%v\n%s", err, files["gaps.csv"])
	}
	for name, want := range map[string]string{
		"calls.csv": "rank,guest,at,took_s,class\n0,j1g0,1970-01-01T00:16:48Z,1,collective\n0,j1g0,1970-01-01T00:16:49.5Z,0.5,wait\n",
		"spans.csv": "rank,guest,after_s,for_s,send-recv_percent,collective_percent,wait_percent,other_percent\n0,j1g0,0,4,0,50,25,0\n0,j1g0,4,4,0,0,0,0\n",
		"sent.csv":  "from,to,messages,bytes\n0,1,7,4096\n",
	} {
		if got := string(files[name]); got != want && !(name == "spans.csv" && strings.HasPrefix(got, want)) {
			t.Errorf("%s is\n%s", name, got)
		}
	}
}

package timeline

import (
	"encoding/xml"
	"errors"
	"io"
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

func TestSilencesAreDrawnWithTheirCauses(t *testing.T) {
	text, err := Draw("job <j1>", traces(), words)
	if err != nil {
		t.Fatal(err)
	}
	page := string(text)
	for _, want := range []string{
		`<path d="M0.0 18.00H400.0v7.00H0.0zM800.0 11.00H1000.0v14.00H800.0z" fill="#1f618d"/>`, `<path d="M0.0 14.50H400.0v3.50H0.0z" fill="#16a085"/>`,
		`<rect x="0" y="3" width="500" height="20" fill="#1f618d"><title>1s collective, 0s after`, `<rect x="750" y="3" width="250" height="20" fill="#16a085">`,
		`<rect x="200" y="3" width="20" height="7" fill="#e67e22"><title>200ms in MPI, collective: &lt;tcp-timeout&gt;</title>`,
		`<rect x="500" y="3" width="100" height="7" fill="#95a5a6">`, "<td>unknown</td><td>1</td><td>1s</td>", "job &lt;j1&gt;",
		`background:rgba(41,128,185,1.000)`, "7 messages, 4096 bytes", "50 % in MPI", "ways of its own",
	} {
		if !strings.Contains(page, want) {
			t.Errorf("%q is not in\n%s", want, page)
		}
	}
	if strings.Index(page, "rank 0<") > strings.Index(page, "rank 1<") {
		t.Error("the ranks are not in order")
	}
	d := xml.NewDecoder(strings.NewReader(page))
	d.Strict, d.AutoClose, d.Entity = false, []string{"meta"}, xml.HTMLEntity
	for {
		if _, err := d.Token(); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
	}
}

func TestNothingIsDrawn(t *testing.T) {
	for _, none := range [][]fleet.Trace{nil, {{Rank: 0}}} {
		if text, err := Draw("j", none, words); err != nil || !strings.Contains(string(text), "no rank was, for longer") {
			t.Errorf("%v\n%s", err, text)
		}
	}
	if len(matrix(make([]fleet.Trace, mostRanks+1))) != 0 {
		t.Error("a matrix that nobody can read is drawn")
	}
}

func TestTables(t *testing.T) {
	gaps, err := GapsCSV(traces(), words)
	if err != nil || !strings.Contains(string(gaps), `0,j1g0,1970-01-01T00:16:42Z,0.2,"in MPI, collective",<tcp-timeout>`) {
		t.Errorf("%v\n%s", err, gaps)
	}
	calls, err := CallsCSV(traces())
	if err != nil || string(calls) != "rank,guest,at,took_s,class\n0,j1g0,1970-01-01T00:16:48Z,1,collective\n0,j1g0,1970-01-01T00:16:49.5Z,0.5,wait\n" {
		t.Errorf("%v\n%s", err, calls)
	}
	spans, err := SpansCSV(traces())
	if err != nil || !strings.HasPrefix(string(spans), "rank,guest,after_s,for_s,send-recv_percent,collective_percent,wait_percent,other_percent\n0,j1g0,0,4,0,50,25,0\n0,j1g0,4,4,0,0,0,0\n") {
		t.Errorf("%v\n%s", err, spans)
	}
	sent, err := SentCSV(traces())
	if err != nil || string(sent) != "from,to,messages,bytes\n0,1,7,4096\n" {
		t.Errorf("%v\n%s", err, sent)
	}
}

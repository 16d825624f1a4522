package sim

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"strconv"
	"time"
)

// Trace is recorded visits of owners, by host.
type Trace struct {
	Hosts [][]Visit
}

// Visit is one presence of an owner.
type Visit struct {
	From, To time.Duration
	Load     float64 // share of the machine's CPUs that they use
}

// usualLoad is the load if the trace does not give it.
const usualLoad = 0.5

// longest exceeds any trace; later times have a wrong unit.
const longest = 20 * 365 * 24 * time.Hour

// Of returns one host's visits. Hosts beyond those in the trace reuse it from the first,
// shifted by a random time.
func (t *Trace) Of(i int, chance *rand.Rand) Visits {
	if len(t.Hosts) == 0 {
		return &recorded{}
	}
	r := &recorded{left: t.Hosts[i%len(t.Hosts)]}
	if i >= len(t.Hosts) && len(r.left) > 0 {
		r.late = time.Duration(chance.Float64() * float64(r.left[len(r.left)-1].To))
	}
	return r
}

type recorded struct {
	left  []Visit
	late  time.Duration
	there bool
}

// Next reads the next change.
func (r *recorded) Next() (time.Duration, float64, bool) {
	if len(r.left) == 0 {
		return 0, 0, false
	}
	v := r.left[0]
	if r.there = !r.there; r.there {
		return v.From + r.late, v.Load, true
	}
	r.left = r.left[1:]
	return v.To + r.late, 0, true
}

// ReadTrace reads a trace in CSV or JSON, recognised by its first character.
//
// CSV has a line for each visit: host, from, to and optionally load. Times are in seconds
// since the beginning, in order for each host; a first line may name the columns. JSON is
// the format of recorded spot instances: metadata.gap_seconds is the time between
// samples, data the samples, 0 if the instance was available and 1 if not; for several
// instances data is a list of such lists.
func ReadTrace(from io.Reader, name string) (*Trace, error) {
	raw, err := io.ReadAll(from)
	if err != nil {
		return nil, fmt.Errorf("reading %s: %w", name, err)
	}
	text := bytes.TrimSpace(raw)
	if len(text) == 0 {
		return nil, fmt.Errorf("%s is empty: a trace has a line for each visit of an owner: host,from,to", name)
	}
	if text[0] == '{' || text[0] == '[' {
		return spot(raw, name)
	}
	return table(raw, name)
}

// table reads CSV.
func table(raw []byte, name string) (*Trace, error) {
	r := csv.NewReader(bytes.NewReader(raw))
	r.FieldsPerRecord, r.Comment, r.TrimLeadingSpace = -1, '#', true
	out, known := &Trace{}, map[string]int{}
	for first := true; ; first = false {
		fields, err := r.Read()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err) // the error has the line
		}
		line, _ := r.FieldPos(0)
		if first && len(fields) > 2 && fields[1] == "from" && fields[2] == "to" {
			continue
		}
		v, err := visitOf(fields)
		if err != nil {
			return nil, fmt.Errorf("%s, line %d: %w", name, line, err)
		}
		i, seen := known[fields[0]]
		if !seen {
			i = len(out.Hosts)
			known[fields[0]] = i
			out.Hosts = append(out.Hosts, nil)
		}
		if of := out.Hosts[i]; len(of) > 0 && v.From < of[len(of)-1].To {
			return nil, fmt.Errorf("%s, line %d: the owner of %s comes at %s, before they have gone at %s: the visits of one host are in order and do not overlap", name, line, fields[0], v.From, of[len(of)-1].To)
		}
		out.Hosts[i] = append(out.Hosts[i], v)
	}
	if len(out.Hosts) == 0 {
		return nil, fmt.Errorf("%s has no visit in it: a trace has a line for each visit of an owner: host,from,to", name)
	}
	return out, nil
}

// visitOf parses one line.
func visitOf(fields []string) (Visit, error) {
	v := Visit{Load: usualLoad}
	if len(fields) < 3 || len(fields) > 4 {
		return v, fmt.Errorf("%d columns, where there are three or four: host,from,to,load", len(fields))
	}
	if fields[0] == "" {
		return v, errors.New("the host has no name")
	}
	for i, to := range []*time.Duration{&v.From, &v.To} {
		s, err := strconv.ParseFloat(fields[1+i], 64)
		if err != nil || math.IsNaN(s) || s < 0 || s > longest.Seconds() {
			return v, fmt.Errorf("%q is not a time: give seconds since the beginning, up to %.0f", fields[1+i], longest.Seconds())
		}
		*to = seconds(s)
	}
	if v.To <= v.From {
		return v, fmt.Errorf("the owner goes at %s, and comes only at %s", v.To, v.From)
	}
	if len(fields) == 4 {
		load, err := strconv.ParseFloat(fields[3], 64)
		if err != nil || !(load >= 0 && load <= 1) {
			return v, fmt.Errorf("%q is not a load: give the part of the CPUs that the owner uses, from 0 to 1", fields[3])
		}
		v.Load = load
	}
	return v, nil
}

// spot reads JSON.
func spot(raw []byte, name string) (*Trace, error) {
	var file struct {
		Metadata struct {
			GapSeconds float64 `json:"gap_seconds"`
		} `json:"metadata"`
		Data json.RawMessage `json:"data"`
	}
	if err := json.Unmarshal(raw, &file); err != nil {
		return nil, fmt.Errorf("%s, line %d: %w", name, lineOf(raw, err), err)
	}
	gap := file.Metadata.GapSeconds
	if !(gap > 0) || gap > longest.Seconds() {
		return nil, fmt.Errorf("%s: metadata.gap_seconds is %g: say how many seconds lie between two samples", name, gap)
	}
	var all [][]int
	if err := json.Unmarshal(file.Data, &all); err != nil {
		var one []int
		if err := json.Unmarshal(file.Data, &one); err != nil {
			return nil, fmt.Errorf("%s: data is not a list of samples, 0 or 1, nor a list of such lists: %w", name, err)
		}
		all = [][]int{one}
	}
	out := &Trace{}
	for h, samples := range all {
		var visits []Visit
		gone := true
		if float64(len(samples))*gap > longest.Seconds() {
			return nil, fmt.Errorf("%s: instance %d has %d samples, which is longer than any trace lasts", name, h, len(samples))
		}
		for i, s := range samples {
			at := seconds(float64(i) * gap)
			switch {
			case s != 0 && s != 1:
				return nil, fmt.Errorf("%s: sample %d of instance %d is %d, and not 0 or 1", name, i, h, s)
			case s == 1 && gone:
				visits = append(visits, Visit{From: at, Load: 1})
			}
			if s == 1 {
				visits[len(visits)-1].To = at + seconds(gap)
			}
			gone = s == 0
		}
		out.Hosts = append(out.Hosts, visits)
	}
	if len(out.Hosts) == 0 {
		return nil, fmt.Errorf("%s has no samples in it", name)
	}
	return out, nil
}

// lineOf finds the line of a JSON error.
func lineOf(raw []byte, err error) int {
	offset := int64(0)
	var syntax *json.SyntaxError
	var kind *json.UnmarshalTypeError
	if errors.As(err, &syntax) {
		offset = syntax.Offset
	} else if errors.As(err, &kind) {
		offset = kind.Offset
	}
	return 1 + bytes.Count(raw[:min(offset, int64(len(raw)))], []byte("\n"))
}

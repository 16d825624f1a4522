package fleet

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// CPUSet is a set of a host's CPU numbers, sorted, without duplicates. Its text and JSON
// form is the kernel's: "0-3,8".
type CPUSet []int

// mostCPUs is the kernel's limit.
const mostCPUs = 8192

// ParseCPUs reads a set. Empty text is the empty set.
func ParseCPUs(text string) (CPUSet, error) {
	bad := func() (CPUSet, error) { return nil, fmt.Errorf("%q is not a list of CPUs, like 2-15 or 1,4-7", text) }
	if strings.TrimSpace(text) == "" {
		return nil, nil
	}
	var has [mostCPUs]bool
	for _, part := range strings.Split(strings.TrimSpace(text), ",") {
		first, last, isRange := strings.Cut(part, "-")
		if !isRange {
			last = first
		}
		from, ok1 := number(first)
		to, ok2 := number(last)
		if !ok1 || !ok2 || to < from {
			return bad()
		}
		for n := from; n <= to; n++ {
			has[n] = true
		}
	}
	var out CPUSet
	for n, is := range has {
		if is {
			out = append(out, n)
		}
	}
	return out, nil
}

// number accepts only digits.
func number(word string) (int, bool) {
	n, err := strconv.ParseUint(word, 10, 16)
	return int(n), err == nil && word[0] != '+' && n < mostCPUs
}

// String formats the set as the kernel does.
func (s CPUSet) String() string {
	var parts []string
	for i := 0; i < len(s); {
		j := i
		for j+1 < len(s) && s[j+1] == s[j]+1 {
			j++
		}
		part := strconv.Itoa(s[i])
		if j > i {
			part += "-" + strconv.Itoa(s[j])
		}
		parts, i = append(parts, part), j+1
	}
	return strings.Join(parts, ",")
}

// MarshalText is String, for JSON.
func (s CPUSet) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText is ParseCPUs, for JSON.
func (s *CPUSet) UnmarshalText(text []byte) (err error) {
	*s, err = ParseCPUs(string(text))
	return err
}

// Has reports whether a CPU is in the set.
func (s CPUSet) Has(cpu int) bool {
	_, has := slices.BinarySearch(s, cpu)
	return has
}

// Minus is the set without the CPUs of another.
func (s CPUSet) Minus(other CPUSet) (out CPUSet) {
	for _, c := range s {
		if !other.Has(c) {
			out = append(out, c)
		}
	}
	return out
}

// Meets reports whether two sets have a CPU in common.
func (s CPUSet) Meets(other CPUSet) bool { return len(s.Minus(other)) < len(s) }

// CPUs is the set of all CPUs in a topology.
func (t Topology) CPUs() (out CPUSet) {
	for _, n := range t.Nodes {
		for _, c := range n.Cores {
			out = append(out, c.CPUs...)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// Only is the topology restricted to the CPUs of a set. An empty set changes nothing.
func (t Topology) Only(s CPUSet) Topology {
	if len(s) == 0 {
		return t
	}
	t.Nodes = slices.Clone(t.Nodes)
	for i, n := range t.Nodes {
		t.Nodes[i].Cores = nil
		for _, c := range n.Cores {
			c.CPUs = slices.DeleteFunc(slices.Clone(c.CPUs), func(cpu int) bool { return !s.Has(cpu) })
			if len(c.CPUs) > 0 {
				t.Nodes[i].Cores = append(t.Nodes[i].Cores, c)
			}
		}
	}
	return t
}

// IsolationRequest asks a host to isolate some of its CPUs.
type IsolationRequest struct {
	On   bool   `json:"on,omitempty"`
	CPUs CPUSet `json:"cpus,omitempty"` // empty: all but those of the first core
}

// Isolation is the result of an IsolationRequest, from the host's agent.
type Isolation struct {
	Wanted  CPUSet   `json:"wanted,omitempty"`  // the controller's last request; empty: off
	CPUs    CPUSet   `json:"cpus,omitempty"`    // isolated now; empty: off
	Changed int      `json:"changed,omitempty"` // number of changed settings, to be restored
	Left    []string `json:"left,omitempty"`    // what was not isolated and why, for people
	Trouble string   `json:"trouble,omitempty"` // why it differs from Wanted, for people; retried
	Unable  string   `json:"unable,omitempty"`  // why this host cannot do it at all, for people
}

// BootIsolation says which CPUs a host's kernel isolates from its start.
type BootIsolation struct {
	Prepared CPUSet `json:"prepared,omitempty"` // from the next boot on, as `pagurus isolate --boot` has prepared it
	Asked    CPUSet `json:"asked,omitempty"`    // nohz_full on the running kernel's command line
	Tickless CPUSet `json:"tickless,omitempty"` // those whose timer tick the running kernel stops
}

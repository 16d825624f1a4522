package planner

import (
	"strings"
	"testing"
	"time"

	"pagurus/fleet"
)

// host has four cores of two threads, numbered as Linux does: 0 and 4 are siblings.
func host() fleet.Host {
	t := fleet.Topology{Nodes: []fleet.Node{{Cores: []fleet.Core{{CPUs: []int{0, 4}}, {CPUs: []int{1, 5}}}}, {ID: 1, Cores: []fleet.Core{{CPUs: []int{2, 6}}, {CPUs: []int{3, 7}}}}}}
	return fleet.Host{ID: "h", Facts: fleet.Facts{SeenAt: time.Unix(1, 0), Topology: &t, Isolation: &fleet.Isolation{}}}
}

func ask(t *testing.T, h fleet.Host, cores string) (fleet.Host, []string, string) {
	t.Helper()
	s, err := fleet.ParseCPUs(cores)
	if err != nil {
		t.Fatal(err)
	}
	return amendIsolated(h, fleet.Request{Verb: fleet.Isolate, Host: h.ID, Isolation: &fleet.IsolationRequest{On: true, CPUs: s}})
}

func TestWhatIsTaken(t *testing.T) {
	for cores, want := range map[string]string{"": "1-3,5-7", "2-3,6-7": "2-3,6-7", "1,5": "1,5"} {
		if h, notes, reason := ask(t, host(), cores); reason != "" || h.IsolatedCPUs.String() != want || len(notes) > 0 {
			t.Errorf("%q: %s, %q, %q", cores, h.IsolatedCPUs, notes, reason)
		}
	}
	h, notes, reason := ask(t, host(), "1-3")
	if reason != "" || len(notes) != 3 || !strings.Contains(notes[0], "CPU 5 is not isolated and is on the same core as CPU 1") {
		t.Errorf("%q, %q", notes, reason)
	}
	if h, _, reason = amendIsolated(h, fleet.Request{Isolation: &fleet.IsolationRequest{}}); reason != "" || h.IsolatedCPUs != nil {
		t.Errorf("off: %+v, %q", h.IsolatedCPUs, reason)
	}
}

func TestWhatIsRefused(t *testing.T) {
	for cores, want := range map[string]string{"0-7": "--cores 1-7", "8": "has no CPU 8", "1,99": "has no CPU 99"} {
		if h, _, reason := ask(t, host(), cores); !strings.Contains(reason, want) || h.IsolatedCPUs != nil {
			t.Errorf("%q: %s, %q", cores, h.IsolatedCPUs, reason)
		}
	}
	for want, change := range map[string]func(*fleet.Host){
		"heard from":   func(h *fleet.Host) { h.Facts = fleet.Facts{} },
		"does not say": func(h *fleet.Host) { h.Facts.Isolation = nil },
		"because of x": func(h *fleet.Host) { h.Facts.Isolation = &fleet.Isolation{Unable: "because of x"} },
		"one core": func(h *fleet.Host) {
			h.Facts.Topology = &fleet.Topology{Nodes: []fleet.Node{{Cores: []fleet.Core{{CPUs: []int{0, 1}}}}}}
		},
	} {
		h := host()
		change(&h)
		if got, _, reason := ask(t, h, ""); !strings.Contains(reason, want) || got.IsolatedCPUs != nil {
			t.Errorf("want %q: %q", want, reason)
		}
		// Turning isolation off is never refused.
		h.IsolatedCPUs = fleet.CPUSet{1}
		if got, _, reason := amendIsolated(h, fleet.Request{Isolation: &fleet.IsolationRequest{}}); reason != "" || got.IsolatedCPUs != nil {
			t.Errorf("off: %q", reason)
		}
	}
	for _, q := range []*fleet.IsolationRequest{nil, {CPUs: fleet.CPUSet{1}}} {
		if _, _, reason := amendIsolated(host(), fleet.Request{Isolation: q}); reason == "" {
			t.Errorf("%+v was taken", q)
		}
	}
}

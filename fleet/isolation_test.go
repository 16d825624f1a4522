package fleet

import (
	"encoding/json"
	"slices"
	"testing"
)

func TestCPUSets(t *testing.T) {
	for text, want := range map[string]string{
		"": "", " \n": "", "0": "0", "2-15": "2-15", "0-3,8\n": "0-3,8", "8,0-3": "0-3,8", "1,0,1-2": "0-2", "8191": "8191", "007": "7",
	} {
		got, err := ParseCPUs(text)
		if err != nil || got.String() != want {
			t.Errorf("%q is %v, %v; want %s", text, got, err, want)
		}
	}
	for _, bad := range []string{"x", "3-1", "-1", "1-", "-", ",", "1,", "1,,2", "0-999999999", "8192", "1-2-3", "+1", "1 2", "1, 2", "0x1", "all", "٣"} {
		if got, err := ParseCPUs(bad); err == nil {
			t.Errorf("%q is %v", bad, got)
		}
	}
	a, b := CPUSet{0, 1, 2, 8}, CPUSet{1, 8, 9}
	if got := a.Minus(b).String(); got != "0,2" || !a.Meets(b) || a.Meets(CPUSet{3}) || a.Meets(nil) || !a.Has(8) || a.Has(3) {
		t.Errorf("minus is %s", got)
	}
}

// JSON round trip of a host's isolation.
func TestIsolationJSON(t *testing.T) {
	text, err := json.Marshal(Request{Verb: Isolate, Isolation: &IsolationRequest{On: true, CPUs: CPUSet{1, 2, 3, 7}}})
	if err != nil {
		t.Fatal(err)
	}
	var got Request
	if err := json.Unmarshal(text, &got); err != nil || !slices.Equal(got.Isolation.CPUs, CPUSet{1, 2, 3, 7}) {
		t.Errorf("%s is %+v, %v", text, got.Isolation, err)
	}
	if json.Unmarshal([]byte(`{"isolation":{"cpus":"7-3"}}`), &got) == nil {
		t.Error("nonsense was taken")
	}
}

func TestTopologyOnly(t *testing.T) {
	top := Topology{Nodes: []Node{{ID: 0, Cores: []Core{{CPUs: []int{0, 4}}, {CPUs: []int{1, 5}}}}, {ID: 1, Cores: []Core{{CPUs: []int{2}}}}}}
	if got := top.CPUs().String(); got != "0-2,4-5" {
		t.Errorf("its CPUs are %s", got)
	}
	less := top.Only(CPUSet{1, 4, 5})
	if got := less.CPUs().String(); got != "1,4-5" || len(less.Nodes) != 2 || len(less.Nodes[1].Cores) != 0 {
		t.Errorf("%+v", less)
	}
	if len(top.CPUs()) != 5 || len(top.Only(nil).CPUs()) != 5 {
		t.Error("the topology itself was changed")
	}
}

// FuzzParseCPUs: no input panics, and an accepted one is sorted and survives a round
// trip.
func FuzzParseCPUs(f *testing.F) {
	for _, text := range []string{"", "2-15", "0-3,8", "8191", "1,,2", "9-1", "-", "0-8191,0-8191"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		s, err := ParseCPUs(text)
		if err != nil {
			return
		}
		for i, c := range s {
			if c < 0 || c >= mostCPUs || i > 0 && c <= s[i-1] {
				t.Fatalf("%q is %v", text, s)
			}
		}
		if again, err := ParseCPUs(s.String()); err != nil || !slices.Equal(s, again) {
			t.Fatalf("%q is %v, and again %v, %v", text, s, again, err)
		}
	})
}

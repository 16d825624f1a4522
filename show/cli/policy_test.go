package cli

import (
	"strings"
	"testing"

	"pagurus/fleet"
)

// The policy in force is shown and can be changed.
func TestPolicy(t *testing.T) {
	w := newWorld(t)
	var asked []fleet.Request
	w.answers(func(r fleet.Request) (fleet.Answer, error) {
		asked = append(asked, r)
		w.Change(func(s *fleet.Snapshot) { s.Cluster.Rules = *r.Rules })
		return fleet.Answer{}, nil
	})
	if ls, alone := w.pagurus("", "policy", "ls"), w.pagurus("", "policies"); ls != alone {
		t.Errorf("alone: %+v, ls: %+v", alone, ls)
	}
	got := w.pagurus("", "policy", "ls")
	for _, p := range fleet.VacatePolicies {
		if got.code != 0 || !strings.Contains(got.out, string(p.Name)) {
			t.Errorf("%s is not listed: %+v", p.Name, got)
		}
	}
	if got := w.pagurus("", "policy", "show"); got.code != 0 || !strings.HasPrefix(got.out, "predictive (in force): ") {
		t.Errorf("the one in force: %+v", got)
	}
	if got := w.pagurus("", "policy", "show", "requeue"); got.code != 0 || strings.Contains(got.out, "in force") || !strings.Contains(got.out, "begin again") {
		t.Errorf("another: %+v", got)
	}
	got = w.pagurus("", "policy", "set", "evacuate", "--placement", "longest-idle")
	if got.code != 0 || len(asked) != 1 || asked[0].Verb != fleet.SetRules || *asked[0].Rules != (fleet.Rules{Vacate: fleet.Evacuate, Placement: "longest-idle"}) ||
		!strings.HasPrefix(got.out, "evacuate (in force)") || !strings.Contains(got.out, "away longest") {
		t.Errorf("set: %+v, asked %+v", got, asked)
	}
	if got := w.pagurus("", "policy", "show", "--json"); !strings.Contains(got.out, `"in_force":true`) {
		t.Errorf("json: %+v", got)
	}
	for _, bad := range [][]string{{"policy", "show", "none"}, {"policy", "show", "stay", "suspend"}, {"policy", "set"}, {"policy", "sell"}, {"policy", "ls", "all"}} {
		if got := w.pagurus("", bad...); got.code == 0 || got.err == "" {
			t.Errorf("%v: %+v", bad, got)
		}
	}
}

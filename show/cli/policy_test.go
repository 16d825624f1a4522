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
	asked = nil
	w.Change(func(s *fleet.Snapshot) {
		for id, level := range map[fleet.HostID]string{"host1": "x86-64-v4", "host2": "x86-64-v3"} {
			h := s.Hosts[id]
			h.Facts.Abilities = map[fleet.Kind]fleet.Abilities{fleet.VM: {Accelerator: fleet.KVM, Model: fleet.HostCPU, CPU: string(id)}}
			h.Facts.Topology = &fleet.Topology{Level: level}
			s.Hosts[id] = h
		}
	})
	if got := w.pagurus("", "host", "ls"); !strings.Contains(got.out+got.err, "`pagurus policy set --cpu-level x86-64-v3` virtual machines that start move between all of them") {
		t.Errorf("hosts with different processors: %+v", got)
	}
	for _, c := range []struct{ level, rule, want string }{
		{"x86-64-v4", "x86-64-v4", "\nvirtual machines that start have the CPU x86-64-v4, and none start on host2, without that level; x86-64-v3 is the highest level that all hosts have"},
		{"x86-64-v3", "x86-64-v3", "\nvirtual machines that start have the CPU x86-64-v3; x86-64-v3 is the highest"},
		{"host", "host", "\nvirtual machines that start have their host's CPU; x86-64-v3 is the highest"},
		{"own", "", "\nvirtual machines that start have the CPU that each host's agent is told; x86-64-v3 is the highest"},
	} {
		got := w.pagurus("", "policy", "set", "--cpu-level", c.level)
		if last := len(asked) - 1; got.code != 0 || last < 0 || *asked[last].Rules != (fleet.Rules{Vacate: fleet.Evacuate, Placement: "longest-idle", CPU: c.rule}) || !strings.Contains(got.out, c.want) {
			t.Errorf("--cpu-level %s: %+v, asked %+v", c.level, got, asked)
		}
		if c.level == "x86-64-v4" {
			if got := w.pagurus("", "host", "ls"); !strings.Contains(got.out+got.err, "none start on host2") {
				t.Errorf("a level that a host lacks: %+v", got)
			}
			if got := w.pagurus("", "policy", "set", "stay"); got.code != 0 || *asked[len(asked)-1].Rules != (fleet.Rules{Vacate: fleet.Stay, CPU: "x86-64-v4"}) {
				t.Errorf("another policy: %+v, asked %+v", got, asked)
			}
			w.pagurus("", "policy", "set", "evacuate", "--placement", "longest-idle")
		}
	}
	for _, bad := range [][]string{{"policy", "set", "--cpu-level", "x86-64-v9"}, {"policy", "set", "--placement", "spread"}, {"policy", "show", "none"}, {"policy", "show", "stay", "suspend"}, {"policy", "set"}, {"policy", "sell"}, {"policy", "ls", "all"}} {
		if got := w.pagurus("", bad...); got.code == 0 || got.err == "" {
			t.Errorf("%v: %+v", bad, got)
		}
	}
}

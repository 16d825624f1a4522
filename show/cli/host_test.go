package cli

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"pagurus/fleet"
)

// Flags of a host's policy reach the controller, and parts without a flag stay unchanged.
func TestHostPolicy(t *testing.T) {
	w := newWorld(t)
	var asked []fleet.Request
	w.answers(func(r fleet.Request) (fleet.Answer, error) {
		asked = append(asked, r)
		return fleet.Answer{}, nil
	})
	w.Change(func(s *fleet.Snapshot) {
		h := s.Hosts["host1"]
		h.ID, h.Policy = "host1", fleet.OwnerPolicy{Owned: true, Preset: "condor", Claimed: true}
		s.Hosts["host1"] = h
	})
	if got := w.pagurus("", "host", "policy", "host1"); got.code != 0 || !strings.Contains(got.out, "condor") || len(asked) != 0 {
		t.Errorf("print: %+v, asked %+v", got, asked)
	}
	got := w.pagurus("", "host", "policy", "host1", "--vacate", "suspend", "--idle-after", "10m", "--hours", "19:00-07:00", "--cap", "50%", "--json")
	want := fleet.OwnerPolicy{Owned: true, Preset: "condor", Claimed: true, Vacate: fleet.Suspend, IdleAfter: 10 * time.Minute, Cap: 0.5,
		Hours: fleet.Hours{From: 19 * time.Hour, To: 7 * time.Hour}}
	var said fleet.OwnerPolicy
	if err := json.Unmarshal([]byte(got.out), &said); err != nil || got.code != 0 || said.Hours != want.Hours || said.Cap != want.Cap {
		t.Errorf("set: %+v %v", got, err)
	}
	for _, verb := range []string{"claim", "release"} {
		if got := w.pagurus("", "host", verb, "host1"); got.code != 0 {
			t.Errorf("%s: %+v", verb, got)
		}
	}
	if len(asked) != 3 || asked[0].Verb != fleet.SetPolicy || asked[0].Policy.Vacate != want.Vacate || asked[0].Policy.Preset != "condor" ||
		asked[1].Verb != fleet.Claim || asked[2].Verb != fleet.Release || asked[2].Host != "host1" {
		t.Errorf("asked %+v", asked)
	}
	for _, bad := range [][]string{
		{"host", "policy", "host1", "--owner", "maybe"}, {"host", "policy", "none"}, {"host", "policy"}, {"host", "claim"}, {"host", "sell", "host1"},
	} {
		if got := w.pagurus("", bad...); got.code == 0 || got.err == "" {
			t.Errorf("%v: %+v", bad, got)
		}
	}
	if len(asked) != 3 {
		t.Errorf("nonsense was asked: %+v", asked[3:])
	}
}

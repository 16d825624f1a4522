package access

import (
	"bytes"
	"encoding/json"
	"testing"

	"pagurus/fleet"
)

// What a job's user and administrators alone may see, and that the state itself stays as it is.
func TestVisible(t *testing.T) {
	s := fleet.NewSnapshot()
	remains := fleet.Remains{Why: "it ended", Console: []string{"secret"}, Log: []string{"secret"}}
	s.Jobs["j1"] = fleet.Job{ID: "j1", Cause: "guest j1g0 ended: " + remains.Sentence(), Spec: fleet.JobSpec{UID: 1, Env: []string{"KEY=secret"}}}
	s.Guests["j1g0"] = fleet.Guest{ID: "j1g0", Job: "j1", Cause: remains.Sentence(), Remains: &remains}
	s.Guests["j1g1"] = fleet.Guest{ID: "j1g1", Job: "j1"}
	s.Users["ada"], s.Users["grace"] = fleet.User{ID: "ada"}, fleet.User{ID: "grace"}
	s.Tokens["t"] = fleet.JoinToken{ID: "t"}
	const place = "10.0.0.7:40001/WORD"
	s.Migrations["m1.j1g0"] = fleet.Migration{ID: "m1.j1g0", Guest: "j1g0", Listen: place}
	s.Hosts["h"] = fleet.Host{ID: "h", WireGuard: fleet.WireGuardEnd{Key: "place"}, Facts: fleet.Facts{Connected: true, From: "place", WireGuard: &fleet.WireGuardFacts{
		WireGuardEnd: fleet.WireGuardEnd{Key: "place"}, By: fleet.KernelWireGuard, Mapped: []string{"place"},
		Paths: map[fleet.HostID]fleet.Path{"o": {Kind: fleet.DirectPath, At: "place"}},
	}}}
	for _, c := range []struct {
		name          string
		by            fleet.Caller
		secrets       bool
		users, tokens int
	}{
		{"root", root, true, 2, 1},
		{"the job's user", ada, true, 1, 0},
		{"another user", grace, false, 1, 0},
		{"somebody by uid", fleet.Caller{UID: 77}, false, 0, 0},
	} {
		v := Visible(s, c.by)
		text, err := json.Marshal(v)
		if n := bytes.Count(text, []byte("secret")); err != nil || c.secrets && n != 5 || !c.secrets && n > 0 {
			t.Errorf("%s sees %d secrets, %v: %s", c.name, n, err, text)
		}
		if n := bytes.Count(text, []byte(`"place"`)); c.by.Admin && n != 5 || !c.by.Admin && n > 0 {
			t.Errorf("%s sees %d times how a host is reached", c.name, n)
		}
		if w := v.Hosts["h"].Facts.WireGuard; w.By == "" || w.Paths["o"].Kind != fleet.DirectPath {
			t.Errorf("%s sees nothing of how hosts are connected: %+v", c.name, w)
		}
		if m := v.Migrations["m1.j1g0"]; m.Guest != "j1g0" || (m.Listen == place) != c.by.Admin || m.Listen != "" && !c.by.Admin {
			t.Errorf("%s sees where the guest is received: %+v", c.name, m)
		}
		if g := v.Guests["j1g0"]; g.Remains.Why == "" || g.Cause != "it ended" && !c.secrets || len(v.Guests) != 2 || len(v.Users) != c.users || len(v.Tokens) != c.tokens {
			t.Errorf("%s sees %+v", c.name, v)
		}
	}
	if s.Hosts["h"].Facts.WireGuard.Paths["o"].At != "place" || len(s.Guests["j1g0"].Remains.Console) == 0 || len(s.Jobs["j1"].Spec.Env) == 0 || len(s.Tokens) == 0 || s.Migrations["m1.j1g0"].Listen != place {
		t.Error("looking changed the state")
	}
}

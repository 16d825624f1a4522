package owners

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"pagurus/decide/state"
	"pagurus/fleet"
)

var reliefNoon = time.Date(2026, 3, 4, 12, 0, 0, 0, time.UTC)

// cluster has hosts of four CPUs, and jobs that have run for an hour, with busy guests of
// four CPUs each.
func cluster(hosts int, jobs ...[]int) fleet.Snapshot {
	s := fleet.NewSnapshot()
	s.At = reliefNoon
	for i := range hosts {
		id := fleet.HostID(fmt.Sprintf("host%d", i+1))
		s.Hosts[id] = fleet.Host{ID: id, State: fleet.HostUp, Policy: fleet.OwnerPolicy{Owned: true}, Facts: fleet.Facts{
			SeenAt: reliefNoon, Connected: true, Machine: string(id), Capacity: fleet.Resources{CPUs: 4, MemoryBytes: 8 << 30},
			Abilities: map[fleet.Kind]fleet.Abilities{fleet.VM: {Live: true}}, Guests: map[fleet.GuestID]fleet.GuestFacts{},
			Owner: &fleet.Owner{State: fleet.OwnerAbsent, Since: reliefNoon.Add(-time.Hour)},
		}}
	}
	for i, homes := range jobs {
		j := fleet.Job{ID: fleet.JobID(fmt.Sprintf("j%d", i+1)), State: fleet.JobRunning, Since: reliefNoon.Add(-time.Hour), Spec: fleet.JobSpec{Guests: len(homes)}}
		s.Jobs[j.ID] = j
		for n, home := range homes {
			g := fleet.Guest{ID: fleet.GuestID(fmt.Sprintf("%sg%d", j.ID, n)), Job: j.ID, Index: n, Kind: fleet.VM, State: fleet.GuestRunning,
				Home: fleet.HostID(fmt.Sprintf("host%d", home)), Need: fleet.Resources{CPUs: 4, MemoryBytes: 1 << 30}}
			s.Guests[g.ID] = g
			s.Hosts[g.Home].Facts.Guests[g.ID] = fleet.GuestFacts{CPUs: 2}
		}
	}
	return s
}

func plans(s fleet.Snapshot) []ReliefPlan {
	l := state.NewIndex(s, nil)
	return PlanRelief(ReliefView{At: s.At, Index: l, Room: l.Room().Survey(s.At),
		Guest: func(id fleet.GuestID) fleet.Guest { return s.Guests[id] }, Job: func(id fleet.JobID) fleet.Job { return s.Jobs[id] }})
}

// names lists the moves.
func names(of []ReliefPlan) string {
	var out []string
	for _, p := range of {
		var one []string
		for _, g := range p.Guests {
			one = append(one, fmt.Sprintf("%s to %s", g.ID, p.To[g.ID].Host))
		}
		out = append(out, strings.Join(one, " and "))
	}
	return strings.Join(out, "; ")
}

func TestLook(t *testing.T) {
	host := func(s fleet.Snapshot, id fleet.HostID, change func(*fleet.Host)) {
		h := s.Hosts[id]
		change(&h)
		s.Hosts[id] = h
	}
	there := func(load float64) func(*fleet.Host) {
		return func(h *fleet.Host) {
			h.Facts.Owner = &fleet.Owner{State: fleet.OwnerPresent, Present: true, Since: reliefNoon.Add(-time.Hour), LoadCPUs: load}
			h.Policy.Vacate = fleet.Stay
		}
	}
	nothing := func(fleet.Snapshot) {}
	moved := func(ago time.Duration, phase fleet.Phase) func(fleet.Snapshot) {
		return func(s fleet.Snapshot) {
			s.Migrations["m1.j1g2"] = fleet.Migration{ID: "m1.j1g2", Move: "m1", Job: "j1", Guest: "j1g2", From: "host9", To: "host2", Phase: phase, Since: reliefNoon.Add(-ago)}
		}
	}
	one, two := cluster(3, []int{1, 1, 2}), "j1g0 to host3"
	for name, c := range map[string]struct {
		s      fleet.Snapshot
		change func(fleet.Snapshot)
		want   string
	}{
		"one of two on a host":             {one, nothing, two},
		"no host is short":                 {cluster(4, []int{1, 2, 3}), nothing, ""},
		"no host has more":                 {cluster(3, []int{1, 1, 2}, []int{3}), nothing, ""},
		"two hosts are short":              {cluster(6, []int{1, 1, 2, 2}), nothing, "j1g0 to host3 and j1g2 to host4"},
		"two are short, one has more":      {cluster(3, []int{1, 1, 2, 2}), nothing, ""},
		"two jobs on one host":             {cluster(6, []int{1, 2}, []int{1, 3}), nothing, "j1g0 to host4"},
		"two jobs on two hosts":            {cluster(6, []int{1, 1}, []int{2, 2}), nothing, "j1g0 to host3; j2g0 to host4"},
		"too many to move":                 {cluster(20, []int{1, 1, 2, 2, 3, 3, 4, 4, 5, 5}), nothing, ""},
		"all have what they use":           {cluster(3, []int{1, 1, 2}), func(s fleet.Snapshot) { s.Hosts["host1"].Facts.Guests["j1g1"] = fleet.GuestFacts{CPUs: 0.5} }, ""},
		"one is suspended":                 {cluster(3, []int{1, 1, 2}), func(s fleet.Snapshot) { s.Hosts["host2"].Facts.Guests["j1g2"] = fleet.GuestFacts{} }, ""},
		"a move under way":                 {cluster(3, []int{1, 1, 2}), moved(time.Hour, fleet.Copying), ""},
		"a move not long ago":              {cluster(3, []int{1, 1, 2}), moved(4*time.Minute, fleet.Aborted), ""},
		"a move long ago":                  {cluster(3, []int{1, 1, 2}), moved(6*time.Minute, fleet.Finished), two},
		"an owner beside whom they stay":   {cluster(3, []int{1, 2}), func(s fleet.Snapshot) { host(s, "host1", there(3)) }, two},
		"an owner who uses little":         {cluster(3, []int{1, 2}), func(s fleet.Snapshot) { host(s, "host1", there(0.3)) }, ""},
		"an owner is where there was room": {cluster(3, []int{1, 1, 2}), func(s fleet.Snapshot) { host(s, "host3", there(0)) }, ""},
		"an owner who wants them gone": {cluster(3, []int{1, 2}), func(s fleet.Snapshot) {
			host(s, "host1", there(3))
			host(s, "host1", func(h *fleet.Host) { h.Policy.Vacate = fleet.Evacuate })
		}, ""},
		"something keeps it": {cluster(3, []int{1, 1, 2}), func(s fleet.Snapshot) {
			s.Hosts["host1"].Facts.Guests["j1g0"] = fleet.GuestFacts{CPUs: 2, Obstacles: []string{"a device"}}
		}, ""},
		"the host is not heard from": {cluster(3, []int{1, 1, 2}), func(s fleet.Snapshot) { host(s, "host1", func(h *fleet.Host) { h.Facts.Connected = false }) }, ""},
		"the job is young": {cluster(3, []int{1, 1, 2}), func(s fleet.Snapshot) {
			j := s.Jobs["j1"]
			j.Since = reliefNoon.Add(-2 * time.Second)
			s.Jobs["j1"] = j
		}, ""},
	} {
		c.change(c.s)
		if got := names(plans(c.s)); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
	if got := plans(one)[0].Why; !strings.HasPrefix(got, "job j1 is held back by host1: 50 % of its pace, and 100 % elsewhere") {
		t.Errorf("%q", got)
	}
}

// Once a minute, only under predictive, and only while one host is tight and another has
// spare CPUs.
func TestDue(t *testing.T) {
	due := func(s fleet.Snapshot, at time.Time) bool { return ReliefDue(state.NewIndex(s, nil), at) }
	s := cluster(3, []int{1, 1, 2})
	times := 0
	for i := range 120 {
		if due(s, reliefNoon.Add(time.Duration(i)*time.Second+300*time.Millisecond)) {
			times++
		}
	}
	if times != 2 {
		t.Errorf("%d times in two minutes", times)
	}
	if due(cluster(3, []int{1, 2}), reliefNoon) || due(cluster(2, []int{1, 1, 2}), reliefNoon) {
		t.Error("no guest needs help, or no host can give it")
	}
	s.Cluster.Rules.Vacate = fleet.Evacuate
	if due(s, reliefNoon) {
		t.Error("another policy is in force")
	}
}

// However many are tight, a few jobs move at once, and all get their turn.
func TestTurns(t *testing.T) {
	var jobs [][]int
	for i := range 50 {
		jobs = append(jobs, []int{i + 1, i + 1})
	}
	s := cluster(200, jobs...)
	seen := map[fleet.JobID]bool{}
	for range 50 {
		found := plans(s)
		if len(found) > mostMoves {
			t.Fatalf("%d at once", len(found))
		}
		for _, p := range found {
			for _, g := range p.Guests { // as if it had arrived
				g.Home = p.To[g.ID].Host
				s.Guests[g.ID] = g
				s.Hosts[g.Home].Facts.Guests[g.ID] = fleet.GuestFacts{CPUs: 4}
				seen[g.Job] = true
			}
		}
		s.At = s.At.Add(every)
		for id, h := range s.Hosts {
			h.Facts.SeenAt = s.At
			s.Hosts[id] = h
		}
	}
	if len(seen) != 50 {
		t.Errorf("%d jobs of 50 had their turn", len(seen))
	}
}

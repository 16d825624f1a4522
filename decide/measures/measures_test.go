package measures

import (
	"slices"
	"testing"
	"time"

	"pagurus/fleet"
)

var noon = time.Date(2026, 3, 4, 12, 0, 0, 0, time.UTC)

// value is a number of a family; -1: there is none.
func value(all []Family, name string, labels ...string) float64 {
	for _, f := range all {
		for _, p := range f.Points {
			if f.Name == name && slices.Equal(p.Labels, labels) {
				return p.Value
			}
		}
	}
	return -1
}

func TestOfCluster(t *testing.T) {
	s := fleet.NewSnapshot()
	s.At, s.LedSince = noon, noon.Add(-time.Hour)
	host := func(id fleet.HostID, seen time.Duration, state fleet.HostState) {
		s.Hosts[id] = fleet.Host{ID: id, State: state, Lease: 5 * time.Minute, Facts: fleet.Facts{SeenAt: noon.Add(-seen), Connected: seen < time.Minute, Capacity: fleet.Resources{CPUs: 8}, Troubles: []string{"x"}, Owner: &fleet.Owner{State: fleet.OwnerPresent}}}
	}
	host("host1", 0, fleet.HostUp)
	host("host2", 0, fleet.HostDraining)
	host("host3", time.Hour, fleet.HostUp)
	host("host4", 3*time.Minute, fleet.HostUp)
	s.Jobs["j1"], s.Jobs["j2"] = fleet.Job{State: fleet.JobRunning}, fleet.Job{State: fleet.JobEnded}
	s.Guests["j1g0"], s.Guests["j2g0"] = fleet.Guest{State: fleet.GuestMoving, Home: "host1"}, fleet.Guest{State: fleet.GuestEnded, Home: "host1"}
	s.Migrations["m1.j1g0"], s.Migrations["m0.j1g0"] = fleet.Migration{Phase: fleet.Copying}, fleet.Migration{Phase: fleet.Finished}
	s.Crowded = map[fleet.JobID]string{"j1": "full"}
	all := OfCluster(s)
	for _, c := range []struct {
		name, label string
		want        float64
	}{
		{"pagurus_hosts", "up", 1}, {"pagurus_hosts", "draining", 1}, {"pagurus_hosts", "gone", 1}, {"pagurus_hosts", "silent", 1},
		{"pagurus_jobs", "running", 1}, {"pagurus_jobs", "pending", 0}, {"pagurus_jobs", "ended", -1}, {"pagurus_guests", "moving", 1}, {"pagurus_guests", "ended", -1},
		{"pagurus_migrations", "copying", 1}, {"pagurus_migrations", "finished", -1}, {"pagurus_host_guests", "host1", 1}, {"pagurus_host_cpus", "host2", 8},
		{"pagurus_host_connected", "host1", 1}, {"pagurus_host_connected", "host3", 0}, {"pagurus_host_troubles", "host1", 1}, {"pagurus_host_owner_present", "host1", 1}, {"pagurus_host_draining", "host2", 1},
	} {
		if got := value(all, c.name, c.label); got != c.want {
			t.Errorf("%s of %s: %g, want %g", c.name, c.label, got, c.want)
		}
	}
	if got := value(all, "pagurus_jobs_without_room"); got != 1 {
		t.Errorf("%g jobs without room", got)
	}
}

func TestOfHost(t *testing.T) {
	f := fleet.Facts{Guests: map[fleet.GuestID]fleet.GuestFacts{"j1g0": {Run: fleet.Running, CPUTime: 90 * time.Second, ResidentBytes: 5}}, Lease: fleet.Lease{Held: time.Minute}}
	all := OfHost(f, true)
	for name, want := range map[string]float64{"pagurus_agent_connected": 1, "pagurus_agent_lease_held": 1, "pagurus_agent_energy_joules_total": -1, "pagurus_vault_bytes": -1} {
		if got := value(all, name); got != want {
			t.Errorf("%s: %g, want %g", name, got, want)
		}
	}
	if got := value(all, "pagurus_guest_cpu_seconds_total", "j1g0"); got != 90 {
		t.Errorf("%g s", got)
	}
	f.Power = &fleet.Power{Joules: 7}
	if got := value(OfHost(f, false), "pagurus_agent_energy_joules_total"); got != 7 {
		t.Errorf("%g J", got)
	}
}

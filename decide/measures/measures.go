// Package measures says what of a cluster, or of a host, monitoring sees: names, by the conventions of
// Prometheus, and numbers.
//
// It is pure and knows no registry: package serve/metrics shows what it says. Names of jobs and users are not in it, so that what
// monitoring keeps is bounded by the number of hosts. Its tests give it snapshots.
package measures

import (
	"maps"
	"slices"

	"pagurus/decide/placement"
	"pagurus/fleet"
)

// Family is numbers of one name.
type Family struct {
	Name    string
	Help    string
	Counter bool     // it only grows, until its process begins again
	Labels  []string // names
	Points  []Point
}

// Point is one number.
type Point struct {
	Labels []string // values, in the order of the family's names
	Value  float64
}

// states makes a family with a number for each of some words, which are all there, also with 0.
func states[K ~string](name, help, label string, words []K, count map[K]int) Family {
	f := Family{Name: name, Help: help, Labels: []string{label}}
	for _, w := range words {
		f.Points = append(f.Points, Point{[]string{string(w)}, float64(count[w])})
	}
	return f
}

// The words of states that monitoring counts.
var (
	hostStates  = []string{"up", "draining", "silent", "gone"}
	jobStates   = []fleet.JobState{fleet.JobPending, fleet.JobStarting, fleet.JobRunning, fleet.JobStopping, fleet.JobSuspended}
	guestStates = []fleet.GuestState{fleet.GuestStarting, fleet.GuestRestoring, fleet.GuestRestored, fleet.GuestResuming, fleet.GuestRunning, fleet.GuestMoving, fleet.GuestStopping, fleet.GuestSought}
)

// OfCluster is what a controller's monitoring sees of the cluster.
func OfCluster(s fleet.Snapshot) []Family {
	hosts, jobs, guests, moves, at := map[string]int{}, map[fleet.JobState]int{}, map[fleet.GuestState]int{}, map[fleet.Phase]int{}, map[fleet.HostID]int{}
	for id := range s.Hosts {
		hosts[hostState(s, id)]++
	}
	for _, j := range s.Jobs {
		jobs[j.State]++
	}
	for _, g := range s.Guests {
		if guests[g.State]++; !g.State.Ended() {
			at[g.Home]++
		}
	}
	for _, m := range s.Migrations {
		moves[m.Phase]++
	}
	var phases []fleet.Phase
	for _, p := range fleet.Phases {
		if !p.Phase.Ended() {
			phases = append(phases, p.Phase)
		}
	}
	crowded := Family{Name: "pagurus_jobs_without_room", Help: "Jobs whose programs wait because there is no room for their output.", Points: []Point{{Value: float64(len(s.Crowded))}}}
	out := []Family{
		states("pagurus_hosts", "Hosts of the cluster by state; silent ones have not been heard for a while, gone ones for longer than their lease.", "state", hostStates, hosts),
		states("pagurus_jobs", "Jobs that have not ended, by state.", "state", jobStates, jobs),
		states("pagurus_guests", "Guests that have not ended, by state.", "state", guestStates, guests),
		states("pagurus_migrations", "Migrations under way, by phase.", "phase", phases, moves),
		crowded,
	}
	return append(out, ofHosts(s, at)...)
}

// hostState is what a host is for monitoring.
func hostState(s fleet.Snapshot, id fleet.HostID) string {
	h := s.Hosts[id]
	switch {
	case s.Gone(id, s.At):
		return "gone"
	case placement.Unheard(s, id, s.At) > 0:
		return "silent"
	case h.State == fleet.HostDraining:
		return "draining"
	}
	return "up"
}

// hostFamily is a family with a number of each host.
type hostFamily struct {
	name, help string
	of         func(h fleet.Host, guests int) float64
}

// hostFamilies are what the controller knows of each host.
var hostFamilies = []hostFamily{
	{"pagurus_host_connected", "Whether the host's agent is connected to the controller.", func(h fleet.Host, _ int) float64 { return truth(h.Facts.Connected) }},
	{"pagurus_host_draining", "Whether the host is being emptied, and takes no guests.", func(h fleet.Host, _ int) float64 { return truth(h.State == fleet.HostDraining) }},
	{"pagurus_host_owner_present", "Whether the host's owner is there.", func(h fleet.Host, _ int) float64 { return truth(h.Facts.Owner != nil && h.Facts.Owner.State.There()) }},
	{"pagurus_host_guests", "Guests whose home the host is.", func(_ fleet.Host, n int) float64 { return float64(n) }},
	{"pagurus_host_cpus", "CPUs that the host offers to guests.", func(h fleet.Host, _ int) float64 { return float64(h.Facts.Capacity.CPUs) }},
	{"pagurus_host_load_cpus", "CPUs that guests on the host use.", func(h fleet.Host, _ int) float64 { return h.Facts.LoadCPUs }},
	{"pagurus_host_memory_bytes", "Memory that the host offers to guests.", func(h fleet.Host, _ int) float64 { return float64(h.Facts.Capacity.MemoryBytes) }},
	{"pagurus_host_memory_in_use_bytes", "Memory that guests on the host occupy.", func(h fleet.Host, _ int) float64 { return float64(h.Facts.MemoryInUse) }},
	{"pagurus_host_troubles", "What is wrong on the host; `pagurus host show` says what.", func(h fleet.Host, _ int) float64 { return float64(len(h.Facts.Troubles)) }},
	{"pagurus_host_losses", "How often the host was lost while it took guests, as far as that counts still.", func(h fleet.Host, _ int) float64 { return float64(len(h.Losses)) }},
}

func truth(is bool) float64 {
	if is {
		return 1
	}
	return 0
}

// ofHosts has a number of each host in each family.
func ofHosts(s fleet.Snapshot, guests map[fleet.HostID]int) (out []Family) {
	ids := slices.Sorted(maps.Keys(s.Hosts))
	for _, f := range hostFamilies {
		of := Family{Name: f.name, Help: f.help, Labels: []string{"host"}}
		for _, id := range ids {
			of.Points = append(of.Points, Point{[]string{string(id)}, f.of(s.Hosts[id], guests[id])})
		}
		out = append(out, of)
	}
	return out
}

// OfHost is what an agent's monitoring sees of its host.
func OfHost(f fleet.Facts, connected bool) []Family {
	one := func(name, help string, v float64) Family {
		return Family{Name: name, Help: help, Points: []Point{{Value: v}}}
	}
	out := []Family{
		one("pagurus_agent_connected", "Whether the agent is connected to a controller.", truth(connected)),
		one("pagurus_agent_troubles", "What is wrong on this host; `pagurus host show` says what.", float64(len(f.Troubles))),
		one("pagurus_agent_cpus", "CPUs that this host offers to guests.", float64(f.Capacity.CPUs)),
		one("pagurus_agent_memory_bytes", "Memory that this host offers to guests.", float64(f.Capacity.MemoryBytes)),
		one("pagurus_agent_owner_present", "Whether this host's owner is there.", truth(f.Owner != nil && f.Owner.State.There())),
		one("pagurus_agent_lease_held", "Whether the agent has a lease: without one nothing stops its guests when the controller is away.", truth(f.Lease.Held > 0)),
	}
	cpu := Family{Name: "pagurus_guest_cpu_seconds_total", Help: "Processor time that a guest used on this host.", Counter: true, Labels: []string{"guest"}}
	memory := Family{Name: "pagurus_guest_resident_bytes", Help: "Memory of this host that a guest occupies.", Labels: []string{"guest"}}
	running := Family{Name: "pagurus_guest_running", Help: "Whether a guest runs; otherwise it is suspended, or comes in.", Labels: []string{"guest"}}
	for _, id := range slices.Sorted(maps.Keys(f.Guests)) {
		g, labels := f.Guests[id], []string{string(id)}
		cpu.Points = append(cpu.Points, Point{labels, g.CPUTime.Seconds()})
		memory.Points = append(memory.Points, Point{labels, float64(g.ResidentBytes)})
		running.Points = append(running.Points, Point{labels, truth(g.Run == fleet.Running)})
	}
	left := Family{Name: "pagurus_copy_remaining_bytes", Help: "Memory that a copy from this host has still to send.", Labels: []string{"migration"}}
	sent := Family{Name: "pagurus_copy_sent_bytes", Help: "What a copy from this host has sent.", Labels: []string{"migration"}}
	for _, id := range slices.Sorted(maps.Keys(f.Copies)) {
		left.Points = append(left.Points, Point{[]string{string(id)}, float64(f.Copies[id].RemainingBytes)})
		sent.Points = append(sent.Points, Point{[]string{string(id)}, float64(f.Copies[id].SentBytes)})
	}
	out = append(out, cpu, memory, running, left, sent)
	if p := f.Power; p != nil && p.Trouble == "" { // a host that does not tell has no such number, which differs from 0
		out = append(out, Family{Name: "pagurus_agent_energy_joules_total", Help: "What this host's processors used since the agent began.", Counter: true, Points: []Point{{Value: p.Joules}}})
	}
	if v := f.Vault; v != nil {
		out = append(out, one("pagurus_vault_bytes", "What this host's vault keeps of checkpoints.", float64(v.UsedBytes)))
	}
	return out
}

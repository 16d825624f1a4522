package planner

import (
	"fmt"
	"testing"
	"time"

	"pagurus/decide/desired"
	"pagurus/decide/state"
	"pagurus/fleet"
)

// large makes a cluster of hosts with ten guests each, ten to a job.
func large(hosts int) fleet.Snapshot {
	s := fleet.NewSnapshot()
	s.At, s.LedSince = t0, t0
	s.Cluster = fleet.Cluster{NextJob: uint64(hosts + 1), NextMove: 1}
	for h := range hosts {
		id := fleet.HostID(fmt.Sprintf("host%d", h))
		s.Hosts[id] = fleet.Host{ID: id, State: fleet.HostUp, Facts: fleet.Facts{
			SeenAt: t0, Connected: true, Machine: string(id), Capacity: fleet.Resources{CPUs: 16, MemoryBytes: 64 << 30},
			Abilities: map[fleet.Kind]fleet.Abilities{fleet.VM: {Live: true, Accelerator: "kvm"}},
		}}
		j := fleet.Job{ID: fleet.JobID(fmt.Sprintf("j%d", h)), State: fleet.JobRunning, Spec: fleet.JobSpec{Guests: 10, Ranks: 10}, Subnet: fleet.Subnet(h), ShareHost: id}
		s.Jobs[j.ID] = j
		for i, g := range desired.GuestIDs(j) {
			s.Guests[g] = fleet.Guest{
				ID: g, Job: j.ID, Index: i, Kind: fleet.VM, State: fleet.GuestRunning, Gen: 1,
				Home: fleet.HostID(fmt.Sprintf("host%d", (h+i)%hosts)), Need: fleet.Resources{CPUs: 1, MemoryBytes: 4 << 30},
			}
		}
	}
	return s
}

// crowded gives every tenth host too few CPUs for its guests, which are all busy.
func crowded(s fleet.Snapshot) fleet.Snapshot {
	for h := range len(s.Hosts) / 10 {
		id := fleet.HostID(fmt.Sprintf("host%d", 10*h))
		of := s.Hosts[id]
		of.Facts.Capacity.CPUs = 8
		s.Hosts[id] = of
	}
	guests := map[fleet.HostID]map[fleet.GuestID]fleet.GuestFacts{}
	for id, g := range s.Guests {
		if guests[g.Home] == nil {
			guests[g.Home] = map[fleet.GuestID]fleet.GuestFacts{}
		}
		guests[g.Home][id] = fleet.GuestFacts{CPUs: 0.8}
	}
	for id, of := range s.Hosts {
		of.Facts.Guests = guests[id]
		s.Hosts[id] = of
	}
	return s
}

// queued makes hosts so full that jobs wait: of many shapes, some with a limit, some for one host.
func queued(hosts, jobs int) fleet.Snapshot {
	s := large(hosts)
	for id, h := range s.Hosts {
		h.Facts.Capacity.MemoryBytes = 42 << 30
		s.Hosts[id] = h
	}
	for i := range jobs {
		spec := *submission(1 + i%7).Spec
		spec.UID, spec.Kind = uint32(1000+i%20), fleet.VM
		spec.Machine, spec.Need.MemoryBytes, spec.Time = "host1", int64(4+i%5)<<30, time.Duration(i%3)*time.Hour
		if i%11 == 0 {
			spec.Guests, spec.On = 1, []fleet.HostID{fleet.HostID(fmt.Sprintf("host%d", i%hosts))}
		}
		j := fleet.Job{ID: fleet.JobID(fmt.Sprintf("j%d", hosts+i)), State: fleet.JobPending, Spec: spec, Submitted: t0}
		s.Jobs[j.ID] = j
	}
	s.Cluster.NextJob = uint64(hosts + jobs)
	return s
}

// BenchmarkStep is one event in a cluster of 10,000 hosts and 100,000 guests, with a
// persistent index, as in the controller and the simulator.
func BenchmarkStep(b *testing.B) {
	s := large(10_000)
	p := &Planner{}
	admin := fleet.Caller{Admin: true}
	d, err := p.Step(s, fleet.Request{Verb: fleet.Migrate, Guest: "j5g0", By: admin})
	if err != nil {
		b.Fatal(err)
	}
	still, moving := state.NewIndex(s, nil), state.NewIndex(s.Apply(d.Change, 1), nil)
	sites := large(10_000)
	for id, h := range sites.Hosts {
		h.Facts.Site = "site" + string(id[len(id)-1:])
		sites.Hosts[id] = h
	}
	sited := state.NewIndex(sites, nil)
	full := state.NewIndex(crowded(large(10_000)), nil)
	long, longLarge := state.NewIndex(queued(200, 10_000), nil), state.NewIndex(queued(10_000, 10_000), nil)
	over := fleet.Reports{{At: t0, Order: fleet.Order{Verb: fleet.Watch, Host: "host5", Job: "j5", Guest: "j5g0", Gen: 1}, Outcome: fleet.Failed}}
	submit := submission(16)
	submit.Spec.Machine = "host1"
	for _, c := range []struct {
		name string
		l    *state.Index
		ev   fleet.Event
	}{
		{"report", moving, fleet.Report{At: t0, Order: d.Orders[0], Outcome: fleet.Done}},
		{"migrate", still, fleet.Request{Verb: fleet.Migrate, Guest: "j5g0", By: admin}},
		{"migrate-gang", still, fleet.Request{Verb: fleet.Migrate, Job: "j5", By: admin}},
		{"submit-16", still, submit},
		{"drain", still, fleet.Request{Verb: fleet.Drain, Host: "host7", By: admin}},
		{"migrate-gang-sites", sited, fleet.Request{Verb: fleet.Migrate, Job: "j5", By: admin}},
		{"submit-16-sites", sited, submit},
		{"drain-sites", sited, fleet.Request{Verb: fleet.Drain, Host: "host7", By: admin}},
		{"tick", still, fleet.Tick{At: t0}},
		{"tick-moving", moving, fleet.Tick{At: t0}},
		{"tick-queue", long, fleet.Tick{At: t0}}, // of 10,000 jobs
		{"submit-queue", long, submit},
		{"report-queue", long, over},
		{"tick-queue-10000-hosts", longLarge, fleet.Tick{At: t0}},
		{"tick-crowded", full, fleet.Tick{At: t0.Truncate(time.Minute)}},
	} {
		b.Run(c.name, func(b *testing.B) {
			for b.Loop() {
				if _, err := p.StepOn(c.l, c.ev); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
	b.Run("whole", func(b *testing.B) { // without an index: a single question
		for b.Loop() {
			if _, err := p.Step(s, fleet.Tick{At: t0}); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("desired", func(b *testing.B) {
		for b.Loop() {
			desired.New(s)
		}
	})
}

package controller

import (
	"context"
	"fmt"
	"math"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"pagurus/fleet"
	"pagurus/serve/wire"
)

// A host that sends as much as it can, of everything that an agent may send, does not keep others waiting, and what the
// controller keeps of it is bounded; also while the store takes nothing.
func TestFloodOfARogueHost(t *testing.T) {
	s := setStage(t)
	s.attach("host3")
	runtime.GC()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	ctx, cancel := context.WithCancel(t.Context())
	var flooding sync.WaitGroup
	big := s.facts("host7")
	for range 50 {
		big.Troubles = append(big.Troubles, strings.Repeat("x", 10<<10))
	}
	for _, up := range []wire.Up{
		{Facts: &big},
		{Report: &fleet.Report{Order: fleet.Order{Verb: fleet.Watch, Host: "host7", Guest: s.foreign.ID, Job: s.foreign.Job}, Outcome: fleet.Done, Cause: strings.Repeat("y", 100<<10)}},
		{Reply: &wire.Reply{ID: 1, Error: strings.Repeat("z", 100<<10)}},
	} {
		flooding.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				if up.Report != nil {
					r := *up.Report
					r.Order.Attempt = i
					up.Report = &r
				}
				if s.rogue.session.Send(ctx, up) != nil {
					return
				}
			}
		})
	}
	for i := range 2 {
		if i == 1 {
			s.store.set(fmt.Errorf("no space"))
			time.Sleep(time.Second)
			s.store.set(nil)
		}
		begun := time.Now()
		g := s.on("host1")
		s.moved(g, "host3")
		if took := time.Since(begun); took > 40*time.Second {
			t.Errorf("a job and a move took %s", took)
		}
	}
	runtime.ReadMemStats(&after)
	if used := int64(after.HeapInuse) - int64(before.HeapInuse); used > 512<<20 {
		t.Errorf("the controller and who floods it use %d MiB", used>>20)
	}
	cancel()
	flooding.Wait()
}

// Facts that are of no machine end the session: others' room is added up with them.
func TestImpossibleFacts(t *testing.T) {
	good := fleet.Facts{
		Capacity: fleet.Resources{CPUs: 4, MemoryBytes: 8 << 30}, LoadCPUs: 1.5, MemoryInUse: 1 << 30,
		Guests:   map[fleet.GuestID]fleet.GuestFacts{"j1g0": {ResidentBytes: 1 << 20, CPUs: 0.5}},
		Topology: &fleet.Topology{Nodes: []fleet.Node{{Cores: []fleet.Core{{CPUs: []int{0}}}}}},
	}
	if err := possible("host7", good); err != nil {
		t.Error(err)
	}
	if err := possible("host7", fleet.Facts{}); err != nil {
		t.Error(err)
	}
	for what, spoil := range map[string]func(*fleet.Facts){
		"memory without end":   func(f *fleet.Facts) { f.Capacity.MemoryBytes = math.MaxInt64 },
		"less than no memory":  func(f *fleet.Facts) { f.Capacity.MemoryBytes = -1 },
		"CPUs without end":     func(f *fleet.Facts) { f.Capacity.CPUs = math.MaxInt },
		"less than no CPUs":    func(f *fleet.Facts) { f.Capacity.CPUs = -1 },
		"a limit that is none": func(f *fleet.Facts) { f.CPULimit = math.NaN() },
		"a load without end":   func(f *fleet.Facts) { f.LoadCPUs = math.Inf(1) },
		"memory in use":        func(f *fleet.Facts) { f.MemoryInUse = math.MinInt64 },
		"a guest's memory": func(f *fleet.Facts) {
			f.Guests = map[fleet.GuestID]fleet.GuestFacts{"j1g0": {ResidentBytes: math.MaxInt64}}
		},
		"many guests": func(f *fleet.Facts) {
			f.Guests = map[fleet.GuestID]fleet.GuestFacts{}
			for i := range mostGuests + 1 {
				f.Guests[fleet.GuestID(fmt.Sprint(i))] = fleet.GuestFacts{}
			}
		},
		"many nodes": func(f *fleet.Facts) { f.Topology = &fleet.Topology{Nodes: make([]fleet.Node, mostNodes+1)} },
		"many cores": func(f *fleet.Facts) {
			f.Topology = &fleet.Topology{Nodes: []fleet.Node{{Cores: make([]fleet.Core, mostCPUs+1)}}}
		},
		"many troubles":  func(f *fleet.Facts) { f.Troubles = make([]string, mostTroubles+1) },
		"a long trouble": func(f *fleet.Facts) { f.Troubles = []string{strings.Repeat("x", mostText+1)} },
		"a long version": func(f *fleet.Facts) { f.Version = strings.Repeat("x", mostText+1) },
		"a guest's long obstacle": func(f *fleet.Facts) {
			f.Guests = map[fleet.GuestID]fleet.GuestFacts{"j1g0": {Obstacles: []string{"", strings.Repeat("x", mostText+1)}}}
		},
		"a guest's long name": func(f *fleet.Facts) {
			f.Guests = map[fleet.GuestID]fleet.GuestFacts{fleet.GuestID(strings.Repeat("x", mostName+1)): {}}
		},
		"a processor's long features": func(f *fleet.Facts) {
			f.Abilities = map[fleet.Kind]fleet.Abilities{fleet.VM: {Processor: strings.Repeat("x", mostText+1)}}
		},
		"a core with many CPUs": func(f *fleet.Facts) {
			f.Topology = &fleet.Topology{Nodes: []fleet.Node{{Cores: []fleet.Core{{CPUs: make([]int, mostCPUs+1)}}}}}
		},
		"many paths": func(f *fleet.Facts) {
			f.WireGuard = &fleet.WireGuardFacts{Paths: map[fleet.HostID]fleet.Path{}}
			for i := range mostPaths + 1 {
				f.WireGuard.Paths[fleet.HostID(fmt.Sprint(i))] = fleet.Path{}
			}
		},
		"a path with a long relay": func(f *fleet.Facts) {
			f.WireGuard = &fleet.WireGuardFacts{Paths: map[fleet.HostID]fleet.Path{"host8": {Relay: fleet.HostID(strings.Repeat("x", mostText+1))}}}
		},
		"many addresses": func(f *fleet.Facts) { f.WireGuard = &fleet.WireGuardFacts{Mapped: make([]string, mostMapped+1)} },
		"a long address": func(f *fleet.Facts) {
			f.WireGuard = &fleet.WireGuardFacts{Mapped: []string{strings.Repeat("x", mostText+1)}}
		},
		"many relayed": func(f *fleet.Facts) {
			f.WireGuard = &fleet.WireGuardFacts{Relayed: make([]fleet.RelayPort, mostPaths+1)}
		},
	} {
		f := good
		spoil(&f)
		if possible("host7", f) == nil {
			t.Errorf("%s: they are taken", what)
		}
	}
}

// A change that the store made and did not answer for is found, though nothing else changes.
func TestChangeWithoutAnAnswer(t *testing.T) {
	r := newRig(t)
	a := r.attach("host1")
	r.until("the host to be stored", func(s fleet.Snapshot) bool { return s.Hosts["host1"].Address != "" })
	r.store.silent.Store(true)
	if _, err := r.client.Ask(r.ctx, fleet.Request{Verb: fleet.Submit, ID: "unanswered", Spec: &fleet.JobSpec{
		Args: []string{"./a.out"}, Dir: "/home/u", Ranks: 1, Guests: 1, Image: "openmpi", Machine: "machine", Need: fleet.Resources{CPUs: 1, MemoryBytes: 256 << 20},
	}}); err == nil {
		t.Error("it was answered")
	}
	if got := a.task(fleet.Start); got.Order.Host != "host1" {
		t.Errorf("the order is %+v", got.Order)
	}
}

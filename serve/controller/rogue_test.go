package controller

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"pagurus/decide/desired"
	"pagurus/decide/planner"
	"pagurus/fleet"
	"pagurus/serve/wire"
)

// on starts a job of one guest on a host, and gives its guest as it runs there.
func (r *rig) on(host fleet.HostID) fleet.Guest {
	r.t.Helper()
	a, err := r.client.Ask(r.ctx, fleet.Request{Verb: fleet.Submit, Spec: &fleet.JobSpec{
		Args: []string{"./a.out"}, Dir: "/home/u", Ranks: 1, Guests: 1, Image: "openmpi", Machine: "machine",
		Need: fleet.Resources{CPUs: 1, MemoryBytes: 256 << 20}, On: []fleet.HostID{host},
	}})
	if err != nil {
		r.t.Fatal(err)
	}
	return r.until("a job to run", running(a.Job)).Guests[desired.GuestID(a.Job, 0)]
}

// moves begins a move of a guest.
func (r *rig) moves(g fleet.Guest, to fleet.HostID) {
	r.t.Helper()
	if _, err := r.client.Ask(r.ctx, fleet.Request{Verb: fleet.Migrate, Guest: g.ID, To: to}); err != nil {
		r.t.Fatal(err)
	}
}

// moved moves a guest.
func (r *rig) moved(g fleet.Guest, to fleet.HostID) fleet.Guest {
	r.t.Helper()
	r.moves(g, to)
	return r.until("a guest to move", func(s fleet.Snapshot) bool {
		g := s.Guests[g.ID]
		return g.Home == to && g.State == fleet.GuestRunning
	}).Guests[g.ID]
}

// allVerbs are all that a host may report on.
func allVerbs() []fleet.Verb {
	all := []fleet.Verb{fleet.Start, fleet.Watch, fleet.Stop, fleet.Run, fleet.End}
	for _, p := range fleet.Phases {
		if p.Verb != "" && !slices.Contains(all, p.Verb) {
			all = append(all, p.Verb)
		}
	}
	return all
}

// forged are reports on an order with all that a report may say.
func forged(o fleet.Order) (out []fleet.Report) {
	for _, outcome := range []fleet.Outcome{fleet.Done, fleet.Failed, fleet.Unknown, fleet.Gone} {
		if outcome == fleet.Gone && o.Verb != fleet.Switch {
			continue
		}
		out = append(out, fleet.Report{
			Order: o, Outcome: outcome, Cause: "forged", Listen: "192.0.2.66:6", Cost: &fleet.Progress{TotalBytes: 66}, Rounds: []fleet.Round{{}},
			Resumed: time.Now(), Exit: &fleet.Exit{Code: 66}, Remains: &fleet.Remains{Why: "forged"},
			Traces: []fleet.Trace{{Rank: 0, Ranks: 1, Begun: time.Now(), Sent: []fleet.Sent{{Bytes: 66}}}},
		})
	}
	return out
}

// recorded is what the cluster has of all but one guest and its job.
func recorded(s fleet.Snapshot, but fleet.Guest) fleet.Snapshot {
	out := fleet.Snapshot{Cluster: s.Cluster, Moves: s.Moves, Migrations: s.Migrations, Users: s.Users, Tokens: s.Tokens}
	out.Guests, out.Jobs, out.Hosts = maps.Clone(s.Guests), maps.Clone(s.Jobs), maps.Clone(s.Hosts)
	delete(out.Guests, but.ID)
	delete(out.Jobs, but.Job)
	for id, h := range out.Hosts {
		h.Facts = fleet.Facts{}
		out.Hosts[id] = h
	}
	return out
}

// stage is a rogue host with what it may lie about.
type stage struct {
	*rig
	rogue   *agent
	foreign fleet.Guest // never was on the rogue host
	ended   fleet.Guest // the same, and its traces are kept
	former  fleet.Guest // was on the rogue host and has left; Gen is from before
	back    fleet.Guest // has left it and come back; Gen is from before
	moving  fleet.Guest // between two others
	last    fleet.Guest // runs on the rogue host
}

// setStage attaches host7, which has joined, beside others. host2 never answers that it can receive.
func setStage(t *testing.T) *stage {
	r := newRig(t)
	r.factsEvery = time.Hour // so that what a test has a host say stands
	r.attach("host1")
	r.attach("host2", fleet.Receive)
	member := r.member(r.token(fleet.JoinToken{Role: fleet.HostRole}), wire.Joining{Host: "host7", Machine: "machine", Address: "192.0.2.7"})
	rogue, err := r.attachBy(member, wire.Hello{Host: "host7", Facts: r.facts("host7")})
	if err != nil {
		t.Fatal(err)
	}
	s := &stage{rig: r, rogue: rogue, foreign: r.on("host1"), ended: r.on("host1"), former: r.on("host7"), back: r.on("host7"), last: r.on("host7")}
	if _, err := r.client.Ask(r.ctx, fleet.Request{Verb: fleet.Cancel, Job: s.ended.Job, Grace: new(time.Duration)}); err != nil {
		t.Fatal(err)
	}
	r.until("a job to end", jobEnded(s.ended.Job))
	r.moved(s.former, "host1")
	r.moved(r.moved(s.back, "host1"), "host7")
	s.moving = r.on("host1")
	r.moves(s.moving, "host2")
	s.moving = r.until("a move to begin", func(now fleet.Snapshot) bool { return now.Guests[s.moving.ID].Migration != "" }).Guests[s.moving.ID]
	r.until("the hosts' addresses to be stored", func(now fleet.Snapshot) bool {
		for _, h := range now.Hosts {
			if h.Address == "" {
				return false
			}
		}
		return true
	})
	return s
}

// lies are orders that the rogue host never got, or no longer has.
func (s *stage) lies() (out []fleet.Order) {
	now := s.now()
	for _, verb := range allVerbs() {
		for _, g := range []fleet.Guest{s.foreign, s.ended, s.former, s.back, s.moving} {
			for _, gen := range []uint64{g.Gen, now.Guests[g.ID].Gen, now.Guests[g.ID].Gen + 1, math.MaxUint64} {
				if g.ID == s.back.ID && gen == now.Guests[g.ID].Gen {
					continue // its own
				}
				o := fleet.Order{Verb: verb, Host: "host7", Job: g.Job, Guest: g.ID, Gen: gen}
				out = append(out, o)
				o.Peer = "host1"
				for id, m := range now.Migrations {
					if m.Guest == g.ID {
						o.Migration = id
						out = append(out, o)
					}
				}
				o.Migration, o.Peer, o.Guest = "", "", "" // as some orders of jobs were
				out = append(out, o)
			}
		}
	}
	return out
}

// Every report of a host that lies, with all that a report may say, on every order that it never
// got or that is older than what it was told since: nothing of others changes.
func TestEveryReportOfARogueHost(t *testing.T) {
	s := setStage(t)
	before := s.now()
	kept := map[fleet.JobID][]fleet.Trace{}
	for id := range before.Jobs {
		kept[id] = s.ctl.spool.traces(id)
	}
	if len(kept[s.ended.Job]) != 1 || before.Guests[s.ended.ID].State != fleet.GuestEnded {
		t.Fatalf("of the job that ended these traces are kept: %+v", kept)
	}
	lies := s.lies()
	for _, o := range lies {
		for _, r := range forged(o) {
			if err := s.rogue.session.Send(s.ctx, wire.Up{Report: &r}); err != nil {
				t.Fatalf("%+v: %v", o, err)
			}
		}
	}
	// What comes after them is the truth, and counts.
	g := s.now().Guests[s.last.ID]
	s.rogue.report(fleet.Report{Order: fleet.Order{Verb: fleet.Watch, Host: "host7", Job: g.Job, Guest: g.ID, Gen: g.Gen, Attempt: g.Attempt}, Outcome: fleet.Done, Cause: "true"})
	after := s.until("the rogue host's own guest to end", func(now fleet.Snapshot) bool { return now.Jobs[g.Job].State == fleet.JobEnded })
	if was, is := recorded(before, g), recorded(after, g); !reflect.DeepEqual(was, is) {
		t.Errorf("%d reports that are not true changed the cluster from\n%+v to\n%+v", len(lies), was, is)
	}
	for id, was := range kept {
		if is := s.ctl.spool.traces(id); id != g.Job && !reflect.DeepEqual(was, is) {
			t.Errorf("the traces of job %s were %+v and are %+v", id, was, is)
		}
	}
	s.otherHosts(lies)
}

// otherHosts sends reports on orders to other hosts: each ends the session.
func (s *stage) otherHosts(lies []fleet.Order) {
	s.t.Helper()
	now := s.now()
	for _, verb := range allVerbs() {
		i := slices.IndexFunc(lies, func(o fleet.Order) bool { return o.Verb == verb })
		o := lies[i]
		o.Host = "host1"
		for _, r := range forged(o) {
			if why := sensible("host7", r); why == nil || !strings.Contains(why.Error(), "reports on an order to") {
				s.t.Errorf("%+v: %v", o, why)
			}
		}
	}
	watch := fleet.Order{Verb: fleet.Watch, Host: "host1", Job: s.foreign.Job, Guest: s.foreign.ID, Gen: s.foreign.Gen} // which is outstanding
	s.rogue.report(fleet.Report{Order: watch, Outcome: fleet.Done})
	<-s.rogue.closed
	if g := s.now().Guests[s.foreign.ID]; g.State != fleet.GuestRunning || now.Guests[s.foreign.ID].Attempt != g.Attempt {
		s.t.Errorf("a report on another's order counted: %+v", g)
	}
}

// Facts of a host that has guests of all others, as it says, with moves, profiles and obstacles,
// change nothing that others' guests, jobs and hosts show, are told or are planned for.
func TestFactsOfARogueHost(t *testing.T) {
	s := setStage(t)
	before := s.now()
	claim := s.facts("host7")
	claim.Guests, claim.Copies = map[fleet.GuestID]fleet.GuestFacts{}, map[fleet.MigrationID]fleet.Progress{}
	for id := range before.Guests {
		claim.Guests[id] = fleet.GuestFacts{
			Gen: math.MaxUint64, Run: fleet.Running, ResidentBytes: 6 << 30, CPUs: 66, Suspended: true, ReclaimedBytes: 6 << 30,
			Profile: &fleet.Profile{At: time.Now()}, Obstacles: []string{"forged"}, Layout: &fleet.Layout{}, Seen: &fleet.Topology{},
		}
	}
	for id := range before.Migrations {
		claim.Copies[id] = fleet.Progress{TotalBytes: 66 << 30, RemainingBytes: 66 << 30, BytesPerSecond: 1}
	}
	if err := s.rogue.session.Send(s.ctx, wire.Up{Facts: &claim}); err != nil {
		t.Fatal(err)
	}
	after := s.until("the facts to be known", func(now fleet.Snapshot) bool {
		return len(now.Hosts["host7"].Facts.Guests) == len(claim.Guests)
	})
	if was, is := recorded(before, fleet.Guest{}), recorded(after, fleet.Guest{}); !reflect.DeepEqual(was, is) {
		t.Errorf("facts changed the cluster from\n%+v to\n%+v", was, is)
	}
	// The same cluster with and without the claims, so that nothing else differs.
	with := before
	with.Hosts = maps.Clone(before.Hosts)
	with.Hosts["host7"] = after.Hosts["host7"]
	was, is := s.shown(before), s.shown(with)
	for what, text := range was {
		if is[what] != text {
			t.Errorf("%s was\n%s\nand is\n%s", what, text, is[what])
		}
	}
}

// shown is all that the cluster says of others than host7, and tells them.
func (s *stage) shown(now fleet.Snapshot) map[string]string {
	s.t.Helper()
	out := map[string]string{"what is pending": fmt.Sprint(planner.Pending(now))}
	explain := func(what string, about planner.Subject) {
		lines, err := s.ctl.Planner.Explain(now, about)
		if err != nil {
			s.t.Fatal(what, err)
		}
		out["the explanation of "+what] = strings.Join(lines, "\n")
	}
	for id, g := range now.Guests {
		if g.Home == "host7" {
			continue
		}
		explain(string(id), planner.Subject{Guest: id})
		explain(string(g.Job), planner.Subject{Job: g.Job})
		facts := now.Hosts[g.Home].Facts
		out["what is known of "+string(id)] = s.text(facts.Guests[id])
	}
	for _, id := range []fleet.HostID{"host1", "host2"} {
		explain(string(id), planner.Subject{Host: id})
	}
	for _, id := range []fleet.HostID{"host1", "host2", "host7"} {
		out["what is wanted on "+string(id)] = s.text(desired.Wanted(now, id))
	}
	f, err := s.ctl.Planner.Foresee(now, fleet.Request{Verb: fleet.Migrate, Guest: s.foreign.ID, To: "host2", At: now.At})
	if err != nil {
		s.t.Fatal(err)
	}
	out["the forecast of "+string(s.foreign.ID)] = s.text(f)
	return out
}

func (s *stage) text(of any) string {
	s.t.Helper()
	text, err := json.Marshal(of)
	if err != nil {
		s.t.Fatal(err)
	}
	return string(text)
}

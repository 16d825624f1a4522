package state

import (
	"fmt"
	"reflect"
	"testing"
	"time"

	"pgregory.net/rapid"

	"pagurus/fleet"
)

var t0 = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// After any commits and facts, in any order, the index equals a newly made one, and the
// snapshot equals Apply's. Shared snapshots do not change.
func TestKept(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		plain := fleet.NewSnapshot()
		l := NewIndex(plain, nil)
		var shared, copied fleet.Snapshot
		pick := func(what string) int { return rapid.IntRange(0, 4).Draw(t, what) }
		at := func() time.Time { return t0.Add(time.Duration(pick("at")) * time.Hour) }
		host := func() fleet.HostID { return fleet.HostID(fmt.Sprint("host", pick("host"))) }
		commit := func(c fleet.Changeset) {
			l.Commit(c, plain.Revision+1)
			plain = plain.Apply(c, plain.Revision+1)
		}
		known := func(h fleet.HostID) bool { _, ok := plain.Hosts[h]; return ok }
		t.Repeat(map[string]func(*rapid.T){
			"host": func(*rapid.T) {
				h := plain.Hosts[host()]
				h.ID = host()
				h.Facts = plain.Hosts[h.ID].Facts
				h.State = rapid.SampledFrom([]fleet.HostState{fleet.HostUp, fleet.HostDraining}).Draw(t, "state")
				commit(fleet.Changeset{Hosts: []fleet.Host{h}})
			},
			"learn": func(*rapid.T) {
				h := plain.Hosts[host()]
				h.Facts.Connected, h.Facts.Address = pick("there") > 0, fmt.Sprint("192.0.2.", pick("address"))
				h.Facts.Owner = &fleet.Owner{State: fleet.OwnerPresent, Present: pick("owner") > 2}
				l.Learn(h.ID, h.Facts)
				if known(h.ID) {
					plain = plain.Apply(fleet.Changeset{Hosts: []fleet.Host{h}}, plain.Revision)
				}
			},
			"job": func(*rapid.T) {
				j := fleet.Job{ID: fleet.JobID(fmt.Sprint("j", pick("job"))), Subnet: fleet.Subnet(pick("subnet")), Attempt: pick("attempt"),
					State: rapid.SampledFrom([]fleet.JobState{fleet.JobRunning, fleet.JobEnded}).Draw(t, "state"), Ended: at()}
				j.Request = fleet.RequestID("r" + string(j.ID))
				commit(fleet.Changeset{Jobs: []fleet.Job{j}})
			},
			"guest": func(t *rapid.T) {
				h := host()
				if !known(h) {
					t.Skip("no such host")
				}
				g := fleet.Guest{ID: fleet.GuestID(fmt.Sprint("g", pick("guest"))), Job: fleet.JobID(fmt.Sprint("j", pick("job"))), Home: h, Attempt: pick("attempt"),
					Need:  fleet.Resources{CPUs: 1, MemoryBytes: 1 << 30},
					State: rapid.SampledFrom([]fleet.GuestState{fleet.GuestRunning, fleet.GuestStarting, fleet.GuestEnded}).Draw(t, "state")}
				commit(fleet.Changeset{Guests: []fleet.Guest{g}})
			},
			"move": func(t *rapid.T) {
				from, to := host(), host()
				if !known(from) || !known(to) {
					t.Skip("no such host")
				}
				n := pick("guest") // a migration always belongs to one guest
				m := fleet.Migration{ID: fleet.MigrationID(fmt.Sprint("m", n)), Job: "j1", From: from, To: to,
					Phase:   rapid.SampledFrom([]fleet.Phase{fleet.Copying, fleet.Finished, fleet.Aborted}).Draw(t, "phase"),
					Entered: []fleet.Entered{{At: at()}}}
				v := fleet.Move{ID: fleet.MoveID(m.ID), Request: "q", Migrations: []fleet.MigrationID{m.ID}}
				if m.Phase.Ended() {
					v.Ended = at()
				}
				m.Move = v.ID
				g := fleet.Guest{ID: fleet.GuestID(fmt.Sprint("g", n)), Job: "j1", Home: from, State: fleet.GuestMoving, Migration: m.ID}
				m.Guest = g.ID
				commit(fleet.Changeset{Moves: []fleet.Move{v}, Migrations: []fleet.Migration{m}, Guests: []fleet.Guest{g}})
			},
			"forgotten": func(*rapid.T) {
				id := fleet.MigrationID(fmt.Sprint("m", pick("guest")))
				if m, _ := l.Lesson(id); m.Phase.Ended() {
					commit(fleet.Changeset{Migrations: []fleet.Migration{m}, GoneMoves: []fleet.MoveID{fleet.MoveID(id)}})
				}
			},
			"gone": func(*rapid.T) {
				commit(fleet.Changeset{GoneGuests: []fleet.GuestID{fleet.GuestID(fmt.Sprint("g", pick("guest")))}, GoneJobs: []fleet.JobID{fleet.JobID(fmt.Sprint("j", pick("job")))},
					GoneMigrations: []fleet.MigrationID{fleet.MigrationID(fmt.Sprint("m", pick("migration")))}, GoneMoves: []fleet.MoveID{fleet.MoveID(fmt.Sprint("m", pick("move")))}})
			},
			"share": func(*rapid.T) {
				shared = l.Share()
				copied = shared // the maps below are its own
				copied.Hosts, copied.Guests = map[fleet.HostID]fleet.Host{}, map[fleet.GuestID]fleet.Guest{}
				for id, h := range shared.Hosts {
					copied.Hosts[id] = h
				}
				for id, g := range shared.Guests {
					copied.Guests[id] = g
				}
			},
			"": func(t *rapid.T) {
				if wrong := l.Check(); wrong != "" {
					t.Fatal(wrong)
				}
				if got := l.Snapshot(); !reflect.DeepEqual(got, plain) {
					t.Fatalf("it is\n%+v, should be\n%+v", got, plain)
				}
				if !reflect.DeepEqual(shared.Hosts, copied.Hosts) || !reflect.DeepEqual(shared.Guests, copied.Guests) {
					t.Fatal("what was shared has changed")
				}
			},
		})
	})
}

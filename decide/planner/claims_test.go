package planner

import (
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"pagurus/fleet"
)

// sought is a restored cluster, whose hosts say what a test has them say. j1g0 is sought: the
// backup has it on host1 with generation 5.
type sought struct {
	t *testing.T
	p Planner
	s fleet.Snapshot
}

func newSought(t *testing.T) *sought {
	w, _ := running(t, 1, "host1")
	backup := w.s
	for i := range 3 {
		id := fleet.HostID(fmt.Sprintf("host%d", i+1))
		backup.Hosts[id] = fleet.Host{ID: id, State: fleet.HostUp, Number: uint32(i + 1)}
	}
	g := backup.Guests["j1g0"]
	g.Gen = 5
	backup.Guests["j1g0"] = g
	backup = backup.Apply(w.p.Restore(backup, backup.At, w.now, 1), backup.Revision+1)
	backup.At, backup.LedSince = w.now, w.now
	return &sought{t, Planner{}, backup}
}

func (w *sought) step(ev fleet.Event) {
	w.t.Helper()
	d, err := w.p.Step(w.s, ev)
	if err != nil {
		w.t.Fatal(err)
	}
	at := w.s.At
	w.s = w.s.Apply(d.Change, w.s.Revision+1)
	w.s.At = at
}

// calls has a host's agent come and say what guests it has.
func (w *sought) calls(id fleet.HostID, guests map[fleet.GuestID]fleet.GuestFacts) {
	w.t.Helper()
	h := w.s.Hosts[id]
	h.Facts.SeenAt, h.Facts.Connected, h.Facts.Guests = w.s.At, true, guests
	w.s.Hosts[id] = h
	w.step(fleet.Observation{At: w.s.At, Attached: id})
}

// says has it call with the one guest that is sought.
func (w *sought) says(id fleet.HostID, run fleet.RunState, gen uint64) {
	w.t.Helper()
	w.calls(id, map[fleet.GuestID]fleet.GuestFacts{"j1g0": {Run: run, Gen: gen}})
}

func (w *sought) later(d time.Duration) {
	w.t.Helper()
	w.s.At = w.s.At.Add(d)
	w.step(fleet.Tick{At: w.s.At})
}

func (w *sought) is(state fleet.GuestState, home fleet.HostID) fleet.Guest {
	w.t.Helper()
	g := w.s.Guests["j1g0"]
	if g.State != state || g.Home != home {
		w.t.Errorf("it is %s on %s, want %s on %s", g.State, g.Home, state, home)
	}
	return g
}

func (w *sought) explains(words string) {
	w.t.Helper()
	lines, err := w.p.Explain(w.s, Subject{Guest: "j1g0"})
	if says := strings.Join(lines, " "); err != nil || !strings.Contains(says, words) {
		w.t.Errorf("the explanation does not say %q: %s %v", words, says, err)
	}
}

// A guest that runs where the backup has it is not another's, whatever generation that one says,
// and whoever calls first.
func TestSoughtGuestIsNotTakenFromItsHome(t *testing.T) {
	for _, first := range []fleet.HostID{"host1", "host3"} {
		for _, gen := range []uint64{5, 6, 5 + mostAhead, 6 + mostAhead, math.MaxUint64} {
			w := newSought(t)
			for _, id := range []fleet.HostID{first, map[fleet.HostID]fleet.HostID{"host1": "host3", "host3": "host1"}[first]} {
				if id == "host1" {
					w.says(id, fleet.Running, 5)
				} else {
					w.says(id, fleet.Running, gen)
				}
				w.later(time.Second)
			}
			if g := w.is(fleet.GuestRunning, "host1"); g.Gen < 6 || g.Gen > 6+mostAhead {
				t.Errorf("after generation %d its generation is %d", gen, g.Gen)
			}
		}
	}
}

// What is suspended somewhere raises no generation beyond what can have been, either.
func TestSoughtGuestKeepsItsGeneration(t *testing.T) {
	w := newSought(t)
	w.says("host3", fleet.Suspended, math.MaxUint64)
	w.says("host1", fleet.Running, 5)
	if g := w.is(fleet.GuestRunning, "host1"); g.Gen != 6 {
		t.Errorf("its generation is %d", g.Gen)
	}
}

// One host alone is believed, as a guest may be anywhere after a backup, when the host where the
// backup has it has said otherwise or had the time to. That it is only its word is said.
func TestSoughtGuestElsewhereIsBelieved(t *testing.T) {
	w := newSought(t)
	w.says("host3", fleet.Running, 6)
	w.later(seekFor - time.Second)
	w.is(fleet.GuestSought, "host1")
	w.explains("host3 says that it runs it, and nothing but its word says so: host1 has 30s to say otherwise")
	w.later(time.Second)
	w.is(fleet.GuestRunning, "host3")
	w.explains("host3, and only host3, said that it ran it")

	w = newSought(t)
	w.says("host3", fleet.Running, 6)
	w.calls("host1", nil)
	w.is(fleet.GuestRunning, "host3")

	w = newSought(t) // who is gone for good is not waited for
	w.says("host3", fleet.Running, 6)
	delete(w.s.Hosts, "host1")
	w.later(time.Second)
	w.is(fleet.GuestRunning, "host3")
}

// Of two hosts that both say that they run a guest one does not tell the truth. Neither is
// believed, neither destroys what it has, and people are asked.
func TestTwoSayThatTheyRunAGuest(t *testing.T) {
	w := newSought(t)
	w.calls("host1", nil)
	w.s.LedSince = w.s.At
	h := w.s.Hosts["host2"] // both come at once
	h.Facts.SeenAt, h.Facts.Guests = w.s.At, map[fleet.GuestID]fleet.GuestFacts{"j1g0": {Run: fleet.Running, Gen: 6}}
	w.s.Hosts["host2"] = h
	w.says("host3", fleet.Running, 7)
	w.later(time.Hour)
	w.is(fleet.GuestSought, "host1")
	w.explains("host2 and host3 say that they have it, and only one can")
	delete(w.s.Hosts, "host2")
	w.later(time.Second)
	w.is(fleet.GuestRunning, "host3")
}

// A source may have a guest suspended for its owner while the target has it, too: which of the two
// is whole is not known unless the target runs it.
func TestSoughtGuestIsSuspendedForOwners(t *testing.T) {
	idle := map[fleet.GuestID]fleet.GuestFacts{"j1g0": {Run: fleet.Suspended, Suspended: true, Gen: 5}}
	w := newSought(t)
	w.calls("host1", idle)
	w.is(fleet.GuestRunning, "host1")

	w = newSought(t)
	h := w.s.Hosts["host1"]
	h.Facts.SeenAt, h.Facts.Guests = w.s.At, idle
	w.s.Hosts["host1"] = h
	w.calls("host3", map[fleet.GuestID]fleet.GuestFacts{"j1g0": {Run: fleet.Suspended, Suspended: true, Gen: 6}})
	w.later(time.Hour)
	w.is(fleet.GuestSought, "host1")
	w.explains("host1 and host3 say that they have it, and only one can")
	w.says("host3", fleet.Running, 6)
	w.is(fleet.GuestRunning, "host3")
}

// Numbers of jobs that hosts name are not believed without bounds: no number is used twice
// because of one, and no host fills the store.
func TestYoungerJobsAreBounded(t *testing.T) {
	w := newSought(t)
	before, known := w.s.Cluster, w.s.Cluster.Restored.NextJob
	has := map[fleet.GuestID]fleet.GuestFacts{}
	for _, number := range []uint64{math.MaxUint64, math.MaxUint64 - 1, known + mostAhead + 1} {
		has[fleet.GuestID(fmt.Sprintf("j%dg0", number))] = fleet.GuestFacts{Run: fleet.Running, Gen: 1}
	}
	w.calls("host2", has)
	if len(w.s.Jobs) != 1 || w.s.Cluster.NextJob != before.NextJob {
		t.Errorf("jobs: %d, the next is %d", len(w.s.Jobs), w.s.Cluster.NextJob)
	}
	has = map[fleet.GuestID]fleet.GuestFacts{}
	for i := range uint64(2 * mostUnrecorded) {
		has[fleet.GuestID(fmt.Sprintf("j%dg0", known+mostAhead-i))] = fleet.GuestFacts{Run: fleet.Running, Gen: 1}
	}
	w.calls("host2", has)
	if next := w.s.Cluster.NextJob; len(w.s.Jobs) != 1+mostUnrecorded || next <= before.NextJob || next > known+mostAhead+1 {
		t.Errorf("jobs: %d, the next is %d", len(w.s.Jobs), w.s.Cluster.NextJob)
	}
	// The last numbers that there are: there is none after them.
	w = newSought(t)
	w.s.Cluster.Restored.NextJob, w.s.Cluster.NextJob = math.MaxUint64-5, math.MaxUint64-5
	w.calls("host2", map[fleet.GuestID]fleet.GuestFacts{fleet.GuestID(fmt.Sprintf("j%dg0", uint64(math.MaxUint64))): {Run: fleet.Running, Gen: 1}})
	if w.s.Cluster.NextJob != math.MaxUint64-5 {
		t.Errorf("the next job is %d", w.s.Cluster.NextJob)
	}
}

// What follows a restore ends when every guest was found or given up, and every host has called.
func TestRestoreEnds(t *testing.T) {
	w := newSought(t)
	w.says("host1", fleet.Running, 5)
	w.calls("host2", nil)
	w.later(time.Hour)
	if w.s.Cluster.Restored == nil {
		t.Error("host3 has not called")
	}
	w.calls("host3", map[fleet.GuestID]fleet.GuestFacts{"j9g0": {Run: fleet.Running, Gen: 1}})
	if j := w.s.Jobs["j9"]; j.State != fleet.JobEnded || w.s.Cluster.Restored != nil {
		t.Errorf("after the last host: %+v, %+v", j, w.s.Cluster.Restored)
	}
	w.calls("host3", map[fleet.GuestID]fleet.GuestFacts{"j10g0": {Run: fleet.Running, Gen: 1}})
	if len(w.s.Jobs) != 2 {
		t.Errorf("a job was recorded later: %+v", w.s.Jobs)
	}

	w = newSought(t)
	for _, id := range []fleet.HostID{"host1", "host2", "host3"} {
		w.calls(id, nil)
	}
	w.later(time.Second)
	if w.s.Cluster.Restored == nil {
		t.Error("a guest is sought")
	}
	w.later(seekFor)
	if w.is(fleet.GuestLost, "host1"); w.s.Cluster.Restored != nil {
		t.Error("it was given up, and nothing is sought any more")
	}
}

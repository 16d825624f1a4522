package controller

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"pagurus/act/etcd"
	"pagurus/decide/planner"
	"pagurus/fleet"
	"pagurus/serve/wire"
)

// After a restore a host's first Wanted has the guests that it runs, whatever the backup has of
// them, so that it destroys none; and orders for them come to it alone. A guest of a younger job
// is not wanted, and whoever asks for the job is told why.
func TestRestoredHostKeepsWhatItRuns(t *testing.T) {
	r := newRig(t)
	r.attach("host1")
	id := r.submit(1)
	r.until("the job to run", running(id))
	guest := fleet.GuestID(string(id) + "g0")
	r.stop()
	store, err := etcd.Embed(r.ctx, etcd.EmbedConfig{Dir: filepath.Join(r.dir, "etcd")})
	if err != nil {
		t.Fatal(err)
	}
	snap, err := store.Load(r.ctx)
	if err != nil {
		t.Fatal(err)
	}
	snap.Hosts["host2"] = fleet.Host{ID: "host2", State: fleet.HostUp, Number: 2}
	change := (&planner.Planner{}).Restore(snap, time.Now().Add(-time.Hour), time.Now(), 1)
	change.Hosts = append(change.Hosts, snap.Hosts["host2"])
	if _, err := store.Commit(r.ctx, snap.Revision, change); err != nil {
		t.Fatal(err)
	}
	if err := store.Close(); err != nil {
		t.Fatal(err)
	}
	r.start()
	stale := r.attach("host1")
	hello := wire.Hello{Host: "host2", Facts: r.facts("host2")}
	hello.Facts.Guests = map[fleet.GuestID]fleet.GuestFacts{guest: {Gen: 2, Run: fleet.Running}, "j7g1": {Gen: 1, Run: fleet.Running}}
	a, err := r.tryAttach(hello)
	if err != nil {
		t.Fatal(err)
	}
	watch := a.task(fleet.Watch)
	if watch.Order.Guest != guest || watch.Order.Gen != 3 {
		t.Errorf("watch: %+v", watch.Order)
	}
	a.mu.Lock()
	first := a.heard[0].Wanted
	a.mu.Unlock()
	if first == nil || !slices.Equal(first.Guests, []fleet.GuestID{guest}) {
		t.Errorf("the first message: %+v", first)
	}
	a.task(fleet.Run)
	stale.mu.Lock()
	for _, d := range stale.heard {
		if d.Task != nil {
			t.Errorf("host1, which has nothing, is told to %+v", d.Task.Order)
		}
	}
	stale.mu.Unlock()
	if j := r.now().Jobs["j7"]; j.State != fleet.JobEnded || !strings.Contains(j.Cause, "older than this job") {
		t.Errorf("the younger job: %+v", j)
	}
	if next := r.submit(1); next != "j1062" && next != "j1061" { // a thousand, and an hour's minutes
		t.Errorf("the next job is %s", next)
	}
}

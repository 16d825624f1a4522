package controller

import (
	"net/http"
	"testing"
	"time"

	"pagurus/fleet"
	"pagurus/serve/wire"
)

// looked answers as an agent that has sampled a guest; host3's fails.
func (a *agent) looked(q wire.Query) {
	reply := wire.Reply{ID: q.ID, Profile: &fleet.Profile{At: time.Now(), MemoryBytes: 256 << 20, FilledBytes: 100 << 20,
		Changed: []fleet.Changed{{Within: time.Second, Bytes: 1 << 20}}}}
	if a.id == "host3" {
		reply = wire.Reply{ID: q.ID, Error: "a guest is being moved"}
	}
	a.session.Send(a.r.ctx, wire.Up{Reply: &reply})
}

// TestPredict: each guest is sampled again where possible, even when other samples fail, and
// nothing has changed.
func TestPredict(t *testing.T) {
	r := newRig(t)
	for _, id := range []fleet.HostID{"host1", "host2", "host3"} {
		r.attach(id)
	}
	id := r.submit(3)
	snap := r.until("the job to run", running(id))
	f, err := r.client.Predict(r.ctx, fleet.Request{Verb: fleet.Migrate, Job: id})
	if err != nil || len(f.Migrations) != 3 {
		t.Fatalf("%+v, %v", f, err)
	}
	for _, m := range f.Migrations {
		if p := m.Prediction.Profile; (p == nil) != (m.From == "host3") || p != nil && p.FilledBytes != 100<<20 {
			t.Errorf("%s on %s: %+v", m.Guest, m.From, p)
		}
	}
	if len(f.Notes) != 1 {
		t.Errorf("notes %q", f.Notes)
	}
	after, err := r.client.Snapshot(r.ctx)
	if err != nil || after.Revision != snap.Revision || len(after.Moves) != 0 {
		t.Errorf("predicting changed something: %+v, %v", after.Moves, err)
	}
	_, err = r.client.Predict(r.ctx, fleet.Request{Verb: fleet.Migrate, Guest: "none"})
	r.refused(err, http.StatusUnprocessableEntity, "none")
	_, err = r.client.Predict(r.ctx, fleet.Request{Verb: fleet.Submit})
	r.refused(err, http.StatusUnprocessableEntity, "migrate or drain")
	if k, err := r.client.Score(r.ctx); err != nil || k.Moves != 0 {
		t.Errorf("%+v, %v", k, err)
	}
}

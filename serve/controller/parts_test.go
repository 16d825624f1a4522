package controller

import (
	"encoding/json"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"pagurus/fleet"
	"pagurus/serve/identity"
	"pagurus/serve/wire"
)

// leading is a controller that leads with a snapshot, without a loop.
func leading(t *testing.T, s fleet.Snapshot) *Controller {
	t.Helper()
	a, err := identity.OpenAuthority(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	c := New(Config{Authority: a, Spool: t.TempDir(), Log: slog.New(slog.DiscardHandler)})
	c.current.Store(&s)
	close(c.ready)
	return c
}

// A copy is described to its job's user alone, and counts as long as it is as it was and its job's output is.
func TestCopiesAreSealed(t *testing.T) {
	s := fleet.NewSnapshot()
	s.Jobs["j1"] = fleet.Job{ID: "j1", Spec: fleet.JobSpec{UID: 7}}
	kept := fleet.Checkpoint{ID: "j1c1", Job: "j1", Phase: fleet.Kept, Guests: []fleet.CheckpointPart{{Guest: "j1g0", Vault: "host1", Manifest: "sha256-1"}}}
	s.Checkpoints["j1c1"] = kept
	kept.ID, kept.Phase = "j1c2", fleet.Saving
	s.Checkpoints["j1c2"] = kept
	c, ada, other := leading(t, s), fleet.Caller{UID: 7}, fleet.Caller{UID: 8}
	c.spool.know("j1", 7, 0)
	if err := c.spool.writeCut("j1", filepath.Join(c.Config.Spool, "j1", cutLengths("j1c1")), fleet.Written{Sizes: map[string]int64{fleet.Stdout: 5}}); err != nil {
		t.Fatal(err)
	}
	refused := func(what string, err error, says string) {
		t.Helper()
		if is := (*wire.Error)(nil); !errors.As(err, &is) || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v", what, err)
		}
	}
	_, err := c.Copy(t.Context(), other, "j1c1")
	refused("another user", err, "is not yours")
	_, err = c.Copy(t.Context(), ada, "j1c2")
	refused("not kept", err, "only what is kept can be copied")
	_, err = c.Copy(t.Context(), ada, "j1c9")
	refused("none", err, "there is no checkpoint j1c9")
	of, err := c.Copy(t.Context(), ada, "j1c1")
	if err != nil {
		t.Fatal(err)
	}
	_, err = c.unsealed(&of)
	refused("output is gone", err, "job j1 has 0 bytes of stdout left, and at j1c1 it had 5")
	if err := os.WriteFile(filepath.Join(c.Config.Spool, "j1", fleet.Stdout), []byte("five."), 0o600); err != nil {
		t.Fatal(err)
	}
	c.spool = newSpool(c.Config.Spool)
	c.spool.know("j1", 7, 5)
	is, err := c.unsealed(&of)
	if err != nil || is.Checkpoint.ID != "j1c1" || is.UID != 7 || is.Output.Sizes[fleet.Stdout] != 5 {
		t.Fatalf("%+v, %v", is, err)
	}
	changed := *is
	changed.UID = 8
	text, _ := json.Marshal(changed)
	_, err = c.unsealed(&fleet.SealedCopy{Text: text, Seal: of.Seal})
	refused("changed", err, "only the cluster that made a copy takes it back")
	_, err = c.unsealed(nil)
	refused("nothing", err, "has no copy")
}

// Pieces pass for the job's user, of what is there, in the direction of the phase, and only the host that was asked hands them over.
func TestPiecesPassWhereTheyMay(t *testing.T) {
	s := fleet.NewSnapshot()
	s.Jobs["j1"] = fleet.Job{ID: "j1", Spec: fleet.JobSpec{UID: 7}}
	s.Checkpoints["j1c1"] = fleet.Checkpoint{ID: "j1c1", Job: "j1", Phase: fleet.Kept, Guests: []fleet.CheckpointPart{{Guest: "j1g0", Vault: "host1"}}}
	c, none := leading(t, s), func() ([]byte, error) { t.Error("it was read"); return nil, nil }
	for says, q := range map[string]struct {
		uid  uint32
		call fleet.PartCall
	}{
		"is not yours":           {8, fleet.PartCall{Part: fleet.PartName{Checkpoint: "j1c1", Guest: "j1g0"}, Verb: fleet.GetChunk}},
		"there is no checkpoint": {7, fleet.PartCall{Part: fleet.PartName{Checkpoint: "j1c2", Guest: "j1g0"}, Verb: fleet.GetChunk}},
		"has no guest j1g1":      {7, fleet.PartCall{Part: fleet.PartName{Checkpoint: "j1c1", Guest: "j1g1"}, Verb: fleet.GetChunk}},
		"is kept now":            {7, fleet.PartCall{Part: fleet.PartName{Checkpoint: "j1c1", Guest: "j1g0"}, Verb: fleet.PutChunk}},
	} {
		if _, err := c.Part(t.Context(), fleet.Caller{UID: q.uid}, q.call, none); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%v does not say %q", err, says)
		}
	}
	c.parts.hands["x"] = &hand{host: "host1", in: []byte("in"), call: fleet.PartCall{Verb: fleet.GetChunk}}
	body := func(int64) ([]byte, error) { return []byte("out"), nil }
	if _, err := c.Handed(t.Context(), fleet.Caller{Host: "host2"}, "x"); err == nil {
		t.Error("another host got it")
	}
	if err := c.Hand(t.Context(), fleet.Caller{Host: "host2", Admin: true}, "x", body); err == nil || c.parts.hands["x"].out != nil {
		t.Error("another host handed something")
	}
	if got, err := c.Handed(t.Context(), fleet.Caller{Host: "host1"}, "x"); string(got) != "in" || err != nil {
		t.Errorf("%q, %v", got, err)
	}
	if err := c.Hand(t.Context(), fleet.Caller{Host: "host1"}, "x", body); err != nil || string(c.parts.hands["x"].out) != "out" {
		t.Error(err)
	}
	if err := c.Hand(t.Context(), fleet.Caller{Host: "host1"}, "y", body); err == nil {
		t.Error("what nobody asked for")
	}
	var leave []func()
	for range partsEach {
		l, err := c.parts.enter(t.Context(), 7, fleet.GetChunk)
		if err != nil {
			t.Fatal(err)
		}
		leave = append(leave, l)
	}
	other, err := c.parts.enter(t.Context(), 8, fleet.GetManifest)
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range append(leave, other) {
		l()
	}
	if len(c.parts.by) != 0 || len(c.parts.one) != 0 {
		t.Errorf("%v pass still", c.parts.by)
	}
}

// A store says what it does not know, unless it knows nothing at all; one that was put back is another.
func TestUnknownCheckpoints(t *testing.T) {
	s := fleet.NewSnapshot()
	s.Cluster.ID = "here"
	ids := []fleet.CheckpointID{"j1c1", "j1c2", "j1c3"}
	if got, err := leading(t, s).Unknown(t.Context(), ids); err != nil || got.Incarnation != "" || got.Unknown != nil {
		t.Errorf("an empty store: %+v, %v", got, err)
	}
	s.Jobs["j1"] = fleet.Job{ID: "j1"}
	s.Checkpoints["j1c1"] = fleet.Checkpoint{ID: "j1c1", Job: "j1", Phase: fleet.Dropping}
	s.Checkpoints["j1c2"] = fleet.Checkpoint{ID: "j1c2", Job: "j1", Phase: fleet.Removed}
	first, err := leading(t, s).Unknown(t.Context(), ids)
	if err != nil || first.Cluster != "here" || first.Incarnation == "" || len(first.Unknown) != 2 || first.Unknown[0] != "j1c2" {
		t.Errorf("%+v, %v", first, err)
	}
	s.Cluster.Restored = &fleet.Restored{At: time.Now()}
	if back, _ := leading(t, s).Unknown(t.Context(), ids); back.Incarnation == first.Incarnation {
		t.Error("a store that was put back is the same")
	}
}

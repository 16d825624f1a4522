package agent

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"pagurus/act/vault"
	"pagurus/fleet"
	"pagurus/internal/note"
)

// What the cluster forgot is dropped after a day of asking, and nothing else ever.
func TestOrphansAreDropped(t *testing.T) {
	at := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	k := &vaultNotes{}
	held := []fleet.CheckpointID{"j1c1", "j1c2", "j9c9"}
	ask := func(incarnation string, unknown ...fleet.CheckpointID) []fleet.CheckpointID {
		at = at.Add(askEvery)
		return k.heard(held, fleet.VaultAnswer{Incarnation: incarnation, Unknown: unknown}, at)
	}
	for range 100 { // j9c9 was never known here
		if got := ask("a", "j9c9"); got != nil {
			t.Fatalf("dropped %v", got)
		}
	}
	for range 20 {
		if got := ask("a", "j9c9", "j1c1"); got != nil {
			t.Fatalf("too early: %v", got)
		}
	}
	ask("a", "j9c9") // it is known again
	for range 23 {
		if got := ask("a", "j9c9", "j1c1"); got != nil {
			t.Fatalf("time did not begin again: %v", got)
		}
	}
	for range 100 { // another store, an empty one, one from a backup
		if got := append(ask("b", held...), ask("", held...)...); got != nil {
			t.Fatalf("by another incarnation: %v", got)
		}
	}
	ask("a")
	for n := range 26 {
		if got := ask("a", "j1c1", "j1c2"); (n >= 24) != slices.Equal(got, []fleet.CheckpointID{"j1c1", "j1c2"}) {
			t.Fatalf("%d: %v", n, got)
		}
	}
	at = at.Add(1000 * time.Hour) // a clock that was set counts for nothing
	ask("a")
	ask("a", "j1c1")
	at = at.Add(1000 * time.Hour)
	if got := ask("a", "j1c1"); got != nil {
		t.Errorf("after two answers: %v", got)
	}
	at = at.Add(-5000 * time.Hour)
	for n := range 24 {
		if got := ask("a", "j1c1"); got != nil {
			t.Errorf("%d after the clock was set back: %v", n, got)
		}
	}
}

// answering is a controller that knows some checkpoints.
type answering struct {
	Controller
	says fleet.VaultAnswer
	err  error
}

func (c answering) Unknown(context.Context, []fleet.CheckpointID) (fleet.VaultAnswer, error) {
	return c.says, c.err
}

// The real vault: what was put by an order goes when nobody knows it any more, also over a restart of the agent.
func TestForgottenPartsLeaveTheVault(t *testing.T) {
	s, err := vault.Open(vault.Config{Folder: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	folder := t.TempDir()
	if err := os.WriteFile(filepath.Join(folder, "memory"), make([]byte, 1<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, id := range []fleet.CheckpointID{"j1c1", "j1c2"} {
		if _, err := vault.Save(t.Context(), folder, fleet.PartName{Checkpoint: id, Guest: "j1g0"}, s); err != nil {
			t.Fatal(err)
		}
	}
	notes, run := filepath.Join(t.TempDir(), "asked.json"), t.TempDir()
	begin := func(c answering) *Agent {
		a := New(Config{Host: "stock", Run: run, Controller: c, Vaults: Vaults{Own: storeVault{s}, Asked: notes}, Log: slog.New(slog.NewTextHandler(io.Discard, nil))})
		_ = note.Load(notes, &a.vaultNotes)
		if err := os.WriteFile(a.clusterFile(), []byte("here\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		return a
	}
	at := time.Now()
	hear := func(a *Agent) {
		t.Helper()
		at = at.Add(askEvery)
		if err := a.dropOrphans(t.Context(), at); err != nil {
			t.Fatal(err)
		}
	}
	known := fleet.VaultAnswer{Cluster: "here", Incarnation: "here", Unknown: []fleet.CheckpointID{"j1c1", "j1c2"}}
	hear(begin(answering{says: known})) // neither was known
	a := begin(answering{says: known})
	a.noteKept("j1c1")
	for range 10 {
		hear(begin(answering{err: errors.New("away")}))
		other := known
		other.Cluster = "elsewhere"
		hear(begin(answering{says: other}))
	}
	for range 30 {
		hear(begin(answering{says: known}))
	}
	if got := s.List(); len(got) != 1 || got[fleet.PartName{Checkpoint: "j1c2", Guest: "j1g0"}] == "" {
		t.Errorf("the vault has %v", got)
	}
}

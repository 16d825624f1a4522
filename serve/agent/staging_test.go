package agent

import (
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"pagurus/fleet"
)

// A guest that comes back at once has a staging folder of its own, which nobody empties any more.
func TestGuestComesBackToItsStagingFolder(t *testing.T) {
	a := New(Config{Host: "host1", Run: t.TempDir(), Vaults: Vaults{Staging: t.TempDir()}, Log: slog.New(slog.NewTextHandler(io.Discard, nil))})
	a.wanted = &fleet.Wanted{}
	for n := range 20 {
		if _, err := a.slotOf("j1g0"); err != nil {
			t.Fatal(err)
		}
		for i := range 200 {
			if err := os.MkdirAll(filepath.Join(a.filesOf("j1g0"), fmt.Sprint(i)), 0o700); err != nil {
				t.Fatal(err)
			}
		}
		a.forget(time.Now())
		if _, err := os.Stat(a.stagingOf("j1g0")); err == nil {
			t.Fatal("its old folder is there")
		}
		if err := makeFolder(a.filesOf("j1g0")); err != nil {
			t.Fatal(err)
		}
		a.runs.Wait()
		if entries, err := os.ReadDir(a.Vaults.Staging); err != nil || len(entries) != 1 {
			t.Fatalf("%d: %v, %v", n, entries, err)
		}
		if _, err := os.Stat(a.filesOf("j1g0")); err != nil {
			t.Fatalf("%d: %v", n, err)
		}
	}
}

// A vault may be told to drop several checkpoints of a guest at once, and answers for each.
func TestAnswersAboutSeveralCheckpoints(t *testing.T) {
	a := New(Config{Host: "host1", Run: t.TempDir(), Log: slog.New(slog.NewTextHandler(io.Discard, nil))})
	drop := func(c fleet.CheckpointID, o fleet.Outcome) {
		a.post(fleet.Report{Order: fleet.Order{Verb: fleet.Drop, Host: "host1", Job: "j1", Guest: "j1g0", Checkpoint: c}, Outcome: o})
	}
	drop("j1c1", fleet.Unknown)
	drop("j1c2", fleet.Done)
	drop("j1c1", fleet.Done) // in the place of the first
	var said []string
	for r, more := a.nextReport(); more; r, more = a.nextReport() {
		said = append(said, fmt.Sprintf("%s %s", r.Order.Checkpoint, r.Outcome))
	}
	if got := fmt.Sprint(said); got != "[j1c2 done j1c1 done]" {
		t.Error(got)
	}
}

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

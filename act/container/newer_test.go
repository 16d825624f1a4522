package container_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"pagurus/fleet"
	"pagurus/serve/agent/drivertest"
)

// TestGuestOfANewerAgent: an agent that was put back does not touch the guests of one that is
// two versions newer. The newer one finds them as they were.
func TestGuestOfANewerAgent(t *testing.T) {
	w := newWorld(t)
	d, tk := w.open(t, 0), task("j1g0")
	if err := d.Start(t.Context(), tk); err != nil {
		t.Fatal(err)
	}
	drivertest.Healthy(t, d, tk.Guest.ID)
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	process, record := w.process(t, 0, tk.Guest.ID), filepath.Join(w.hosts[0].Run, "containers", string(tk.Guest.ID), "guest.json")
	ours, err := os.ReadFile(record)
	if err != nil {
		t.Fatal(err)
	}
	now := fmt.Sprintf(`"protocol": %d,`, fleet.Protocol())
	for _, newer := range []string{
		strings.Replace(string(ours), now, fmt.Sprintf(`"protocol": %d,`, fleet.Protocol()+2), 1),
		fmt.Sprintf(`{"protocol": %d, "guest": {"a": "new form"}}`, fleet.Protocol()+1),
	} {
		if err := os.WriteFile(record, []byte(newer), 0o600); err != nil {
			t.Fatal(err)
		}
		if d, err := w.tryOpen(t, 0); err == nil || !strings.Contains(err.Error(), "upgrade the agent of this host") {
			if err == nil {
				_ = d.Close()
			}
			t.Fatalf("of %.30s: %v", newer, err)
		}
		if kept, err := os.ReadFile(record); err != nil || string(kept) != newer || unix.Kill(process, 0) != nil {
			t.Fatalf("the guest was touched: %.30s, %v", kept, err)
		}
	}
	// One version newer, with a field more.
	next := strings.Replace(string(ours), now, fmt.Sprintf(`"protocol": %d, "colour": 1,`, fleet.Protocol()+1), 1)
	if next == string(ours) {
		t.Fatalf("the record does not say its version: %s", ours)
	}
	if err := os.WriteFile(record, []byte(next), 0o600); err != nil {
		t.Fatal(err)
	}
	again := w.reopen(t, 0)
	drivertest.Healthy(t, again, tk.Guest.ID)
	if err := errors.Join(again.Stop(t.Context(), tk.Guest.ID), again.Close()); err != nil {
		t.Error(err)
	}
}

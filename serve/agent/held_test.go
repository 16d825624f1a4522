package agent

import (
	"testing"

	"pagurus/fleet"
)

// Held counts all guests, of whatever kind.
func TestHeldIsWhatAllGuestsHold(t *testing.T) {
	a := New(Config{})
	if got := a.Held(); got != 0 {
		t.Errorf("without guests %d bytes are held", got)
	}
	a.present["a.0"] = presence{fleet.VM, fleet.GuestFacts{Run: fleet.Running, ResidentBytes: 3 << 30}}
	a.present["b.0"] = presence{fleet.Container, fleet.GuestFacts{Run: fleet.Suspended, ResidentBytes: 1 << 30}}
	if got := a.Held(); got != 4<<30 {
		t.Errorf("%d bytes are held, want 4 GiB", got)
	}
}

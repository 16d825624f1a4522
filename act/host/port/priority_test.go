package port

import (
	"testing"

	"github.com/vishvananda/netlink"

	"pagurus/fleet"
)

// TestPriorities: the filters have the priorities agreed on with the overlay.
func TestPriorities(t *testing.T) {
	link := &netlink.GenericLink{}
	if got := filter(link, frameQueueProgram).Priority; got != fleet.QueuePriority {
		t.Errorf("the queue has priority %d, want %d", got, fleet.QueuePriority)
	}
	if got := filter(link, cut).Priority; got != fleet.CutPriority {
		t.Errorf("the cut has priority %d, want %d", got, fleet.CutPriority)
	}
}

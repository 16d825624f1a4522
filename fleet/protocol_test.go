package fleet

import (
	"slices"
	"testing"
)

// Frames go to the target from the order to activate on, and not before.
func TestAtTarget(t *testing.T) {
	for _, p := range Phases {
		if got, want := p.AtTarget(), slices.Contains([]Phase{Activating, PostCopying, Retiring, Finished}, p.Phase); got != want {
			t.Errorf("%s: the target has been told to run the guest: %t, want %t", p.Phase, got, want)
		}
	}
}

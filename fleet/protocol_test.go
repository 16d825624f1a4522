package fleet

import (
	"slices"
	"testing"
)

// What may leave a guest running on a silent host is asked again until that is gone. Of a migration this
// follows from the phases, so that a verb of a new phase is thought of.
func TestUntilGone(t *testing.T) {
	verbs := []Verb{Start, Watch, Stop, Run, End, Arm, Cut, Continue, Save, Drop, Restore, ""}
	for _, p := range Phases {
		verbs = append(verbs, p.Verb)
	}
	for _, v := range verbs {
		if got, want := v.UntilGone(), slices.Contains([]Verb{Stop, Switch, Revert, Activate, Fetch, Drop}, v); got != want {
			t.Errorf("%s: asked until the host is gone: %t, want %t", v, got, want)
		}
	}
}

// Frames go to the target from the order to activate on, and not before.
func TestAtTarget(t *testing.T) {
	for _, p := range Phases {
		if got, want := p.AtTarget(), slices.Contains([]Phase{Activating, PostCopying, Retiring, Finished}, p.Phase); got != want {
			t.Errorf("%s: the target has been told to run the guest: %t, want %t", p.Phase, got, want)
		}
	}
}

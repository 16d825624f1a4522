package agent

import (
	"fmt"

	"pagurus/decide/lifecycle"
	"pagurus/fleet"
)

// Converged reports whether a copy is ready to switch; drivers call it before each round.
// seen has the progress at the beginning of each round, and now. An error ends the copy.
func Converged(l fleet.Limits, seen []fleet.Progress) (bool, error) {
	rounds := lifecycle.Rounds(seen)
	switch lifecycle.Copy(l, rounds) {
	case lifecycle.SwitchNow:
		return true, nil
	case lifecycle.GiveUp:
		return false, fmt.Errorf("after %d rounds %.1f MiB are still left: the guest changes its memory faster than it can be sent; try again when its program changes less memory, or over a faster link",
			len(rounds), float64(rounds[len(rounds)-1].LeftBytes)/(1<<20))
	}
	return false, nil
}

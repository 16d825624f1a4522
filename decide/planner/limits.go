package planner

import (
	"fmt"

	"pagurus/fleet"
)

// invalidLimits says what is wrong with the limits of a move; empty: nothing.
func invalidLimits(l fleet.Limits) string {
	for i := range fleet.LimitFlags {
		if reason := fleet.LimitFlags[i].Refused(&l); reason != "" {
			return reason
		}
	}
	switch {
	case l.Rounds < 0:
		return fmt.Sprintf("a copy cannot have %d rounds; leave the number out", l.Rounds)
	case l.Mode == fleet.StopAndCopy && l.Downtime > 0:
		return fmt.Sprintf("a guest that is moved by %s is suspended for the whole copy; leave --"+fleet.MaxStallFlag+" out", l.Mode)
	case l.Compress == fleet.CompressOn && l.Mode == fleet.PostCopy:
		return fmt.Sprintf("compression does not work with %s; leave one of the two out", l.Mode)
	}
	return ""
}

// onlyDrainFlags refuses the limits that the moves that empty a host do not keep to.
func onlyDrainFlags() string {
	var takes []string
	for _, f := range fleet.LimitFlags {
		if f.Drain {
			takes = append(takes, "--"+f.Flag)
		}
	}
	return "the moves that empty a host keep to " + fleet.Enumerate(takes, "and") + "; give no other limits, or move its guests with pagurus migrate"
}

package planner

import "pagurus/fleet"

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

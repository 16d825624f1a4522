package planner

import (
	"fmt"

	"pagurus/fleet"
)

// invalidLimits says what is wrong with the limits of a move; empty: nothing.
func invalidLimits(l fleet.Limits) string {
	switch {
	case l.Mode != "" && l.Mode != fleet.PreCopy && l.Mode != fleet.PostCopy && l.Mode != fleet.StopAndCopy:
		return fmt.Sprintf("there is no mode %q; use %s, %s or %s", l.Mode, fleet.PreCopy, fleet.PostCopy, fleet.StopAndCopy)
	case l.Mode == fleet.StopAndCopy && l.Downtime > 0:
		return fmt.Sprintf("a guest that is moved by %s is suspended for the whole copy; leave --"+fleet.MaxStallFlag+" out", l.Mode)
	case l.Downtime < 0:
		return fmt.Sprintf("the maximum downtime cannot be %s; give --"+fleet.MaxStallFlag+" something like 50ms", l.Downtime)
	case l.BytesPerSecond < 0:
		return fmt.Sprintf("nothing can be sent at %d bytes a second; give --"+fleet.BandwidthFlag+" something like 200M", l.BytesPerSecond)
	case l.Deadline < 0:
		return fmt.Sprintf("--"+fleet.DeadlineFlag+" must be positive, and it is %s; give something like 30s", l.Deadline)
	case l.Rounds < 0:
		return fmt.Sprintf("a copy cannot have %d rounds; leave the number out", l.Rounds)
	}
	return sending(l)
}

// sending says what is wrong with mode, page cache or compression; empty: nothing.
func sending(l fleet.Limits) string {
	switch {
	case l.PageCache != "" && l.PageCache != fleet.DropCache && l.PageCache != fleet.SendCache:
		return fmt.Sprintf("unknown choice %q for the page cache; use %s or %s, or leave it out", l.PageCache, fleet.DropCache, fleet.SendCache)
	case l.Compress != "" && l.Compress != fleet.CompressOn && l.Compress != fleet.CompressOff:
		return fmt.Sprintf("unknown choice %q for compression; use %s or %s, or leave it out", l.Compress, fleet.CompressOn, fleet.CompressOff)
	case l.Compress == fleet.CompressOn && l.Mode == fleet.PostCopy:
		return fmt.Sprintf("compression does not work with %s; leave one of the two out", l.Mode)
	}
	return ""
}

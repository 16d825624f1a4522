package cost

import (
	"math"
	"time"

	"pagurus/fleet"
)

// Downtime for each process of a container: CRIU enters it, dumps it, and makes it again.
// Measured with 20, 100 and, in a chain, 120 processes of 25 mappings each on a machine
// with two processors (`scripts/bench -only container-processes`). In a chain each is the
// child of the one before. CRIU makes it so, and the kernel copies for each a list that is
// as long as it has ancestors.
const (
	// usualProcesses are those of any container; their time is part of the rest. Each has
	// about usualAncestors: the guest agent and what starts the program.
	usualProcesses = 8
	usualAncestors = 3
	perProcess     = 6500 * time.Microsecond
	perAncestor    = 150 * time.Microsecond
)

// forked is the downtime for a container's processes beyond the usual.
func (m Model) forked(p fleet.Profile) time.Duration {
	if !m.kind.Traits().MappingsCost {
		return 0
	}
	more := math.Max(0, float64(p.Processes)-usualProcesses)
	above := math.Max(0, float64(p.Ancestors)-usualAncestors*math.Max(0, float64(p.Processes)))
	return seconds(more*perProcess.Seconds() + above*perAncestor.Seconds())
}

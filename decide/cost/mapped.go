package cost

import (
	"math"
	"time"

	"pagurus/fleet"
)

// Downtime for each mapping of a container. CRIU dumps each, maps it again and moves it
// to its place. For shared memory without a file it also writes two images for each
// segment, and looks each up among all others. Measured with 3,000 and 30,000 private
// mappings of a page each, and 3,000 shared. perPair is chosen so that 30,000 shared ones
// take the reported 10 s, which could not be reproduced (`scripts/bench -only
// container-mappings` measures it). All are of one process, and the kernel was otherwise
// idle.
const (
	// usualMappings are those of any container: some processes with their libraries.
	// Their time is part of the rest.
	usualMappings = 1000
	perMapping    = 22 * time.Microsecond
	perSegment    = 150 * time.Microsecond
	perPair       = 5 * time.Nanosecond // of segments
)

// mapped is the downtime for a container's mappings beyond the usual.
func (m Model) mapped(p fleet.Profile) time.Duration {
	if !m.kind.Traits().MappingsCost {
		return 0
	}
	segments := math.Max(0, float64(p.Segments))
	own := math.Max(0, float64(p.Mappings)-segments-usualMappings)
	return seconds(own*perMapping.Seconds() + segments*perSegment.Seconds() + segments*segments*perPair.Seconds())
}

package cost

import (
	"math"
	"time"

	"pagurus/fleet"
)

// What each mapping of a container costs of its downtime. CRIU writes each down, maps it
// again and moves it to its place; of memory shared without a file it also writes two
// images for each piece, and looks each up among all others. Measured with 3,000 and
// 30,000 private mappings of a page each, and 3,000 shared; perPair is such that 30,000
// shared take the 10 s that were reported, which could not be had again (`scripts/bench -only light-mappings` does it): they are of
// one process, and their kernel did little else.
const (
	// usualMappings are those that a container has in any case, of some processes with
	// their libraries: what they take is in the rest.
	usualMappings = 1000
	perMapping    = 22 * time.Microsecond
	perSegment    = 150 * time.Microsecond
	perPair       = 5 * time.Nanosecond // of segments
)

// mapped is what a container's mappings take of its downtime beyond the usual.
func (m Model) mapped(p fleet.Profile) time.Duration {
	if !m.kind.Traits().MappingsCost {
		return 0
	}
	segments := math.Max(0, float64(p.Segments))
	own := math.Max(0, float64(p.Mappings)-segments-usualMappings)
	return seconds(own*perMapping.Seconds() + segments*perSegment.Seconds() + segments*segments*perPair.Seconds())
}

package cost

import (
	"fmt"
	"math"
	"time"

	"pagurus/fleet"
)

// The speed of the machine on which the values assumed before learning were measured: two
// cores of an AMD EPYC, themselves virtual.
const (
	usualCopy  = 54e9 // bytes a second
	usualScan  = 75e9
	usualStart = 550 * time.Microsecond
)

// A host counts as usual unless it is several times slower, as an emulated machine is: what
// is measured in a moment says no more than that, and a fast processor does not make a fast
// network. It counts as at most mostSlow times slower.
const (
	several  = 4
	mostSlow = 100
)

// slowness is how many times longer something takes than usual.
func slowness(ratio float64) float64 {
	if !(ratio > several) {
		return 1
	}
	return math.Min(ratio, mostSlow)
}

// Measured assumes values that suit the measured speeds of the two hosts, if nothing was
// learnt: then past moves say more. How fast they compress is measured in either case, since moves
// that were not compressed do not say it. A speed may be nil.
func (m Model) Measured(from, to *fleet.Speed) Model {
	if from == nil && to == nil {
		return m
	}
	memory, start, link := slowest(from, to)
	m.packing = packingRate / math.Max(memory, start)
	if m.basis != "" {
		return m
	}
	m = m.known()
	m.bandwidth /= memory
	if link > 0 {
		m.bandwidth = math.Min(m.bandwidth, link)
	}
	m.looked = looked / memory
	m.overhead, m.rest = seconds(m.overhead.Seconds()*start), seconds(m.rest.Seconds()*start)
	m.basis += ", but the measured speed of the hosts, " + saySpeed(memory, start, link)
	return m
}

// slowest is how many times slower than usual the slower of hosts is with memory and with processes, and the
// bytes a second of the slower link; 0: unknown.
func slowest(hosts ...*fleet.Speed) (memory, start, link float64) {
	for _, s := range hosts {
		if s == nil {
			continue
		}
		memory = math.Max(memory, math.Sqrt(usualCopy/s.CopyBytesPerSecond*usualScan/s.ScanBytesPerSecond))
		start = math.Max(start, s.ProcessStart.Seconds()/usualStart.Seconds())
		if s.LinkBytesPerSecond > 0 && (link == 0 || s.LinkBytesPerSecond < link) {
			link = s.LinkBytesPerSecond
		}
	}
	return slowness(memory), slowness(start), link
}

// saySpeed says in words how the slower of two hosts compares.
func saySpeed(memory, start, link float64) string {
	times := func(what string, slow float64) string {
		if slow == 1 {
			return what + " about as fast as usual"
		}
		return fmt.Sprintf("%s %.0f times slower than usual", what, slow)
	}
	out := times("memory", memory) + " and " + times("processes", start)
	if link > 0 {
		out += fmt.Sprintf(", over a link of %s a second", mebi(link))
	}
	return out
}

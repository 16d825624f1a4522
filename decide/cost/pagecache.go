package cost

import (
	"math"

	"pagurus/fleet"
)

// When dropping a guest's page cache pays. Less than a sixteenth of the used memory is
// not worth it. A cache that is read repeatedly would mostly be read again at the target,
// from disk or over the network.
const (
	leastCache  = 16 << 20
	cacheShare  = 1.0 / 16
	hottestPart = 0.5
)

// Drops reports whether a guest should drop its page cache before its copy, from its own
// report. Unless requested it does not if free memory is sent all the same,
// because the dropped pages would still be sent.
func Drops(l fleet.Limits, c fleet.Cache) bool {
	switch {
	case l.PageCache == fleet.DropCache:
		return true
	case !empties(l, c):
		return false
	}
	return c.CleanBytes >= leastCache && float64(c.CleanBytes) >= cacheShare*float64(c.UsedBytes) &&
		float64(c.HotBytes) <= hottestPart*float64(c.CleanBytes)
}

// empties reports whether a guest's free memory is emptied before its copy, whichever way it moves: where the host can, and the guest is
// not to be copied as it is.
func empties(l fleet.Limits, c fleet.Cache) bool {
	return c.Empties && l.PageCache != fleet.SendCache
}

// filled is how much memory a copy must send first: nonzero pages, except those that are
// emptied, or that the guest will drop.
func filled(p fleet.Profile, l fleet.Limits) float64 {
	all := float64(p.FilledBytes)
	if c := p.Cache; c != nil && empties(l, *c) {
		free := float64(c.FreeBytes)
		if Drops(l, *c) {
			free += float64(c.CleanBytes)
		}
		all = math.Min(all, float64(p.MemoryBytes)-free)
	}
	return math.Max(all, 0)
}

// Assumptions about compression before learning: the compressed share of memory, and how
// many bytes a second hosts can compress while guests run. Compression must be this much
// faster to be worth the CPU time. The rate is from two compressing threads. With one, as
// now, the 15 copies that stayed well below their limit in the first docs/figures/predict.json
// reached 79 to 136 MiB a second.
const (
	usualPacked = 0.5
	packingRate = 120 << 20
	worth       = 1.5
)

// Packs reports whether a copy should be compressed: when the link, not the CPU, limits
// it.
func (m Model) Packs(l Link) bool {
	m, l = m.known(), l.known()
	switch {
	case l.Limits.AwaitGang:
		// QEMU sends compressed pages by the hundred. It cannot send slowly enough for
		// the copy to continue until a gang is ready.
		return false
	case l.Limits.Compress != "":
		return l.Limits.Compress == fleet.CompressOn
	}
	plain, _ := m.carried(l)
	l.Limits.Compress = fleet.CompressOn
	squeezed, _ := m.memoryRate(l)
	return squeezed >= worth*plain
}

// carried is one copy's share of the link, in bytes a second, and the same without its
// limit.
func (m Model) carried(l Link) (rate, free float64) {
	free = m.bandwidth / float64(l.Share)
	rate = free
	if limit := float64(l.Limits.BytesPerSecond); limit > 0 {
		// The loss from a limit grows with how often it is reached, not with its size:
		// measured at 24 MiB/s it is 8 %, at 96 none. The same holds for the excess of
		// compressed pages in flight.
		off := m.slack
		if l.Limits.Compress == fleet.CompressOn {
			off = -math.Min(m.overrun, limit/2)
		}
		rate = math.Min(free, limit*limit/(limit+off))
	}
	return rate, free
}

// memoryRate is how many bytes of memory are then sent a second.
func (m Model) memoryRate(l Link) (rate, free float64) {
	rate, free = m.carried(l)
	if l.Limits.Compress == fleet.CompressOn {
		rate, free = math.Min(rate/m.packed, m.packing), math.Min(free/m.packed, m.packing)
	}
	return rate, free
}

// onLink converts memory to bytes sent.
func (m Model) onLink(l Link, memory float64) float64 {
	if l.Limits.Compress == fleet.CompressOn {
		return memory * m.packed
	}
	return memory
}

// learnPacked finds the ratio of compression; 0: unknown.
func learnPacked(like []*outcome) float64 {
	var found []float64
	for _, o := range like {
		if copied := float64(o.m.Cost.CopiedBytes); o.packed() && copied > o.sent/4 {
			found = append(found, math.Min(o.sent/copied, 1))
		}
	}
	return tempered(found, usualPacked)
}

// packed reports whether the copy was compressed: then its rate says little about the
// link.
func (o *outcome) packed() bool {
	return o.m.Predicted != nil && o.m.Predicted.Limits.Compress == fleet.CompressOn
}

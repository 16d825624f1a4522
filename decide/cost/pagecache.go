package cost

import (
	"math"

	"pagurus/fleet"
)

// When dropping a guest's page cache pays. Below a sixteenth of what is in use
// nobody would notice; and of a cache that is read again and again the job
// would read most again at the target, from disk or over the network.
const (
	leastCache  = 16 << 20
	cacheShare  = 1.0 / 16
	hottestPart = 0.5
)

// Drops reports whether a guest is to drop its page cache before it is copied,
// by what it says of it. What is dropped is sent all the same where the
// mechanism does not hear what is free.
func Drops(l fleet.Limits, c fleet.Cache) bool {
	switch {
	case l.PageCache == fleet.DropCache:
		return true
	case l.PageCache == fleet.SendCache, !heard(l, c):
		return false
	}
	return c.CleanBytes >= leastCache && float64(c.CleanBytes) >= cacheShare*float64(c.UsedBytes) &&
		float64(c.HotBytes) <= hottestPart*float64(c.CleanBytes)
}

// heard reports whether the mechanism leaves out what the guest has free: not
// where the guest cannot say so or is suspended, and not by post-copy, since
// QEMU then lets nobody wait at the target for a page that never comes.
func heard(l fleet.Limits, c fleet.Cache) bool {
	return c.Hints && l.Mode != fleet.StopAndCopy && l.Mode != fleet.PostCopy
}

// filled is how much of a guest's memory a copy has to send at first: what
// holds anything, but for what the guest says is free, or will be.
func filled(p fleet.Profile, l fleet.Limits) float64 {
	all := float64(p.FilledBytes)
	if c := p.Cache; c != nil && heard(l, *c) {
		free := float64(c.FreeBytes)
		if Drops(l, *c) {
			free += float64(c.CleanBytes)
		}
		all = math.Min(all, float64(p.MemoryBytes)-free)
	}
	return math.Max(all, 0)
}

// What is believed of compressing while nothing was learnt: what is left of
// memory, and how much memory a second hosts get through that have guests to
// run, too. It has to be so much faster to be worth their processors. The rate is
// from when two threads compressed: by one, as now, the 15 copies that stayed well
// below their ceiling in docs/figures/predict.json went at 79 to 136 MiB a second.
const (
	usualPacked = 0.5
	packingRate = 120 << 20
	worth       = 1.5
)

// Packs reports whether a copy is to be compressed that could be: when the link
// and not the processors is what it waits for.
func (m Model) Packs(l Link) bool {
	m, l = m.known(), l.known()
	switch {
	case l.Limits.AwaitGang:
		// QEMU sends compressed pages by the hundred. It cannot send so slowly
		// that the copy goes on until all members of a gang are ready.
		return false
	case l.Limits.Compress != "":
		return l.Limits.Compress == fleet.CompressOn
	}
	plain, _ := m.carried(l)
	l.Limits.Compress = fleet.CompressOn
	squeezed, _ := m.memoryRate(l)
	return squeezed >= worth*plain
}

// carried is what one copy gets of the link, in bytes a second, and what it
// would get without its ceiling.
func (m Model) carried(l Link) (rate, free float64) {
	free = m.bandwidth / float64(l.Share)
	rate = free
	if limit := float64(l.Limits.BytesPerSecond); limit > 0 {
		// What a ceiling loses grows with the number of times it is met, not
		// with the ceiling: measured at 24 MiB/s it is 8 %, at 96 none. So does what
		// goes beyond it where pages are on their way to be compressed each time.
		off := m.slack
		if l.Limits.Compress == fleet.CompressOn {
			off = -math.Min(m.overrun, limit/2)
		}
		rate = math.Min(free, limit*limit/(limit+off))
	}
	return rate, free
}

// memoryRate is how much memory a second goes over then.
func (m Model) memoryRate(l Link) (rate, free float64) {
	rate, free = m.carried(l)
	if l.Limits.Compress == fleet.CompressOn {
		rate, free = math.Min(rate/m.packed, packingRate), math.Min(free/m.packed, packingRate)
	}
	return rate, free
}

// onLink turns memory into what is sent of it.
func (m Model) onLink(l Link, memory float64) float64 {
	if l.Limits.Compress == fleet.CompressOn {
		return memory * m.packed
	}
	return memory
}

// learnPacked finds what compression left of memory; 0: not known.
func learnPacked(like []*outcome) float64 {
	var found []float64
	for _, o := range like {
		if copied := float64(o.m.Cost.CopiedBytes); o.packed() && copied > o.sent/4 {
			found = append(found, math.Min(o.sent/copied, 1))
		}
	}
	return tempered(found, usualPacked)
}

// packed reports whether the copy was compressed: what it sent a second says
// little of the link then.
func (o *outcome) packed() bool {
	return o.m.Predicted != nil && o.m.Predicted.Limits.Compress == fleet.CompressOn
}

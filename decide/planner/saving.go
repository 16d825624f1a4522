// This file foresees how long a checkpoint takes that has to be kept before a host goes away. One that begins too late is lost, and
// one that begins early costs the job little, so all is on the slow side.
//
// It must not know what a checkpoint is made of. Its tests are tables.

package planner

import (
	"slices"
	"time"

	"pagurus/fleet"
)

const (
	// savesBytes is how many bytes of guests' memory a second a usual host writes, cuts into chunks, compresses and sends to a vault, beside
	// other work, before anything was measured.
	savesBytes = 30 << 20
	// savesMost bounds what was measured: a vault that has most of a state already takes the rest faster than a first one.
	savesMost = 2 * savesBytes
	// savesOfLink is the part of a link that a checkpoint has: moves and guests use it, too, and what goes over it is encrypted.
	savesOfLink = 0.5
	// savesFixed is what a checkpoint takes besides that: each guest's host and the controller answer several times. Emulated guests
	// answer later.
	savesFixed   = 5 * time.Second
	savesEmulate = 10 * time.Second
	// savesSpread is by how much one may take longer than the last, and savesUnknown than what is assumed.
	savesSpread, savesUnknown = 1.5, 2.0
	// usualCopy is how many bytes of memory a second one core of a usual host copies, as agents measure it.
	usualCopy = 54e9
	// slowestSave bounds by how much a slower host is taken to save more slowly.
	slowestSave = 16
)

// savesIn is how long a checkpoint of a job takes at most, whose parts go to these vaults: from its beginning until it is kept.
func (d *draft) savesIn(j fleet.Job, parts []fleet.CheckpointPart) time.Duration {
	for _, c := range slices.Backward(d.checkpointsOf(j.ID)) {
		if c.WasKept && !c.Cut.IsZero() && c.Ended.After(c.Begun) && c.Incarnation == j.Incarnation {
			return time.Duration(savesSpread*float64(c.Ended.Sub(c.Begun))) + savesFixed // with what is written before its cut
		}
	}
	type way struct{ from, to fleet.HostID }
	fixed, out, in, over := savesFixed, map[fleet.HostID]float64{}, map[fleet.HostID]float64{}, map[way]float64{}
	for _, p := range parts {
		g := d.Guests.At(p.Guest)
		facts := d.base.Hosts[g.Home].Facts
		bytes := float64(g.Need.MemoryBytes)
		if now, known := facts.Guests[g.ID]; known && now.ResidentBytes > 0 {
			bytes = min(bytes, float64(now.ResidentBytes))
		}
		if facts.Abilities[g.Kind].Emulated != "" {
			fixed = savesFixed + savesEmulate
		}
		out[g.Home] += bytes
		in[p.Vault] += bytes
		if p.Vault != g.Home {
			over[way{g.Home, p.Vault}] += bytes
		}
	}
	longest := 0.0
	for id, bytes := range out {
		longest = max(longest, bytes/d.savesAt(id))
	}
	for id, bytes := range in {
		longest = max(longest, bytes/d.savesAt(id))
	}
	for w, bytes := range over {
		for _, id := range []fleet.HostID{w.from, w.to} {
			if s := d.base.Hosts[id].Facts.Speed; s != nil && s.LinkBytesPerSecond > 0 {
				longest = max(longest, savesUnknown*bytes/(savesOfLink*s.LinkBytesPerSecond))
			}
		}
	}
	return fixed + time.Duration(longest*float64(time.Second))
}

// savesAt is how many bytes a second a host saves at least: as it did for another checkpoint, or by what it is like, each with a margin.
func (d *draft) savesAt(id fleet.HostID) float64 {
	if d.saved == nil {
		d.saved = savedRates(d.base.Checkpoints)
	}
	if rate := d.saved[id]; rate > 0 {
		return rate / savesSpread
	}
	slow := 1.0
	if s := d.base.Hosts[id].Facts.Speed; s != nil && s.CopyBytesPerSecond > 0 {
		slow = min(max(usualCopy/s.CopyBytesPerSecond, 1), slowestSave)
	}
	return savesBytes / slow / savesUnknown
}

// savedRates are how fast hosts have saved what their guests had, in the checkpoint of those that are known in which each was fastest: one
// of two hosts may have waited for the other.
func savedRates(all map[fleet.CheckpointID]fleet.Checkpoint) map[fleet.HostID]float64 {
	out := map[fleet.HostID]float64{}
	for _, c := range all {
		if !c.WasKept || c.Cut.IsZero() || !c.Ended.After(c.Begun) {
			continue
		}
		bytes := map[fleet.HostID]int64{}
		for _, p := range c.Guests {
			bytes[p.Host] += p.Bytes
		}
		took := max(c.Ended.Sub(c.Begun)-savesFixed, time.Second).Seconds()
		for id, n := range bytes {
			out[id] = max(out[id], min(float64(n)/took, savesMost))
		}
	}
	return out
}

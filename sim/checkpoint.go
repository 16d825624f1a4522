package sim

import (
	"time"

	"pagurus/fleet"
)

// Durations of orders about checkpoints, as measured on real hosts, without what is sent.
const (
	armTakes      = 200 * time.Millisecond
	cutTakes      = 15 * time.Millisecond
	continueTakes = 5 * time.Millisecond
	dropTakes     = 50 * time.Millisecond
	vaultBytes    = 1 << 40
)

// cutting is what a host has of a guest's checkpoint.
type cutting struct {
	of        fleet.CheckpointID
	cut       bool // suspended
	continued bool // it ran on when it was told to
	void      bool // dropped, or it ran on by itself
}

// vault adds the vault of a host in a world with checkpoints.
func (c *Config) vault(f *fleet.Facts) {
	if c.Checkpoint <= 0 {
		return
	}
	f.Vault = &fleet.VaultFacts{Listen: "modelled", FreeBytes: vaultBytes}
}

// followCheckpoint logs a checkpoint's change, and keeps how far its job was at the cut.
func (w *world) followCheckpoint(c fleet.Checkpoint) {
	switch c.Phase {
	case fleet.Continuing:
		j := w.jobs[c.Job]
		w.progress(j)
		if j.cuts == nil {
			j.cuts = map[fleet.CheckpointID]time.Duration{}
		}
		j.cuts[c.ID] = j.done
	case fleet.Kept:
		w.say("%s is kept on %s: %s", c.ID, c.Guests[0].Vault, c.Why)
	case fleet.Void:
		w.say("%s has failed: %s", c.ID, c.Cause)
	case fleet.Removed:
		w.say("%s is removed: %s", c.ID, c.Cause)
	}
}

// carryCheckpoint handles the orders about a checkpoint of a guest that is on a host.
func (w *world) carryCheckpoint(m *machine, g *guest, o fleet.Order) {
	if o.Verb == fleet.Drop {
		w.reply(dropTakes, o, fleet.Report{}, func() { w.voidCut(m, g, o.Checkpoint) })
		return
	}
	if g == nil || g.at != m || g.ended || g.cutting.of == o.Checkpoint && g.cutting.void || g.cutting.of != o.Checkpoint && o.Verb != fleet.Arm {
		w.refuse(o, "it is not here, or that is void")
		return
	}
	switch o.Verb {
	case fleet.Arm:
		w.reply(armTakes, o, fleet.Report{}, func() { g.cutting = cutting{of: o.Checkpoint} })
	case fleet.Cut:
		w.reply(cutTakes, o, fleet.Report{}, func() {
			if g.at == m && !g.cutting.void {
				g.cutting.cut = true
				w.alter(g, func() { g.up = false })
			}
		})
		w.reply(fleet.CutHold, fleet.Order{Host: m.id, Guest: g.id}, fleet.Report{}, func() { // without Continue it runs on by itself
			if !g.cutting.continued {
				w.voidCut(m, g, o.Checkpoint)
			}
		})
	case fleet.Continue:
		w.reply(continueTakes, o, fleet.Report{}, func() {
			if g.at == m && g.cutting.cut && !g.cutting.void {
				for _, other := range g.job.all() {
					if other.cutting.of != o.Checkpoint || !other.cutting.cut {
						w.breach("%s runs on by %s, and %s is not cut", g.id, o.Checkpoint, other.id)
					}
				}
				g.cutting.continued = true
				w.alter(g, func() { g.up = true })
			}
		})
	case fleet.Save:
		if !g.cutting.continued {
			w.refuse(o, "it did not go on")
			return
		}
		bytes := g.job.MemoryBytes
		takes := time.Duration(float64(bytes) / m.BytesPerSecond * float64(time.Second))
		w.reply(takes, o, fleet.Report{Kept: &fleet.KeptState{Manifest: "sha256-modelled", Bytes: bytes, NewBytes: bytes, Stop: cutTakes + continueTakes}}, nil)
	}
}

// voidCut lets a guest run on whose checkpoint is not kept.
func (w *world) voidCut(m *machine, g *guest, id fleet.CheckpointID) {
	if g == nil || g.cutting.of != id || g.cutting.void {
		return
	}
	suspended := g.cutting.cut && !g.cutting.continued
	g.cutting.void = true
	if suspended && g.at == m {
		w.alter(g, func() { g.up = true })
	}
}

// restore makes a guest from a checkpoint, suspended.
func (w *world) restore(m *machine, g *guest, o fleet.Order) {
	vault := w.byID[o.Peer]
	if vault == nil || vault.cut {
		w.refuse(o, "the vault does not answer")
		return
	}
	takes := m.Boot/4 + time.Duration(float64(g.job.MemoryBytes)/m.BytesPerSecond*float64(time.Second))
	w.reply(takes, o, fleet.Report{}, func() {
		if g.at == nil && !g.gone {
			w.occupy(m, 1)
			w.alter(g, func() { g.at, g.up = m, false })
		}
	})
}

// goOn makes a job one that has done what it had at a checkpoint.
func (w *world) goOn(j *job, from fleet.CheckpointID) {
	j.done = j.cuts[from]
	w.out.WastedHours -= j.hours(j.done)
	w.say("%s goes on from %s, where it had done %s", j.id, from, j.done.Round(time.Second))
}

// This file says where a waiting job begins: at a checkpoint, or at its beginning.
//
// It must not know how guests are made from a checkpoint. Its tests are scenarios.

package planner

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"pagurus/decide/lifecycle"
	"pagurus/decide/placement"
	"pagurus/fleet"
)

// awaitVaults is how long a job that begins again waits for the vaults of its newest checkpoint. Then it begins at an
// older one, or at its beginning, whichever can be had. What a person asked for is waited for without limit.
const awaitVaults = 5 * time.Minute

// origin is the checkpoint at which a waiting job would begin now; the zero Checkpoint: at its beginning. The second result
// says what it waits for first; empty: nothing.
func (d *draft) origin(j fleet.Job) (fleet.Checkpoint, string) {
	if j.From == "" {
		return fleet.Checkpoint{}, ""
	}
	asked := j.RestartFrom != ""
	var candidates []fleet.Checkpoint
	for _, c := range d.checkpointsOf(j.ID) {
		if c.Phase == fleet.Kept && (c.ID == j.From || !asked && !slices.Contains(j.Unrestorable, c.ID)) {
			candidates = append(candidates, c)
		}
	}
	slices.SortFunc(candidates, func(a, b fleet.Checkpoint) int {
		switch {
		case a.ID == j.From:
			return -1
		case b.ID == j.From:
			return 1
		}
		return cmp.Compare(b.ID.Number(), a.ID.Number())
	})
	wait := ""
	for _, c := range candidates {
		if !asked && slices.Contains(j.Unrestorable, c.ID) {
			continue
		}
		away := d.vaultAway(c)
		if away == "" {
			return c, wait
		}
		if wait == "" && (asked || d.listened(j.Since) < awaitVaults) {
			wait = d.waitsForVault(away, c.ID)
		}
	}
	if asked && wait == "" {
		wait = fmt.Sprintf("its checkpoint %s is not kept any more; `pagurus restart %s --from-beginning` begins without it", j.From, j.ID)
	}
	return fleet.Checkpoint{}, wait
}

// waitsForVault says that a checkpoint has to wait for a host's vault.
func (d *draft) waitsForVault(id fleet.HostID, c fleet.CheckpointID) string {
	if h, known := d.Hosts.Find(id); known && placement.Heard(h, d.base.At) {
		return fmt.Sprintf("the vault of %s, which has a part of its checkpoint %s, is not there: `pagurus host ls` says why", id, c)
	}
	return fmt.Sprintf("%s, which has a part of its checkpoint %s, has not been heard from", id, c)
}

// vaultAway is a host that has a part of a checkpoint and is not heard; empty: all are.
func (d *draft) vaultAway(c fleet.Checkpoint) fleet.HostID {
	for _, p := range c.Guests {
		if h, known := d.Hosts.Find(p.Vault); !known || !placement.Heard(h, d.base.At) || h.Facts.Vault == nil {
			return p.Vault
		}
	}
	return ""
}

// asksFrom are the placement questions for the guests of a job. One that is made from a part of a checkpoint has the kind and
// needs the processor that it had.
func asksFrom(a placement.Ask, c fleet.Checkpoint, guests int) []placement.Ask {
	asks := slices.Repeat([]placement.Ask{a}, guests)
	if c.ID == "" {
		return asks
	}
	for i, p := range c.Guests {
		asks[i].Kind, asks[i].Restores = p.Kind, &placement.Source{Host: p.Host}
		if p.Needs > 0 && p.Needs <= len(c.Needs) {
			asks[i].Restores.Needs, asks[i].Restores.Known = c.Needs[p.Needs-1], true
		}
	}
	return asks
}

// sizeFrom is how many guests a job begins with: from a checkpoint also those by which it had grown.
func sizeFrom(j fleet.Job, c fleet.Checkpoint) int {
	if c.ID == "" {
		return j.Spec.Guests
	}
	return max(j.Spec.Guests, len(c.Guests))
}

// networkFor is a network for a job that begins: of one that goes on from a checkpoint its guests keep their addresses, and the
// network is apart from that of its earlier guests.
func (d *draft) networkFor(c fleet.Checkpoint) (fleet.Subnet, bool) {
	if c.ID == "" {
		return d.subnet()
	}
	n := c.Subnet
	for range 64 {
		if n = n.Again(); !d.l.Taken(n) {
			return n, true
		}
	}
	return 0, false
}

// begun are the guests of a job that begins.
func begun(g fleet.Guest, c fleet.Checkpoint, i int) fleet.Guest {
	if c.ID == "" {
		return lifecycle.GuestOf(g, "", "")
	}
	g.Shape, g.CPU = c.Guests[i].Shape, ""
	if n := c.Guests[i].Needs; n > 0 && n <= len(c.Needs) {
		g.CPU = c.Needs[n-1].Model
	}
	return lifecycle.GuestOf(g, c.ID, c.Guests[i].Vault)
}

// This file keeps guests' own files on this host within its limits. What they have is looked at again and again, and what is left is allotted anew: so
// a program that writes finds its file system full, and nobody else's is. Package quota decides.

package agent

import (
	"context"
	"errors"
	"strings"
	"time"

	"pagurus/decide/quota"
	"pagurus/fleet"
	"pagurus/internal/pause"
)

// scratchEvery is how often what is left is allotted anew.
const scratchEvery = time.Second

// filling begins the subject of what is said of a guest whose own files are full.
const filling = "scratch of guest "

// scratchUnit is the least change of a bound that is worth a call of the kernel.
const scratchUnit = 64 << 10

// boundScratch bounds guests' own files until ctx ends. Without limits it does so once: an earlier agent may have had some.
func (a *Agent) boundScratch(ctx context.Context) {
	for pause.For(ctx, scratchEvery) == nil {
		for kind, d := range a.Drivers {
			if s, can := d.(Scratcher); can {
				a.allotScratch(kind, s)
			}
		}
		if a.Scratch == (fleet.ScratchLimits{}) {
			return
		}
	}
}

// allotScratch does so once for the guests of a driver. What one may no longer have is taken before another gets it, else both could.
func (a *Agent) allotScratch(kind fleet.Kind, d Scratcher) {
	all, err := d.Scratch()
	a.trouble("looking at the own files of guests of kind "+string(kind), err)
	if err != nil {
		return
	}
	may := quota.Allot(a.Scratch, all)
	taken := true
	for _, g := range all {
		if to := may[g.Guest]; to/scratchUnit < g.Bound/scratchUnit && d.BoundScratch(g.Guest, to) != nil {
			taken = false // it has written meanwhile, or ends: the next turn knows
		}
	}
	for _, g := range all {
		if to := may[g.Guest]; taken && to/scratchUnit > g.Bound/scratchUnit {
			_ = d.BoundScratch(g.Guest, to) // the same
		}
	}
	a.sayFull(quota.ScratchSays(a.Scratch, all))
}

// sayFull says which guests have filled what they may, and of no others that they have.
func (a *Agent) sayFull(says map[fleet.GuestID]string) {
	a.mu.Lock()
	for what := range a.troubles {
		if g, of := strings.CutPrefix(what, filling); of && says[fleet.GuestID(g)] == "" {
			delete(a.troubles, what)
		}
	}
	a.mu.Unlock()
	for g, why := range says {
		a.trouble(filling+string(g), errors.New(why))
	}
}

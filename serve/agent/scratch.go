// This file keeps guests' own files on this host within its limits. What they have is looked at again and again, and what is left is allotted again: so
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

// scratchEvery is how often what is left is allotted.
const scratchEvery = time.Second

// filling begins the subject of what is said of a guest whose own files are full.
const filling = "scratch of guest "

// scratchUnit is the least change of a bound that is worth a call of the kernel.
const scratchUnit = 64 << 10

// scratchSlack is what a guest gets at most beyond what it may, where it has written meanwhile: with nothing it would keep all that it had.
var scratchSlack = []int64{0, 1 << 20, 16 << 20, 128 << 20}

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

// boundNew does so at once when a guest has been made, before its programs start, or has come: its file system has no bound of the host's yet.
func (a *Agent) boundNew(w *taskRun) {
	if s, can := w.driver.(Scratcher); can && a.Scratch != (fleet.ScratchLimits{}) {
		a.allotScratch(w.task.Guest.Kind, s)
	}
}

// allotScratch does so once for the guests of a driver. What one may no longer have is taken before another gets it, else both could.
func (a *Agent) allotScratch(kind fleet.Kind, d Scratcher) {
	a.allotting.Lock()
	defer a.allotting.Unlock()
	all, err := d.Scratch()
	a.trouble("looking at the own files of guests of kind "+string(kind), err)
	if err != nil {
		return
	}
	may := quota.Allot(a.Scratch, all)
	for i, g := range all {
		if to := may[g.Guest]; to/scratchUnit < g.Bound/scratchUnit {
			all[i].Bound = lowerScratch(d, g, to)
		}
	}
	may = quota.AllotRest(a.Scratch, all, may)
	for _, g := range all {
		if to := may[g.Guest]; to/scratchUnit > g.Bound/scratchUnit {
			_ = d.BoundScratch(g.Guest, to) // it ends: the next turn knows
		}
	}
	a.sayFull(quota.ScratchSays(a.Scratch, all))
}

// lowerScratch lowers a guest's bound to what it may have, or to as little more as it can, and gives what the bound is then.
func lowerScratch(d Scratcher, g fleet.Scratch, to int64) int64 {
	for _, slack := range scratchSlack {
		if to+slack >= g.Bound {
			break
		}
		if d.BoundScratch(g.Guest, to+slack) == nil {
			return to + slack
		}
	}
	return g.Bound // it ends, or writes very fast: the next turn knows
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

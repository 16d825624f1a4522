package agent

import (
	"context"
	"fmt"
	"time"

	"pagurus/fleet"
)

// How often it is looked what keeps guests from being moved. Who asks for a move
// is answered by the last look; the next comes sooner if that found something,
// for somebody may just be seeing to it.
const (
	examineEvery  = 10 * time.Second
	examineAgain  = 2 * time.Second
	mostObstacles = 4 // told of one guest, every second
)

// examination is what was found in a guest that keeps it from being moved.
type examination struct {
	next  time.Time
	found []string
}

// examine begins a look at the guests for which one is due. It is not waited
// for: a file that a guest has open may be on a server that does not answer.
func (a *Agent) examine(ctx context.Context, now time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	due := map[fleet.GuestID]Driver{}
	for g, p := range a.present {
		if _, can := a.Drivers[p.kind].(Examiner); can && p.facts.Run == fleet.Running && !now.Before(a.examined[g].next) {
			due[g] = a.Drivers[p.kind]
		}
	}
	if len(due) == 0 || a.examining {
		return
	}
	a.examining = true
	a.runs.Go(func() {
		for g, d := range due {
			a.obstacles(ctx, g, d)
		}
		a.mu.Lock()
		defer a.mu.Unlock()
		a.examining = false
	})
}

// obstacles looks what keeps a guest from being moved, and remembers it. What
// cannot be looked at has nothing that is known.
func (a *Agent) obstacles(ctx context.Context, g fleet.GuestID, d Driver) []string {
	e, can := d.(Examiner)
	if !can {
		return nil
	}
	found, err := e.Obstacles(ctx, g)
	again := examineAgain
	if err != nil || len(found) == 0 { // it is being moved, or gone; or nothing keeps it
		found, again = nil, examineEvery
	}
	if more := len(found) - mostObstacles; more > 0 {
		found = append(found[:mostObstacles:mostObstacles], fmt.Sprintf("and %d more", more))
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if _, here := a.present[g]; here {
		a.examined[g] = examination{time.Now().Add(again), found}
	}
	return found
}

package agent

import (
	"context"
	"fmt"
	"time"

	"pagurus/fleet"
)

// Guests are examined at these intervals for obstacles to a move. Requests for a move are
// answered from the last result. After an obstacle the next examination comes sooner,
// because a user may be removing it.
const (
	examineEvery  = 10 * time.Second
	examineAgain  = 2 * time.Second
	mostObstacles = 4 // reported of one guest, every second
)

// examination is what prevents a guest from being moved.
type examination struct {
	next  time.Time
	found []string
}

// examine starts an examination of the guests for which one is due. It does not wait: a
// guest's open file may be on a server that does not answer.
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

// obstacles examines a guest and remembers the result. A guest that cannot be examined has
// no known obstacles.
func (a *Agent) obstacles(ctx context.Context, g fleet.GuestID, d Driver) []string {
	e, can := d.(Examiner)
	if !can {
		return nil
	}
	found, err := e.Obstacles(ctx, g)
	again := examineAgain
	if err != nil || len(found) == 0 { // it is being moved or gone, or has no obstacles
		found, again = nil, examineEvery
	}
	for i := range found {
		found[i] = plain(found[i])
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

package controller

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"pagurus/decide/turns"
	"pagurus/fleet"
	"pagurus/serve/wire"
)

const (
	// waitingEach is how many requests of a user wait for the loop at once: two for each connection that a user may have
	// on the controller's machine would be too many to answer in the time that a client waits.
	waitingEach = 128
	// waitingJoins is how many of those wait who are not known yet, of all together.
	waitingJoins = 1024
	// turnsAtOnce is how much work is done before reports are committed, and the time looked at.
	turnsAtOnce = 64
)

// whose is for whom the loop does something.
type whose struct {
	rank turns.Rank
	name string
	most int // that waits; 0: any number
}

// The loop's own work, and what it does for those who are not known by then.
var (
	forItself = whose{rank: turns.Hosts}
	forJoins  = whose{rank: turns.People, name: "joins", most: waitingJoins}
	forAsked  = whose{rank: turns.People, name: "questions to hosts"} // as many as there are callers of an other kind
)

func forHost(id fleet.HostID) whose { return whose{rank: turns.Hosts, name: string(id)} }

// forUser is for a caller, or for the program in a guest of theirs. Root on the controller's machine may have any number waiting:
// all of a lab is root's.
func forUser(by fleet.Caller) whose {
	w := whose{rank: turns.People, name: fmt.Sprintf("uid %d", by.UID), most: waitingEach}
	if by.Admin && by.UID == 0 {
		w.most = 0
	}
	return w
}

// inTurn is what waits for the loop, in the order in which it is done.
type inTurn struct {
	sync.Mutex
	queue turns.Queue[turn]
	woken chan struct{} // something waits
}

type turn struct {
	asked context.Context // of who waits for it
	do    func(context.Context)
	whose
}

// add has something wait. false: most of theirs wait already.
func (q *inTurn) add(t turn) bool {
	q.Lock()
	defer q.Unlock()
	if !q.queue.Push(t.rank, t.name, t.most, t) {
		return false
	}
	q.wake()
	return true
}

func (q *inTurn) wake() {
	select {
	case q.woken <- struct{}{}:
	default:
	}
}

// length is how much waits.
func (q *inTurn) length() int {
	q.Lock()
	defer q.Unlock()
	return q.queue.Len()
}

func (q *inTurn) next() (turn, bool) {
	q.Lock()
	defer q.Unlock()
	return q.queue.Pop()
}

// takeTurns does some of what waits, then commits what hosts reported meanwhile.
func (c *Controller) takeTurns(ctx context.Context) {
	for range turnsAtOnce {
		t, some := c.turns.next()
		if !some {
			break
		}
		if t.rank == turns.People && t.asked.Err() != nil {
			continue // nobody waits for the answer any more, who asked again has another turn
		}
		c.awake()
		t.do(ctx)
		c.Alive()
	}
	if !c.failing {
		c.hear(ctx)
	}
	if c.turns.length() > 0 {
		c.turns.wake()
	}
}

// errCrowded: most of the caller's work waits already.
var errCrowded = errors.New("too much of the same caller waits")

// do runs something in the loop, when it is their turn, and waits for it. errCrowded: it was not even queued.
func (c *Controller) do(ctx context.Context, by whose, what func(context.Context)) error {
	done := make(chan struct{})
	if !c.turns.add(turn{ctx, func(ctx context.Context) { defer close(done); what(ctx) }, by}) {
		return errCrowded
	}
	select {
	case <-done:
		return nil
	case <-c.over:
		return errOver
	case <-ctx.Done():
		return ctx.Err()
	}
}

// crowdedFor is when to ask again: the loop has had many turns by then.
const crowdedFor = time.Second

// unasked is the answer to a caller for whom do has failed.
func unasked(err error) error {
	if errors.Is(err, errCrowded) {
		return wire.AskAgain(crowdedFor, fmt.Sprintf("%d requests of yours wait for the controller already, and it takes no more: wait for the answers to these, then ask again", waitingEach))
	}
	return notLeading
}

package agent

import (
	"context"
	"fmt"
	"maps"
	"net"
	"os"
	"slices"
	"time"

	"pagurus/fleet"
	"pagurus/internal/pause"
	"pagurus/serve/wire"
)

// OwnerSocket is where the machine's owner asks the agent.
type OwnerSocket struct {
	Path string
	Owns func(uid uint32) bool // whether a user of the machine is its owner; root always is
}

// ownerSocketLook is how often the agent looks whether its owner's socket is there, and opens it if it is not.
const ownerSocketLook = time.Second

// serveOwner answers the owner until ctx ends. What removes the socket, or its folder, only interrupts that.
func (a *Agent) serveOwner(ctx context.Context) {
	for a.OwnerSocket.Path != "" && ctx.Err() == nil {
		l, err := wire.ListenUnix(a.OwnerSocket.Path)
		a.trouble("the owner's socket", err)
		if err == nil {
			err = a.serveOwnerAt(ctx, l)
			a.trouble("the owner's socket", err)
		}
		if err != nil {
			_ = pause.For(ctx, ownerSocketLook)
		}
	}
}

// serveOwnerAt answers the owner until ctx ends, or until the socket is not there any more.
func (a *Agent) serveOwnerAt(ctx context.Context, l net.Listener) error {
	there, gone := context.WithCancel(ctx)
	defer gone()
	go func() {
		defer gone()
		for pause.For(there, ownerSocketLook) == nil {
			if _, err := os.Lstat(a.OwnerSocket.Path); err != nil {
				return
			}
		}
	}()
	return wire.ServeOwner(there, l, a.AnswerOwner)
}

// AnswerOwner answers one question of a user of this machine.
func (a *Agent) AnswerOwner(uid uint32, q fleet.OwnerAsk) fleet.OwnerAnswer {
	refuse := func(format string, args ...any) fleet.OwnerAnswer {
		return fleet.OwnerAnswer{Refused: fmt.Sprintf(format, args...)}
	}
	if uid != 0 && (a.OwnerSocket.Owns == nil || !a.OwnerSocket.Owns(uid)) {
		return refuse("user %d is not an owner of %s: root names them in its configuration, [agent] owners", uid, a.Host)
	}
	if reason := q.Refused(); reason != "" {
		return refuse("%s", reason)
	}
	var err error
	switch q.Verb {
	case fleet.OwnerPause:
		until := time.Time{}
		if q.For > 0 {
			until = time.Now().Add(q.For).UTC().Round(0)
		}
		err = a.Owner.Pause(until)
	case fleet.OwnerResume:
		err = a.Owner.Resume()
	case fleet.OwnerAgrees:
		err = a.Owner.Choose(*q.Policy)
	}
	if err != nil {
		return refuse("%s", err)
	}
	out := a.Owner.Local()
	out.Host, out.At, out.Guests, out.Notices = a.Host, time.Now().UTC().Round(0), []fleet.OwnerGuest{}, a.Notices.Seen()
	if q.Verb != fleet.OwnerHistory {
		out.History = nil
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	out.Alone = !a.attached.Load()
	for _, id := range slices.Sorted(maps.Keys(a.present)) {
		f := a.present[id].facts
		g := fleet.OwnerGuest{ID: id, Since: f.StartedAt, CPUs: f.CPUs, MemoryBytes: f.ResidentBytes, Run: f.Run}
		if s := a.slots[id]; s != nil {
			g.Leaving = s.progress != nil
		}
		out.Guests = append(out.Guests, g)
	}
	return out
}

// noteGuests tells the owner's history which guests came and went since the last inspection.
func (a *Agent) noteGuests() {
	a.mu.Lock()
	is := map[fleet.GuestID]bool{}
	for id, p := range a.present {
		is[id] = p.facts.Run != fleet.Incoming
	}
	was := a.noted
	a.noted = is
	a.mu.Unlock()
	if was == nil { // the first inspection: they were here before
		return
	}
	for _, id := range slices.Sorted(maps.Keys(is)) {
		if is[id] && !was[id] {
			a.Owner.AddEvent(fmt.Sprintf("guest %s came", id))
		}
	}
	for _, id := range slices.Sorted(maps.Keys(was)) {
		if was[id] && !is[id] {
			a.Owner.AddEvent(fmt.Sprintf("guest %s went", id))
		}
	}
}

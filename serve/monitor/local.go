package monitor

import (
	"errors"
	"fmt"
	"io/fs"
	"reflect"
	"slices"
	"time"

	"pagurus/fleet"
	"pagurus/internal/note"
)

// This file has what the owner says and sees at the machine itself, without the controller.

const (
	mostEvents = 200
	// wishStands is how long after the controller was heard a policy that was chosen here counts more than what the controller says.
	wishStands = 30 * time.Second
)

// local is what is kept of that for the next agent.
type local struct {
	Pause   bool               `json:"pause,omitempty"`
	Until   time.Time          `json:"until,omitzero"` // zero: until it is ended
	Wish    *fleet.OwnerWish   `json:"wish,omitempty"` // nil: the controller has it
	History []fleet.OwnerEvent `json:"history,omitempty"`
}

// Pause has the owner count as present until a time; zero: until Resume. After an error it does, but the next agent does not know it.
func (l *Monitor) Pause(until time.Time) error {
	says := "the owner began a pause"
	if !until.IsZero() {
		says += " until " + until.Local().Format("15:04 on 2 January")
	}
	return l.amend(func(k *local) { k.Pause, k.Until = true, until; k.addEvent(says) })
}

// Resume ends a pause. It is not an error if there is none.
func (l *Monitor) Resume() error {
	return l.amend(func(k *local) {
		if k.Pause {
			k.Pause, k.Until = false, time.Time{}
			k.addEvent("the owner ended it")
		}
	})
}

// Choose sets the owner's policy at the machine. It counts at once; the controller takes it when it is heard.
func (l *Monitor) Choose(p fleet.OwnerPolicy) error {
	return l.amend(func(k *local) {
		p.Claimed = l.policy.Claimed // only the controller is told that
		now := time.Now().UTC()
		k.Wish = &fleet.OwnerWish{ID: now.Format(time.RFC3339Nano), Policy: p}
		l.policy, l.told, l.wished = p, true, time.Time{}
		k.addEvent("the owner has chosen another policy")
	})
}

// AddEvent adds something that happened to the history.
func (l *Monitor) AddEvent(says string) {
	if l == nil {
		return
	}
	if err := l.amend(func(k *local) { k.addEvent(says) }); err != nil {
		l.Log.Warn("what happened is not kept for the owner", "cause", err)
	}
}

// amend changes what is kept, has the next sample come at once, and tells the controller.
func (l *Monitor) amend(do func(*local)) error {
	if l == nil {
		return errors.New("this host has no sensors of its owner")
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	do(&l.local)
	poke(l.agreed)
	poke(l.news)
	if l.LocalFile == "" {
		return nil
	}
	if err := note.Replace(l.LocalFile, l.local); err != nil {
		return fmt.Errorf("keeping what the owner said: %w", err)
	}
	return nil
}

func (k *local) addEvent(says string) {
	k.History = append(k.History, fleet.OwnerEvent{At: time.Now().UTC().Round(0), Says: says})
	k.History = slices.Clone(k.History[max(len(k.History)-mostEvents, 0):])
}

// recall reads what an earlier agent kept.
func (l *Monitor) recall() {
	var before local
	if l.LocalFile == "" {
		return
	}
	if err := note.Load(l.LocalFile, &before); err != nil {
		if !errors.Is(err, fs.ErrNotExist) {
			l.Log.Warn("what the owner said before is unknown", "cause", err)
		}
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	before.History = append(before.History, l.local.History...)
	if l.local.Pause || l.local.Wish != nil { // said since this agent began
		before.Pause, before.Until, before.Wish = l.local.Pause, l.local.Until, l.local.Wish
	}
	if l.local = before; before.Wish != nil && !l.told {
		l.policy = before.Wish.Policy
	}
}

// inForce is the policy that counts now: during a pause the owner has claimed the machine. The caller holds the lock.
func (l *Monitor) inForce(now time.Time) fleet.OwnerPolicy {
	p := l.policy
	if l.local.Pause && !l.local.Until.IsZero() && !now.Before(l.local.Until) {
		l.local.Pause, l.local.Until = false, time.Time{}
		l.local.addEvent("the pause is over")
	}
	p.Claimed = p.Claimed || l.local.Pause
	return p
}

// wishes is what counts of the controller's policy while the owner's own has not come there. The caller holds the lock.
func (l *Monitor) wishes(p fleet.OwnerPolicy, now time.Time) fleet.OwnerPolicy {
	w := l.local.Wish
	if w == nil {
		return p
	}
	own := w.Policy
	own.Claimed = p.Claimed
	if l.wished.IsZero() {
		l.wished = now
	}
	if reflect.DeepEqual(own, p) || now.Sub(l.wished) >= wishStands {
		l.local.Wish = nil // it has come, or somebody has chosen another one since
		return p
	}
	return own
}

// Local says what the owner sees at the machine.
func (l *Monitor) Local() (a fleet.OwnerAnswer) {
	if l == nil {
		return a
	}
	a.Owner = l.Seen()
	l.mu.Lock()
	defer l.mu.Unlock()
	a.Policy, a.Pause, a.Until, a.Unsent = l.policy, l.local.Pause, l.local.Until, l.local.Wish != nil
	a.History = slices.Clone(l.local.History)
	return a
}

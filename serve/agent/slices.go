// This file gives guests their time slices: from their start, and in the adaptive form again and again. Package timeslice decides.

package agent

import (
	"context"
	"time"

	"pagurus/decide/timeslice"
	"pagurus/fleet"
	"pagurus/internal/pause"
)

// slicing begins the subject of the trouble with a guest's time slice.
const slicing = "the time slice of guest "

// sliceNew gives a guest that begins here, or is taken over, the slice that it has now, or its usual one.
func (a *Agent) sliceNew(w *taskRun) {
	g := sliceable(w.task)
	if a.Slicer == nil || !a.Slices.Adaptive && !g.Asked {
		return
	}
	a.slicing.Lock()
	defer a.slicing.Unlock()
	to, has := a.slicedNow(w.slot.guest)
	if !has || !a.Slices.Adaptive {
		to = a.Slices.Usual(g)
	}
	a.slice(w.task.Guest, to)
}

// sliceable is what the policy knows of a guest.
func sliceable(t fleet.Task) timeslice.Guest {
	s := t.Job.Spec
	return timeslice.Guest{Class: s.Class, CPUs: t.Guest.Need.CPUs, Asked: s.Class != "" || s.Cap > 0}
}

// slice gives a guest a slice; the lock is held.
func (a *Agent) slice(g fleet.Guest, to timeslice.Given) {
	err := a.Slicer.Slice(g, to.Length)
	if a.trouble(slicing+string(g.ID), err); err == nil {
		a.noteSliced(g.ID, to)
	}
}

// slicedNow is the slice that a guest has got.
func (a *Agent) slicedNow(id fleet.GuestID) (timeslice.Given, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	got, has := a.sliced[id]
	return got, has
}

func (a *Agent) noteSliced(id fleet.GuestID, got timeslice.Given) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.sliced == nil {
		a.sliced = map[fleet.GuestID]timeslice.Given{}
	}
	a.sliced[id] = got
}

// timeSliceLocked is what is told of a guest's slice; nil: it has the scheduler's own.
func (a *Agent) timeSliceLocked(id fleet.GuestID) *fleet.TimeSlice {
	got := a.sliced[id]
	if got.Length == 0 {
		return nil
	}
	return &fleet.TimeSlice{Length: got.Length, Why: got.Why}
}

// adaptSlices gives guests their slices by what they do, until ctx ends.
func (a *Agent) adaptSlices(ctx context.Context) {
	if a.Slicer == nil || !a.Slices.Adaptive {
		return
	}
	a.fares.Policy = a.Slices
	for pause.For(ctx, timeslice.Every) == nil {
		a.adaptOnce(time.Now())
	}
}

func (a *Agent) adaptOnce(now time.Time) {
	tasks, guests := a.runningTasks()
	var all []fleet.Guest
	for _, t := range tasks {
		all = append(all, t.Guest)
	}
	for id, c := range a.Slicer.Counts(all) {
		g := guests[id]
		g.Counts = c
		guests[id] = g
	}
	a.slicing.Lock()
	defer a.slicing.Unlock()
	for id, to := range a.fares.Step(now, guests) {
		if was, has := a.slicedNow(id); has && was.Length == to.Length {
			a.noteSliced(id, to) // perhaps for another reason
			continue
		}
		a.slice(tasks[id].Guest, to)
	}
}

// runningTasks are the last orders for the guests that run here, and how long these ran.
func (a *Agent) runningTasks() (map[fleet.GuestID]fleet.Task, map[fleet.GuestID]timeslice.Guest) {
	a.mu.Lock()
	defer a.mu.Unlock()
	tasks, guests := map[fleet.GuestID]fleet.Task{}, map[fleet.GuestID]timeslice.Guest{}
	for id, p := range a.present {
		if s := a.slots[id]; s != nil && s.last != nil && p.facts.Run == fleet.Running {
			g := sliceable(s.last.task)
			g.Counts.Ran = p.facts.CPUTime
			tasks[id], guests[id] = s.last.task, g
		}
	}
	return tasks, guests
}

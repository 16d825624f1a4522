package agent

import (
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	"pagurus/decide/timeslice"
	"pagurus/fleet"
)

const (
	factsPollEvery = time.Second
	factsPollLimit = 5 * time.Second // drivers answer within milliseconds
)

// watch inspects the host about once a second, retries what failed and removes guests that
// are not wanted.
func (a *Agent) watch(ctx context.Context) {
	pruned := time.Now()
	for {
		select {
		case <-ctx.Done():
			return
		case <-a.Owner.Turned():
			a.reclaimForOwner(time.Now()) // from the last facts: the owner comes first
			continue
		case <-time.After(factsPollEvery):
		}
		a.askDrivers(ctx)
		a.noteGuests()
		a.match(ctx)
		a.sweep()
		a.reclaimForOwner(time.Now())
		a.study(ctx, time.Now())
		a.examine(ctx, time.Now())
		if now := time.Now(); now.Sub(pruned) > ForgetAfter/2 {
			pruned = now
			a.forget(now)
		}
	}
}

// askDrivers updates present from the drivers.
func (a *Agent) askDrivers(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, factsPollLimit)
	defer cancel()
	for kind, d := range a.Drivers {
		found, err := d.Inspect(ctx)
		if ctx.Err() == context.Canceled {
			return
		}
		a.trouble("inspecting guests of kind "+string(kind), err)
		if err != nil {
			continue
		}
		a.mu.Lock()
		maps.DeleteFunc(a.present, func(_ fleet.GuestID, p presence) bool { return p.kind == kind })
		for g, f := range found {
			if f.Run != fleet.Absent {
				a.present[g] = presence{kind, f}
			}
		}
		a.mu.Unlock()
	}
}

// facts makes the host's facts for the controller.
func (a *Agent) facts() fleet.Facts {
	f := a.Facts()
	f.CPULimit = a.Limit
	f.LoadCPUs, f.MemoryInUse = 0, 0
	f.Guests = map[fleet.GuestID]fleet.GuestFacts{}
	f.Copies = map[fleet.MigrationID]fleet.Progress{}
	f.Troubles = slices.Clone(f.Troubles)
	f.Owner, f.Isolation, f.Health, f.Notices = a.Owner.Seen(), a.Isolation.Seen(), a.Health.Seen(), a.Notices.Seen()
	if a.Lease != nil {
		f.Lease = a.Lease.Ask()
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	for id, p := range a.present {
		g := p.facts
		f.LoadCPUs += g.CPUs
		f.MemoryInUse += g.ResidentBytes
		if s := a.slots[id]; s != nil && s.entry.LastGen > g.Gen {
			// The driver's facts are from when the guest came.
			g = fleet.GuestFacts{Gen: s.entry.LastGen, Run: g.Run, ResidentBytes: g.ResidentBytes, HugeBytes: g.HugeBytes, CPUs: g.CPUs, CPUTime: g.CPUTime, StartedAt: g.StartedAt, Layout: g.Layout, Standby: g.Standby}
		}
		if s := a.slots[id]; s != nil {
			g.ReclaimedBytes, g.Suspended = s.reclaim.Reclaimed, s.reclaim.Suspended && g.Run == fleet.Suspended
		}
		if last, known := a.profiles.last[id]; known {
			g.Profile = &last
		}
		if seen, known := a.profiles.inside[id]; known {
			g.Seen = &seen
		}
		g.Obstacles = clipped(a.examined[id].found)
		g.Said = a.slots[id].saidLocked(time.Now())
		g.Slice = a.timeSliceLocked(id)
		f.Guests[id] = g
	}
	for _, s := range a.slots {
		if s.progress != nil {
			f.Copies[s.of] = *s.progress
		}
	}
	for _, what := range slices.Sorted(maps.Keys(a.troubles)) {
		f.Troubles = append(f.Troubles, what+": "+a.troubles[what])
	}
	f.Troubles = clipped(f.Troubles)
	return f
}

// What is told of a host for people: the controller ends the session of one that says much more.
const (
	mostSentences = 100
	mostSentence  = 2 << 10 // bytes
)

// clipped are sentences that a person can read.
func clipped(sentences []string) []string {
	sentences = slices.Clone(sentences[:min(len(sentences), mostSentences)])
	for i, s := range sentences {
		if len(s) > mostSentence {
			sentences[i] = strings.ToValidUTF8(s[:mostSentence], "") + "…"
		}
	}
	return sentences
}

// Empty reports whether no guest is on this host, as of the last inspection.
func (a *Agent) Empty() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.present) == 0
}

// Held is the memory that this host's guests occupy, in bytes, as of the last inspection. It
// leaves out huge pages, which were set aside before the guests came.
func (a *Agent) Held() (sum int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, p := range a.present {
		sum += p.facts.ResidentBytes - p.facts.HugeBytes
	}
	return sum
}

// setProgress sets the progress of the guest's copy; nil: there is none.
func (a *Agent) setProgress(w *taskRun, p *fleet.Progress) {
	a.mu.Lock()
	defer a.mu.Unlock()
	w.slot.progress, w.slot.of = p, w.task.Order.Migration
}

// lay plans where on this host the parts of a guest with a shape go.
func (a *Agent) lay(t fleet.Task) fleet.Task {
	if t.Guest.Shape == nil {
		return t
	}
	a.mu.Lock()
	found := map[fleet.GuestID]*fleet.Layout{}
	for id, p := range a.present {
		found[id] = p.facts.Layout
	}
	a.mu.Unlock()
	host := a.Facts().Topology
	if host != nil {
		ours := host.Only(a.Isolation.CPUs()) // guests may use no others
		host = &ours
	}
	return a.layouts.Plan(t, host, found)
}

// copying reports whether a copy runs on this host.
func (a *Agent) copying() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, s := range a.slots {
		if s.last != nil && s.last.task.Order.Verb == fleet.Copy && !s.last.over() {
			return true
		}
	}
	return false
}

// sending reports whether a guest is being sent from this host.
func (a *Agent) sending() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, s := range a.slots {
		under := s.last != nil && !s.last.over()
		if s.progress != nil || under && (s.last.task.Order.Verb == fleet.Copy || s.last.task.Order.Verb == fleet.Switch) {
			return true
		}
	}
	return false
}

// trouble notes an error about a subject, or its end, and logs the change.
func (a *Agent) trouble(what string, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	was := a.troubles[what]
	switch {
	case err == nil && was != "":
		delete(a.troubles, what)
		a.Log.Info("works again", "what", what)
	case err != nil && was != err.Error():
		a.troubles[what] = err.Error()
		a.Log.Warn("failed, and is tried again", "what", what, "cause", err)
	}
}

// classify gives a guest on this host the CPU share of its job's class, and its time slice.
func (a *Agent) classify(w *taskRun) {
	if j := w.task.Job.Spec; a.Classes != nil && (j.Class != "" || j.Cap > 0) {
		a.trouble(classing+string(w.slot.guest), a.Classes.Class(w.task.Guest, j.Class, j.Cap))
	}
	a.sliceNew(w)
}

// classing begins the subject of the trouble with a guest's class.
const classing = "the CPU class of guest "

// forget drops the slots, journal entries and troubles of guests that are gone.
func (a *Agent) forget(now time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.wanted == nil {
		return // it is not known yet which guests may come back
	}
	keep := func(g fleet.GuestID) bool {
		_, here := a.present[g]
		s := a.slots[g]
		return here || slices.Contains(a.wanted.Guests, g) || (s != nil && !s.idle())
	}
	a.journal.Prune(keep, now)
	for g, s := range a.slots {
		if !keep(g) && s.guestAgent == nil {
			a.clearStagingLocked(g)
			delete(a.slots, g) // the journal entry, if still there, is read again
		}
	}
	maps.DeleteFunc(a.sliced, func(g fleet.GuestID, _ timeslice.Given) bool { return !keep(g) })
	for what := range a.troubles {
		for _, of := range []string{removing, classing, slicing} {
			if g, ok := strings.CutPrefix(what, of); ok && !keep(fleet.GuestID(g)) {
				delete(a.troubles, what)
			}
		}
	}
}

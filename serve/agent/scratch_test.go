package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"pagurus/fleet"
)

// memoryScratch are guests' own files, as numbers that are bounded like a file system.
type memoryScratch struct {
	all    []fleet.Scratch
	calls  []string // "j1g0 down" or "j1g0 up", in order
	writes int64    // of the first one, after each look
}

func (m *memoryScratch) Scratch() ([]fleet.Scratch, error) {
	all := slices.Clone(m.all)
	m.all[0].Used = min(m.all[0].Bound, m.all[0].Used+m.writes)
	return all, nil
}

func (m *memoryScratch) BoundScratch(g fleet.GuestID, bytes int64) error {
	i := slices.IndexFunc(m.all, func(s fleet.Scratch) bool { return s.Guest == g })
	if bytes < m.all[i].Used {
		return errors.New("it has more")
	}
	way := "up"
	if bytes < m.all[i].Bound {
		way = "down"
	}
	m.calls = append(m.calls, fmt.Sprint(g, " ", way))
	m.all[i].Bound = bytes
	return nil
}

// A user who has filled their share of a host is told what to remove, and another user goes on; nobody gets more before others have less, so that the
// sum of all bounds never exceeds the limit.
func TestScratchIsAllotted(t *testing.T) {
	const mib = 1 << 20
	a := New(Config{Host: "host1", Run: t.TempDir(), Scratch: fleet.ScratchLimits{Each: 100 * mib, All: 400 * mib}, Facts: func() fleet.Facts { return fleet.Facts{} }, Log: slog.New(slog.DiscardHandler)})
	m := &memoryScratch{all: []fleet.Scratch{
		{Guest: "j1g0", UID: 7, Bound: 1024 * mib, Most: 1024 * mib}, {Guest: "j1g1", UID: 7, Bound: 1024 * mib, Most: 1024 * mib}, {Guest: "j2g0", UID: 8, Bound: 1024 * mib, Most: 1024 * mib},
	}}
	for turn := range 40 {
		a.allotScratch(fleet.Container, m)
		if sum := m.all[0].Bound + m.all[1].Bound; sum > 100*mib+2*scratchUnit {
			t.Fatalf("turn %d: the guests of a user may have %d MiB", turn, sum>>20)
		}
		if i := slices.IndexFunc(m.calls, func(c string) bool { return strings.HasSuffix(c, "up") }); i >= 0 && slices.ContainsFunc(m.calls[i:], func(c string) bool { return strings.HasSuffix(c, "down") }) {
			t.Errorf("turn %d: %v", turn, m.calls)
		}
		m.calls = nil
		m.all[0].Used = m.all[0].Bound // it writes all that it can
	}
	said := strings.Join(a.facts().Troubles, "\n")
	if !strings.Contains(said, "scratch of guest j1g0: its own files have") || !strings.Contains(said, "each user may have 100 MiB on a host: remove files") || strings.Contains(said, "j2g0") {
		t.Errorf("it says %q", said)
	}
	if m.all[0].Used < 90*mib || m.all[2].Bound < 50*mib {
		t.Errorf("they have %+v", m.all)
	}
	m.all[0].Used = mib
	a.allotScratch(fleet.Container, m)
	if all := a.facts().Troubles; len(all) != 0 {
		t.Errorf("after files were removed it says %v", all)
	}
	m.all[0].Used = m.all[0].Bound
	a.allotScratch(fleet.Container, m)
	m.all = m.all[1:]
	a.allotScratch(fleet.Container, m)
	if all := a.facts().Troubles; len(all) != 0 {
		t.Errorf("of a guest that is gone it says %v", all)
	}
}

// A guest that writes faster than its bound is lowered loses what it does not need, and others go on, within the limits.
func TestAGuestThatWritesMeanwhile(t *testing.T) {
	const mib = 1 << 20
	for _, writes := range []int64{90 * mib, 500 * mib} { // it can be lowered, with some slack, or cannot
		a := New(Config{Host: "host1", Run: t.TempDir(), Scratch: fleet.ScratchLimits{All: 1200 * mib}, Facts: func() fleet.Facts { return fleet.Facts{} }, Log: slog.New(slog.DiscardHandler)})
		m := &memoryScratch{writes: writes, all: []fleet.Scratch{
			{Guest: "j1g0", UID: 7, Used: 799 * mib, Bound: 1000 * mib, Most: 1024 * mib}, {Guest: "j2g0", UID: 8, Bound: mib, Most: 1024 * mib}, {Guest: "j3g0", UID: 9, Bound: mib, Most: 1024 * mib},
		}}
		a.allotScratch(fleet.Container, m)
		if got := m.all[0].Bound; got >= 900*mib && writes < 100*mib {
			t.Errorf("it writes %d MiB, and may have %d", writes>>20, got>>20)
		}
		if got := m.all[1].Bound + m.all[2].Bound; got < 100*mib {
			t.Errorf("while one writes %d MiB others may have %d", writes>>20, got>>20)
		}
		if sum := m.all[0].Bound + m.all[1].Bound + m.all[2].Bound; sum > 1200*mib {
			t.Errorf("while one writes %d MiB all may have %d", writes>>20, sum>>20)
		}
	}
}

func (d *memoryDriver) Scratch() (out []fleet.Scratch, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for id, g := range d.guests {
		if g.run == fleet.Running {
			out = append(out, fleet.Scratch{Guest: id, Bound: 1 << 30, Most: 1 << 30})
		}
	}
	return out, nil
}

func (d *memoryDriver) BoundScratch(g fleet.GuestID, _ int64) error {
	return d.call(context.Background(), "bound", g)
}

// A guest's own files are bounded before its order is done: no program of its job has started, or it has run here for no more than a moment.
func TestScratchIsBoundedFromTheStart(t *testing.T) {
	in(t, func(t *testing.T, r *rig) {
		time.Sleep(2 * scratchEvery) // without limits it is looked at once
		synctest.Wait()
		r.a.Scratch = fleet.ScratchLimits{All: 100 << 20}
		follows := func(first string) {
			t.Helper()
			r.d.mu.Lock()
			defer r.d.mu.Unlock()
			if i := slices.Index(r.d.calls, first); i < 0 || len(r.d.calls) < i+2 || r.d.calls[i+1] != "bound j1g0" {
				t.Errorf("it is not bounded after %s: %v", first, r.d.calls)
			}
			r.d.calls = nil
		}
		r.do(task(fleet.Start, 1))
		follows("setup j1g0")
		r.do(task(fleet.Stop, 1))
		r.do(task(fleet.Receive, 2))
		r.d.put("j1g0", fleet.Suspended)
		r.do(task(fleet.Activate, 2))
		follows("resume j1g0")
	})
}

package view

import (
	"testing"
	"time"

	"pagurus/fleet"
)

// TestGlances: at a glance hosts and guests are what they are when read.
func TestGlances(t *testing.T) {
	s := busy()
	c, hosts, guests := Read(s), map[fleet.HostID]HostGlance{}, map[fleet.GuestID]GuestGlance{}
	Glances(s, func(h HostGlance) { hosts[h.ID] = h }, func(g GuestGlance) { guests[g.ID] = g })
	if len(hosts) != len(c.Hosts) || len(guests) != len(c.Guests) || len(guests) == 0 {
		t.Errorf("%d hosts of %d, %d guests of %d", len(hosts), len(c.Hosts), len(guests), len(c.Guests))
	}
	for _, h := range c.Hosts {
		if g := hosts[h.ID]; g.State != h.State || g.FreeBytes != h.FreeBytes || g.Silent != (h.Silent > 0) || g.Gone != h.Gone || g.LoadCPUs != h.Facts.LoadCPUs || g.Troubles != len(h.Facts.Troubles) {
			t.Errorf("%s is %+v at a glance", h.ID, g)
		}
	}
	for _, g := range c.Guests {
		if is := guests[g.ID]; is.Home != g.Home || is.State != g.State || is.Job != g.Job || g.Address != "" && is.Address.String() != g.Address || g.Facts != nil && is.ResidentBytes != g.Facts.ResidentBytes {
			t.Errorf("%s is %+v at a glance", g.ID, is)
		}
	}
	work := ReadWork(s)
	if len(work.Jobs) != len(c.Jobs) || len(work.Moves) != len(c.Moves) || len(work.Checkpoints) != len(c.Checkpoints) {
		t.Errorf("without hosts and guests it has %d jobs, %d moves", len(work.Jobs), len(work.Moves))
	}
}

// TestNear: what agents measure is told again when it has changed enough, also by small steps; everything else at once.
func TestNear(t *testing.T) {
	was := HostGlance{ID: "h", CPUs: 8, LoadCPUs: 2, FreeBytes: 7, Owner: OwnerGlance{State: "present", Entered: noon, LoadCPUs: 1}}
	for _, c := range []struct {
		change func(*HostGlance)
		told   bool
	}{
		{func(*HostGlance) {}, false},
		{func(h *HostGlance) { h.LoadCPUs = 2.4 }, false},
		{func(h *HostGlance) { h.LoadCPUs = 2.5 }, true},
		{func(h *HostGlance) { h.LoadCPUs = 0 }, true},
		{func(h *HostGlance) { h.FreeBytes++ }, true},
		{func(h *HostGlance) { h.CPUs, h.LoadCPUs = 16, 2.1 }, true},
		{func(h *HostGlance) { h.Owner.LoadCPUs = 1.05 }, false},
		{func(h *HostGlance) { h.Owner.LoadCPUs = 1.2 }, true},
		{func(h *HostGlance) { h.Owner.Entered = noon.Add(20 * time.Millisecond) }, false},
		{func(h *HostGlance) { h.Owner.Entered = noon.Add(time.Minute) }, true},
	} {
		is := was
		c.change(&is)
		if told := is.Near(was) != was; told != c.told {
			t.Errorf("%+v is told: %t", is, told)
		}
	}
	g, told := GuestGlance{ID: "g", Home: "h", CPUs: 1, ResidentBytes: 1 << 30, CPUTime: time.Hour}, 0
	if is := (GuestGlance{ID: "g", Home: "h", CPUs: 1.04, ResidentBytes: 1<<30 + 9<<20, CPUTime: time.Hour + time.Minute}); is.Near(g) != g {
		t.Errorf("%+v is told after %+v", is, g)
	}
	for second := range 600 {
		is := g
		is.CPUTime = time.Hour + time.Duration(second+1)*time.Second
		if is = is.Near(g); is != g {
			g = is
			told++
		}
	}
	if told < 1 || told > 4 {
		t.Errorf("in ten minutes its processor time is told %d times", told)
	}
	if moved := (GuestGlance{ID: "g", Home: "other", CPUs: 1.01}); moved.Near(g) == g {
		t.Error("a guest that moved is told as before")
	}
}

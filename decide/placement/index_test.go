package placement

import (
	"fmt"
	"reflect"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"pagurus/fleet"
)

// After any changes, an index equals a newly made one, and returns the host that a search
// of all of them finds, also in a survey with further changes.
func TestIndexIsKept(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := snapshot()
		x := NewIndex(s, rapid.SampledFrom([]Policy{Spread{}, LongestIdle{}}).Draw(t, "policy"))
		id := func() fleet.HostID { return fleet.HostID(fmt.Sprintf("h%d", rapid.IntRange(0, 9).Draw(t, "host"))) }
		guest := func() (fleet.Guest, bool) {
			if len(s.Guests) == 0 {
				return fleet.Guest{}, false
			}
			ids := make([]fleet.GuestID, 0, len(s.Guests))
			for id := range s.Guests {
				ids = append(ids, id)
			}
			slices.Sort(ids)
			return s.Guests[rapid.SampledFrom(ids).Draw(t, "guest")], true
		}
		n := 0
		t.Repeat(map[string]func(*rapid.T){
			"host": func(*rapid.T) {
				h := host(id(), rapid.Int64Range(1, 3).Draw(t, "memory")<<32)
				h.Facts.Connected = rapid.IntRange(0, 3).Draw(t, "there") > 0
				h.Facts.Site = rapid.SampledFrom([]string{"", "attic", "cellar"}).Draw(t, "site")
				h.Facts.Machine = rapid.SampledFrom([]string{"", "a", "b"}).Draw(t, "machine")
				if rapid.Bool().Draw(t, "kvm") {
					h.Facts.Abilities = map[fleet.Kind]fleet.Abilities{fleet.VM: {Accelerator: "kvm", Live: true}, fleet.Container: {Live: true}}
				}
				if rapid.Bool().Draw(t, "owned") {
					h.Facts.Owner = &fleet.Owner{State: fleet.OwnerAbsent, Present: rapid.Bool().Draw(t, "present"), Since: t0.Add(-time.Duration(rapid.IntRange(0, 99).Draw(t, "since")) * time.Hour)}
				}
				s.Hosts[h.ID] = h
				x.Host(&h)
			},
			"guest": func(t *rapid.T) {
				at := id()
				if _, known := s.Hosts[at]; !known {
					t.Skip("no such host")
				}
				n++
				g := fleet.Guest{ID: fleet.GuestID(fmt.Sprintf("g%d", n)), Home: at, State: fleet.GuestRunning,
					Need: fleet.Resources{CPUs: rapid.IntRange(1, 3).Draw(t, "cpus"), MemoryBytes: rapid.Int64Range(1, 4).Draw(t, "bytes") << 30}}
				s.Guests[g.ID] = g
				x.Guest(g, fleet.Migration{}, 1)
			},
			"gone": func(*rapid.T) {
				if g, ok := guest(); ok {
					delete(s.Guests, g.ID)
					x.Guest(g, fleet.Migration{}, -1)
				}
			},
			"": func(t *rapid.T) {
				if wrong := x.Check(s); wrong != "" {
					t.Fatal(wrong)
				}
				ask := Ask{Kind: rapid.SampledFrom([]fleet.Kind{fleet.VM, fleet.Auto, fleet.Container}).Draw(t, "kind"), Need: fleet.Resources{MemoryBytes: 1 << 30}}
				v := x.Survey(t0)
				for range rapid.IntRange(0, 3).Draw(t, "taken") {
					if c, found := v.Best(ask); found {
						v.Reserve(c.Host, ask.Need)
					}
				}
				best, found := v.Best(ask)
				all := ranked(v, ask)
				if found != (len(all) > 0) || found && !reflect.DeepEqual(best, all[0]) {
					t.Fatalf("best is %+v of %+v", best, all)
				}
				if found && v.Full(ask) {
					t.Fatalf("%+v is full", best)
				}
			},
		})
	})
}

// The longer an owner has been away, the better; but sharing CPUs is avoided first.
func TestTheLongIdleIsPreferred(t *testing.T) {
	idle := func(id fleet.HostID, hours int) fleet.Host {
		h := host(id, 8<<30)
		h.Facts.Owner = &fleet.Owner{State: fleet.OwnerAbsent, Since: t0.Add(-time.Duration(hours) * time.Hour)}
		return h
	}
	s := snapshot(idle("hour", 1), idle("day", 24), idle("week", 168), host("unowned", 8<<30))
	ask := Ask{Kind: fleet.VM, Need: fleet.Resources{CPUs: 1, MemoryBytes: 1 << 30}}
	v := NewSurvey(s, LongestIdle{})
	var got []fleet.HostID
	for range 4 {
		c, _ := v.Best(ask)
		v.Reserve(c.Host, ask.Need)
		got = append(got, c.Host)
	}
	if want := []fleet.HostID{"unowned", "week", "day", "hour"}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// What the counts say that is free is never less than what is, and hardly more.
func TestSizes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var s sizes
		all := rapid.SliceOfN(rapid.Int64Range(-5, 1<<62), 1, 9).Draw(t, "free")
		for i := range all {
			all[i] >>= rapid.IntRange(0, 60).Draw(t, "smaller")
			s.add(all[i])
		}
		for len(all) > 0 {
			if most, is := s.most(), max(slices.Max(all), 0); most < is || most > is+is/8+8 {
				t.Fatalf("most %d, is %d", most, is)
			}
			s.drop(all[0])
			all = all[1:]
		}
		if s != (sizes{}) {
			t.Fatalf("left: %+v", s)
		}
	})
}

package topology

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"pagurus/fleet"
)

// fitAll places equal guests on a host one by one.
func fitAll(host fleet.Topology, guests int, need fleet.Resources, tune fleet.Tune) (all []fleet.Layout) {
	var taken Taken
	for range guests {
		l := Fit(host, Shape(host, need, tune, nil), need, tune, taken)
		all = append(all, l)
		taken.Add(l)
	}
	return all
}

// where describes the memory of guests with one node each: the host's node, and the page
// size unless small.
func where(all []fleet.Layout) string {
	var text []string
	for _, l := range all {
		n := l.Nodes[0]
		at := "any"
		if len(n.Hosts) > 0 {
			at = fmt.Sprint(n.Hosts[0])
		}
		switch n.PageBytes {
		case gib:
			at += "G"
		case 2 << 20:
			at += "M"
		}
		text = append(text, at)
	}
	return strings.Join(text, " ")
}

func TestGuestsOfOneHostKeepOutOfEachOthersWay(t *testing.T) {
	numa, pages, pin := fleet.Tune{NUMA: true}, fleet.Tune{Huge: true}, fleet.Tune{NUMA: true, Pin: true}
	both := fleet.Tune{NUMA: true, Huge: true}
	for _, c := range []struct {
		machine      string
		guests       int
		cpus, memory int64 // memory in GiB
		tune         fleet.Tune
		want         string
	}{
		// Without pinning, only bound memory counts.
		{"2n6c2t", 2, 2, 4, numa, "0 1"},
		{"2n6c2t", 4, 2, 4, numa, "0 1 0 1"},
		{"4n10c", 5, 2, 16, numa, "0 1 2 3 0"},
		// A node has 18 GiB: memory that does not fit is not bound.
		{"2n6c2t", 3, 2, 12, numa, "0 1 any"},
		{"2n6c2t", 5, 2, 8, numa, "0 1 0 1 any"},
		{"2n6c2t", 2, 2, 20, pin, "0 any"}, // two nodes each
		// Each node has eight pages of a GiB. It is not known that four of node 0 are
		// used by others, so the second 0G is one too many.
		{"4n10c", 9, 2, 4, both, "0G 1G 2G 3G 0G 1G 2G 3G 0M"},
		{"4n10c", 5, 2, 8, pages, "anyG anyG anyG anyG anyM"},
		{"1n2c", 2, 1, 1, both, "0 0"},
	} {
		need := fleet.Resources{CPUs: int(c.cpus), MemoryBytes: c.memory * gib}
		if got := where(fitAll(machine(t, c.machine), c.guests, need, c.tune)); got != c.want {
			t.Errorf("%d guests of %d CPUs and %d GiB on %s: %s, want %s", c.guests, c.cpus, c.memory, c.machine, got, c.want)
		}
	}
}

// Memory that does not fit is not bound, with a note.
func TestMemoryThatIsBoundIsRespected(t *testing.T) {
	host := machine(t, "2n6c2t")
	need, tune := fleet.Resources{CPUs: 2, MemoryBytes: 4 * gib}, fleet.Tune{NUMA: true}
	s := Shape(host, need, tune, nil)
	l := Fit(host, s, need, tune, Taken{Bound: map[int]int64{0: 12 * gib, 1: 13 * gib}})
	if where([]fleet.Layout{l}) != "0" {
		t.Errorf("%+v", l)
	}
	l = Fit(host, s, need, tune, Taken{Bound: map[int]int64{0: 15 * gib, 1: 13 * gib}})
	if where([]fleet.Layout{l}) != "1" || len(l.Notes) > 0 {
		t.Errorf("%+v", l)
	}
	l = Fit(host, s, need, tune, Taken{Bound: map[int]int64{0: 15 * gib, 1: 15 * gib}})
	if where([]fleet.Layout{l}) != "any" || !strings.Contains(strings.Join(l.Notes, " "), "bound to no node") {
		t.Errorf("%+v", l)
	}
	// Memory reserved as huge pages is not available as small pages, free or not.
	host.Nodes[0].Huge = []fleet.HugePages{{SizeBytes: gib, Total: 16, Free: 16}}
	if l := Fit(host, s, need, tune, Taken{}); where([]fleet.Layout{l}) != "1" {
		t.Errorf("%+v", l)
	}
}

// Huge pages are promised once: before QEMU allocates them, when the host still reports
// them free, and afterwards.
func TestHugePagesArePromisedOnce(t *testing.T) {
	tune := fleet.Tune{NUMA: true, Huge: true}
	need := fleet.Resources{CPUs: 1, MemoryBytes: 4 * gib}
	for _, c := range []struct {
		total, free int
		others      map[Pool]int
		want        string
	}{
		{8, 8, nil, "0G"},
		{8, 8, map[Pool]int{{0, gib}: 4}, "0G"},       // not allocated yet
		{8, 4, map[Pool]int{{0, gib}: 4}, "0G"},       // allocated
		{8, 8, map[Pool]int{{0, gib}: 5}, "0"},        // not allocated yet
		{8, 3, map[Pool]int{{0, gib}: 5}, "0"},        // allocated
		{8, 3, nil, "0"},                              // allocated by others
		{8, 8, map[Pool]int{{anyNode, gib}: 5}, "0"},  // perhaps from this node
		{8, 8, map[Pool]int{{0, 2 << 20}: 100}, "0G"}, // of another size
		{2, 2, map[Pool]int{{0, gib}: 5}, "0"},        // some were freed since
	} {
		host := machine(t, "1n2c")
		host.Nodes[0].MemoryBytes = 64 * gib
		host.Nodes[0].Huge = []fleet.HugePages{{SizeBytes: gib, Total: c.total, Free: c.free}}
		l := Fit(host, Shape(host, need, tune, nil), need, tune, Taken{Pages: c.others})
		if got := where([]fleet.Layout{l}); got != c.want {
			t.Errorf("%d of %d are free, others have %v: %s, want %s", c.free, c.total, c.others, got, c.want)
		}
	}
}

// overlap is the intersection.
func overlap(a, b []int) (both []int) {
	for _, x := range a {
		if slices.Contains(b, x) {
			both = append(both, x)
		}
	}
	return both
}

// Guests with one or more CPUs come to a host one by one. While there are cores, none of
// their CPUs shares one with another guest's remaining threads; later there is a note.
// Remaining threads never use another guest's CPU.
func TestRestsAndPinsKeepApart(t *testing.T) {
	for _, c := range []struct {
		machine       string
		cpus, guests  int
		apart, pinned int // guests without conflicts, and guests with cores of their own
	}{
		{"1n2c", 1, 3, 1, 2},
		{"1n4s2c2t", 1, 9, 4, 8},
		{"1n4s2c2t", 2, 5, 2, 4},
		{"2n6c2t", 2, 7, 4, 6},
		{"4n10c", 2, 21, 12, 20},
	} {
		host := machine(t, c.machine)
		apart, pinned := 0, 0
		var taken Taken
		for i, l := range fitAll(host, c.guests, fleet.Resources{CPUs: c.cpus, MemoryBytes: gib}, fleet.Tune{NUMA: true, Pin: true}) {
			notes := strings.Join(l.Notes, "; ")
			var own Taken
			own.Add(l)
			if both := overlap(l.Rest, slices.Concat(own.Pins, taken.Pins)); len(both) > 0 {
				t.Errorf("guest %d of %s: all else runs on %v, where CPUs are pinned", i, c.machine, both)
			}
			meets := overlap(own.Pins, taken.Rests)
			if said := strings.Contains(notes, "input and output of other guests may take time"); said != (len(meets) > 0) {
				t.Errorf("guest %d of %s is pinned to %v, where all else of others runs, and says %q", i, c.machine, meets, notes)
			}
			if len(own.Pins) > 0 {
				pinned++
				if len(meets) == 0 {
					apart++
				}
			}
			taken.Add(l)
		}
		if apart != c.apart || pinned != c.pinned {
			t.Errorf("%d of %d guests of %d CPUs on %s have cores, and %d of them share none; want %d and %d",
				pinned, c.guests, c.cpus, c.machine, apart, c.pinned, c.apart)
		}
	}
}

// With any guests on any host, no core, page or memory is assigned twice.
func TestNothingIsGivenTwice(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		host := machines(r)
		for i := range host.Nodes {
			total := rapid.IntRange(0, 8).Draw(r, "pages")
			host.Nodes[i].ID = i
			host.Nodes[i].Huge = []fleet.HugePages{{SizeBytes: gib, Total: total, Free: total}}
		}
		var taken Taken
		var pins []int
		for range rapid.IntRange(1, 6).Draw(r, "guests") {
			need := fleet.Resources{CPUs: rapid.IntRange(1, 8).Draw(r, "cpus"), MemoryBytes: int64(rapid.IntRange(1, 12).Draw(r, "memory")) * gib}
			tune := fleet.Tune{NUMA: rapid.Bool().Draw(r, "numa"), Huge: rapid.Bool().Draw(r, "huge"), Pin: rapid.Bool().Draw(r, "pin")}
			l := Fit(host, Shape(host, need, tune, nil), need, tune, taken)
			taken.Add(l)
			if !strings.Contains(strings.Join(l.Notes, " "), "not pinned one to one") {
				pins = append(pins, slices.Concat(l.Pins...)...)
			}
		}
		if len(pins) != len(slices.Compact(slices.Sorted(slices.Values(pins)))) {
			r.Errorf("pinned are %v", pins)
		}
		total := 0
		for _, n := range host.Nodes {
			aside := n.Huge[0].Total
			total += aside
			if got := taken.Pages[Pool{n.ID, gib}]; got > aside {
				r.Errorf("%d pages of node %d are promised, and it has %d", got, n.ID, aside)
			}
			if left := max(0, n.MemoryBytes-int64(aside)*gib); taken.Bound[n.ID] > left {
				r.Errorf("%d bytes are bound to node %d, and it has %d", taken.Bound[n.ID], n.ID, left)
			}
		}
		if got := taken.pages(gib); got > total {
			r.Errorf("%d pages are promised, and there are %d", got, total)
		}
	})
}

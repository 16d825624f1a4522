package quota

import (
	"fmt"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"pagurus/fleet"
)

// Whatever guests write into what they are allotted: no user, and not all together, get beyond the limits, and nobody loses what they have. One
// who has filled their share leaves another one room.
func TestScratchIsBounded(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := fleet.ScratchLimits{Each: page * rapid.Int64Range(0, 300).Draw(t, "each"), All: page * rapid.Int64Range(0, 600).Draw(t, "all")}
		var guests []fleet.Scratch
		for i := range rapid.IntRange(1, 6).Draw(t, "guests") {
			guests = append(guests, fleet.Scratch{Guest: fleet.GuestID(fmt.Sprint("j1g", i)), UID: rapid.Uint32Range(0, 2).Draw(t, "uid"), Most: page * rapid.Int64Range(1, 400).Draw(t, "most")})
		}
		for range rapid.IntRange(1, 30).Draw(t, "turns") {
			may := Allot(l, guests)
			used, all := map[uint32]int64{}, int64(0)
			for i := range guests {
				g := &guests[i]
				to := may[g.Guest]
				if to < min(g.Used, g.Most) || to > max(g.Most, page) || to%page != 0 || to <= 0 {
					t.Fatalf("%+v may have %d", *g, to)
				}
				if to > page || l == (fleet.ScratchLimits{}) { // the least that can be
					g.Used += page * rapid.Int64Range(0, (to-g.Used)/page).Draw(t, "writes")
				}
				used[g.UID] += g.Used
				all += g.Used
			}
			for uid, bytes := range used {
				if l.Each > 0 && bytes > l.Each {
					t.Fatalf("uid %d has %d of %d", uid, bytes, l.Each)
				}
			}
			if l.All > 0 && all > l.All {
				t.Fatalf("all have %d of %d", all, l.All)
			}
		}
	})
}

// A guest that could not be made to give up what it may no longer have does not keep others from what is left, and all stay within the limits.
func TestScratchOfOthersGoesOn(t *testing.T) {
	const mib = 1 << 20
	guests := []fleet.Scratch{
		{Guest: "j1g0", UID: 7, Used: 20 * mib, Bound: 50 * mib, Most: 400 * mib}, {Guest: "j1g1", UID: 7, Bound: 10 * mib, Most: 400 * mib},
		{Guest: "j2g0", UID: 8, Bound: 10 * mib, Most: 400 * mib},
	}
	may := map[fleet.GuestID]int64{"j1g0": 30 * mib, "j1g1": 25 * mib, "j2g0": 60 * mib} // j1g0 has 20 MiB beyond it
	for _, c := range []struct {
		what string
		l    fleet.ScratchLimits
		want [3]int64
	}{
		{"of the user's others first, then of all others", fleet.ScratchLimits{Each: 200 * mib, All: 400 * mib}, [3]int64{30, 10, 55}},
		{"of the user's alone", fleet.ScratchLimits{Each: 200 * mib}, [3]int64{30, 10, 60}},
	} {
		got := AllotRest(c.l, guests, may)
		if got["j1g0"] != c.want[0]*mib || got["j1g1"] != c.want[1]*mib || got["j2g0"] != c.want[2]*mib {
			t.Errorf("%s: %v", c.what, got)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		l := fleet.ScratchLimits{Each: page * rapid.Int64Range(0, 300).Draw(t, "each"), All: page * rapid.Int64Range(0, 600).Draw(t, "all")}
		var guests []fleet.Scratch
		for i := range rapid.IntRange(1, 6).Draw(t, "guests") {
			g := fleet.Scratch{Guest: fleet.GuestID(fmt.Sprint("j1g", i)), UID: rapid.Uint32Range(0, 2).Draw(t, "uid"), Most: page * 400}
			g.Used = page * rapid.Int64Range(0, 100).Draw(t, "used")
			g.Bound = g.Used + page*rapid.Int64Range(1, 100).Draw(t, "more")
			guests = append(guests, g)
		}
		may := Allot(l, guests)
		for i, g := range guests {
			if may[g.Guest] < g.Bound && rapid.Bool().Draw(t, "lowered") {
				guests[i].Bound = may[g.Guest]
			}
		}
		// What bounds exceed what they should be by is no more than what could not be taken.
		got, all, gets := AllotRest(l, guests, may), map[uint32]int64{}, map[uint32]int64{}
		sum, gains := int64(0), int64(0)
		for _, g := range guests {
			over, to := max(g.Bound, got[g.Guest])-may[g.Guest], got[g.Guest]-g.Bound
			if got[g.Guest] > may[g.Guest] || to < 0 && got[g.Guest] != may[g.Guest] {
				t.Fatalf("%+v gets %d, not %d", g, got[g.Guest], may[g.Guest])
			}
			all[g.UID], sum = all[g.UID]+over, sum+over
			gets[g.UID], gains = gets[g.UID]+max(0, to), gains+max(0, to)
		}
		for uid, over := range all {
			if over > 0 && gets[uid] > 0 {
				t.Fatalf("user %d has %d too much, and gets %d", uid, over, gets[uid])
			}
		}
		if l.All > 0 && sum > 0 && gains > 0 {
			t.Fatalf("all have %d too much, and get %d", sum, gains)
		}
	})
}

// One user who writes all the time leaves the last eighth, and then is told what to remove; another user goes on.
func TestWhoFillsTheirScratchIsTold(t *testing.T) {
	const mib = 1 << 20
	l := fleet.ScratchLimits{All: 800 * mib}
	guests := []fleet.Scratch{{Guest: "j1g0", UID: 7, Most: 4096 * mib}, {Guest: "j2g0", UID: 8, Used: mib, Most: 4096 * mib}}
	if says := ScratchSays(l, guests); len(says) != 0 {
		t.Errorf("it says %v", says)
	}
	for range 100 {
		guests[0].Used = Allot(l, guests)["j1g0"]
	}
	if left := l.All - guests[0].Used - guests[1].Used; left < l.All/lastPart-mib || Allot(l, guests)["j2g0"] < guests[1].Used+20*mib {
		t.Errorf("%d MiB are left, %v", left>>20, Allot(l, guests))
	}
	says := ScratchSays(l, guests)
	if len(says) != 1 || !strings.Contains(says["j1g0"], "those of uid 7 on this host 69") || !strings.Contains(says["j1g0"], "remove files in the guest") {
		t.Errorf("it says %v", says)
	}
	l.Each = 100 * mib // lowered: it keeps what it has, and gets no more
	if may := Allot(l, guests); may["j1g0"] != guests[0].Used || may["j2g0"] <= guests[1].Used {
		t.Errorf("they may have %v", may)
	}
	if says := ScratchSays(l, guests); !strings.Contains(says["j1g0"], "each user may have 100 MiB on a host") || len(says) != 1 {
		t.Errorf("it says %v", says)
	}
	if may := Allot(fleet.ScratchLimits{}, guests); may["j1g0"] != guests[0].Most {
		t.Errorf("without limits %v", may)
	}
}

// A host that has no room for an image says whose turn it is to make some.
func TestFetchedImagesAreRefused(t *testing.T) {
	const mib = 1 << 20
	there := []fleet.Image{{Digest: "a", UID: 7, Bytes: 90 * mib}, {Digest: "b", UID: 0, Bytes: 100 * mib}}
	l := fleet.ImageLimits{Each: 100 * mib, All: 250 * mib}
	if got := RefusedFetched(l, there, fleet.Image{Digest: "c", UID: 7, Bytes: 20 * mib}); !strings.Contains(got, "images that this host has fetched of uid 7 have 90 MiB") || !strings.Contains(got, "end jobs with other images") {
		t.Errorf("it says %q", got)
	}
	if got := RefusedFetched(l, there, fleet.Image{Digest: "c", UID: 8, Bytes: 20 * mib}); got != "" {
		t.Errorf("another user is told %q", got)
	}
	if got := RefusedFetched(l, there, fleet.Image{Digest: "c", Bytes: 61 * mib}); !strings.Contains(got, "have 190 MiB, this one has 61 MiB or more, and they may have 250 MiB together") {
		t.Errorf("of the cluster's it says %q", got)
	}
}

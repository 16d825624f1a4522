package main

import (
	"slices"
	"strings"
	"testing"

	"pagurus/fleet"
)

func TestThePlanFollowsFromTheSeed(t *testing.T) {
	differ := 0
	for n := 1; n <= 1000; n++ {
		a, b := planned(7, n, nil), planned(7, n, nil)
		if a != b || naps(7, n) != naps(7, n) {
			t.Fatalf("fault %d is %+v and %+v", n, a, b)
		}
		if a != planned(8, n, nil) {
			differ++
		}
		i := slices.IndexFunc(shares, func(s share) bool { return s.kind == a.Kind })
		if i < 0 || !slices.Contains(shares[i].phases, a.Phase) {
			t.Errorf("fault %d is %+v", n, a)
		}
		if a.Number != n || a.After < 0 || a.After >= mostAfter || a.Lasts < leastLast || a.Lasts >= mostLast {
			t.Errorf("fault %d is %+v", n, a)
		}
	}
	if differ < 990 {
		t.Errorf("another seed differs in only %d of 1000", differ)
	}
}

func TestAThousandFaultsReachEveryKindInEveryPhase(t *testing.T) {
	type cell struct {
		kind  kind
		phase fleet.Phase
	}
	seen := map[cell]int{}
	for n := 1; n <= 1000; n++ {
		f := planned(1, n, nil)
		seen[cell{f.Kind, f.Phase}]++
	}
	for _, s := range shares {
		for _, p := range s.phases {
			if seen[cell{s.kind, p}] == 0 {
				t.Errorf("no %s in %s", s.kind, p)
			}
		}
	}
}

func TestOnlySomeKinds(t *testing.T) {
	for n := 1; n <= 100; n++ {
		if f := planned(3, n, []kind{callOff, linkCut}); f.Kind != callOff && f.Kind != linkCut {
			t.Fatalf("fault %d is %+v", n, f)
		}
	}
}

func TestNaps(t *testing.T) {
	all := 0
	for n := range 100 {
		for nap := range strings.SplitSeq(naps(1, n), ",") {
			point, what, _ := strings.Cut(nap, "=")
			if nap != "" && (!slices.Contains(points, point) || !strings.HasPrefix(what, "sleep:")) {
				t.Errorf("nap %q", nap)
			}
			all++
		}
	}
	if share := float64(all) / float64(100*len(points)); share < napShare/2 || share > 2*napShare {
		t.Errorf("a daemon stands still at %.2f of all points", share)
	}
}

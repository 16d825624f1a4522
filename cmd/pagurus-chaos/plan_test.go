package main

import (
	"slices"
	"strings"
	"testing"

	"pagurus/fleet"
)

// each runs a test for guests of every kind.
func each(t *testing.T, try func(t *testing.T, of fleet.Kind)) {
	for _, of := range []fleet.Kind{fleet.VM, fleet.Container} {
		t.Run(string(of), func(t *testing.T) { try(t, of) })
	}
}

func TestThePlanFollowsFromTheSeed(t *testing.T) { each(t, followsFromTheSeed) }

func followsFromTheSeed(t *testing.T, of fleet.Kind) {
	shares := sharesOf(of)
	differ := 0
	for n := 1; n <= 1000; n++ {
		a, b := planned(7, n, of, nil), planned(7, n, of, nil)
		first, second := naps(7, n, of), naps(7, n, of)
		if a != b || first != second {
			t.Fatalf("fault %d is %+v and %+v", n, a, b)
		}
		if a != planned(8, n, of, nil) {
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

func TestAThousandFaultsReachEveryKindInEveryPhase(t *testing.T) { each(t, reachEveryKind) }

func reachEveryKind(t *testing.T, of fleet.Kind) {
	type cell struct {
		kind  kind
		phase fleet.Phase
	}
	seen := map[cell]int{}
	for n := 1; n <= 1000; n++ {
		f := planned(1, n, of, nil)
		seen[cell{f.Kind, f.Phase}]++
	}
	for _, s := range sharesOf(of) {
		for _, p := range s.phases {
			if seen[cell{s.kind, p}] == 0 {
				t.Errorf("no %s in %s", s.kind, p)
			}
		}
	}
}

func TestOnlySomeKinds(t *testing.T) { each(t, onlySomeKinds) }

func onlySomeKinds(t *testing.T, of fleet.Kind) {
	for n := 1; n <= 100; n++ {
		if f := planned(3, n, of, []kind{cancelMove, linkCut}); f.Kind != cancelMove && f.Kind != linkCut {
			t.Fatalf("fault %d is %+v", n, f)
		}
	}
}

func TestNaps(t *testing.T) { each(t, napsSomewhere) }

func napsSomewhere(t *testing.T, of fleet.Kind) {
	points := pointsOf(of)
	all := 0
	for n := range 100 {
		for nap := range strings.SplitSeq(naps(1, n, of), ",") {
			point, what, _ := strings.Cut(nap, "=")
			if nap != "" && (!slices.Contains(points, point) || !strings.HasPrefix(what, "sleep:")) {
				t.Errorf("nap %q", nap)
			}
			all++
		}
	}
	if share := float64(all) / float64(100*len(points)); share < napShare/2 || share > 2*napShare {
		t.Errorf("a daemon is stopped at %.2f of all points", share)
	}
}

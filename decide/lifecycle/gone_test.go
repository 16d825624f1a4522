package lifecycle

import (
	"testing"

	"pagurus/fleet"
)

// fence is what a host does when its lease is over: all that it has ends, and with it what it
// was ordered. The second result is false if the host has done so before.
func (n member) fence(target bool) (member, bool) {
	w := &n.world
	for i, v := range verbs {
		if sideOf(v) == target {
			n.late[i] = 0
		}
	}
	if target {
		if w.targetFenced {
			return n, false
		}
		w.lost = w.lost || w.missing
		w.target, w.targetFenced, w.targetLost = absent, true, true
	} else {
		if w.sourceFenced {
			return n, false
		}
		w.lost = w.lost || w.missing
		w.source, w.sourceFenced, w.sourceLost = absent, true, true
	}
	return n, true
}

// sideOf reports whether a verb's order goes to the target.
func sideOf(v fleet.Verb) (target bool) {
	switch v {
	case fleet.Receive, fleet.Activate, fleet.Fetch, fleet.Discard:
		return true
	}
	return false
}

// fences returns what can follow from leases that are over: a host stops its guests; then, if it
// is not heard, the controller takes it for gone.
func (n member) fences(t *testing.T) []member {
	t.Helper()
	var out []member
	for _, target := range []bool{false, true} {
		if fenced, did := n.fence(target); did {
			out = append(out, fenced)
			continue
		}
		host := fleet.HostID("source")
		if target {
			host = "target"
		}
		gone, changed := MigrationsGone([]fleet.Migration{n.migration(0)}, host, "it is gone", t0)
		if !changed {
			continue
		}
		next := n.after(gone[0])
		next.soundGone(t, n)
		out = append(out, next)
	}
	return out
}

// soundGone checks what a host's being gone led to.
func (n member) soundGone(t *testing.T, before member) {
	t.Helper()
	w := n.world
	switch {
	case n.phase == fleet.Lost && w.source == running:
		t.Fatalf("lost, and it runs at the source:\n%+v\n%+v", before, n)
	case n.phase == fleet.Lost && (w.target == whole || w.target == running) && !w.missing && before.phase != fleet.PostCopying:
		t.Fatalf("lost, and the target has all of it:\n%+v\n%+v", before, n)
	case n.phase == fleet.Reverting && w.targetFenced && w.source == absent:
		t.Fatalf("goes back to where it is not:\n%+v\n%+v", before, n)
	}
}

// fencedPlays are the answers of a host that has stopped its guests and is heard again.
func fencedPlays(n member, o fleet.Order) []play {
	back := n
	if sideOf(o.Verb) {
		back.world.targetFenced = false
	} else {
		back.world.sourceFenced = false
	}
	all := []play{{n.world, n.late, fleet.Unknown}}
	if o.Verb == fleet.Switch {
		return append(all, play{back.world, n.late, fleet.Gone})
	}
	return append(all, plays(back, o, false)...)
}

// Every path of the table again, while hosts stop their guests at the ends of their leases, and
// are taken for gone or are heard again.
func TestLeasesInEveryWay(t *testing.T) {
	seen := map[member]bool{}
	todo := []member{newMember(fleet.PreCopy), newMember(fleet.PostCopy)}
	gone := 0
	for len(todo) > 0 {
		n := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		if seen[n] {
			continue
		}
		seen[n] = true
		n.sound(t)
		if n.world.sourceFenced || n.world.targetFenced {
			gone++
		}
		todo = append(todo, n.fences(t)...)
		m := n.migration(0)
		if off, changed := CancelGang([]fleet.Migration{m}, t0, "owner is back"); changed {
			todo = append(todo, n.after(off[0]))
		}
		if begun, changed := Start([]fleet.Migration{m}, unknown, t0); changed {
			todo = append(todo, n.after(begun[0]))
		}
		if late, changed := Expire(hurried, []fleet.Migration{m}, t0.Add(hurried.Limits.Deadline)); changed {
			todo = append(todo, n.after(late[0]))
		}
		order, waits := MigrationOrder(m)
		if !waits {
			continue
		}
		answers := plays(n, order, true)
		if !sideOf(order.Verb) && n.world.sourceFenced || sideOf(order.Verb) && n.world.targetFenced {
			answers = fencedPlays(n, order)
		}
		for _, p := range answers {
			gang, _, err := Gang([]fleet.Migration{m}, fleet.Report{Order: order, Outcome: p.how})
			if err != nil {
				t.Fatal(err)
			}
			next := n.after(gang[0])
			next.world, next.late = p.world, p.late
			todo = append(todo, next)
		}
	}
	if gone == 0 {
		t.Error("no host was ever gone")
	}
	t.Logf("%d states, in %d of them a host has stopped its guests", len(seen), gone)
}

// When both hosts are gone, nothing is waited for.
func TestNothingWaitsForTwoGoneHosts(t *testing.T) {
	for _, st := range migrationStages {
		for _, mode := range modes {
			ms := []fleet.Migration{{ID: "m1.g0", Guest: "g0", From: "source", To: "target", Gen: 1, Mode: mode, Phase: st.in}}
			for _, host := range []fleet.HostID{"source", "target", "source", "target"} {
				ms, _ = MigrationsGone(ms, host, "it is gone", t0)
			}
			if !ms[0].Phase.Ended() {
				t.Errorf("from %s: stays in %s", st.in, ms[0].Phase)
			}
		}
	}
}

// The tables name every state in which a guest may be on a host.
func TestGoneTablesAreTotal(t *testing.T) {
	for _, st := range migrationStages {
		n := 0
		for _, a := range gonePhases {
			if a.in == st.in {
				n++
			}
		}
		if want := map[bool]int{true: 0, false: 1}[st.in.Ended()]; n != want {
			t.Errorf("%s has %d rows, want %d", st.in, n, want)
		}
	}
	for _, st := range guestStages {
		_, changed := GuestGone(fleet.Guest{State: st.in}, "gone", t0)
		// A guest that moves or is sought may be elsewhere.
		if here := !st.in.Ended() && st.in != fleet.GuestMoving && st.in != fleet.GuestSought; changed != here {
			t.Errorf("%s: changed %t", st.in, changed)
		}
	}
}

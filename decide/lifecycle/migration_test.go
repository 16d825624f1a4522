package lifecycle

import (
	"cmp"
	"testing"
	"time"

	"pagurus/fleet"
)

// State of a guest on its two hosts, which the controller cannot see.
const (
	absent          = iota
	incoming        // target: empty, or with part of the state
	gated           // source: suspended by QEMU itself at the end of a copy
	suspendedByCopy // source: suspended by switch
	whole           // target: has everything, suspended
	running
)

// late holds the generations of unanswered orders that may still be carried out, in the
// order of verbs; 0 is none.
type late [8]uint8

var verbs = []fleet.Verb{fleet.Receive, fleet.Copy, fleet.Switch, fleet.Activate, fleet.Fetch, fleet.Retire, fleet.Revert, fleet.Discard}

func place(v fleet.Verb) int {
	for i, x := range verbs {
		if x == v {
			return i
		}
	}
	panic("no such verb: " + v)
}

// truth is the state of one guest on its two hosts, with the newest generation each has
// seen.
type truth struct {
	source, target           int
	sourceSaw, targetSaw     uint8
	reverted, toldToActivate bool
	sourceFenced             bool // its lease ended, it stopped all that it had, and it was not heard since
	targetFenced             bool
	sourceLost, targetLost   bool // that has happened
	handed                   bool // the source knows that the target had all of it
	postCopy, missing, lost  bool // missing: some memory is only at the source; lost: it never arrived
}

// carry returns all states that carrying out a verb can lead to; none if the host can
// only answer failed.
func carry(w truth, v fleet.Verb) []truth {
	switch v {
	case fleet.Receive:
		if w.target == absent {
			w.target = incoming
		}
	case fleet.Copy:
		if w.target != incoming || (w.source != running && w.source != gated) {
			return nil
		}
		held := w
		held.source = gated
		return []truth{w, held}
	case fleet.Switch:
		if w.source == suspendedByCopy && w.handed {
			break
		}
		if w.target != incoming || w.source == absent {
			return nil
		}
		w.source, w.target, w.missing, w.handed = suspendedByCopy, whole, w.postCopy, true
	case fleet.Activate:
		if w.target != whole && w.target != running {
			return nil
		}
		w.target, w.toldToActivate = running, true
	case fleet.Fetch:
		if w.target != running || w.missing && (w.source != suspendedByCopy || w.lost) {
			return nil
		}
		w.missing = false
	case fleet.Retire:
		w.source = absent
	case fleet.Revert:
		if w.source == absent {
			return nil
		}
		w.source, w.reverted = running, true
	case fleet.Discard:
		w.target = absent
	}
	return []truth{w}
}

// refuse returns the possible states after failed: unchanged, except that a half-failed
// switch may leave the source suspended.
func refuse(w truth, v fleet.Verb) []truth {
	switch v {
	case fleet.Switch:
		if w.handed {
			return nil // it remembers that it did
		}
		if w.source == absent {
			return []truth{w}
		}
		half := w
		half.source = suspendedByCopy
		return []truth{w, half}
	case fleet.Fetch:
		if w.target == running && !w.missing {
			return nil // it sees that all has arrived
		}
		w.lost = true // the connection broke, or a process on either side ended
	}
	return []truth{w}
}

// saw returns the state after a host has noted an order's generation, and false if the
// host refuses the order as too old.
func saw(w truth, v fleet.Verb, gen uint8) (truth, bool) {
	at := &w.sourceSaw
	switch v {
	case fleet.Receive, fleet.Activate, fleet.Fetch, fleet.Discard:
		at = &w.targetSaw
	}
	if gen < *at {
		return w, false
	}
	*at = gen
	return w, true
}

// member is one guest of a gang with everything that determines what can happen next.
type member struct {
	mode    fleet.Mode
	phase   fleet.Phase
	attempt int
	gen     uint8
	home    bool // at the target
	moving  bool
	world   truth
	late    late
}

// names of the guests of a gang.
var names = []fleet.GuestID{"g0", "g1", "g2", "g3"}

func (n member) migration(i int) fleet.Migration {
	return fleet.Migration{
		ID: "m1." + fleet.MigrationID(names[i]), Move: "m1", Guest: names[i],
		From: "source", To: "target", Gen: uint64(n.gen), Mode: n.mode, Phase: n.phase, Attempt: n.attempt,
	}
}

// after returns the member after its migration changed to m.
func (n member) after(m fleet.Migration) member {
	home := fleet.HostID("source")
	if n.home {
		home = "target"
	}
	g := FollowMigration(fleet.Guest{ID: m.Guest, State: fleet.GuestMoving, Migration: m.ID, Home: home, Gen: uint64(n.gen)}, m)
	n.phase, n.attempt, n.gen = m.Phase, min(m.Attempt, switchTries+2), uint8(g.Gen)
	n.home, n.moving = g.Home == "target", g.State == fleet.GuestMoving
	if n.phase == fleet.PostCopying {
		n.attempt = min(n.attempt, 1) // all further tries are equivalent
	}
	return n
}

// play is one possible course of an order.
type play struct {
	world truth
	late  late
	how   fleet.Outcome
}

// plays returns every course of an order: carried out once or twice and answered, carried
// out without an answer, refused, or not carried out yet.
func plays(n member, o fleet.Order, lateness bool) []play {
	var out []play
	w, taken := saw(n.world, o.Verb, uint8(o.Gen))
	if taken {
		for _, once := range carry(w, o.Verb) {
			out = append(out, play{once, n.late, fleet.Done}, play{once, n.late, fleet.Unknown})
			for _, twice := range carry(once, o.Verb) {
				out = append(out, play{twice, n.late, fleet.Done})
			}
		}
		for _, not := range refuse(w, o.Verb) {
			l := n.late
			l[place(o.Verb)] = 0 // the promise covers all earlier tries: otherwise a late switch could follow a revert's commit
			out = append(out, play{not, l, fleet.Failed})
		}
	} else {
		out = append(out, play{n.world, n.late, fleet.Failed})
	}
	l := n.late
	if lateness {
		l[place(o.Verb)] = uint8(o.Gen)
	}
	return append(out, play{n.world, l, fleet.Unknown})
}

// overdue returns the possible effects of a member's late orders.
func overdue(n member) []member {
	var out []member
	for i, gen := range n.late {
		if gen == 0 {
			continue
		}
		w, taken := saw(n.world, verbs[i], gen)
		if !taken {
			continue
		}
		for _, done := range carry(w, verbs[i]) {
			next := n
			next.world, next.late[i] = done, 0
			out = append(out, next)
		}
	}
	return out
}

// sound checks one guest's invariants.
func (n member) sound(t *testing.T) {
	t.Helper()
	w := n.world
	bad := ""
	switch {
	case w.source == running && w.target == running:
		bad = "runs twice"
	case w.source == running && w.target == whole:
		bad = "source runs after a completed switch"
	case w.target == running && !w.toldToActivate:
		bad = "target runs before it was told to"
	case w.source == absent && w.target != whole && w.target != running && !w.sourceLost && !w.targetLost:
		bad = "is nowhere whole"
	case w.target == running && !n.home:
		bad = "runs at the target while its home is the source"
	case w.source == running && n.home && n.phase != fleet.Switching && n.phase != fleet.Lost:
		bad = "runs at the source while its home is the target"
	case w.missing && w.source == absent && !w.lost:
		bad = "was destroyed at the source before all of it had come to the target"
	case w.missing && w.source == running:
		bad = "runs at the source after the target was given the rest"
	case n.phase == fleet.Finished && (w.missing || w.lost) && !w.targetLost:
		bad = "finished and is not whole"
	case n.phase == fleet.Finished && w.target != running && !w.targetLost:
		bad = "finished and does not run at the target"
	case n.phase == fleet.Aborted && w.source != running && w.source != gated && !w.sourceLost:
		bad = "aborted and hold cannot let it run at the source"
	case n.phase == fleet.Aborted && n.home, n.phase == fleet.Finished && !n.home:
		bad = "home is wrong at the end"
	case n.phase.Ended() == n.moving:
		bad = "guest and migration disagree whether it is over"
	}
	if bad != "" {
		t.Fatalf("%s: %+v", bad, n)
	}
}

func newMember(mode fleet.Mode) member {
	return member{mode: mode, phase: fleet.Preparing, gen: 1, moving: true, world: truth{source: running, postCopy: mode == fleet.PostCopy}}
}

// modes that have different transitions.
var modes = []fleet.Mode{fleet.PreCopy, fleet.PostCopy}

// Walks every path of the table against every state of the hosts: orders lost, late,
// doubled, refused and carried out without an answer, and the move cancelled at any
// moment.
func TestOneMigrationInEveryWay(t *testing.T) {
	seen := map[member]bool{}
	todo := []member{newMember(fleet.PreCopy), newMember(fleet.PostCopy)}
	phases := map[fleet.Phase]int{}
	late := 0
	for len(todo) > 0 {
		n := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		if seen[n] {
			continue
		}
		seen[n] = true
		n.sound(t)
		phases[n.phase]++
		if n.phase == fleet.PostCopying {
			late++
			if n.mode != fleet.PostCopy || n.world.source == running {
				t.Fatalf("fetches: %+v", n)
			}
		}
		todo = append(todo, overdue(n)...)
		m := n.migration(0)
		if off, changed := CancelGang([]fleet.Migration{m}, t0, "owner is back"); changed {
			todo = append(todo, n.after(off[0]))
		}
		if begun, changed := Start([]fleet.Migration{m}, unknown, t0); changed {
			todo = append(todo, n.after(begun[0]))
		}
		if late, changed := Expire(hurried, []fleet.Migration{m}, t0.Add(time.Hour)); changed {
			todo = append(todo, n.after(late[0]))
		}
		order, waits := MigrationOrder(m)
		if !waits {
			continue
		}
		for _, p := range plays(n, order, true) {
			gang, _, err := Gang([]fleet.Migration{m}, fleet.Report{Order: order, Outcome: p.how})
			if err != nil {
				t.Fatal(err)
			}
			next := n.after(gang[0])
			next.world, next.late = p.world, p.late
			todo = append(todo, next)
		}
	}
	for _, st := range migrationStages {
		if st.in != fleet.Ready && phases[st.in] == 0 {
			t.Errorf("%s was never entered", st.in)
		}
	}
	t.Logf("%d states, %d of them in post-copy", len(seen), late)
}

// A guest that ended at its source during the switch may be complete at its target, and
// nowhere else. The target is asked, and the guest is lost if it is not complete there.
func TestSourceThatLostTheGuest(t *testing.T) {
	m := fleet.Migration{ID: "m1.g0", Move: "m1", Guest: "g0", From: "source", To: "target", Gen: 2, Mode: fleet.PreCopy, Phase: fleet.Switching}
	answer := func(m fleet.Migration, how fleet.Outcome) fleet.Migration {
		order, waits := MigrationOrder(m)
		next, changed, err := Migration(m, fleet.Report{Order: order, Outcome: how, Cause: "it is not here"})
		if !waits || !changed || err != nil {
			t.Fatalf("%+v: %t, %t, %v", m, waits, changed, err)
		}
		return next
	}
	asked := answer(m, fleet.Gone)
	if asked.Phase != fleet.Activating || !asked.Orphan || asked.Gen != m.Gen {
		t.Fatalf("%+v", asked)
	}
	if order, _ := MigrationOrder(asked); order.Host != "target" || order.Verb != fleet.Activate {
		t.Errorf("%+v", order)
	}
	if arrived := answer(answer(asked, fleet.Done), fleet.Done); arrived.Phase != fleet.Finished || arrived.Cause != "" {
		t.Errorf("%+v", arrived)
	}
	lost := asked
	for range moreTries + 1 {
		if lost.Phase != fleet.Activating {
			t.Fatalf("given up too soon: %+v", lost)
		}
		lost = answer(lost, fleet.Failed)
	}
	if lost.Phase != fleet.Lost {
		t.Errorf("%+v", lost)
	}
	for _, p := range []fleet.Phase{fleet.Copying, fleet.Activating, fleet.Reverting} {
		m.Phase = p
		order, _ := MigrationOrder(m)
		if next, changed, err := Migration(m, fleet.Report{Order: order, Outcome: fleet.Gone}); err == nil || changed || next.Phase != p {
			t.Errorf("%s went on to %s, %v", p, next.Phase, err)
		}
	}
}

// hurried is a move whose deadline passes at once.
var hurried = fleet.Move{ID: "m1", Begun: t0, Limits: fleet.Limits{Deadline: time.Second}}

// unknown returns 0 bytes left, as for guests without facts.
func unknown(fleet.Migration) int64 { return 0 }

// others returns every course of a gang without a report: cancelled, past its deadline,
// and copies begun, with each member as the longest.
func others(ms []fleet.Migration) [][]fleet.Migration {
	var out [][]fleet.Migration
	add := func(next []fleet.Migration, changed bool) {
		if changed {
			out = append(out, next)
		}
	}
	add(CancelGang(ms, t0, "owner is back"))
	add(Expire(hurried, ms, t0.Add(time.Hour)))
	add(Start(ms, unknown, t0))
	for _, longest := range ms {
		add(Start(ms, func(m fleet.Migration) int64 {
			if m.ID == longest.ID {
				return 1000
			}
			return 1
		}, t0))
	}
	return out
}

// shortStates are as many states of a gang as quick tests look at: a fourteenth.
const shortStates = 5_000

// The same for a gang of two, without late orders: both enter switching in one
// change, but for one that was left behind, and one that cannot leave keeps
// the other.
func TestGangOfTwoInEveryWay(t *testing.T) {
	type gang [2]member
	seen := map[gang]bool{}
	// Post-copy differs only after the switch, when each member continues alone.
	var todo []gang
	reach := func(a, b member) {
		if a.compare(b) > 0 {
			a, b = b, a // the members are interchangeable
		}
		if n := (gang{a, b}); !seen[n] {
			seen[n] = true
			todo = append(todo, n)
		}
	}
	reach(newMember(fleet.PreCopy), newMember(fleet.PreCopy))
	for len(todo) > 0 && !(testing.Short() && len(seen) > shortStates) {
		n := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		n[0].sound(t)
		n[1].sound(t)
		together(t, n[0], n[1])
		ms := []fleet.Migration{n[0].migration(0), n[1].migration(1)}
		for _, next := range others(ms) {
			reach(n[0].after(next[0]), n[1].after(next[1]))
		}
		for i := range n {
			order, waits := MigrationOrder(ms[i])
			if !waits {
				continue
			}
			for _, p := range plays(n[i], order, false) {
				out, _, err := Gang(ms, fleet.Report{Order: order, Outcome: p.how})
				if err != nil {
					t.Fatal(err)
				}
				next := gang{n[0].after(out[0]), n[1].after(out[1])}
				next[i].world = p.world
				reach(next[0], next[1])
			}
		}
	}
	t.Logf("%d states, %d of them not gone on from", len(seen), len(todo))
}

func (n member) compare(o member) int {
	return cmp.Or(cmp.Compare(n.phase, o.phase), cmp.Compare(n.attempt, o.attempt), cmp.Compare(n.gen, o.gen),
		cmp.Compare(n.world.source, o.world.source), cmp.Compare(n.world.target, o.world.target),
		cmp.Compare(n.world.sourceSaw, o.world.sourceSaw), cmp.Compare(n.world.targetSaw, o.world.targetSaw))
}

// together checks the gang's rule: no member switches unless all do.
func together(t *testing.T, a, b member) {
	t.Helper()
	past := func(n member) bool { return n.gen > 1 }
	stays := func(n member) bool {
		return n.phase == fleet.Cancelling || n.phase == fleet.Discarding || n.phase == fleet.Aborted
	}
	if past(a) != past(b) && !(stays(a) && !past(a)) && !(stays(b) && !past(b)) {
		t.Fatalf("one switched alone:\n%+v\n%+v", a, b)
	}
	if a.phase == fleet.Ready && b.phase == fleet.Ready {
		t.Fatalf("both are ready and wait:\n%+v\n%+v", a, b)
	}
	stuck := func(n, other member) bool {
		return (n.phase == fleet.Ready || n.phase == fleet.Waiting) && other.phase.Ended()
	}
	if stuck(a, b) || stuck(b, a) {
		t.Fatalf("one waits for a member that has ended:\n%+v\n%+v", a, b)
	}
}

// From every state of one migration, hosts that answer again bring it to an end.
func TestEveryMigrationCanEnd(t *testing.T) {
	for i := range 2 * len(migrationStages) {
		st, mode := migrationStages[i/2], modes[i%2]
		for attempt := range switchTries + 1 {
			m := fleet.Migration{Mode: mode, ID: "m1.g0", Guest: "g0", From: "source", To: "target", Gen: 1, Phase: st.in, Attempt: attempt}
			for range 10 {
				if order, waits := MigrationOrder(m); waits {
					out, _, _ := Gang([]fleet.Migration{m}, fleet.Report{Order: order, Outcome: fleet.Done})
					m = out[0]
				}
				out, _ := Start([]fleet.Migration{m}, unknown, t0)
				m = out[0]
			}
			if !m.Phase.Ended() && m.Phase != fleet.Ready {
				t.Errorf("from %s: stays in %s", st.in, m.Phase)
			}
		}
	}
}

func TestStaleReportsChangeNothing(t *testing.T) {
	m := fleet.Migration{ID: "m1.g0", Guest: "g0", From: "a", To: "b", Phase: fleet.Switching, Attempt: 1, Gen: 2}
	order, _ := MigrationOrder(m)
	for name, o := range map[string]fleet.Order{
		"attempt": {Verb: order.Verb, Host: order.Host, Peer: order.Peer, Guest: order.Guest, Migration: order.Migration, Gen: 2},
		"verb":    {Verb: fleet.Copy, Host: order.Host, Peer: order.Peer, Guest: order.Guest, Migration: order.Migration, Gen: 2, Attempt: 1},
		"gen":     {Verb: order.Verb, Host: order.Host, Peer: order.Peer, Guest: order.Guest, Migration: order.Migration, Gen: 1, Attempt: 1},
	} {
		if _, changed, err := Migration(m, fleet.Report{Order: o, Outcome: fleet.Done}); changed || err != nil {
			t.Errorf("other %s: changed %t, %v", name, changed, err)
		}
	}
	if _, _, err := Migration(m, fleet.Report{Order: order, Outcome: "maybe"}); err == nil {
		t.Error("an unknown outcome was taken")
	}
}

func TestCarrierFollowsTheGuest(t *testing.T) {
	g := fleet.Guest{ID: "g0", Home: "home"}
	if got := Carrier(g, fleet.Migration{}); got != "home" {
		t.Errorf("without a migration: %s", got)
	}
	for phase, want := range map[fleet.Phase]fleet.HostID{
		fleet.Preparing: "a", fleet.Copying: "a", fleet.Ready: "a", fleet.Switching: "a", fleet.Cancelling: "a",
		fleet.Reverting: "a", fleet.Discarding: "a", fleet.Activating: "b", fleet.PostCopying: "b", fleet.Retiring: "b",
		fleet.Finished: "home", fleet.Aborted: "home",
	} {
		if got := Carrier(g, fleet.Migration{ID: "m", From: "a", To: "b", Phase: phase}); got != want {
			t.Errorf("%s: %s, want %s", phase, got, want)
		}
	}
}

func TestAbandonOnlyWhenTheTargetIsSilent(t *testing.T) {
	m := fleet.Migration{ID: "m1.g0", Phase: fleet.Activating, Attempt: moreTries - 1}
	if _, gave := Abandon(m, t0, "cancelled"); gave {
		t.Error("gave up too early")
	}
	m.Attempt++
	if m, gave := Abandon(m, t0, "cancelled"); !gave || m.Phase != fleet.Lost {
		t.Errorf("did not give up: %+v", m)
	}
	if m, gave := Abandon(fleet.Migration{Phase: fleet.PostCopying, Attempt: moreTries}, t0, "cancelled"); !gave || m.Phase != fleet.Lost {
		t.Errorf("waits without end for a silent target to be whole: %+v", m)
	}
	if _, gave := Abandon(fleet.Migration{Phase: fleet.Switching, Attempt: 9}, t0, ""); gave {
		t.Error("gave up a switch")
	}
}

// A migration keeps the rounds of its newest copy; later reports have none.
func TestRoundsAreRemembered(t *testing.T) {
	m := fleet.Migration{ID: "m1.g1", Guest: "g1", From: "h1", To: "h2", Phase: fleet.Copying}
	for _, r := range []fleet.Report{{Rounds: []fleet.Round{{Number: 1}, {Number: 2}}}, {}} {
		r.Order, _ = MigrationOrder(m)
		r.Outcome = fleet.Done
		next, ok, err := Migration(m, r)
		if err != nil || !ok || len(next.Rounds) != 2 {
			t.Errorf("%s: %+v, %t, %v", m.Phase, next, ok, err)
		}
		m = enter(next, fleet.Switching, time.Time{})
	}
}

package planner

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"pagurus/decide/lifecycle"
	"pagurus/decide/state"
	"pagurus/decide/steering"
	"pagurus/fleet"
)

// Consider says what becomes of a program's wish: an answer, or a request to make for it.
func (p *Planner) Consider(s fleet.Snapshot, id fleet.GuestID, w fleet.Wish) (a fleet.WishAnswer, r *fleet.Request) {
	a.ID = w.ID
	no := func(code fleet.WishCode, why string) (fleet.WishAnswer, *fleet.Request) {
		a.Code, a.Text = code, why
		return a, nil
	}
	g, known := s.Guests[id]
	if !known || g.State.Ended() || !w.Sound() {
		return no(fleet.WishInvalid, "the controller does not know what was asked for")
	}
	if w.Verb == fleet.WishWhere {
		a.Rows = steering.Place(s, g)
		return a, nil
	}
	if w.Verb == fleet.WishDistances {
		a.Rows = steering.Distances(s, g)
		return a, nil
	}
	if j := s.Jobs[g.Job]; w.Verb == fleet.WishGrow {
		if _, grows := j.Growing(); grows {
			return no(fleet.WishBusy, growsAlready(j))
		}
	}
	asked, refused := steering.Request(s, g, w)
	if refused != "" {
		return no(fleet.WishInvalid, refused)
	}
	if asked.To != "" && !slices.ContainsFunc(asked.Guests, func(id fleet.GuestID) bool { return s.Guests[id].Home != asked.To }) && !w.Whole {
		a.Text = fmt.Sprintf("it is with rank %d already", w.Rank)
		return a, nil
	}
	if w.Verb != fleet.WishCost && w.Aim != fleet.AimBetter {
		return a, &asked
	}
	f, err := p.Foresee(s, asked)
	if err != nil {
		return no(fleet.WishRefused, err.Error())
	}
	if w.Verb == fleet.WishCost {
		a.Rows, a.Text = steering.Price(f), strings.Join(f.Notes, "; ")
		return a, nil
	}
	if why := steering.Better(s, f.Migrations); why != "" {
		return no(fleet.WishRefused, why)
	}
	return a, &asked
}

// Granted is the answer to a wish whose request was made.
func Granted(w fleet.Wish, answer fleet.Answer, err error) fleet.WishAnswer {
	a := fleet.WishAnswer{ID: w.ID}
	if err != nil {
		a.Code, a.Text = fleet.WishRefused, err.Error()
		return a
	}
	var said []string
	for _, m := range answer.Moves {
		said = append(said, "move "+string(m))
	}
	if answer.Checkpoint != "" {
		said = append(said, "checkpoint "+string(answer.Checkpoint))
	}
	a.Rows = said
	a.Text = strings.Join(append(slices.Clone(said), answer.Notes...), "; ")
	return a
}

// whoAsked names the caller of a request, for people.
func whoAsked(by fleet.Caller) string {
	if by.Guest != "" {
		return fmt.Sprintf("its own program, in guest %s", by.Guest)
	}
	return fmt.Sprintf("uid %d", by.UID)
}

// waitForMark says whether the copies of a move wait for a mark of a program. Those that leave a host that is emptied, that goes
// away, or whose owner is there, do not, whoever asked for them and when: others may wait for that host.
func waitForMark(s fleet.Snapshot, v fleet.Move, members []fleet.Migration, at time.Time) steering.Wait {
	marks, since := marksOf(s.Hosts, v, members, fleet.Waiting)
	if len(marks) == 0 {
		return steering.Wait{}
	}
	return steering.ForMark(marks, notAfter(since, at, s), latestMark(v), at)
}

// waitForSwitch says the same of the switch of a move whose guests are all ready. When nothing of a guest is left to copy, its
// hypervisor may suspend it until it switches: it marks nothing, and so is not waited for.
func waitForSwitch(s fleet.Snapshot, v fleet.Move, members []fleet.Migration, at time.Time) steering.Wait {
	marks, since := marksOf(s.Hosts, v, members, fleet.Ready)
	if len(marks) == 0 {
		return steering.Wait{}
	}
	if slices.ContainsFunc(members, func(m fleet.Migration) bool { return HeldAtSwitch(s, m) }) {
		return steering.Wait{Why: "nothing was left to copy, which suspended it"}
	}
	return steering.ForSwitch(marks, notAfter(since, at, s), latestMark(v), at)
}

// HeldAtSwitch reports whether a migration's guest is suspended although its switch has not been ordered.
func HeldAtSwitch(s fleet.Snapshot, m fleet.Migration) bool {
	now := s.Hosts[m.From].Facts.Guests[m.Guest]
	return m.Phase == fleet.Ready && now.Run == fleet.Suspended && !now.Suspended
}

// notAfter is since when something waits, where the clock was not set back meanwhile.
func notAfter(since, at time.Time, s fleet.Snapshot) time.Time {
	if since.After(at) {
		return s.LedSince
	}
	return since
}

// latestMark is until when a move waits for marks at most; zero: for as long as any.
func latestMark(v fleet.Move) time.Time {
	if v.Limits.Deadline <= 0 {
		return time.Time{}
	}
	return v.Begun.Add(v.Limits.Deadline / 2)
}

// marksOf is what the programs of guests marked that are all in a phase, the last one since then. Nil: they do not mark, or nothing
// waits for them.
func marksOf(hosts map[fleet.HostID]fleet.Host, v fleet.Move, members []fleet.Migration, in fleet.Phase) (marks []fleet.Marks, since time.Time) {
	for _, m := range members {
		from := hosts[m.From]
		present := from.Facts.Owner != nil && from.Facts.Owner.Present
		if v.ForOwner != "" || !from.EmptyBy.IsZero() || from.State != fleet.HostUp || present {
			return nil, since
		}
		if m.Phase != in {
			return nil, since // the others of its gang are being copied
		}
		if m.Since.After(since) {
			since = m.Since
		}
		if said := from.Facts.Guests[m.Guest].Said; said != nil {
			is := said.Marks
			if still := is.Cheap && is.For != "" && is.Held == 0; is.For != awaitedBy(m) && !still { // the guest does not know yet that its scratch memory is to be given back
				is.Held = is.Scratch
			}
			marks = append(marks, is)
		}
	}
	return marks, since
}

// willAwaitMark says whether a migration that is about to begin waits for a mark, and how much scratch memory its guest gives back then.
func willAwaitMark(s *state.View, m fleet.Migration) (waits bool, scratch int64) {
	from := s.Hosts.At(m.From)
	said := from.Facts.Guests[m.Guest].Said
	if said == nil || m.Mode != "" && m.Mode != fleet.PreCopy {
		return false, 0
	}
	marks, _ := marksOf(map[fleet.HostID]fleet.Host{m.From: from}, s.Moves.At(m.Move), []fleet.Migration{m}, m.Phase)
	if !steering.Marks(marks, said.Marks.At) {
		return false, 0
	}
	return true, said.Marks.Scratch
}

// awaitedBy is what a guest is told of its migration, so that its programs give back scratch memory.
func awaitedBy(m fleet.Migration) string {
	switch m.Phase {
	case fleet.Preparing, fleet.Waiting, fleet.Copying:
		return string(m.ID) + " copy"
	case fleet.Ready:
		return string(m.ID) + " switch"
	}
	return ""
}

// Awaited is what waits for a mark of a guest's programs, or would gain by one.
func Awaited(s fleet.Snapshot, g fleet.Guest) fleet.Awaited {
	m, moves := s.Migrations[g.Migration]
	if !moves || m.Guest != g.ID {
		return fleet.Awaited{}
	}
	return fleet.Awaited{For: awaitedBy(m)}
}

// awaitMark notes on migrations whose copies begin that their switch waits for a mark, too. The copy goes on as one of a
// gang's member does, which can neither be compressed, nor slow its guest down, nor be of another mode.
func (d *draft) awaitMark(before, after []fleet.Migration) {
	for i, m := range after {
		if m.Phase != fleet.Copying || before[i].Phase != fleet.Waiting || m.Mode != fleet.PreCopy || m.Packed || m.Predicted != nil && !m.Predicted.Converges {
			continue
		}
		if marks, _ := marksOf(d.base.Hosts, d.Moves.At(m.Move), before[i:i+1], fleet.Waiting); steering.Marks(marks, d.at) {
			after[i].AtMark = true
		}
	}
}

// goOn lets copies of a gang begin whose turn it is, or its members switch that waited for a mark.
func (d *draft) goOn(members []fleet.Migration) ([]fleet.Migration, bool) {
	out, began := d.startCopies(members)
	if began || !lifecycle.AwaitsMark(out) {
		return out, began
	}
	w := waitForSwitch(d.base, d.Moves.At(out[0].Move), out, d.at)
	if w.Holds {
		return out, false
	}
	ready := out
	out, switches := lifecycle.SwitchMarked(out, d.at)
	for i := range out {
		if out[i].AtMark && w.Why != "" {
			out[i].SwitchMarked = fmt.Sprintf("after %s, %s", d.at.Sub(ready[i].Since).Round(100*time.Millisecond), w.Why)
		}
	}
	return out, switches
}

// noteMark notes on migrations whose copies began what mark they waited for.
func noteMark(before, after []fleet.Migration, w steering.Wait, at time.Time) {
	for i, m := range after {
		if w.Why != "" && m.Phase != before[i].Phase {
			after[i].Marked = fmt.Sprintf("after %s, %s", at.Sub(before[i].Since).Round(100*time.Millisecond), w.Why)
		}
	}
}

// marked goes on with the move of a guest whose program said when moves are cheap.
func (d *draft) marked(id fleet.GuestID) {
	g, known := d.Guests.Find(id)
	m, moves := d.Migrations.Find(g.Migration)
	if !known || !moves || m.Phase != fleet.Waiting && m.Phase != fleet.Ready {
		return
	}
	if members, began := d.goOn(d.membersOf(d.Moves.At(m.Move))); began {
		d.recordGang(m.Move, members)
	}
}

// awaitsMark says what mark a migration waits for, or began to be copied at.
func (e *explainer) awaitsMark(m fleet.Migration) []string {
	var members []fleet.Migration
	for _, id := range e.s.Moves[m.Move].Migrations {
		members = append(members, e.s.Migrations[id])
	}
	w := waitForMark(e.s, e.s.Moves[m.Move], members, e.s.At)
	what := "It"
	if lifecycle.AwaitsMark(members) {
		w, what = waitForSwitch(e.s, e.s.Moves[m.Move], members, e.s.At), "It is copied, and its switch"
	}
	var out []string
	if m.Marked != "" {
		out = append(out, fmt.Sprintf("Its copy began %s.", m.Marked))
	}
	if m.SwitchMarked != "" {
		out = append(out, fmt.Sprintf("Its switch began %s.", m.SwitchMarked))
	}
	if !w.Holds {
		return out
	}
	return append(out, fmt.Sprintf("%s waits for a mark, for %s at most: %s.", what, max(0, w.Until.Sub(e.s.At)).Round(time.Second), w.Why))
}

// changesAtMarks says how much less a guest's memory changes from a marked moment on, and what it gives back then.
func changesAtMarks(p *fleet.Profile, m fleet.Marks) (out []string) {
	if p != nil && len(p.AtMark) > 0 && len(p.Changed) > 0 {
		within := func(all []fleet.Changed) int64 {
			i := slices.IndexFunc(all, func(c fleet.Changed) bool { return c.Within >= p.AtMark[0].Within })
			return all[max(0, i)].Bytes
		}
		out = append(out, fmt.Sprintf("Within %s of such a moment it changes %d MiB, and %d MiB at others.", p.AtMark[0].Within.Round(time.Millisecond), within(p.AtMark)>>20, within(p.Changed)>>20))
	}
	if m.Scratch > 0 {
		out = append(out, fmt.Sprintf("It gives back up to %d MiB of scratch memory when a move waits for such a moment.", m.Scratch>>20))
	}
	return out
}

// remark is what a guest's programs said last of its health, and whether they mark moments.
func (e *explainer) remark(g fleet.Guest) (out []string) {
	said := e.s.Hosts[g.Home].Facts.Guests[g.ID].Said
	if said == nil {
		return nil
	}
	ago := func(d time.Duration) time.Duration { return (d + e.s.At.Sub(said.Marks.At)).Round(time.Second) }
	if r := said.Remark; r != nil {
		out = append(out, fmt.Sprintf("Its program says (%s, %s ago): %s.", r.Level, ago(r.Ago), strings.TrimSuffix(r.Text, ".")))
	}
	if said.Marks.Cheaps > 0 {
		out = append(out, fmt.Sprintf("Its program marked %s cheap for a move, the last one %s ago.", counted(int(said.Marks.Cheaps), "moment")+" as", ago(said.Marks.CheapAgo)))
	}
	out = append(out, changesAtMarks(e.s.Hosts[g.Home].Facts.Guests[g.ID].Profile, said.Marks)...)
	if still := said.Marks.NotFor - e.s.At.Sub(said.Marks.At); still > 0 {
		out = append(out, fmt.Sprintf("Its program says that moves should not begin for %s.", still.Round(time.Second)))
	}
	return out
}

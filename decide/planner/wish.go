package planner

import (
	"fmt"
	"slices"
	"strings"
	"time"

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
	var since, end time.Time
	var marks []fleet.Marks
	for _, m := range members {
		from := s.Hosts[m.From]
		present := from.Facts.Owner != nil && from.Facts.Owner.Present
		if v.ForOwner != "" || !from.EmptyBy.IsZero() || from.State != fleet.HostUp || present {
			return steering.Wait{}
		}
		if m.Phase != fleet.Waiting {
			return steering.Wait{} // the others of its gang are being copied
		}
		if m.Since.After(since) {
			since = m.Since
		}
		if said := from.Facts.Guests[m.Guest].Said; said != nil {
			marks = append(marks, said.Marks)
		}
	}
	if len(marks) == 0 {
		return steering.Wait{}
	}
	if since.After(at) { // the clock was set back
		since = s.LedSince
	}
	if v.Limits.Deadline > 0 {
		end = v.Begun.Add(v.Limits.Deadline / 2)
	}
	return steering.ForMark(marks, since, end, at)
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
	if !known || !moves || m.Phase != fleet.Waiting {
		return
	}
	if members, began := d.startCopies(d.membersOf(d.Moves.At(m.Move))); began {
		d.recordGang(m.Move, members)
	}
}

// awaitsMark says what mark a migration waits for, or began to be copied at.
func (e *explainer) awaitsMark(m fleet.Migration) []string {
	if m.Marked != "" {
		return []string{fmt.Sprintf("Its copy began %s.", m.Marked)}
	}
	var members []fleet.Migration
	for _, id := range e.s.Moves[m.Move].Migrations {
		members = append(members, e.s.Migrations[id])
	}
	w := waitForMark(e.s, e.s.Moves[m.Move], members, e.s.At)
	if !w.Holds {
		return nil
	}
	return []string{fmt.Sprintf("It waits for a mark, for %s at most: %s.", max(0, w.Until.Sub(e.s.At)).Round(time.Second), w.Why)}
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
	if still := said.Marks.NotFor - e.s.At.Sub(said.Marks.At); still > 0 {
		out = append(out, fmt.Sprintf("Its program says that moves should not begin for %s.", still.Round(time.Second)))
	}
	return out
}

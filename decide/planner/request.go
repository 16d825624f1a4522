package planner

import (
	"fmt"
	"slices"

	"pagurus/decide/access"
	"pagurus/decide/desired"
	"pagurus/decide/lifecycle"
	"pagurus/decide/owners"
	"pagurus/decide/placement"
	"pagurus/decide/vacating"
	"pagurus/fleet"
)

// request answers what a person or program asks.
func (d *draft) request(r fleet.Request) (fleet.Answer, error) {
	if reason := access.MayAsk(d.accessView(), r); reason != "" {
		return refuse(r, "%s", reason)
	}
	if made := d.askedOther(r); made != "" {
		return refuse(r, "its ID (Idempotency-Key) was given before to a request that asks something else, which made %s; give this one an ID of its own", made)
	}
	switch r.Verb {
	case fleet.Submit:
		return d.submit(r)
	case fleet.Cancel:
		return d.cancel(r)
	case fleet.RemoveJob:
		return d.removeJob(r)
	case fleet.MakeCheckpoint, fleet.SuspendJob:
		return d.makeCheckpoint(r)
	case fleet.RemoveCheckpoint:
		return d.removeCheckpoint(r)
	case fleet.Restart:
		return d.restartJob(r)
	case fleet.TakeCheckpoint:
		return d.takeCheckpoint(r)
	case fleet.ResumeJob:
		return d.resumeJob(r)
	case fleet.Grow:
		return d.grow(r)
	case fleet.SendSignal:
		return d.signal(r)
	case fleet.Migrate:
		return d.migrate(r)
	case fleet.CancelMove:
		return d.cancelMove(r)
	case fleet.Drain:
		return d.drainHost(r)
	case fleet.Undrain:
		return d.undrainHost(r)
	case fleet.Forget:
		return d.forget(r)
	case fleet.SetRules:
		return d.rule(r)
	case fleet.SetPolicy, fleet.Claim, fleet.Release, fleet.Isolate:
		return d.amend(r)
	case fleet.AddToken, fleet.DropToken, fleet.SetUser, fleet.DropUser, fleet.Logout:
		return d.changeMembers(r)
	}
	panic("access knows a request that the planner does not: " + string(r.Verb))
}

// askedOther says what another request has made that had the same ID; empty: none is known.
func (d *draft) askedOther(r fleet.Request) string {
	if r.ID == "" || r.Asks == "" {
		return ""
	}
	others := func(id fleet.RequestID, asks string) bool { return id == r.ID && asks != "" && asks != r.Asks }
	if id, asked := d.l.Submitted(r.ID); asked && others(r.ID, d.Jobs.At(id).Asks) {
		return "job " + string(id)
	}
	for _, id := range d.l.Asked(r.ID) {
		if others(r.ID, d.Moves.At(id).Asks) {
			return "move " + string(id)
		}
	}
	for _, t := range d.base.Tokens {
		if t.Request == r.ID && (t.Asks != r.Asks || t.Maker != r.By.User) {
			return "token " + string(t.ID)
		}
	}
	j, named := d.Jobs.Find(r.Job)
	if !named {
		return ""
	}
	for _, s := range j.Signals {
		if others(s.Request, s.Asks) {
			return "a signal for job " + string(j.ID)
		}
	}
	for _, c := range d.checkpointsOf(j.ID) {
		if others(c.Request, c.Asks) {
			return "checkpoint " + string(c.ID)
		}
	}
	if g, asked := j.GrowthFor(r.ID); asked && others(g.Request, g.Asks) {
		return fmt.Sprintf("job %s grow by %s", j.ID, counted(g.Count, "guest"))
	}
	return ""
}

// accessView shows the draft to the rules of who may ask what.
func (d *draft) accessView() access.View {
	return access.View{Job: d.Jobs.Find, Guest: d.Guests.Find, User: d.Users.Find, Token: d.Tokens.Find, Move: func(id fleet.MoveID) []fleet.JobID {
		var jobs []fleet.JobID
		if v, known := d.Moves.Find(id); known {
			for _, m := range d.membersOf(v) {
				jobs = append(jobs, m.Job)
			}
		}
		return jobs
	}}
}

func refuse(r fleet.Request, format string, args ...any) (fleet.Answer, error) {
	return fleet.Answer{}, &Refusal{Request: r, Reason: fmt.Sprintf(format, args...)}
}

// amend changes a host's owner policy or isolated CPUs.
func (d *draft) amend(r fleet.Request) (fleet.Answer, error) {
	h, err := d.namedHost(r)
	if err != nil {
		return fleet.Answer{}, err
	}
	var out fleet.Answer
	reason := ""
	if r.Verb == fleet.Isolate {
		h, out.Notes, reason = amendIsolated(h, r)
	} else {
		h, reason = owners.AmendHost(h, r)
	}
	if reason != "" {
		return refuse(r, "%s", reason)
	}
	d.Hosts.Put(h.ID, h)
	return out, nil
}

// observe stores what was seen: the stall of an ended migration, a running job's traffic,
// who came. It ignores migrations that are unknown or already have a stall.
func (d *draft) observe(o fleet.Observation) (fleet.Answer, error) {
	m, ok := d.Migrations.Find(o.Migration)
	if ok && o.Stall != nil && m.Stall == nil && m.Phase.Ended() {
		stall := *o.Stall
		m.Stall = &stall
		d.Migrations.Put(m.ID, m)
	}
	if j, ok := d.Jobs.Find(o.Job); ok && len(o.Traffic) > 0 && j.State == fleet.JobRunning {
		j.Traffic = o.Traffic
		d.Jobs.Put(j.ID, j)
	}
	for _, id := range o.Crowding {
		if j, ok := d.Jobs.Find(id); ok && j.State == fleet.JobEnded {
			d.forgetJob(id)
		}
	}
	if h, known := d.Hosts.Find(o.Leased); known && h.Lease != o.Lease {
		h.Lease = o.Lease
		d.Hosts.Put(h.ID, h)
	}
	if c, known := d.Checkpoints.Find(o.Given.Checkpoint); known {
		if c, changed := lifecycle.TakePart(c, o.Given.Guest, d.at); changed {
			d.recordCheckpoint(c)
		}
	}
	if o.Marked != "" {
		d.marked(o.Marked)
	}
	if o.Attached != "" {
		d.attached(o.Attached)
	}
	if o.Encryption != "" {
		d.encrypt(o.Encryption)
	}
	switch {
	case o.Called != "":
		return fleet.Answer{}, d.called(o.Called)
	case o.Enrolment != nil:
		return d.enrol(*o.Enrolment)
	}
	return fleet.Answer{}, nil
}

// encrypt changes how traffic between hosts is protected, once no job is there whose guests would be cut
// off meanwhile, or have the wrong MTU. The controller observes it again until then.
func (d *draft) encrypt(e fleet.Encryption) {
	if e != d.base.Cluster.Encryption && len(desired.Jobs(d.base)) == 0 {
		d.counters().Encryption = e
	}
}

// cancel ends a job. It is not an error if the job has ended.
func (d *draft) cancel(r fleet.Request) (fleet.Answer, error) {
	j, ok := d.Jobs.Find(r.Job)
	if !ok {
		return refuse(r, "there is no job %s; `pagurus job ls` lists them", orNone(r.Job))
	}
	grace := fleet.UsualGrace
	if r.Grace != nil {
		grace = *r.Grace
	}
	if reason := fleet.RefusedGrace(grace); reason != "" {
		return refuse(r, "%s", reason)
	}
	if !placement.Heard(d.base.Hosts[d.Guests.At(desired.GuestID(j.ID, 0)).Home], d.base.At) {
		grace = 0 // no guest agent can tell the program
	}
	if j, changed := lifecycle.Cancel(j, d.at, grace, fmt.Sprintf("cancelled by uid %d", r.By.UID)); changed {
		d.Jobs.Put(j.ID, j)
		d.settleJob(j.ID)
	}
	return fleet.Answer{Job: j.ID}, nil
}

// removeJob forgets an ended job, with what is kept of it.
func (d *draft) removeJob(r fleet.Request) (fleet.Answer, error) {
	j, ok := d.Jobs.Find(r.Job)
	switch {
	case !ok:
		return refuse(r, "there is no job %s; `pagurus job ls` lists them", orNone(r.Job))
	case j.State != fleet.JobEnded:
		return refuse(r, "job %s is %s; `pagurus cancel %s` ends it, and then it can be removed", j.ID, j.State, j.ID)
	}
	d.forgetJob(j.ID)
	return fleet.Answer{Job: j.ID}, nil
}

// signal checks whether a job may be sent a signal. Of the signal it stores no more than that a request with a key asked for
// it: the controller delivers it and reports the result.
func (d *draft) signal(r fleet.Request) (fleet.Answer, error) {
	j, ok := d.Jobs.Find(r.Job)
	if !ok {
		return refuse(r, "there is no job %s; `pagurus job ls` lists them", orNone(r.Job))
	}
	if _, err := fleet.ReadSignal(r.Signal); err != nil {
		return refuse(r, "%s", err)
	}
	switch j.State {
	case fleet.JobSuspended:
		return refuse(r, "job %s is suspended; `pagurus resume %s` lets it go on", j.ID, j.ID)
	case fleet.JobPending:
		return refuse(r, "job %s waits for room; send it signals once its program runs", j.ID)
	case fleet.JobStarting:
		return refuse(r, "job %s is still starting; send it signals once its program runs", j.ID)
	case fleet.JobStopping, fleet.JobEnded:
		return refuse(r, "job %s is %s, so its program has ended; `pagurus job ls` lists those that run", j.ID, j.State)
	}
	if r.ID == "" || r.Asks == "" {
		return fleet.Answer{Job: j.ID}, nil
	}
	for _, s := range j.Signals {
		switch {
		case s.Request != r.ID:
		case s.Incarnation != j.Incarnation:
			return refuse(r, "its ID (Idempotency-Key) was given before to a signal for job %s as it was before it began again; give this one an ID of its own", j.ID)
		default: // guests deliver it once
			return fleet.Answer{Job: j.ID}, nil
		}
	}
	before := j.Signals[max(0, len(j.Signals)-fleet.SignalsKept+1):]
	j.Signals = append(slices.Clone(before), fleet.SignalAsked{Request: r.ID, Asks: r.Asks, Incarnation: j.Incarnation}) // snapshots share the old one
	d.Jobs.Put(j.ID, j)
	return fleet.Answer{Job: j.ID}, nil
}

// asked returns the answer to a repeated request that began moves.
func (d *draft) asked(r fleet.Request) (fleet.Answer, bool) {
	var out fleet.Answer
	if r.ID != "" {
		out.Moves = d.l.Asked(r.ID)
	}
	return out, len(out.Moves) > 0
}

// unmovable says why a guest cannot begin a move; empty: it can.
func (d *draft) unmovable(g fleet.Guest) string {
	switch g.State {
	case fleet.GuestStarting:
		return "it is still starting; try again once it runs"
	case fleet.GuestMoving:
		m := d.Migrations.At(g.Migration)
		return fmt.Sprintf("it is moving from %s to %s with %s; wait for the move to end, see `pagurus move ls`", m.From, m.To, m.Move)
	case fleet.GuestStopping:
		return "it is being stopped with its job; there is nothing to do"
	case fleet.GuestSought:
		return "no host has said yet that it runs it, since the cluster's state was restored; `pagurus explain " + string(g.ID) + "` says which were not heard"
	case fleet.GuestEnded, fleet.GuestLost:
		return "it no longer runs; `pagurus guest ls` lists those that do"
	}
	if !placement.Heard(d.base.Hosts[g.Home], d.base.At) {
		return fmt.Sprintf("the agent of %s has not been heard from; start it again, see `pagurus host ls`", g.Home)
	}
	return placement.Hindered(d.base, g)
}

// drainHost empties a host and keeps it empty.
func (d *draft) drainHost(r fleet.Request) (fleet.Answer, error) {
	h, err := d.namedHost(r)
	if err != nil {
		return fleet.Answer{}, err
	}
	leave := r.Limits.ForDrain()
	if leave != r.Limits {
		return refuse(r, "%s", onlyDrainFlags())
	}
	if reason := leave.Refused(); reason != "" {
		return refuse(r, "%s", reason)
	}
	now, changed := lifecycle.Host(h, fleet.Drain, d.at)
	if changed || now.Leave != leave || now.ForOwner || now.ForHealth || now.ForNotice {
		now.Leave, now.ForOwner, now.ForHealth, now.ForNotice = leave, false, false, false // only a person ends the drain now
		d.Hosts.Put(h.ID, now)
		h = now
	}
	d.drain()
	var out fleet.Answer
	moves, _ := d.Moves.Changed()
	for _, v := range moves {
		if _, before := d.base.Moves[v.ID]; !before && v.Drains == h.ID {
			out.Moves = append(out.Moves, v.ID)
		}
	}
	out.Notes = append(d.remaining(h), d.gatewaysLeave(h.ID)...)
	return out, nil
}

// remaining describes, for people, what is expected to become of the guests still on a
// draining host.
func (d *draft) remaining(h fleet.Host) []string {
	var notes []string
	follow := 0
	if placement.Unheard(d.base, h.ID, d.at) > 0 {
		notes = append(notes, fmt.Sprintf("%s has not been heard from: its guests can leave only once its agent runs again", h.ID))
	}
	room := d.newRoom() // a separate survey, because the placements below are only predictions
	var here []fleet.Guest
	for _, id := range d.l.GuestsAt(h.ID) {
		here = append(here, d.Guests.At(id))
	}
	for _, g := range inOrder(here) {
		switch g.State {
		case fleet.GuestStarting:
			notes = append(notes, fmt.Sprintf("%s is still starting and leaves once it runs", g.ID))
		case fleet.GuestRunning:
			if what := placement.Hindered(d.base, g); what != "" {
				notes = append(notes, fmt.Sprintf("%s stays for now: %s; it leaves when nothing keeps it", g.ID, what))
				continue
			}
			a := placement.Leaving(d.base, g)
			best, found := room.Best(a)
			if !found {
				notes = append(notes, fmt.Sprintf("%s stays for now, no host can take it: %s; it leaves when one can", g.ID, placement.Words(placement.Explain(room, a))))
				continue
			}
			room.Reserve(best.Host, g.Need)
			follow++
		}
	}
	if follow > 0 {
		notes = append(notes, fmt.Sprintf("%d more %s, the guests of one job at a time", follow, plural(follow, "guest follows", "guests follow")))
	}
	return notes
}

// undrainHost lets a host take guests again. It cancels the drain's moves where possible.
func (d *draft) undrainHost(r fleet.Request) (fleet.Answer, error) {
	h, err := d.namedHost(r)
	if err != nil {
		return fleet.Answer{}, err
	}
	if h.ForOwner {
		return refuse(r, "%s is kept empty because its owner is there; `pagurus host policy %s` changes that", h.ID, h.ID)
	}
	h.Leave = fleet.Limits{}
	if h.ForHealth { // the person knows better: only what comes from now on counts
		h.ForHealth, h.SignsSeen = false, h.Facts.Health.Latest()
	}
	if !h.EmptyBy.IsZero() {
		h = vacating.Waive(h)
	}
	if h, changed := lifecycle.Host(h, fleet.Undrain, d.at); changed {
		d.Hosts.Put(h.ID, h)
	}
	return fleet.Answer{Notes: d.cancelDrainMoves(h.ID)}, nil
}

// namedHost gives the host that a request is about.
func (d *draft) namedHost(r fleet.Request) (fleet.Host, error) {
	h, ok := d.Hosts.Find(r.Host)
	if !ok {
		_, err := refuse(r, "there is no host %s; `pagurus host ls` lists them", orNone(r.Host))
		return fleet.Host{}, err
	}
	return h, nil
}

// called adds a host whose agent connects for the first time. A known host is unchanged: a
// restarted agent must not undo a drain.
func (d *draft) called(id fleet.HostID) error {
	if reason := id.Refused(); reason != "" {
		_, err := turnAway("%s", reason)
		return err
	}
	h, known := d.Hosts.Find(id)
	if !known {
		h = lifecycle.Enlist(id, d.at)
	}
	if h.Number == 0 { // also of a host that an earlier Pagurus knew
		h.Number = d.hostNumber()
		d.Hosts.Put(id, h)
	}
	return nil
}

// hostNumber gives a number that no host has had.
func (d *draft) hostNumber() uint32 {
	c := d.counters()
	c.LastHost++
	return c.LastHost
}

// forget removes a host that never comes back.
func (d *draft) forget(r fleet.Request) (fleet.Answer, error) {
	h, err := d.namedHost(r)
	if err != nil {
		return fleet.Answer{}, err
	}
	if placement.Heard(h, d.base.At) && h.Credential.Key == "" {
		return refuse(r, "%s has a running agent and would join again at once; stop the agent first", h.ID)
	}
	for _, g := range sortedGuests(d.base, func(g fleet.Guest) bool { return !g.State.Ended() }) {
		if slices.Contains(lifecycle.Places(g, desired.Live(d.base, g)), h.ID) {
			return refuse(r, "guest %s may still be on %s; cancel job %s first, or start the agent there again", g.ID, h.ID, g.Job)
		}
	}
	for _, j := range desired.Jobs(d.base) {
		if j.ShareHost == h.ID {
			return refuse(r, "%s serves the files of job %s; cancel the job first, or start the agent there again", h.ID, j.ID)
		}
	}
	d.Hosts.Drop(h.ID)
	d.keepGateways()
	return fleet.Answer{}, nil
}

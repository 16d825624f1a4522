package planner

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"pagurus/decide/desired"
	"pagurus/decide/lifecycle"
	"pagurus/decide/owners"
	"pagurus/decide/placement"
	"pagurus/decide/state"
	"pagurus/fleet"
)

// Subject is the subject of Explain. One field is set.
type Subject struct {
	Guest fleet.GuestID
	Job   fleet.JobID
	Host  fleet.HostID
}

// Explain says why something is in its state, what it waits for and what happens next,
// one sentence a line. The error is a *Refusal.
func (p *Planner) Explain(s fleet.Snapshot, about Subject) ([]string, error) {
	unknown := func(what, name string) ([]string, error) {
		return nil, &Refusal{Reason: fmt.Sprintf("there is no %s %s; `pagurus %s ls` lists them", what, name, what)}
	}
	e := explainer{p: p, s: s}
	switch {
	case about.Guest != "":
		g, ok := s.Guests[about.Guest]
		if !ok {
			return unknown("guest", string(about.Guest))
		}
		return e.guest(g), nil
	case about.Job != "":
		j, ok := s.Jobs[about.Job]
		if !ok {
			return unknown("job", string(about.Job))
		}
		return e.job(j), nil
	case about.Host != "":
		h, ok := s.Hosts[about.Host]
		if !ok {
			return unknown("host", string(about.Host))
		}
		return e.host(h), nil
	}
	return nil, &Refusal{Reason: "nothing was named to explain; name a guest, a job or a host"}
}

type explainer struct {
	p      *Planner
	s      fleet.Snapshot
	survey *placement.Survey
}

func (e *explainer) room() *placement.Survey {
	if e.survey == nil {
		e.survey = placement.NewSurvey(e.s, placement.InForce(e.p.Policy, e.s.Cluster.Rules))
	}
	return e.survey
}

// draft is a draft of what is explained.
func (e *explainer) draft() *draft {
	d := newDraft(e.p, state.NewIndex(e.s, e.p.Policy))
	d.at = e.s.At
	return d
}

func (e *explainer) since(t time.Time) string {
	return "for " + max(e.s.At.Sub(t), 0).Round(time.Second).String()
}

func (e *explainer) guest(g fleet.Guest) []string {
	out := []string{fmt.Sprintf("%s is guest %d of job %s, of kind %s, and has been %s %s.", g.ID, g.Index, g.Job, g.Kind, g.State, e.since(g.Since))}
	say := func(format string, args ...any) { out = append(out, fmt.Sprintf(format, args...)) }
	if g.State.Ended() {
		say("It was last on %s.", g.Home)
		if g.Cause != "" {
			say("Why it ended: %s.", g.Cause)
		}
		return append(out, remains(g)...)
	}
	if g.State == fleet.GuestSought {
		return e.sought(g)
	}
	say("Its home is %s: %s.", g.Home, cmp.Or(g.Reason, "nothing was noted when it was placed"))
	if unheard := placement.Unheard(e.s, g.Home, e.s.At); unheard > 0 {
		out = append(out, e.unheard(g.Home, g.Job, unheard))
	}
	if most := e.s.Jobs[g.Job].Spec.Cap; most > 0 {
		say("It may use no more than %.0f %% of its CPUs (run --"+fleet.CapFlag+").", 100*most)
	}
	out = append(out, e.remark(g)...)
	switch g.State {
	case fleet.GuestStarting:
		say("It waits for %s to boot it (try %d) and runs as soon as its agent answers.", g.Home, g.Attempt+1)
	case fleet.GuestStopping:
		say("It waits for %s to stop it (try %d), because job %s is over.", g.Home, g.Attempt+1, g.Job)
	case fleet.GuestMoving:
		out = append(out, e.migration(e.s.Migrations[g.Migration])...)
	case fleet.GuestRunning:
		now := e.s.Hosts[g.Home].Facts.Guests[g.ID]
		if s := now.Slice; s != nil {
			say("Its time slice is %s: %s.", s.Length.Round(100*time.Microsecond), s.Why)
		}
		if now.Suspended {
			say("It is suspended while the owner of %s is there.", g.Home)
		} else if now.ReclaimedBytes > 0 {
			say("%d MiB of its memory are reclaimed while the owner of %s is there.", now.ReclaimedBytes>>20, g.Home)
		}
		if why := e.s.Hosts[g.Home].Facts.Guests[g.ID].Standby; why != "" {
			say("It has virtio alone, and no virtual function of its host's card: %s.", why)
		}
		out = append(out, e.leaving(g)...)
	}
	return out
}

// migration describes a migration's progress.
func (e *explainer) migration(m fleet.Migration) []string {
	if m.ID == "" {
		return []string{"Its move is no longer known."}
	}
	why := e.s.Moves[m.Move].Why
	out := []string{fmt.Sprintf("It moves from %s to %s with %s (%s) and has been %s %s.", m.From, m.To, m.Move, cmp.Or(why, "no reason noted"), m.Phase, e.since(m.Since))}
	if choice := e.s.Moves[m.Move].Choice; choice != "" {
		out = append(out, fmt.Sprintf("It goes by %s: %s.", m.Mode, choice))
	} else if m.Mode != "" {
		out = append(out, fmt.Sprintf("It goes by %s, as was asked.", m.Mode))
	}
	phase := m.Phase.Traits()
	if phase.PostCopies() {
		out = append(out, fmt.Sprintf("It runs on %s and still fetches memory from %s. If that host fails before all of it has arrived, the guest is lost.", m.To, m.From))
	}
	if o, waits := lifecycle.MigrationOrder(m); waits {
		out = append(out, fmt.Sprintf("It waits for %s to %s it (try %d).", o.Host, o.Verb, o.Attempt+1))
	} else if !m.Phase.Ended() {
		out = append(out, fmt.Sprintf("It waits for %s.", phase.Label))
	}
	out = append(out, e.awaitsMark(m)...)
	if end := deadlineOf(e.s.Moves[m.Move]); !end.IsZero() && phase.BeforeSwitch() {
		out = append(out, fmt.Sprintf("If it is not ready in %s, it stays where it is.", max(end.Sub(e.s.At), 0).Round(time.Second)))
	}
	if weighed := e.s.Moves[m.Move].Weighed; weighed != "" {
		out = append(out, fmt.Sprintf("It %s.", weighed))
	}
	if m.Cause != "" {
		out = append(out, fmt.Sprintf("What went wrong so far: %s.", m.Cause))
	}
	if p, ok := e.s.Hosts[m.From].Facts.Copies[m.ID]; ok && p.TotalBytes > 0 {
		out = append(out, fmt.Sprintf("Round %d: %d MiB sent, %d MiB left, %.1f MiB/s.", p.Rounds, p.SentBytes>>20, p.RemainingBytes>>20, p.BytesPerSecond/(1<<20)))
	}
	return out
}

// ask is the placement question for a guest that moves alone.
func (e *explainer) ask(g fleet.Guest) placement.Ask {
	out := []placement.Ask{placement.Leaving(e.s, g)}
	affinityIn(state.ViewOf(e.s), e.room(), []fleet.Guest{g}, out)
	return out[0]
}

// leaving says whether and why a running guest would move, and where it could.
func (e *explainer) leaving(g fleet.Guest) []string {
	var out []string
	say := func(format string, args ...any) { out = append(out, fmt.Sprintf(format, args...)) }
	draining := e.s.Hosts[g.Home].State == fleet.HostDraining
	if draining {
		say("%s is draining, so it is to leave %s.", g.Home, whenLeaving(e.s.Hosts[g.Home], g))
	} else {
		say("Nothing asks it to move.")
	}
	if g.Aborts > 0 {
		say("%d %s in a row failed%s.", g.Aborts, plural(g.Aborts, "move", "moves"), e.lastCause(g))
	}
	if what := placement.Hindered(e.s, g); what != "" {
		return append(out, fmt.Sprintf("It could not leave: %s.", what))
	}
	a := e.ask(g)
	best, found := e.room().Best(a)
	whys := slices.DeleteFunc(placement.Explain(e.room(), a), func(w placement.Why) bool { return w.Host == g.Home })
	switch {
	case !found && len(whys) == 0:
		say("It could not leave: there is no other host.")
	case !found:
		say("It could not leave, because no host can take it: %s.", placement.Words(whys))
	case draining && g.RetryAt.After(e.s.At):
		say("It is tried again in %s; %s would take it.", g.RetryAt.Sub(e.s.At).Round(time.Second), best.Host)
	case draining:
		say("%s would take it: %s. The guests of a job leave a host together, one job at a time.", best.Host, best.Reason)
	default:
		say("If it had to leave, %s would take it: %s.", best.Host, best.Reason)
	}
	if found && len(whys) > 0 {
		say("Others could not: %s.", placement.Words(whys))
	}
	return append(out, e.price(g)...)
}

// lastCause returns why the guest's latest move failed.
func (e *explainer) lastCause(g fleet.Guest) string {
	var last fleet.Migration
	for _, m := range e.s.Migrations {
		if m.Guest == g.ID && m.Phase == fleet.Aborted && (m.Since.After(last.Since) || (m.Since.Equal(last.Since) && m.ID > last.ID)) {
			last = m
		}
	}
	if last.Cause == "" {
		return ""
	}
	return ", the last one because " + last.Cause
}

// price says what the guest's next move would cost, if known.
func (e *explainer) price(g fleet.Guest) []string {
	if (history{state.NewIndex(e.s, e.p.Policy)}).profileOf(e.s.Hosts[g.Home], g.ID) == nil {
		return nil
	}
	f, err := e.p.Foresee(e.s, fleet.Request{By: fleet.Caller{Admin: true}, Verb: fleet.Migrate, Guest: g.ID})
	if no := (*Refusal)(nil); errors.As(err, &no) && len(no.Hosts) == 0 {
		return []string{fmt.Sprintf("A move of it would be refused: %s.", no.Reason)}
	}
	if err != nil || len(f.Migrations) != 1 {
		return nil // the reason was already given
	}
	p := f.Migrations[0].Prediction
	if !p.Converges {
		return []string{fmt.Sprintf("Its move would not converge: %s. It would with %s.", p.Why, p.Help)}
	}
	how := ""
	if mode := f.Migrations[0].Prediction.Limits.Mode; mode != fleet.PreCopy {
		how = fmt.Sprintf(" by %s", mode)
	}
	round := func(d time.Duration) time.Duration { return d.Round(100 * time.Millisecond) }
	return []string{fmt.Sprintf("Its move would take about %s (%s to %s)%s and send %d MiB; `pagurus predict %s` samples its memory again.",
		round(p.Total.Value), round(p.Total.Low), round(p.Total.High), how, p.Bytes.Value>>20, g.ID)}
}

func (e *explainer) job(j fleet.Job) []string {
	out := []string{fmt.Sprintf("%s runs %s as %s in %s and has been %s %s.", j.ID, strings.Join(j.Spec.Args, " "),
		counted(j.Spec.Ranks, "rank"), counted(j.Size(), "guest"), j.State, e.since(j.Since))}
	say := func(format string, args ...any) { out = append(out, fmt.Sprintf(format, args...)) }
	if j.Result != "" {
		say("%s.", result(j))
	}
	if j.LostWith != "" {
		say("Its program was lost with %s, since some of it ran there. Run it again; `pagurus explain %s` says what is known of the host.", j.LostWith, j.LostWith)
	}
	if j.Incarnation > 0 {
		say("It has begun again %s; what earlier ones still write is refused.", times(j.Incarnation))
	}
	out = append(out, e.checkpoints(j)...)
	out = append(out, e.departures(j)...)
	if j.State == fleet.JobSuspended {
		return out
	}
	if j.State == fleet.JobEnded {
		return append(out, e.limitsReached(j)...)
	}
	if why := e.s.Crowded[j.ID]; why != "" {
		say("Its program waits, because its output finds no room: %s.", why)
	}
	if j.State == fleet.JobPending {
		return append(out, e.queued(j)...)
	}
	if j.Requeue {
		where := "from its beginning"
		if from := cmp.Or(j.RestartFrom, j.Newest); from != "" && !j.FromBeginning {
			where = "from checkpoint " + string(from)
		}
		say("It begins again %s when its guests have ended and there is room.", where)
	}
	say("Its files (%s) are served by %s, on network %d.", strings.Join(directories(j.Spec), ", "), j.ShareHost, j.Subnet)
	if j.VLAN != 0 {
		say("That network is VLAN %d of its hosts' cards, and not encrypted.", j.VLAN)
	}
	out = append(out, e.outward(j)...)
	out = append(out, e.reached(j)...)
	if unheard := placement.Unheard(e.s, j.ShareHost, e.s.At); unheard > 0 {
		say("%s has not been heard from for %s; programs that use files wait, and go on when it is back. Start the agent there again.", j.ShareHost, unheard.Round(time.Second))
	}
	words, waiting := e.whereabouts(j)
	out = append(out, words...)
	switch j.State {
	case fleet.JobStarting:
		then := "its program starts in guest 0"
		if j.From != "" {
			then = "all run on together"
		}
		say("It waits for %s to come up; then %s.", counted(waiting, "guest"), then)
	case fleet.JobStopping:
		say("It waits for %s to end; then the job has ended.", counted(waiting, "guest"))
	case fleet.JobRunning:
		out = append(out, e.growth(j)...)
		say("Its program runs in guest 0; when it ends, the guests are stopped.")
	}
	return out
}

// whereabouts says where a job's guests are, and how many of them it waits for.
func (e *explainer) whereabouts(j fleet.Job) (out []string, waiting int) {
	say := func(format string, args ...any) { out = append(out, fmt.Sprintf(format, args...)) }
	at := map[fleet.HostID][]string{}
	var homes []fleet.HostID
	for _, id := range desired.GuestIDs(j) {
		g, ok := e.s.Guests[id]
		if !ok || g.State.Ended() {
			continue
		}
		if at[g.Home] == nil {
			homes = append(homes, g.Home)
		}
		word := string(g.ID)
		if g.State != fleet.GuestRunning {
			word += fmt.Sprintf(" (%s)", g.State)
		}
		at[g.Home] = append(at[g.Home], word)
		if (j.State == fleet.JobStarting && g.State != fleet.GuestRunning) || j.State == fleet.JobStopping {
			waiting++
		}
	}
	for _, h := range homes {
		say("On %s: %s.", h, strings.Join(at[h], ", "))
		if unheard := placement.Unheard(e.s, h, e.s.At); unheard > 0 {
			out = append(out, e.unheard(h, j.ID, unheard))
		}
	}
	return out, waiting
}

func result(j fleet.Job) string {
	switch {
	case j.Result == fleet.JobFinished && j.Exit != nil && j.Exit.Signal != "":
		return "Its program was ended by " + j.Exit.Signal
	case j.Result == fleet.JobFinished && j.Exit != nil:
		return fmt.Sprintf("Its program ended with exit code %d", j.Exit.Code)
	case j.Cause != "":
		return fmt.Sprintf("It %s: %s", pastTense(j.Result), j.Cause)
	}
	return "It " + pastTense(j.Result)
}

func pastTense(r fleet.JobResult) string {
	if r == fleet.JobCancelled {
		return "was cancelled"
	}
	return string(r)
}

func (e *explainer) host(h fleet.Host) []string {
	out := []string{fmt.Sprintf("%s has been %s %s.", h.ID, h.State, e.since(h.Since))}
	say := func(format string, args ...any) { out = append(out, fmt.Sprintf(format, args...)) }
	switch {
	case e.s.Gone(h.ID, e.s.At):
		say("It is gone: %s. Nothing runs there any more; what it had is lost, or goes on elsewhere.", strings.TrimPrefix(whyGone(e.s, h.ID, e.s.At), string(h.ID)+" is gone: "))
	case h.Facts.SeenAt.IsZero():
		say("Its agent has not been heard from since the controller started; check that it runs there.")
	case !placement.Heard(h, e.s.At):
		say("Its agent was last heard from %s ago; check that it runs there.", e.s.At.Sub(h.Facts.SeenAt).Round(time.Second))
	default:
		say("It has %d MiB of %d MiB of memory free for guests and %.1f of %d CPUs busy with them.",
			e.room().FreeBytes(&h)>>20, h.Facts.Capacity.MemoryBytes>>20, h.Facts.LoadCPUs, h.Facts.Capacity.CPUs)
	}
	out = append(out, leaseOf(h))
	for _, t := range fleet.Kinds {
		k := t.Kind
		switch a := h.Facts.Abilities[k]; {
		case a.Trouble != "":
			say("It cannot run guests of kind %s: %s.", k, a.Trouble)
		case a.Emulated != "":
			say("Its guests of kind %s are emulated, many times slower: %s.", k, a.Emulated)
		case a.NoRounds != "":
			say("Its guests of kind %s leave by stop-and-copy only: %s.", k, a.NoRounds)
		}
	}
	out = append(out, filesOf(h.Facts)...)
	out = append(out, e.protections(h)...)
	out = append(out, e.leadsWhom(h)...)
	out = append(out, owners.ExplainVacating(h, e.s.Cluster.Rules, e.s.At)...)
	out = append(out, owners.Explain(state.NewIndex(e.s, e.p.Policy), h)...)
	out = append(out, unwell(h)...)
	out = append(out, e.noticed(h)...)
	out = append(out, e.savedFrom(h)...)
	out = append(out, e.losses(h)...)
	for _, t := range h.Facts.Troubles {
		say("Trouble: %s.", strings.TrimSuffix(t, "."))
	}
	here := sortedGuests(e.s, func(g fleet.Guest) bool {
		return slices.Contains(lifecycle.Places(g, desired.Live(e.s, g)), h.ID)
	})
	if len(here) == 0 {
		if h.State == fleet.HostDraining {
			say("It is empty and kept empty; `pagurus undrain %s` lets it take guests again.", h.ID)
		} else {
			say("No guests are on it.")
		}
		return out
	}
	for _, g := range here {
		out = append(out, e.onHost(g, h))
	}
	return out
}

// onHost describes in one line what a guest does on a host.
func (e *explainer) onHost(g fleet.Guest, h fleet.Host) string {
	m := desired.Live(e.s, g)
	switch {
	case m.ID != "" && m.To == h.ID:
		return fmt.Sprintf("%s is coming from %s (%s).", g.ID, m.From, m.Phase)
	case m.ID != "":
		return fmt.Sprintf("%s is going to %s (%s).", g.ID, m.To, m.Phase)
	case g.State != fleet.GuestRunning || h.State != fleet.HostDraining:
		return fmt.Sprintf("%s is %s here.", g.ID, g.State)
	}
	a := e.ask(g)
	if best, found := e.room().Best(a); found {
		wait := whenLeaving(h, g)
		if g.RetryAt.After(e.s.At) {
			wait = fmt.Sprintf("in %s, when it is tried again", g.RetryAt.Sub(e.s.At).Round(time.Second))
		}
		return fmt.Sprintf("%s leaves for %s %s.", g.ID, best.Host, wait)
	}
	return fmt.Sprintf("%s cannot leave, because no host can take it: %s.", g.ID, placement.Words(placement.Explain(e.room(), a)))
}

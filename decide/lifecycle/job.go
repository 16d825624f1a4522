package lifecycle

import (
	"fmt"
	"time"

	"pagurus/fleet"
)

var jobStages = []stage[fleet.JobState]{
	{in: fleet.JobPending, says: "room, in the queue"},
	{in: fleet.JobStarting, says: "all its guests to run"},
	{in: fleet.JobRunning, verb: fleet.Run, at: "home of guest 0, unless a switch is under way there or it is sought"}, // End after a cancel
	{in: fleet.JobStopping, says: "all its guests to be gone"},
	{in: fleet.JobSuspended, says: "a person to resume it; it has a checkpoint to go on from, and no guests"},
	{in: fleet.JobEnded, says: "nothing"},
}

// jobArrows are the transitions by reports on a job's program. After unknown the host is
// asked again without limit: the program may still run, and only a person can give it up.
var jobArrows = []arrow[fleet.JobState]{
	{from: fleet.JobRunning, on: fleet.Done, to: fleet.JobStopping},
	{from: fleet.JobRunning, on: fleet.Failed, to: fleet.JobStopping},
	{from: fleet.JobRunning, on: fleet.Unknown, to: fleet.JobRunning},
}

// jobRules are the transitions caused by the job's guests and by requests, for the
// printed protocol. SettleJob and Cancel carry them out.
var jobRules = [][3]string{
	{"pending", "there is room for it, which no job before it has reserved", "starting"},
	{"pending", "cancel", "ended (cancelled)"},
	{"starting", "every guest runs", "running"},
	{"starting", "a guest has ended or is lost", "stopping (failed)"},
	{"running", "a guest has ended or is lost", "stopping (failed)"},
	{"running, may begin again", "the program fails", fmt.Sprintf("running; waits for %s for a guest that has ended or is lost", lossNotice)},
	{"running, its program has failed", "no guest has ended or is lost in that time", "stopping (finished)"},
	{"starting", "cancel", "stopping (cancelled)"},
	{"running", "cancel without a grace", "stopping (cancelled)"},
	{"running", "cancel with a grace", "running; waits for end in the place of run"},
	{"running", "the program ended in its grace, or that is over", "stopping (cancelled)"},
	{"stopping", "every guest has ended or is lost", "ended"},
	{"stopping (finished)", "a guest had died before it was told to stop", "stopping (failed)"},
	{"stopping, to begin again", "cancel", "stopping (cancelled)"},
	{"stopping, to begin again", "every guest has ended or is lost", "pending, as the next incarnation"},
	{"running", "it is to be suspended, and a checkpoint for that is kept", "stopping, to be suspended"},
	{"stopping, to be suspended", "every guest has ended or is lost", "suspended, as the next incarnation"},
	{"suspended", "it is resumed", "pending"},
	{"suspended", "cancel", "ended (cancelled)"},
	{"ended", "it is to begin again, and its guests are known", "pending, as the next incarnation"},
}

// Job applies a report on the job's program. The second result is false if nothing
// changed.
func Job(j fleet.Job, guest0 fleet.Guest, m fleet.Migration, r fleet.Report) (fleet.Job, bool, error) {
	order, waits := JobOrder(j, guest0, m)
	if !waits || r.Order != order {
		return j, false, nil
	}
	if j.Ending != nil && r.Outcome != fleet.Unknown {
		exit := r.Exit
		j = stopping(j, fleet.JobCancelled, j.Ending.Cause, r.At)
		j.Exit = exit
		return j, true, nil
	}
	to, attempt, err := followOutcome(jobArrows, j.State, j.Attempt, r.Outcome)
	if err != nil {
		return j, false, fmt.Errorf("job %s: %w", j.ID, err)
	}
	if to == j.State {
		j.Attempt = attempt
		return j, true, nil
	}
	if r.Outcome == fleet.Done {
		exit := r.Exit
		if exit == nil {
			exit = &fleet.Exit{} // done without an exit code means success
		}
		if *exit != (fleet.Exit{}) && restart(j).Requeue {
			j.Exit, j.Exited, j.Attempt = exit, r.At, 0
			return j, true, nil
		}
		j = stopping(j, fleet.JobFinished, "", r.At)
		j.Exit = exit
		return j, true, nil
	}
	j = stopping(j, fleet.JobFailed, because(r, fmt.Sprintf("%s could not run the program", r.Order.Host)), r.At)
	if r.AtFault {
		j = restart(j)
	}
	return j, true, nil
}

// JobOrder returns the order a job waits for, if any. guest0 is the guest that runs its
// program, m that guest's migration, if any.
func JobOrder(j fleet.Job, guest0 fleet.Guest, m fleet.Migration) (fleet.Order, bool) {
	verb := verbOf(jobStages, j.State)
	if verb == "" || !j.Exited.IsZero() || guest0.ID == "" || guest0.State.Ended() || guest0.State == fleet.GuestSought || !Settled(m) {
		return fleet.Order{}, false
	}
	if j.Ending != nil {
		verb = fleet.End
	}
	return fleet.Order{Verb: verb, Host: guest0.Home, Job: j.ID, Guest: guest0.ID, Born: j.Born, Gen: guest0.Gen, Attempt: j.Attempt}, true
}

// SettleJob makes a job and its guests consistent after one of them changed. It returns
// the job and the guests that it changed.
func SettleJob(j fleet.Job, guests []fleet.Guest, at time.Time) (fleet.Job, []fleet.Guest, bool) {
	before := j.State
	if j.State == fleet.JobStarting || j.State == fleet.JobRunning {
		j = live(j, joined(j, guests), at)
	}
	if j.State == fleet.JobRunning {
		j, stopped, changed := settleGrowth(j, guests, at)
		return j, stopped, changed || j.State != before
	}
	if j.State == fleet.JobStarting {
		if resumed := resumeRestored(guests, at); len(resumed) == j.Size() {
			return j, resumed, true
		}
	}
	if j.State != fleet.JobStopping {
		return j, nil, j.State != before
	}
	stopped, gone := make([]fleet.Guest, 0, len(guests)), 0
	for _, g := range guests {
		next, changed := Stop(g, at)
		if changed {
			stopped = append(stopped, next)
		}
		if next.State.Ended() {
			gone++
		}
	}
	if gone == len(guests) {
		j = over(growthOver(doubted(j, joined(j, guests)), at), at)
	}
	return j, stopped, j.State != before || len(stopped) > 0
}

// doubted is a job that is over, and whose program has finished. If a guest had died before it was told to stop, the
// program's exit code says nothing: mpirun that loses a guest may end with 0.
func doubted(j fleet.Job, guests []fleet.Guest) fleet.Job {
	if j.Result != fleet.JobFinished || j.Requeue {
		return j
	}
	again := false
	for _, g := range guests {
		if g.State != fleet.GuestEnded || g.Remains == nil || !g.Remains.Died {
			continue
		}
		if len(g.Remains.Limits()) > 0 { // it would end again
			return died(j, g)
		}
		if !again {
			j, again = restart(died(j, g)), true
		}
	}
	return j
}

// died is a job that fails because a guest of it has died.
func died(j fleet.Job, g fleet.Guest) fleet.Job {
	j.Result, j.Cause, j.Exit, j.Requeue = fleet.JobFailed, fmt.Sprintf("guest %s ended: %s", g.ID, g.Remains.Sentence()), nil, false
	return j
}

// Tally counts a job's guests as SettleJob needs it.
type Tally struct {
	All, Up, Over int
	Moving        int // included in Up
	Starting      int // or being restored or resumed
	Restored      int
	Sought        int
}

// Count adds a guest in a state; by -1 removes it.
func (t *Tally) Count(in fleet.GuestState, by int) {
	t.All += by
	switch in {
	case fleet.GuestStarting, fleet.GuestRestoring, fleet.GuestResuming:
		t.Starting += by
	case fleet.GuestRestored:
		t.Restored += by
	case fleet.GuestSought:
		t.Sought += by
	case fleet.GuestRunning:
		t.Up += by
	case fleet.GuestMoving:
		t.Up, t.Moving = t.Up+by, t.Moving+by
	case fleet.GuestEnded, fleet.GuestLost:
		t.Over += by
	}
}

// InLine reports whether SettleJob certainly has nothing to do. Moving guests of a
// stopping job may come back, so it does not then.
func (t Tally) InLine(j fleet.Job) bool {
	if g, grows := j.Growing(); grows && g.State != fleet.GrowthWaiting {
		return false
	}
	switch j.State {
	case fleet.JobStarting:
		return t.Over == 0 && t.Up < t.All && t.Restored < t.All
	case fleet.JobRunning:
		return t.Over == 0
	case fleet.JobStopping:
		return t.Up+t.Starting+t.Restored+t.Sought == 0 && t.Over < t.All
	}
	return true
}

// live updates a job that is starting or running from its guests.
func live(j fleet.Job, guests []fleet.Guest, at time.Time) fleet.Job {
	up := 0
	for _, g := range guests {
		switch g.State {
		case fleet.GuestRunning, fleet.GuestMoving:
			up++
		case fleet.GuestEnded, fleet.GuestLost:
			if j.Ending != nil { // and so it was to end
				return stopping(j, fleet.JobCancelled, j.Ending.Cause, at)
			}
		}
		if g.State.Ended() {
			j.Exit = nil // the program failed for that
		}
		switch g.State {
		case fleet.GuestEnded:
			return bereft(stopping(j, fleet.JobFailed, fmt.Sprintf("guest %s ended: %s", g.ID, g.Cause), at), j, guests)
		case fleet.GuestLost:
			return bereft(stopping(j, fleet.JobFailed, fmt.Sprintf("guest %s is lost: %s", g.ID, g.Cause), at), j, guests)
		}
	}
	if j.State == fleet.JobStarting && up == len(guests) && up == j.Size() {
		j.State, j.Since, j.Started, j.Attempt = fleet.JobRunning, at, at, 0
		j.Elsewhere, j.Avoid = 0, nil
		j.RestartFrom, j.FromBeginning = "", false
		j = planCheckpoint(j, at, FirstCheckpoint)
	}
	return j
}

// Cancel ends a job on request. A running program has the grace to end by itself;
// otherwise the job stops at once. A repeated cancel can only shorten the grace. The
// second result is false if nothing changed.
func Cancel(j fleet.Job, at time.Time, grace time.Duration, cause string) (fleet.Job, bool) {
	switch {
	case j.State == fleet.JobPending, j.State == fleet.JobSuspended:
		j.Result, j.Cause, j.Reason = fleet.JobCancelled, cause, ""
		j.State, j.Since, j.Ended = fleet.JobEnded, at, at
		return j, true
	case j.State == fleet.JobStopping && (j.Requeue || j.Suspending):
		j.Requeue, j.Suspending, j.Result, j.Cause = false, false, fleet.JobCancelled, cause
		return j, true
	case j.State != fleet.JobStarting && j.State != fleet.JobRunning:
		return j, false
	}
	if j.State == fleet.JobStarting || grace <= 0 || !j.Exited.IsZero() {
		return stopping(j, fleet.JobCancelled, cause, at), true
	}
	end := fleet.Ending{At: at, Grace: grace, Cause: cause}
	if before := j.Ending; before != nil {
		left := before.Grace - at.Sub(before.At)
		if grace >= left {
			return j, false
		}
		end = *before
		end.Grace = at.Sub(before.At) + grace
		j.Attempt++ // sends the new grace to the host
		j.Ending = &end
		return j, true
	}
	j.Ending, j.Attempt = &end, 0
	return j, true
}

// lossNotice is for how long a job that may begin again waits, after its program has failed, to hear of a guest that was lost
// before: a guest that dies alone resets its connections, and mpirun may notice that, and end, before the host has said so.
const lossNotice = 5 * time.Second

// Overrun stops a job whose program did not end in time, since its host may be disconnected, or a switch may hang; and one whose
// program has failed by its own fault.
func Overrun(j fleet.Job, at time.Time) (fleet.Job, bool) {
	if j.State == fleet.JobRunning && !j.Exited.IsZero() && at.Sub(j.Exited) >= lossNotice {
		return stopping(j, fleet.JobFinished, "", at), true
	}
	if j.State != fleet.JobRunning || j.Ending == nil || at.Sub(j.Ending.At) < j.Ending.Patience() {
		return j, false
	}
	return stopping(j, fleet.JobCancelled, j.Ending.Cause, at), true
}

func stopping(j fleet.Job, result fleet.JobResult, cause string, at time.Time) fleet.Job {
	j.State, j.Since, j.Attempt, j.Exited = fleet.JobStopping, at, 0, time.Time{}
	j.Result, j.Cause = result, cause
	return j
}

package main

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"pagurus/fleet"
)

// The limits for everything to end. If a QEMU was killed while its guest switched, only that
// QEMU knew which side has it, and it is asked for five minutes.
const (
	moveLimit         = 3 * time.Minute
	expectedLossLimit = 8 * time.Minute
	// absentLimit is how long a guest that runs by the last snapshot may have no process:
	// the snapshot may be that old.
	absentLimit = 5 * time.Second
)

// checker judges the cluster. A guest is an expected loss when a fault has killed the one
// process that had it, or its dump: it may be gone, or its job may have ended.
type checker struct {
	expected map[fleet.GuestID]expectedLoss
	open     map[fleet.GuestID]int // faults under way whose effect is not yet known
	absent   map[fleet.GuestID]time.Time
	checked  map[fleet.JobID]bool
	twice    runners
	guests   map[fleet.GuestID]bool
	moves    map[fleet.MigrationID]string
	unfit    map[fleet.HostID]bool // had no room or no CRIU for a while, so that guests could not start there

	whole *whole // in a run of hosts: other guests may be lost, and jobs end otherwise

	tally tally
}

// expectedLoss is a fault that may have ended a guest.
type expectedLoss struct {
	number    int
	migration fleet.MigrationID
	source    bool // the source was hit
}

// tally counts events.
type tally struct {
	Finished  int `json:"moves_finished"`
	Aborted   int `json:"moves_aborted"`
	Cancelled int `json:"moves_cancelled"`
	MovesLost int `json:"moves_lost"`
	Started   int `json:"guests_started"`
	Killed    int `json:"guests_killed_rightly"`
	Lost      int `json:"guests_lost"`
	Doubled   int `json:"guests_doubled"`
	Jobs      int `json:"jobs_right"`
	JobsDead  int `json:"jobs_ended_with_a_killed_guest"`
	Again     int `json:"jobs_begun_again,omitempty"`

	FromCheckpoint       int `json:"jobs_begun_again_at_a_checkpoint,omitempty"`
	RightAfterCheckpoint int `json:"jobs_right_after_a_checkpoint,omitempty"`
	Checkpoints          int `json:"checkpoints_kept,omitempty"`
	CheckpointsFailed    int `json:"checkpoints_failed,omitempty"`
	RightWithCheckpoint  int `json:"jobs_right_that_had_a_checkpoint,omitempty"`
	BadWithCheckpoint    int `json:"jobs_not_right_that_had_a_checkpoint,omitempty"`
	GivenUp              int `json:"jobs_given_up_after_a_rollback,omitempty"`

	Refused int `json:"jobs_never_started_on_unfit_hosts,omitempty"`
	Wrong   int `json:"jobs_wrong"`
}

func newChecker() *checker {
	return &checker{
		expected: map[fleet.GuestID]expectedLoss{}, open: map[fleet.GuestID]int{}, absent: map[fleet.GuestID]time.Time{},
		checked: map[fleet.JobID]bool{}, guests: map[fleet.GuestID]bool{}, moves: map[fleet.MigrationID]string{},
		unfit: map[fleet.HostID]bool{},
	}
}

// expectedLossOf gives the fault that may have ended a job, by killing one of its guests.
// undecided: a fault's effect is not yet known.
func (c *checker) expectedLossOf(j fleet.Job) (by int, undecided bool) {
	for i := range j.Spec.Guests {
		g := fleet.GuestID(fmt.Sprintf("%sg%d", j.ID, i))
		if n := c.expected[g].number; n > 0 {
			by = n
		}
		undecided = undecided || c.open[g] > 0
	}
	return by, undecided
}

// checkSnapshot gives the errors in a snapshot.
func (c *checker) checkSnapshot(s fleet.Snapshot) []string {
	var wrong []string
	moving := map[fleet.GuestID]fleet.MigrationID{}
	for _, m := range s.Migrations {
		if m.Phase.Ended() {
			continue
		}
		if other := moving[m.Guest]; other != "" {
			wrong = append(wrong, fmt.Sprintf("guest %s is moved by %s and by %s at the same time", m.Guest, other, m.ID))
		}
		moving[m.Guest] = m.ID
	}
	for _, v := range s.Moves {
		limit, took := moveLimit, s.At.Sub(v.Begun)
		if c.whole != nil {
			limit, took = expectedLossLimit, c.whole.known(v.ID, time.Now())
		}
		for _, id := range v.Migrations {
			if by, undecided := c.expectedLossOf(s.Jobs[s.Migrations[id].Job]); undecided || by > 0 {
				limit = expectedLossLimit
			}
		}
		if v.Ended.IsZero() && !v.Begun.IsZero() && took > limit {
			wrong = append(wrong, fmt.Sprintf("move %s has not ended after %s: %s", v.ID, took.Round(time.Second), phasesOf(s, v)))
		}
	}
	if c.whole != nil {
		wrong = append(wrong, c.whole.losses(s, &c.tally, time.Now())...)
	}
	for _, g := range s.Guests {
		if g.State != fleet.GuestLost || c.checked[g.Job] || c.whole != nil {
			continue
		}
		if by, undecided := c.expectedLossOf(s.Jobs[g.Job]); by == 0 && !undecided {
			c.tally.Lost++
			wrong = append(wrong, fmt.Sprintf("guest %s is lost, though nothing was done to it: %s", g.ID, g.Cause))
		}
	}
	slices.Sort(wrong)
	return wrong
}

func phasesOf(s fleet.Snapshot, v fleet.Move) string {
	var out []string
	for _, id := range v.Migrations {
		m := s.Migrations[id]
		out = append(out, fmt.Sprintf("%s is %s, try %d (%s)", m.Guest, m.Phase, m.Attempt+1, m.Cause))
	}
	return strings.Join(out, "; ")
}

// present compares the processes with the guests that should exist.
func (c *checker) present(s fleet.Snapshot, all []copyOf, total func(copyOf) time.Duration, now time.Time) []string {
	wrong := c.twice.noteScan(all, total)
	c.tally.Doubled += len(wrong)
	limit := absentLimit
	if c.whole != nil {
		limit = explains
	}
	here := map[fleet.GuestID]bool{}
	for _, p := range all {
		here[p.guest] = true
	}
	for id, g := range s.Guests {
		expected := g.State == fleet.GuestRunning || g.State == fleet.GuestMoving
		if c.whole != nil && !s.Hosts[g.Home].Facts.Connected {
			expected = false // its host cannot say what became of it
		}
		if by, undecided := c.expectedLossOf(s.Jobs[g.Job]); !expected || here[id] || by > 0 || undecided || s.Jobs[g.Job].State != fleet.JobRunning {
			delete(c.absent, id)
			continue
		}
		since, known := c.absent[id]
		if !known {
			c.absent[id] = now
		} else if now.Sub(since) > limit && s.At.Sub(since) > limit {
			c.tally.Lost++
			wrong = append(wrong, fmt.Sprintf("guest %s is %s on %s, and no host has a process of it", id, g.State, g.Home))
		}
	}
	return wrong
}

// ended gives the ended jobs that can be judged now.
func (c *checker) ended(s fleet.Snapshot) []fleet.Job {
	var out []fleet.Job
	for id, j := range s.Jobs {
		if _, undecided := c.expectedLossOf(j); j.State == fleet.JobEnded && !c.checked[id] && !undecided {
			out = append(out, j)
		}
	}
	slices.SortFunc(out, func(a, b fleet.Job) int { return strings.Compare(string(a.ID), string(b.ID)) })
	return out
}

// unstarted reports whether a guest did not start because a fault had made its host unfit.
func (c *checker) unstarted(cause string) bool {
	for host := range c.unfit {
		full := strings.Contains(cause, fmt.Sprintf("%s: start guest ", host)) && strings.Contains(cause, "no space left on device")
		if full || strings.Contains(cause, fmt.Sprintf("host %s runs no guests of kind", host)) {
			return true
		}
	}
	return false
}

// checkJob compares a job's end and output with the expected ones. Empty: it is right.
func (c *checker) checkJob(j fleet.Job, output string) string {
	c.checked[j.ID] = true
	if c.whole != nil {
		return c.whole.judge(j, output, &c.tally)
	}
	// Other guests' last output may come by mpirun after rank 0's.
	right := slices.Contains(strings.Split(output, "\n"), "OK") && !strings.Contains(output, "WRONG")
	good := j.Result == fleet.JobFinished && j.Exit != nil && j.Exit.Code == 0 && right
	by, _ := c.expectedLossOf(j)
	switch {
	case good:
		c.tally.Jobs++
		return ""
	case strings.Contains(output, "WRONG"):
		c.tally.Wrong++
		return fmt.Sprintf("job %s computed something wrong: %s", j.ID, output)
	case by > 0 && (j.Cause != "" || j.Exit != nil):
		c.tally.JobsDead++
		c.tally.Killed++
		return ""
	case j.Started.IsZero() && j.Exit == nil && output == "" && c.unstarted(j.Cause):
		c.tally.Refused++
		return ""
	case by > 0:
		return fmt.Sprintf("job %s ended as it had to after fault %d, but nothing says why", j.ID, by)
	}
	c.tally.Lost++
	code := "none"
	if j.Exit != nil {
		code = fmt.Sprint(j.Exit.Code)
	}
	return fmt.Sprintf("job %s did not come to a good end though nothing was done to its guests: it is %s, exit code %s, cause %q, and it said %q", j.ID, j.Result, code, j.Cause, output)
}

// survived removes expected losses that did not happen. A guest that arrived came from a
// source that was killed too late to matter, and a guest that stayed has lost only a target.
func (c *checker) survived(s fleet.Snapshot) {
	for g, x := range c.expected {
		switch s.Migrations[x.migration].Phase {
		case fleet.Finished:
			if x.source {
				delete(c.expected, g)
			}
		case fleet.Aborted:
			if !x.source {
				delete(c.expected, g)
			}
		}
	}
}

// count counts guests and moves. The controller forgets them after some time.
func (c *checker) count(s fleet.Snapshot) {
	for id := range s.Guests {
		c.guests[id] = true
	}
	for id, m := range s.Migrations {
		if word := became(m); word != "" {
			c.moves[id] = word
		}
	}
	t := &c.tally
	if c.whole != nil {
		c.whole.noteCheckpoints(s, t)
	}
	t.Started, t.Finished, t.Aborted, t.Cancelled, t.MovesLost = len(c.guests), 0, 0, 0, 0
	for _, word := range c.moves {
		switch word {
		case "finished":
			t.Finished++
		case "lost":
			t.MovesLost++
		case "cancelled":
			t.Cancelled++
		default:
			t.Aborted++
		}
	}
}

// became says how a migration has ended; empty: it has not.
func became(m fleet.Migration) string {
	if m.Phase == fleet.Aborted && strings.HasPrefix(m.Cause, "cancelled") {
		return "cancelled"
	}
	if m.Phase.Ended() {
		return string(m.Phase)
	}
	return ""
}

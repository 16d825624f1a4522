package view

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"pagurus/fleet"
)

// Fraction is how much of the copy is done, 0 to 1: the memory minus the remaining pages.
func (p Part) Fraction() float64 {
	switch phase := p.Phase.Traits(); {
	case phase.Transfers:
		if p.Progress.TotalBytes <= 0 {
			return 0
		}
		return min(1, max(0, 1-float64(p.Progress.RemainingBytes)/float64(p.Progress.TotalBytes)))
	case phase.BeforeSwitch():
		return 0
	}
	return 1
}

// Far says a migration's progress in a few words.
func (p Part) Far() string {
	pr := p.Progress
	switch phase := p.Phase.Traits(); {
	case phase.PostCopies():
		return fmt.Sprintf("runs there, %s to come", Bytes(pr.RemainingBytes))
	case phase.Transfers:
		if pr.TotalBytes == 0 {
			return "-"
		}
		return fmt.Sprintf("%.0f%%, round %d, %s left", 100*p.Fraction(), max(pr.Rounds, 1), Bytes(pr.RemainingBytes))
	}
	if pr.SentBytes == 0 {
		return "-"
	}
	return fmt.Sprintf("%s in %s", Bytes(pr.SentBytes), Count(max(pr.Rounds, 1), "round"))
}

// TotalTime is from the migration's first order to its end, or to now.
func (p Part) TotalTime(now time.Time) time.Duration {
	if len(p.Entered) == 0 {
		return 0
	}
	begun := p.Entered[0].At
	if p.Phase.Ended() {
		now = p.Entered[len(p.Entered)-1].At
	}
	return now.Sub(begun)
}

// downtime gives the guest's downtime.
func (p Part) downtime() string {
	if p.Progress.Downtime <= 0 {
		return "-"
	}
	return Took(p.Progress.Downtime)
}

// Line says a migration's state, for waiting users.
func (p Part) Line(now time.Time) string {
	head := fmt.Sprintf("%s: %s %s → %s", p.ID, p.Guest, p.From, p.To)
	switch phase := p.Phase.Traits(); {
	case p.Phase == fleet.Finished:
		return fmt.Sprintf("%s: moved in %s, downtime %s, %s sent in %s", head, Took(p.TotalTime(now)),
			orElse(p.downtime(), "-"), Bytes(p.Progress.SentBytes), Count(max(p.Progress.Rounds, 1), "round"))
	case p.Phase == fleet.Aborted:
		return fmt.Sprintf("%s: cancelled after %s, the guest runs on at %s: %s", head, Took(p.TotalTime(now)), p.From,
			orElse(Clean(p.Cause), "no cause is known"))
	case p.Phase == fleet.Lost:
		return fmt.Sprintf("%s: the guest is lost: %s", head, orElse(Clean(p.Cause), "no host answers for it"))
	case phase.PostCopies():
		return fmt.Sprintf("%s: runs at %s, %s of its memory are still to come", head, p.To, Bytes(p.Progress.RemainingBytes))
	case phase.Transfers:
		pr := p.Progress
		if pr.TotalBytes > 0 {
			return fmt.Sprintf("%s: %s, round %d, %s of %s left, %s", head, p.Phase, max(pr.Rounds, 1),
				Bytes(pr.RemainingBytes), Bytes(pr.TotalBytes), Rate(pr.BytesPerSecond))
		}
	}
	return fmt.Sprintf("%s: %s", head, Clean(PhaseWord(p.Phase)))
}

// Over reports whether every migration of the move is over.
func (m Move) Over() bool {
	return !slices.ContainsFunc(m.Parts, func(p Part) bool { return !p.Phase.Ended() })
}

// Explain tells the story of a move, in lines.
func (m Move) Explain(now time.Time) []string {
	lines := []string{fmt.Sprintf("%s: %s, because: %s", m.ID, Count(len(m.Parts), "guest"), orElse(Clean(m.Why), "no reason given"))}
	for _, p := range m.Parts {
		lines = append(lines, p.Line(now))
		for i, e := range p.Entered {
			until := now
			if i+1 < len(p.Entered) {
				until = p.Entered[i+1].At
			}
			if e.Phase.Ended() {
				lines = append(lines, fmt.Sprintf("  %-10s %s", PhaseWord(e.Phase), e.At.Local().Format("15:04:05.000")))
				continue
			}
			lines = append(lines, fmt.Sprintf("  %-10s %s  for %s", PhaseWord(e.Phase), e.At.Local().Format("15:04:05.000"), Took(until.Sub(e.At))))
		}
		if s := p.StallLine(); s != "" {
			lines = append(lines, "  "+s)
		}
	}
	return lines
}

// Line says a job's state, for waiting users.
func (c Cluster) Line(j Job) string { return Clean(c.line(j)) }

func (c Cluster) line(j Job) string {
	switch j.State {
	case fleet.JobPending:
		return fmt.Sprintf("%s: pending, it waits: %s", j.ID, orElse(Clean(j.Reason), "for room"))
	case fleet.JobSuspended:
		return fmt.Sprintf("%s: suspended; it goes on with `pagurus resume %s`", j.ID, j.ID)
	case fleet.JobStarting:
		return fmt.Sprintf("%s: starting %s on %s", j.ID, Count(j.Size(), "guest"), orElse(c.homes(j), "hosts to be found"))
	case fleet.JobRunning:
		for _, m := range c.Moves {
			for _, p := range m.Parts {
				if p.Job == j.ID && !p.Phase.Ended() {
					return fmt.Sprintf("%s: %s moves from %s to %s", j.ID, p.Guest, p.From, p.To)
				}
			}
		}
		if j.Waits != "" {
			return fmt.Sprintf("%s: waits, because its output finds no room: %s", j.ID, Clean(j.Waits))
		}
		return fmt.Sprintf("%s: running %s on %s", j.ID, Count(j.Spec.Ranks, "rank"), orElse(c.homes(j), "no host"))
	case fleet.JobStopping:
		if j.Requeue {
			return fmt.Sprintf("%s: stopping, to begin again: %s", j.ID, Clean(j.Cause))
		}
		if j.Suspending {
			return fmt.Sprintf("%s: stopping, to be suspended", j.ID)
		}
		return fmt.Sprintf("%s: stopping (%s)", j.ID, Result(j.Job))
	}
	if j.State != fleet.JobEnded && j.State != "" {
		return fmt.Sprintf("%s: %s", j.ID, Clean(string(j.State))) // of a newer controller
	}
	return fmt.Sprintf("%s: %s", j.ID, Verdict(j.Job))
}

// homes lists the hosts the job's guests are on, each once.
func (c Cluster) homes(j Job) string {
	var hosts []fleet.HostID
	for _, id := range j.GuestIDs {
		if g, ok := c.Guest(id); ok && !slices.Contains(hosts, g.Home) {
			hosts = append(hosts, g.Home)
		}
	}
	return List(hosts)
}

// Verdict says how a job ended, in a sentence.
func Verdict(j fleet.Job) string {
	switch j.Result {
	case fleet.JobFinished:
		if j.Exit == nil {
			return "finished"
		}
		if j.Exit.Signal != "" {
			return "the program was ended by " + Clean(j.Exit.Signal)
		}
		return fmt.Sprintf("the program exited with %d", j.Exit.Code)
	case fleet.JobCancelled:
		if strings.HasPrefix(j.Cause, "cancelled") {
			return Clean(j.Cause)
		}
		return strings.TrimSuffix("cancelled: "+Clean(j.Cause), ": ")
	case fleet.JobFailed:
		return orElse(Clean(j.Cause), "failed, and no cause is known")
	}
	return "not over yet"
}

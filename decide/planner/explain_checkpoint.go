package planner

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"pagurus/fleet"
)

// filesStay says what a checkpoint does not have of a job's files; clonesStay, where their file systems can clone files; clonesNear, where
// that machine's agents cannot be asked by others.
const clonesStay = "of its files, when the job goes on from a checkpoint, what is appended is cut off, and those that are open for writing are put back as they were, by copies that share their blocks: " +
	"what other files have, or what is renamed or removed after it, stays so"
const clonesNear = "of its files, when the job goes on from a checkpoint, what is appended is cut off; those that are open for writing are put back as they were for guests on the machine that has the files alone, " +
	"since the agent there has no certificate, and others cannot ask it: what other guests write in place, what other files have, or what is renamed or removed after it, stays so"
const filesStay = "of its files only what is appended is cut off when the job goes on from a checkpoint: what is written in place, renamed or removed after it stays so"

// aboutFiles tells it to a job that has files.
func aboutFiles(s fleet.JobSpec, hosts map[fleet.HostID]fleet.Host) []string {
	switch {
	case s.Export == "":
		return nil
	case !s.Clones:
		return []string{filesStay}
	}
	for _, h := range hosts {
		if h.Facts.Machine == s.Machine && h.Facts.Vault != nil && h.Facts.Vault.Listen != "" {
			return []string{clonesStay}
		}
	}
	return []string{clonesNear}
}

// planned tells it where checkpoints are made by themselves.
func planned(s fleet.JobSpec, hosts map[fleet.HostID]fleet.Host) []string {
	if s.Checkpoint == nil {
		return nil
	}
	return aboutFiles(s, hosts)
}

// checkpoints says what is kept of a job, what is being made, and where it would go on.
func (e *explainer) checkpoints(j fleet.Job) (out []string) {
	say := func(format string, args ...any) { out = append(out, fmt.Sprintf(format, args...)) }
	var all []fleet.Checkpoint
	for _, c := range e.s.Checkpoints {
		if c.Job == j.ID && !c.Phase.Ended() {
			all = append(all, c)
		}
	}
	slices.SortFunc(all, func(a, b fleet.Checkpoint) int { return cmp.Compare(a.ID.Number(), b.ID.Number()) })
	for _, c := range all {
		switch {
		case c.Phase == fleet.Kept:
			bytes, _ := c.Bytes()
			say("Checkpoint %s has been kept %s (%d MiB, on %s); it suspended guests for %s at most.", c.ID, e.since(c.Ended), bytes>>20,
				fleet.Enumerate(hostNames(vaultsOf(c)), "and"), c.Stop().Round(time.Millisecond))
		case c.Phase.Traits().Verb == "":
			say("Checkpoint %s is %s: it waits for %s.", c.ID, c.Phase, c.Phase.Traits().Label)
		default:
			say("Checkpoint %s is %s: it waits for %s.", c.ID, c.Phase, strings.Join(unanswered(c), ", "))
		}
		if c.Notice != "" {
			say("Checkpoint %s was begun for a notice: %s.", c.ID, c.Why)
		}
	}
	if next := j.NextCheckpoint; !next.IsZero() && j.State == fleet.JobRunning {
		say("Its next checkpoint is due in %s.", fleet.ShortDuration(max(next.Sub(e.s.At), 0).Round(time.Second)))
	}
	for _, stays := range aboutFiles(j.Spec, e.s.Hosts) {
		if len(all) > 0 || j.Spec.Checkpoint != nil {
			say("%s%s.", strings.ToUpper(stays[:1]), stays[1:])
		}
	}
	if j.Spec.Outward() && len(all) > 0 {
		say("Of its checkpoints %s.", strings.TrimPrefix(outwardLost, "of this checkpoint "))
	}
	switch {
	case j.State == fleet.JobSuspended:
		say("It goes on from %s when it is resumed: `pagurus resume %s`.", j.From, j.ID)
	case j.From != "" && j.State != fleet.JobPending:
		say("It began at checkpoint %s.", j.From)
	case j.From != "":
		say("It begins at checkpoint %s.", j.From)
	}
	return out
}

// unanswered says which hosts a checkpoint waits for.
func unanswered(c fleet.Checkpoint) (out []string) {
	for _, p := range c.Guests {
		at := p.Host
		if c.Phase.Traits().AtVault {
			at = p.Vault
		}
		if !p.Answered {
			out = append(out, fmt.Sprintf("%s to %s %s", at, c.Phase.Traits().Verb, p.Guest))
		}
	}
	return out
}

func vaultsOf(c fleet.Checkpoint) (out []fleet.HostID) {
	for _, p := range c.Guests {
		out = append(out, p.Vault)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

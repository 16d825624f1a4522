package quota

import (
	"fmt"
	"iter"

	"pagurus/fleet"
)

// Grown is by how many guests a job counts towards what its user's jobs may have more than they began with: those that it has, those
// that start, and those that its program waits for.
func Grown(j fleet.Job) int {
	switch g, grows := j.Growing(); {
	case j.State == fleet.JobEnded, j.State == fleet.JobSuspended:
		return 0
	case grows && g.State == fleet.GrowthWaiting:
		return j.Grown + g.Count
	}
	return j.Grown
}

// GrownOf is by how many guests all users' jobs have grown, and the numbers of each.
func GrownOf(jobs iter.Seq[fleet.Job]) (all int, users map[uint32]int) {
	users = map[uint32]int{}
	for j := range jobs {
		if n := Grown(j); n > 0 {
			all += n
			users[j.Spec.UID] += n
		}
	}
	return all, users
}

// RefusedGrow says why a job may not be submitted that may grow by so many guests; empty: it may.
func RefusedGrow(each, most int) string {
	if each == 0 || most <= each {
		return ""
	}
	return fmt.Sprintf("all jobs of a user together may grow by %d guests at most, and not by %d; ask for fewer with --%s, or begin with more with --%s",
		each, most, fleet.GrowFlag, fleet.GuestsFlag)
}

// RefusedGrowth says why a job may not grow by more guests, given by how many its user's jobs have grown; empty: it may.
func RefusedGrowth(each, has, more int) string {
	if each == 0 || has+more <= each {
		return ""
	}
	return fmt.Sprintf("the jobs of its user have grown by %d of the %d guests by which they may grow together, and not by %d more; ask for fewer, or wait until one of them has ended",
		has, each, more)
}

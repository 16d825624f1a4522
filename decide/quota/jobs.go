package quota

import (
	"fmt"
	"slices"
	"unicode/utf8"

	"pagurus/fleet"
)

// The store of a cluster takes 512 MiB, and then no change any more. What users' jobs take of it is bounded, so that
// none of them, and no few together, stop the cluster: descriptions of jobs that have not ended, and the number of ended ones,
// and little of them is kept (Shorten).
const (
	liveEach = 4 << 20
	liveAll  = 128 << 20

	// Jobs that wait for room.
	waitingEach = 2000
	waitingAll  = 20_000

	// Ended jobs that are kept. Together they take 20 thousand times mostKept.
	endedEach = 1000
	endedAll  = 20_000
)

// Bounds of what is kept of an ended job.
const (
	mostArguments = 300     // bytes; a list of jobs shows 44 characters
	mostText      = 1 << 10 // bytes of any other text
	mostKept      = 8 << 10 // bytes of all of it
)

// weigh is how many bytes a text takes in the store, which has JSON.
func weigh(text string) (n int64) {
	for _, r := range text {
		n += weighRune(r)
	}
	return n + 3
}

func weighRune(r rune) int64 {
	switch r {
	case '"', '\\':
		return 2
	case '<', '>', '&', utf8.RuneError, '\u2028', '\u2029':
		return 6
	}
	if r < ' ' {
		return 6
	}
	return int64(utf8.RuneLen(r))
}

// Weight is how many bytes a job's description takes in the store, or a few more.
func Weight(s fleet.JobSpec) (n int64) {
	n = 512 // numbers and names of fields
	for _, texts := range [][]string{s.Args, s.Env, {s.Dir, s.Export, s.Image, s.Machine, s.Source, string(s.Kind), string(s.Class)}} {
		for _, text := range texts {
			n += weigh(text)
		}
	}
	for _, id := range s.On {
		n += weigh(string(id))
	}
	for _, d := range s.Files {
		n += weigh(d.Path) + weigh(d.Source) + 64
	}
	for _, l := range s.Links {
		n += weigh(l.Path) + weigh(l.To) + 64
	}
	return n + 11*int64(len(s.Groups))
}

// Live is what the descriptions of jobs that have not ended take.
type Live struct {
	Mine, All int64
	Users     int
}

// RefusedJob says why the store has no room for one more job of a user; empty: it has.
func RefusedJob(l Live, s fleet.JobSpec) string {
	const unlimited = 1 << 60
	more := Weight(s)
	const then = "; wait until some have ended, or give less by arguments and environment and more by files"
	switch Check(fleet.OutputLimits{Each: liveEach, All: liveAll}, Kept{Mine: l.Mine, All: l.All, Users: l.Users, Free: unlimited}, more) {
	case None:
		return ""
	case Each:
		return fmt.Sprintf("your jobs that have not ended are described by %d KiB, this one by %d KiB, and each user may have %d MiB"+then, l.Mine>>10, more>>10, liveEach>>20)
	case Share:
		return "what is left of the controller's store is for users who have less in it than you" + then
	}
	return fmt.Sprintf("the jobs of all users that have not ended are described by %d MiB, which is all that the controller's store has for them"+then, l.All>>20)
}

// RefusedWaiting says why one more job of a user may not wait for room, given how many do; empty: it may.
func RefusedWaiting(l Live) string {
	const unlimited = 1 << 60
	const then = "; wait until some of them have begun, or cancel some with `pagurus cancel`"
	switch Check(fleet.OutputLimits{Each: waitingEach, All: waitingAll}, Kept{Mine: l.Mine, All: l.All, Users: l.Users, Free: unlimited}, 1) {
	case None:
		return ""
	case Each:
		return fmt.Sprintf("%d of your jobs wait for room, and no user may have more"+then, l.Mine)
	case Share:
		return "what is left of the queue is for users who have fewer jobs in it than you" + then
	}
	return fmt.Sprintf("%d jobs wait for room, and the queue takes no more; wait until some of them have begun", l.All)
}

// MostEnded is how many ended jobs of each user are kept, given how many each has: who has fewer than that loses
// none.
func MostEnded(counts []int) int { return evenly(counts, endedEach, endedAll) }

// evenly is the largest number up to each of which the sum is at most all, if nobody has more than it.
func evenly(counts []int, each, all int) int {
	counts = slices.Sorted(slices.Values(counts))
	for i, n := range counts {
		part := all / (len(counts) - i) // of those who have not less than this one
		if n > part {
			return min(part, each)
		}
		all -= min(n, each)
	}
	return each
}

// Shorten drops what nobody asks of a job that ended a while ago: its environment, where it could run, and of its
// arguments what no list shows.
func Shorten(j fleet.Job) fleet.Job {
	s := &j.Spec
	s.Env, s.Groups, s.On, s.Files, s.Links, s.Source, j.Traffic = nil, nil, nil, nil, nil, "", nil
	j.Growths = nil
	s.Args = shortArguments(s.Args)
	for _, text := range []*string{&s.Dir, &s.Export, &s.Image, &s.Machine, &j.Cause} {
		*text = short(*text, mostText)
	}
	if j.Ending != nil {
		e := *j.Ending
		e.Cause = short(e.Cause, mostText)
		j.Ending = &e
	}
	return j
}

func shortArguments(args []string) (out []string) {
	left := mostArguments
	for _, arg := range args {
		if left <= 0 {
			return append(out, more)
		}
		cut := short(arg, left)
		out, left = append(out, cut), left-int(weigh(cut))
	}
	return out
}

const more = "…"

// short cuts a text that takes more bytes in the store, at the end of a character.
func short(text string, most int) string {
	n := int64(0)
	for i, r := range text {
		if n += weighRune(r); n > int64(most) {
			return text[:i] + more
		}
	}
	return text
}

package vacating

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"pagurus/fleet"
)

const (
	// Margin is how long before its time a host should be empty: orders and commits take a second or two.
	Margin = 3 * time.Second
	// Last is how long before a host's time a job ends there that has been saved, to go on elsewhere: its guests have to be ended.
	Last = 10 * time.Second
	// resumes is what a job loses that goes on from a checkpoint: it waits for its guests to be made.
	resumes = time.Minute
)

// Action is what becomes of the guests of one job on a host that goes away.
type Action string

// The actions.
const (
	Move Action = "move" // they move while they run
	Save Action = "save" // a checkpoint of their job is made, from which it goes on elsewhere
	Lose Action = "lose" // nothing can be done for them
)

// Case is the guests of one job on a host that goes away.
type Case struct {
	Job     fleet.JobID
	CPUs    int           // of all guests of the job
	Risk    time.Duration // the work that is lost with the host: since the job's newest checkpoint, or its beginning
	Stays   string        // why they cannot all move; empty: they can
	Move    time.Duration // until they have, at most
	Unsaved string        // why no checkpoint can be made; empty: one can
	Save    time.Duration // until it is kept, at most
	Saved   bool          // one was made for this
}

// Verdict is what becomes of a case.
type Verdict struct {
	Case
	Do    Action
	Start time.Time // of Save: when the checkpoint is to begin
	Late  bool      // it is not expected to be done in time, and tried since nothing else is left
	Why   string    // for people
}

// option is one thing that can be done for a case.
type option struct {
	of    int // the case
	do    Action
	takes time.Duration
	gain  float64 // processor seconds that are not lost
}

// Plan says what becomes of each case, in the order in which it is to be done. All that leaves a host shares its link, so
// one thing after the other has to fit into the time that is left. What saves most work for its time comes first. It saves at least
// half of what the best choice could. A checkpoint begins as late as it may, since until then room may be found; at once if the
// time is a guess.
func Plan(at, end time.Time, guess bool, cases []Case) []Verdict {
	left := end.Sub(at) - Margin
	all := options(cases)
	chosen, gain := choose(all, left, -1)
	best := -1
	for i, o := range all {
		if o.takes <= left && o.gain > gain && (best < 0 || o.gain > all[best].gain) {
			best = i
		}
	}
	if best >= 0 { // one alone is worth more than all of those
		chosen, _ = choose(all, left, best)
	}
	begin, taken := end.Add(-Margin), map[int]bool{}
	for _, o := range chosen {
		taken[o.of] = true
		if o.do == Save {
			begin = begin.Add(-o.takes)
		}
	}
	if guess || begin.Before(at) {
		begin = at
	}
	var moves, saves, late, lost []Verdict
	for _, o := range chosen {
		v := Verdict{Case: cases[o.of], Do: o.do}
		if o.do == Move {
			v.Why = fmt.Sprintf("that is expected to take no more than %s", rounded(o.takes))
			moves = append(moves, v)
			continue
		}
		v.Start, v.Why = begin, cmp.Or(v.Stays, fmt.Sprintf("a move may take %s", rounded(v.Move)))
		saves = append(saves, v)
	}
	for i, c := range cases {
		switch v := (Verdict{Case: c, Do: Move, Late: true}); {
		case taken[i]:
		case c.Saved:
			v.Do, v.Start, v.Late, v.Why = Save, at, false, "its checkpoint is kept"
			saves = append(saves, v)
		case c.Stays == "":
			v.Why = fmt.Sprintf("it may take %s, and a checkpoint would not be quicker", rounded(c.Move))
			if c.Unsaved != "" {
				v.Why = fmt.Sprintf("it may take %s, and %s", rounded(c.Move), c.Unsaved)
			}
			late = append(late, v)
		case c.Unsaved == "":
			v.Do, v.Start = Save, at
			v.Why = fmt.Sprintf("%s; the checkpoint may take %s", c.Stays, rounded(c.Save))
			late = append(late, v)
		default:
			v.Do, v.Late, v.Why = Lose, false, fmt.Sprintf("%s, and %s", c.Stays, c.Unsaved)
			lost = append(lost, v)
		}
	}
	slices.SortStableFunc(late, func(a, b Verdict) int { return cmp.Compare(b.loss(), a.loss()) })
	return slices.Concat(moves, saves, late, lost)
}

// loss is the processor seconds that are lost with a case.
func (c Case) loss() float64 { return float64(max(c.CPUs, 1)) * max(c.Risk, time.Second).Seconds() }

// options are what can be done, what gains most for its time first.
func options(cases []Case) (all []option) {
	for i, c := range cases {
		if c.Stays == "" {
			o := option{of: i, do: Move, takes: max(c.Move, time.Millisecond), gain: c.loss()}
			if c.Saved { // little is lost without it
				o.gain = float64(max(c.CPUs, 1)) * resumes.Seconds()
			}
			all = append(all, o)
		}
		if c.Unsaved == "" && !c.Saved {
			gain := c.loss() - float64(max(c.CPUs, 1))*resumes.Seconds()
			all = append(all, option{of: i, do: Save, takes: max(c.Save, time.Millisecond), gain: max(gain, c.loss()/10)})
		}
	}
	slices.SortStableFunc(all, func(a, b option) int {
		return cmp.Compare(b.gain/b.takes.Seconds(), a.gain/a.takes.Seconds())
	})
	return all
}

// choose takes options as long as there is time; first is one to take before all others, or -1. One that was to be saved moves if there is time for it.
func choose(all []option, left time.Duration, first int) (chosen []option, gain float64) {
	take := func(o option) {
		i := slices.IndexFunc(chosen, func(c option) bool { return c.of == o.of })
		switch {
		case i < 0 && o.takes <= left:
			chosen = append(chosen, o)
			left, gain = left-o.takes, gain+o.gain
		case i >= 0 && chosen[i].do == Save && o.do == Move && o.gain > chosen[i].gain && o.takes <= left+chosen[i].takes:
			left, gain = left+chosen[i].takes-o.takes, gain+o.gain-chosen[i].gain
			chosen[i] = o
		}
	}
	if first >= 0 {
		take(all[first])
	}
	for _, o := range all {
		take(o)
	}
	slices.SortStableFunc(chosen, func(a, b option) int {
		return cmp.Compare(b.gain/b.takes.Seconds(), a.gain/a.takes.Seconds())
	})
	return chosen, gain
}

func rounded(d time.Duration) time.Duration {
	if d > 10*time.Second {
		return d.Round(time.Second)
	}
	return d.Round(100 * time.Millisecond)
}

// Sentence says a verdict in words at a time.
func (v Verdict) Sentence(at time.Time) string {
	chance := ""
	if v.Late {
		chance = " though that may be too late"
	}
	switch {
	case v.Do == Move:
		return fmt.Sprintf("The guests of %s move%s: %s.", v.Job, chance, v.Why)
	case v.Saved:
		return fmt.Sprintf("Job %s goes on elsewhere from its checkpoint, which is kept; its guests are ended here %s before that.", v.Job, Last)
	case v.Do == Save && v.Start.After(at):
		return fmt.Sprintf("A checkpoint of %s begins in %s, from which it goes on elsewhere: %s.", v.Job, rounded(v.Start.Sub(at)), v.Why)
	case v.Do == Save:
		return fmt.Sprintf("A checkpoint of %s is made now, from which it goes on elsewhere%s: %s.", v.Job, chance, v.Why)
	}
	return fmt.Sprintf("The guests of %s are lost then: %s.", v.Job, v.Why)
}

package measuring

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"pagurus/bench"
	"pagurus/bench/programs"
	"pagurus/bench/targets"
	"pagurus/fleet"
)

// movable are the targets that there is another one of, with a guest moved meanwhile.
var movable = []string{targets.Contained, string(fleet.VM)}

// movedNames are those other ones.
func movedNames() (all []string) {
	for _, t := range movable {
		all = append(all, t+targets.Moved)
	}
	return all
}

// unmoved is a target without what moves its guests, and whether there is such.
func unmoved(target string) (of string, moved bool) {
	return strings.CutSuffix(target, targets.Moved)
}

// leastEvery is between two moves that do not quite run into one another.
const leastEvery = 2 * time.Second

// names are the targets that may be asked for: those that move guests only of who says
// how often.
func (o *overhead) names() []string {
	if o.every == 0 {
		return targetNames()
	}
	return slices.Sorted(slices.Values(append(targetNames(), movedNames()...)))
}

// checkMoves looks at the targets that move guests: each is compared with the same one
// with its guests where they are.
func (o *overhead) checkMoves() error {
	if o.every < leastEvery {
		return fmt.Errorf("--every %s: the agent does not contact a guest for 1.5 s after a move, so give %s or more", o.every, leastEvery)
	}
	for i, t := range o.targets {
		if of, moved := unmoved(t); moved && slices.Contains(movedNames(), t) && !slices.Contains(o.targets, of) {
			return fmt.Errorf("target %s is compared with %s, which is not among the targets: write --targets %s", t, of, strings.Join(slices.Insert(slices.Clone(o.targets), i, of), ","))
		}
	}
	return nil
}

// moving reports whether one of the targets moves guests.
func (o *overhead) moving() bool {
	return slices.ContainsFunc(o.targets, func(t string) bool { _, moved := unmoved(t); return moved })
}

// whole has the time of all of a program count where guests are moved: what it measures of
// itself the moves mostly miss. The figure of a user's own command is the user's choice.
func (o *overhead) whole(all []bench.Program) []bench.Program {
	if !o.moving() {
		return all
	}
	changed := false
	for i, p := range all {
		if p.Name != programs.AppName {
			all[i], changed = programs.Whole(p), true
		}
	}
	if changed {
		o.remark("guests are moved: the time of all of a program is compared, since what it measures of itself misses moves")
	}
	return all
}

package bench

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"pagurus/fleet"
)

// Underway is a run while it is under way. Whoever runs the program puts here what he
// saw of it beside the text that he gives; it is read when Run of the round has returned.
type Underway struct {
	Got   []Got  // what guests that mirror their hosts have got of them
	Moves *Moves // of its guests, while the program ran; nil: none were to move

	meter func() time.Duration
	begun time.Time
	used  time.Duration // when it began
}

// Got is what a guest that mirrors its host got of it.
type Got struct {
	Guest  string        `json:"guest"`
	Host   string        `json:"host"`
	Shape  fleet.Shape   `json:"shape"`            // what it sees of itself
	Layout *fleet.Layout `json:"layout,omitempty"` // where its parts are; nil: its host has not said
}

// Moves are those of a run's guests while its program ran.
type Moves struct {
	Finished int `json:"finished"`
	Failed   int `json:"failed,omitempty"`
}

type underwayKey struct{}

// UnderwayOf is the run that is under way, for who is told to run it. Where nobody
// wants to know of it, it is one that is forgotten.
func UnderwayOf(ctx context.Context) *Underway {
	if u, ok := ctx.Value(underwayKey{}).(*Underway); ok {
		return u
	}
	return &Underway{meter: func() time.Duration { return 0 }}
}

// Begins says that the program begins now: what was done to get there took nothing from
// it. Who cannot say so leaves it, and all of the run counts.
func (u *Underway) Begins() { u.begun, u.used = time.Now(), u.meter() }

// beginRun begins a run whose measuring is metered.
func (e *Experiment) beginRun(ctx context.Context) (context.Context, *Underway) {
	u := &Underway{meter: e.Used}
	if u.meter == nil {
		u.meter = func() time.Duration { return 0 }
	}
	u.used = u.meter()
	return context.WithValue(ctx, underwayKey{}, u), u
}

// end tells of a run that has ended, and gives what measuring has cost it.
func (u *Underway) end(r *Run) (cost time.Duration) {
	if !u.begun.IsZero() {
		r.Ran = time.Since(u.begun)
	}
	r.Got, r.Moves = u.Got, u.Moves
	return max(0, u.meter()-u.used)
}

// moved says how often guests of a target were moved while its programs ran.
func (r *Record) moved() (notes []string) {
	for _, t := range r.Spec.Targets {
		all, runs := Moves{}, 0
		for _, run := range r.Runs {
			if run.Target == t && run.Moves != nil {
				all.Finished, all.Failed, runs = all.Finished+run.Moves.Finished, all.Failed+run.Moves.Failed, runs+1
			}
		}
		if runs == 0 {
			continue
		}
		note := fmt.Sprintf("%s: a guest was moved %s in %s", t, times(all.Finished), counted(runs, "run"))
		if all.Failed > 0 {
			note += fmt.Sprintf("; %s more it was to be, and stayed where it was", times(all.Failed))
		}
		notes = append(notes, note)
	}
	return notes
}

// mostWays is how many ways to lay a target's guests out there is room for: on a host
// that others use each run may be laid out differently.
const mostWays = 3

// layoutNotes say which layouts tuned guests got, in how many runs of each
// target.
func (r *Record) layoutNotes() (notes []string) {
	for _, t := range r.Spec.Targets {
		found, unknown := map[string]int{}, 0
		for _, run := range r.Runs {
			switch {
			case run.Target != t || r.Guests[t].Tune == "":
			case len(run.Got) == 0:
				unknown++
			default:
				found[gotten(run.Got)]++
			}
		}
		often := slices.SortedFunc(maps.Keys(found), func(a, b string) int { return cmp.Or(found[b]-found[a], strings.Compare(a, b)) })
		for i, what := range often {
			if i == mostWays {
				notes = append(notes, fmt.Sprintf("%s: in other runs it was otherwise yet, the record says how", t))
				break
			}
			notes = append(notes, fmt.Sprintf("%s, in %s: %s", t, counted(found[what], "run"), what))
		}
		if unknown > 0 {
			notes = append(notes, fmt.Sprintf("%s, in %s: what its guests got of their hosts is not known", t, counted(unknown, "run")))
		}
	}
	return notes
}

// gotten says what the guests of a run got, those that got alike in one word.
func gotten(all []Got) string {
	alike := map[string]int{}
	for _, g := range all {
		alike[g.String()]++
	}
	var said []string
	for _, what := range slices.Sorted(maps.Keys(alike)) {
		said = append(said, counted(alike[what], "guest")+": "+what)
	}
	return strings.Join(said, "; ")
}

// String says it in short. Which CPUs and nodes of the host it is on is in the record.
func (g Got) String() string {
	s := g.Shape
	text := counted(s.Sockets, "socket") + " of " + counted(s.Cores, "core") + " with " + counted(s.Threads, "thread")
	if len(s.Nodes) > 0 {
		text += " in " + counted(len(s.Nodes), "node")
	}
	if g.Layout == nil {
		return text + ", and no host has said where"
	}
	text += ", " + pinned(g.Layout.Pins) + ", memory " + pages(g.Layout.Nodes)
	if len(g.Layout.Notes) > 0 {
		text += " (" + strings.Join(g.Layout.Notes, "; ") + ")"
	}
	return text
}

// pinned says how CPUs are kept where they are.
func pinned(pins [][]int) string {
	if len(pins) == 0 {
		return "not pinned"
	}
	hosts := map[int]bool{}
	alone := true
	for _, p := range pins {
		alone = alone && len(p) == 1
		for _, cpu := range p {
			hosts[cpu] = true
		}
	}
	if alone && len(hosts) == len(pins) {
		return "pinned one to one"
	}
	return fmt.Sprintf("pinned together to %s of the host", counted(len(hosts), "CPU"))
}

// pages says of what pages memory is, and whether it is kept to nodes of the host.
func pages(nodes []fleet.LayoutNode) string {
	var sizes []int64
	bound := len(nodes) > 0
	for _, n := range nodes {
		sizes = append(sizes, n.PageBytes)
		bound = bound && len(n.Hosts) > 0
	}
	said := "in pages of the kernel's choice"
	if most := slices.Max(append(sizes, 0)); most > 0 {
		said = fmt.Sprintf("in huge pages of %d MiB", most>>20)
		if slices.Min(sizes) < most {
			said += " in part"
		}
	}
	if bound {
		said += " on nodes of its own"
	}
	return said
}

func counted(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

func times(n int) string {
	switch n {
	case 1:
		return "once"
	case 2:
		return "twice"
	}
	return fmt.Sprintf("%d times", n)
}

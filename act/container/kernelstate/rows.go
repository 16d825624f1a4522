package kernelstate

import (
	"fmt"
	"slices"
	"strings"
)

// Fate says what a move does with a piece of state.
type Fate string

const (
	Carried Fate = "carried" // after the move it is as before
	Waits   Fate = "waits"   // the move waits until it has passed, and is refused at its deadline
	Refused Fate = "refused" // the move is refused before anything is suspended
	Denied  Fate = "denied"  // no program of a container can have it: the call that makes it fails
	Differs Fate = "differs" // the program sees a difference, which the row describes
	Nothing Fate = "nothing" // nothing can be lost, for the reason in the row
)

// Row is one piece of kernel state.
type Row struct {
	Object string // its owner: "UDP socket", "process", "timer"
	Name   string // as the kernel's headers or manual pages name it
	Fate   Fate
	Note   string // for people: what is refused or differs, and what to do; may be empty
	Case   string // the case of internal/testkit/kernelstate that tests it
}

// Rows returns all rows in the document's order.
func Rows() []Row { return slices.Concat(tables...) }

// tables has one table for each kind of object, each in a file of its own.
var tables = [][]Row{sockets, files, processes, times}

// Table describes all rows in Markdown. Carried state has one line per object. Each piece of
// state that a move waits for, refuses, denies or changes has its own line.
func Table() string {
	var objects []string
	kept, count := map[string][]string{}, map[Fate]int{}
	for _, r := range Rows() {
		count[r.Fate]++
		if r.Fate != Carried {
			continue
		}
		if len(kept[r.Object]) == 0 {
			objects = append(objects, r.Object)
		}
		kept[r.Object] = append(kept[r.Object], r.Name)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "Of %d pieces of kernel state a move carries %d and waits for %d; %d make it refused, %d no program of a container can have, %d differ afterwards, and %d have nothing to lose.\n",
		len(Rows()), count[Carried], count[Waits], count[Refused], count[Denied], count[Differs], count[Nothing])
	b.WriteString("\n| object | state that a move carries |\n| --- | --- |\n")
	for _, o := range objects {
		fmt.Fprintf(&b, "| %s | %s |\n", o, strings.Join(kept[o], ", "))
	}
	b.WriteString(spared())
	b.WriteString("\n| object | state | in a move | what to do |\n| --- | --- | --- | --- |\n")
	for _, fate := range []Fate{Differs, Waits, Refused, Denied} {
		for _, r := range Rows() {
			if r.Fate == fate {
				fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", r.Object, r.Name, fate, r.Note)
			}
		}
	}
	return b.String()
}

// spared describes the rows whose state cannot be lost, grouped by reason.
func spared() string {
	var reasons []string
	names := map[string][]string{}
	for _, r := range Rows() {
		if r.Fate != Nothing {
			continue
		}
		if len(names[r.Note]) == 0 {
			reasons = append(reasons, r.Note)
		}
		names[r.Note] = append(names[r.Note], r.Name)
	}
	var b strings.Builder
	if len(reasons) > 0 {
		b.WriteString("\n| state with nothing to lose | why |\n| --- | --- |\n")
	}
	for _, reason := range reasons {
		fmt.Fprintf(&b, "| %s | %s |\n", strings.Join(names[reason], ", "), reason)
	}
	return b.String()
}

// Package kstate lists the kernel state that a process in a container can have, and what
// a move does with each part of it. docs/moving.md has it as a table, printed from here.
// Its tests compare the rows with the options that the kernel's headers define, and the
// driver's tests move a program for each row.
package kstate

import (
	"fmt"
	"slices"
	"strings"
)

// Fate is what becomes of a piece of state in a move.
type Fate string

const (
	Carried Fate = "carried" // after the move it is as before
	Waits   Fate = "waits"   // the move waits until it has passed, up to its deadline, and is refused then
	Refused Fate = "refused" // the move is refused before anything is suspended
	Differs Fate = "differs" // the program sees a difference, which the row describes
)

// Row is one piece of kernel state.
type Row struct {
	Object string // what has it: "UDP socket", "process", "timer"
	Name   string // as the kernel's headers or manual pages name it
	Fate   Fate
	Note   string // for people: what is refused, or differs, and what to do; empty where there is nothing to say
	Case   string // the case of internal/testkit/kernelstate that shows it
}

// Rows are all there are, in the order of the document.
func Rows() []Row { return slices.Concat(tables...) }

// tables are filled by the files of this package, one for each kind of object.
var tables = [][]Row{sockets, files, processes, times}

// Table is the rows as a table in Markdown.
func Table() string {
	var b strings.Builder
	b.WriteString("| what | state | in a move | |\n| --- | --- | --- | --- |\n")
	for _, r := range Rows() {
		fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", r.Object, r.Name, r.Fate, r.Note)
	}
	return b.String()
}

package lifecycle

import (
	"fmt"
	"strings"

	"pagurus/fleet"
)

// Diagram prints every table as a Markdown document: docs/protocol.md.
func Diagram() string {
	var b strings.Builder
	b.WriteString(`# The protocol

Printed from the tables in decide/lifecycle; "go test ./internal/archtest -update"
prints it again.

An order is answered with one of these outcomes:

`)
	for _, o := range fleet.Outcomes {
		fmt.Fprintf(&b, "- **%s**: %s.\n", o.Outcome, o.Says)
	}
	b.WriteString(`
Every order may be carried out twice. A try is told from the next by Attempt, and
a host refuses orders with a Gen older than one it has seen.

## Migration

`)
	migrations := section[fleet.Phase]{first: fleet.Preparing, stages: migrationStages, arrows: migrationArrows, postCopy: postCopyArrows}
	migrations.edges = [][3]string{{"waiting", "copying", "its turn"}, {"ready", "switching", "whole gang ready, or deadline"},
		{"preparing", "discarding", "cancelled"}, {"waiting", "discarding", "cancelled"},
		{"copying", "cancelling", "cancelled"}, {"ready", "cancelling", "cancelled"}}
	migrations.print(&b)
	b.WriteString(`
Home and Gen change in the very commit that enters switching, and back in the
one that enters reverting. Peers' frames go to the source until activating is
entered. The guest's own Run order rests while switching, activating and
reverting.

By post-copy the guest is copied once, and a switch is done when the target has
all of it but the memory that was changed meanwhile. That follows while the guest
runs: until post-copy is left neither host alone has the guest, and if the source
or the line between them is lost, so is the guest.

## Move

A move is a gang of one or more migrations that switch together.

`)
	rules(&b, gangRules)
	fmt.Fprintf(&b, gangText, ReadyLimit)
	b.WriteString("\n## Guest\n\n")
	guests := section[fleet.GuestState]{first: fleet.GuestStarting, stages: guestStages, arrows: guestArrows}
	guests.edges = [][3]string{{"running", "moving", "depart"}, {"moving", "running", "finished or aborted"},
		{"moving", "lost", "lost"}, {"starting", "stopping", "job stops"}, {"restored", "resuming", "all are"}, {"restoring", "stopping", "job stops"}, {"running", "stopping", "job stops"},
		{"sought", "running", "a host runs it"}, {"sought", "lost", "no host runs it, or job stops"}}
	guests.print(&b)
	b.WriteString("\nWatch means: keep the guest and report its end. A host that takes the order resumes a guest that is suspended or held at the\nend of a copy; one that has taken it does so no more, since a switch may suspend the guest later.\n")
	b.WriteString("\n## Job\n\n")
	jobs := section[fleet.JobState]{first: fleet.JobStarting, stages: jobStages, arrows: jobArrows}
	jobs.edges = [][3]string{{"stopping", "suspended", "all guests gone, to be suspended"}, {"suspended", "starting", "resumed, and there is room"},
		{"starting", "running", "all guests run"}, {"starting", "stopping", "cancel, or a guest is gone"},
		{"running", "stopping", "cancel, or a guest is gone"}, {"stopping", "ended", "all guests gone"}}
	jobs.print(&b)
	b.WriteString("\n")
	rules(&b, jobRules)
	b.WriteString("\nA running job grows by guests that its program asks for. Until all of them run they are not the job's.\n\n")
	rules(&b, growthRules)
	printCheckpoints(&b)
	printGone(&b)
	b.WriteString("\n## Host\n\n| state | asked | becomes |\n| --- | --- | --- |\n")
	for _, a := range hostArrows {
		fmt.Fprintf(&b, "| %s | %s | %s |\n", a.from, a.on, a.to)
	}
	return b.String()
}

func rules(b *strings.Builder, lines [][3]string) {
	b.WriteString("| in | when | leads to |\n| --- | --- | --- |\n")
	for _, l := range lines {
		fmt.Fprintf(b, "| %s | %s | %s |\n", l[0], l[1], l[2])
	}
}

// section is one state machine to print; edges are its transitions without a report.
type section[S ~string] struct {
	first    S
	stages   []stage[S]
	arrows   []arrow[S]
	postCopy []arrow[S] // replace some arrows in post-copy
	edges    [][3]string
}

func (s section[S]) print(b *strings.Builder) {
	fmt.Fprintf(b, "```mermaid\nstateDiagram-v2\n    [*] --> %s\n", s.first)
	for _, st := range s.stages {
		for _, a := range s.arrows {
			if a.from != st.in {
				continue
			}
			if a.to != a.from {
				fmt.Fprintf(b, "    %s --> %s: %s %s\n", a.from, a.to, st.verb, a.on)
			} else if a.last != "" {
				fmt.Fprintf(b, "    %s --> %s: %s %s ×%d\n", a.from, a.last, st.verb, a.on, a.tries+1)
			}
		}
		for _, a := range s.postCopy {
			if a.from == st.in {
				fmt.Fprintf(b, "    %s --> %s: %s %s, by post-copy\n", a.from, a.to, st.verb, a.on)
			}
		}
		for _, e := range s.edges {
			if e[0] == string(st.in) {
				fmt.Fprintf(b, "    %s --> %s: %s\n", e[0], e[1], e[2])
			}
		}
		if s.end(st.in) {
			fmt.Fprintf(b, "    %s --> [*]\n", st.in)
		}
	}
	b.WriteString("```\n\n| state | order (to) | done | failed | unknown |\n| --- | --- | --- | --- | --- |\n")
	for _, st := range s.stages {
		if st.verb == "" {
			fmt.Fprintf(b, "| %s | waits for %s | | | |\n", st.in, st.says)
			continue
		}
		fmt.Fprintf(b, "| %s | %s (%s) | %s | %s | %s |\n", st.in, st.verb, st.at,
			s.cell(st.in, fleet.Done), s.cell(st.in, fleet.Failed), s.cell(st.in, fleet.Unknown))
	}
}

// end reports whether a state is final.
func (s section[S]) end(in S) bool {
	for _, a := range s.arrows {
		if a.from == in {
			return false
		}
	}
	for _, e := range s.edges {
		if e[0] == string(in) {
			return false
		}
	}
	return true
}

func (s section[S]) cell(in S, on fleet.Outcome) string {
	for _, a := range s.arrows {
		switch {
		case a.from != in || a.on != on:
		case a.to != in:
			return string(a.to) + s.instead(in, on)
		case a.tries == 0:
			return "again"
		default:
			return fmt.Sprintf("again ×%d, then %s", a.tries, a.last)
		}
	}
	return ""
}

// instead says where an outcome leads in post-copy, if elsewhere.
func (s section[S]) instead(in S, on fleet.Outcome) string {
	for _, a := range s.postCopy {
		if a.from == in && a.on == on {
			return ", by post-copy " + string(a.to)
		}
	}
	return ""
}

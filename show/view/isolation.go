package view

import (
	"fmt"
	"slices"
	"strings"

	"pagurus/fleet"
)

// IsolationText says in lines which CPUs of a host are isolated; nothing if none were
// requested.
func IsolationText(h fleet.Host) []string {
	return append(bootText(h), isolationText(h)...)
}

// bootText says which CPUs a host's kernel isolates from its start.
func bootText(h fleet.Host) []string {
	b := h.Facts.Boots
	switch {
	case b == nil:
		return nil
	case len(b.Prepared) > 0 && !slices.Equal(b.Prepared, b.Asked):
		return []string{fmt.Sprintf("%s isolates CPUs %s from its next boot on", h.ID, b.Prepared)}
	case !slices.Equal(b.Asked, b.Tickless):
		return []string{fmt.Sprintf("%s was booted to isolate CPUs %s, but its kernel stops the timer tick of %s", h.ID, b.Asked, orElse(b.Tickless.String(), "none"))}
	}
	return []string{fmt.Sprintf("%s was booted to isolate CPUs %s", h.ID, b.Tickless)}
}

func isolationText(h fleet.Host) (lines []string) {
	q := h.Facts.Isolation
	switch {
	case q == nil && len(h.IsolatedCPUs) == 0:
		return nil
	case q == nil:
		return []string{fmt.Sprintf("CPUs %s of %s should be isolated; its agent has not reported yet", h.IsolatedCPUs, h.ID)}
	case q.Unable != "" && len(h.IsolatedCPUs) > 0:
		lines = append(lines, fmt.Sprintf("%s cannot isolate CPUs %s: %s", h.ID, h.IsolatedCPUs, q.Unable))
	case q.Trouble != "":
		lines = append(lines, fmt.Sprintf("the CPUs of %s are not isolated as requested: %s", h.ID, q.Trouble))
	}
	if len(q.CPUs) > 0 {
		which := fmt.Sprintf("CPUs %s of %s are", q.CPUs, h.ID)
		if len(q.CPUs) == 1 {
			which = fmt.Sprintf("CPU %s of %s is", q.CPUs, h.ID)
		}
		lines = append(lines, fmt.Sprintf("%s isolated: %s differ until `pagurus isolate %s off`", which, Count(q.Changed, "setting"), h.ID))
	}
	for _, l := range q.Left {
		lines = append(lines, "left alone: "+l)
	}
	return lines
}

// isolationNotes is IsolationText in one line, for the table of hosts.
func isolationNotes(h Host) []string {
	lines := IsolationText(h.Host)
	if len(lines) == 0 {
		return nil
	}
	if q := h.Facts.Isolation; q != nil && len(q.Left) > 0 {
		return []string{strings.Join(lines[:len(lines)-len(q.Left)], "; ") + "; `pagurus isolate " + string(h.ID) + "` lists what was left alone"}
	}
	return []string{strings.Join(lines, "; ")}
}

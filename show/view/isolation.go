package view

import (
	"fmt"
	"strings"

	"pagurus/fleet"
)

// IsolationText says in lines which CPUs of a host are isolated; nothing if none were
// requested.
func IsolationText(h fleet.Host) (lines []string) {
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

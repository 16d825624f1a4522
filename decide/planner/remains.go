package planner

import (
	"fmt"
	"strings"

	"pagurus/decide/desired"
	"pagurus/fleet"
)

// remains tells what was kept of a guest that ended.
func remains(g fleet.Guest) (out []string) {
	r := g.Remains
	if r == nil {
		return nil
	}
	say := func(format string, args ...any) { out = append(out, fmt.Sprintf(format, args...)) }
	for _, limit := range r.Limits() {
		say("%s%s.", strings.ToUpper(limit[:1]), limit[1:])
	}
	if r.Reason != "" {
		say("QEMU's reason: %s.", r.Reason)
	}
	for _, part := range []struct {
		name  string
		lines []string
	}{{"console", r.Console}, {"log", r.Log}} {
		if len(part.lines) > 0 {
			say("The end of its %s:", part.name)
		}
		for _, line := range part.lines {
			say("  %s", line)
		}
	}
	if r.Folder != "" {
		say("%s keeps the ends of both in %s.", g.Home, r.Folder)
	}
	return out
}

// limitsReached tells which guests of an ended job had too little memory, or too many processes.
func (e *explainer) limitsReached(j fleet.Job) (out []string) {
	for _, id := range desired.GuestIDs(j) {
		if r := e.s.Guests[id].Remains; r != nil {
			for _, limit := range r.Limits() {
				out = append(out, fmt.Sprintf("Of %s, %s.", id, limit))
			}
		}
	}
	return out
}

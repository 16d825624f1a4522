package view

import (
	"strings"
	"testing"
	"time"

	"pagurus/fleet"
)

func TestWhatIsIsolatedIsSaid(t *testing.T) {
	two := fleet.CPUSet{2, 3}
	for _, c := range []struct {
		h           fleet.Host
		lines, note string
	}{
		{fleet.Host{ID: "h"}, "", ""},
		{fleet.Host{ID: "h", Facts: fleet.Facts{Isolation: &fleet.Isolation{Unable: "why"}}}, "", ""},
		{fleet.Host{ID: "h", IsolatedCPUs: two}, "should be isolated; its agent has not reported yet", "not reported"},
		{fleet.Host{ID: "h", IsolatedCPUs: two, Facts: fleet.Facts{Isolation: &fleet.Isolation{Unable: "why"}}}, "h cannot isolate CPUs 2-3: why", "why"},
		{fleet.Host{ID: "h", IsolatedCPUs: two, Facts: fleet.Facts{Isolation: &fleet.Isolation{Trouble: "broken"}}}, "the CPUs of h are not isolated as requested: broken", "broken"},
		{fleet.Host{ID: "h", Facts: fleet.Facts{Isolation: &fleet.Isolation{CPUs: two[:1], Changed: 7}}}, "CPU 2 of h is isolated", "CPU 2 of h is"},
		{fleet.Host{ID: "h", IsolatedCPUs: two, Facts: fleet.Facts{Isolation: &fleet.Isolation{CPUs: two, Changed: 7, Left: []string{"a: b", "c: d"}}}},
			"CPUs 2-3 of h are isolated: 7 settings differ until `pagurus isolate h off`\nleft alone: a: b\nleft alone: c: d",
			"off`; `pagurus isolate h` lists what was left alone"},
		{fleet.Host{ID: "h", Facts: fleet.Facts{Boots: &fleet.BootIsolation{Prepared: two}}}, "h isolates CPUs 2-3 from its next boot on", "next boot"},
		{fleet.Host{ID: "h", Facts: fleet.Facts{Boots: &fleet.BootIsolation{Prepared: two, Asked: two, Tickless: two}}}, "h was booted to isolate CPUs 2-3", "was booted"},
		{fleet.Host{ID: "h", Facts: fleet.Facts{Boots: &fleet.BootIsolation{Asked: two}}}, "its kernel stops the timer tick of none", "of none"},
	} {
		lines := strings.Join(IsolationText(c.h), "\n")
		if !strings.Contains(lines, c.lines) || c.lines == "" && lines != "" {
			t.Errorf("%+v: %q", c.h.Facts.Isolation, lines)
		}
		c.h.Facts.SeenAt, c.h.Facts.Connected = time.Unix(100, 0), true
		c.h.Facts.Abilities = map[fleet.Kind]fleet.Abilities{fleet.VM: {}}
		table := Read(fleet.Snapshot{At: time.Unix(100, 0), Hosts: map[fleet.HostID]fleet.Host{"h": c.h}}).HostTable()
		notes := strings.Join(table.Notes, "\n")
		if !strings.Contains(notes, c.note) || c.note == "" && notes != "" || strings.Contains(notes, "a: b") {
			t.Errorf("%+v: notes %q", c.h.Facts.Isolation, notes)
		}
	}
}

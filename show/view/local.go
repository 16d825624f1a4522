package view

import (
	"fmt"
	"strings"

	"pagurus/fleet"
)

// OwnerStatus says what Pagurus does on a machine, for its owner there.
func OwnerStatus(a fleet.OwnerAnswer) string {
	var out []string
	say := func(format string, args ...any) { out = append(out, fmt.Sprintf(format, args...)) }
	switch o := a.Owner; {
	case a.Pause && a.Until.IsZero():
		say("%s is yours until you type `pagurus owner resume`.", a.Host)
	case a.Pause:
		say("%s is yours for %s more; `pagurus owner resume` ends that.", a.Host, Age(a.Until.Sub(a.At)))
	case o == nil:
		say("The agent of %s has only just begun to look.", a.Host)
	case o.State == "":
		say("%s has no owner: guests use it at all times; `pagurus owner policy --owner yes` changes that.", a.Host)
	case o.State == fleet.OwnerAbsent:
		say("You count as away from %s, since %s; guests may use it.", a.Host, Age(o.IdleFor(a.At)))
	case o.State == fleet.OwnerLeaving:
		say("You were last seen at %s %s ago; guests get what your programs leave.", a.Host, Age(a.At.Sub(o.LastSign)))
	default:
		say("You count as %s at %s since %s (%s); guests get what your programs leave.", o.State, a.Host, Age(o.ThereFor(a.At)), o.Why)
	}
	if len(a.Guests) == 0 {
		say("No guest is here.")
	}
	for _, g := range a.Guests {
		what := string(g.Run)
		if g.Leaving {
			what = "leaving"
		}
		say("Guest %s is %s: %.1f CPUs, %s of memory.", g.ID, what, g.CPUs, Bytes(g.MemoryBytes))
	}
	if a.Notices != nil {
		for _, n := range a.Notices.Pending {
			say("Guests leave, since %s.", n.Sentence(a.At))
		}
	}
	if a.Owner != nil && len(a.Owner.Deaf) > 0 {
		say("These sensors do not work and are ignored: %s.", strings.Join(a.Owner.Deaf, "; "))
	}
	if a.Alone {
		say("The controller is not heard: guests cannot leave until it is, and give way all the same.")
	}
	return strings.Join(out, "\n")
}

// OwnerPolicyText says what the owner has agreed to.
func OwnerPolicyText(a fleet.OwnerAnswer) string {
	text := (Cluster{}).PolicyText(Host{Host: fleet.Host{ID: a.Host, Policy: a.Policy}})
	if a.Policy.Owned && a.Policy.Vacate == "" {
		text = strings.Replace(text, "applies: "+string((fleet.Rules{}).Chosen().Name), "applies", 1) // which it is, only the controller knows
	}
	if a.Unsent {
		text += "\nThe controller has not taken it yet; it counts on this machine already."
	}
	return text
}

// OwnerHistory lists what happened, the newest last.
func OwnerHistory(a fleet.OwnerAnswer) Table {
	t := Table{Columns: []string{"WHEN", "WHAT"}, Empty: "nothing has happened since the machine was started"}
	for _, e := range a.History {
		t.Rows = append(t.Rows, []string{e.At.Local().Format("2006-01-02 15:04:05"), cell(e.Says)})
	}
	return t
}

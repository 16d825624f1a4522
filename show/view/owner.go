package view

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"pagurus/fleet"
)

// ownerColumns adds to the hosts' table what is known of their owners, where
// anything is.
func (c Cluster) ownerColumns(t *Table) {
	known := func(h Host) bool { return h.Facts.Owner != nil }
	if !slices.ContainsFunc(c.Hosts, known) {
		return
	}
	t.Columns = append(t.Columns, "OTHERS", "OWNER", "IDLE")
	for i, h := range c.Hosts {
		others, owner, idle := "-", "-", "-"
		if o := h.Facts.Owner; o != nil {
			others = fmt.Sprintf("%.2f", o.LoadCPUs)
			if o.State != "" {
				owner = string(o.State)
			}
			if o.State == fleet.OwnerAbsent || o.State == fleet.OwnerLeaving {
				idle = Age(c.At.Sub(o.LastSign))
			}
		}
		t.Rows[i] = append(t.Rows[i], others, owner, idle)
		t.Notes = append(t.Notes, c.ownerNotes(h)...)
	}
}

// ownerNotes says what becomes of a host whose owner is there, and which
// sensors do not count.
func (c Cluster) ownerNotes(h Host) []string {
	var notes []string
	o := h.Facts.Owner
	if o == nil || o.State == "" {
		return nil
	}
	if o.Present {
		why := ""
		if o.Why != "" {
			why = " (" + o.Why + ")"
		}
		notes = append(notes, fmt.Sprintf("the owner of %s is %s since %s%s: %s", h.ID, o.State, Age(o.ThereFor(c.At)), why, c.next(h)))
	}
	if len(o.Deaf) > 0 {
		notes = append(notes, fmt.Sprintf("%s does not count what it cannot sense: %s", h.ID, strings.Join(o.Deaf, "; ")))
	}
	return notes
}

// next says what happens to the guests of a host whose owner is there.
func (c Cluster) next(h Host) string {
	guests, they := Count(len(h.GuestIDs), "guest"), "they go"
	if len(h.GuestIDs) == 0 {
		return "it takes no guests"
	}
	if len(h.GuestIDs) == 1 {
		they = "it goes"
	}
	way := "its " + guests + " get what is left of its CPUs"
	if p := h.Policy.Cap; p > 0 {
		way += fmt.Sprintf(", %.0f %% at most", 100*p)
	}
	switch vacate := h.Policy.Vacate; {
	case vacate == fleet.Suspend && h.Facts.Owner.State == fleet.OwnerPresent:
		return "its " + guests + " all but stand still until the owner is gone"
	case vacate == fleet.Suspend:
		return way + "; if the owner stays, " + they + " on at next to nothing"
	case vacate == fleet.Stay:
		return way + " until the owner is gone"
	case h.ForOwner:
		return way + " and leave as other hosts have room"
	case h.Facts.Owner.State == fleet.OwnerReturning:
		return way + "; if the owner stays, " + they + " to other hosts"
	}
	return way
}

// PolicyText says in a line what a host's owner has agreed to.
func (h Host) PolicyText() string {
	p := h.Policy
	if !p.Owned && !p.Claimed {
		return fmt.Sprintf("%s is nobody's but the cluster's", h.ID)
	}
	words := []string{"guests " + string(vacates(p.Vacate)) + " when its owner stays"}
	if p.Preset != "" {
		words = append(words, "sensors judged as "+p.Preset+" does")
	}
	if p.IdleAfter > 0 {
		words = append(words, "the owner is gone after "+Age(p.IdleAfter)+" without a sign")
	}
	if !p.Hours.All() {
		words = append(words, "guests are welcome from "+Hours(p.Hours))
	}
	if p.Cap > 0 {
		words = append(words, fmt.Sprintf("guests have at most %.0f %% of the CPUs while the owner is there", 100*p.Cap))
	}
	if len(p.Exclusive) > 0 {
		words = append(words, "the owner is there while one of these runs: "+strings.Join(p.Exclusive, ", "))
	}
	if p.Claimed {
		words = append(words, "claimed by hand")
	}
	return fmt.Sprintf("%s has an owner: %s", h.ID, strings.Join(words, "; "))
}

func vacates(v fleet.Vacate) fleet.Vacate {
	if v == "" {
		return fleet.Evacuate
	}
	return v
}

// Hours writes a part of the day as ParseHours reads it.
func Hours(h fleet.Hours) string {
	at := func(d time.Duration) string {
		return fmt.Sprintf("%02d:%02d", int(d.Hours()), int(d.Minutes())%60)
	}
	return at(h.From) + "-" + at(h.To)
}

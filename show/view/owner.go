package view

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"pagurus/fleet"
)

// ownerColumns adds owner columns to the hosts' table, if any host reports an owner.
func (c Cluster) ownerColumns(t *Table) {
	known := func(h Host) bool { return h.Facts.Owner != nil }
	if !slices.ContainsFunc(c.Hosts, known) {
		return
	}
	t.Columns = append(t.Columns, "OWNER-CPU", "OWNER", "IDLE")
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

// ownerNotes says what happens to a host with a present owner, and which sensors do not
// count.
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
		reclaimed := ""
		if n := h.reclaimedBytes(); n > 0 {
			reclaimed = ", and have given back " + Bytes(n) + " of memory"
		}
		notes = append(notes, fmt.Sprintf("the owner of %s has been %s for %s%s: %s%s", h.ID, o.State, Age(o.ThereFor(c.At)), why, c.next(h), reclaimed))
	}
	if len(o.Deaf) > 0 {
		notes = append(notes, fmt.Sprintf("%s ignores sensors that do not work: %s", h.ID, strings.Join(o.Deaf, "; ")))
	}
	return notes
}

// next says what happens to the guests of a host with a present owner.
func (c Cluster) next(h Host) string {
	guests, they := Count(len(h.GuestIDs), "guest"), "they go"
	if len(h.GuestIDs) == 0 {
		return "it takes no guests"
	}
	if len(h.GuestIDs) == 1 {
		they = "it goes"
	}
	way := "its " + guests + " get the CPU time that the owner does not use"
	if p := h.Policy.Cap; p > 0 {
		way += fmt.Sprintf(", %.0f %% at most", 100*p)
	}
	stands, stand := c.suspendedGuests(h)
	switch vacate := h.Vacates(c.Rules); {
	case vacate == fleet.Suspend && h.Facts.Owner.State == fleet.OwnerReturning:
		return way + "; if the owner stays, " + stand + " suspended until the owner is gone"
	case vacate == fleet.Requeue && h.Facts.Owner.State == fleet.OwnerReturning:
		return way + "; if the owner stays, their jobs begin again elsewhere"
	case vacate == fleet.Stay:
		return way + " until the owner is gone"
	case stands > 0 && h.ForOwner:
		return fmt.Sprintf("%d of its %s are suspended until the policy has them leave or the owner is gone", stands, guests)
	case stands > 0 && vacate == fleet.Suspend:
		return fmt.Sprintf("%d of its %s are suspended until the owner is gone", stands, guests)
	case stands > 0:
		return fmt.Sprintf("%d of its %s are suspended until the owner is gone or leaving is worth it", stands, guests)
	case h.ForOwner:
		return way + " and leave as other hosts have room"
	case h.Facts.Owner.State == fleet.OwnerReturning:
		return way + "; if the owner stays, " + they + " to other hosts"
	}
	return way
}

// reclaimedBytes is the memory reclaimed from a host's guests.
func (h Host) reclaimedBytes() (bytes int64) {
	for _, g := range h.Facts.Guests {
		bytes += g.ReclaimedBytes
	}
	return bytes
}

// suspendedGuests counts a host's guests that are suspended for its owner, and gives the
// verb for the sentence.
func (c Cluster) suspendedGuests(h Host) (n int, would string) {
	for _, g := range c.Guests {
		if g.Home == h.ID && g.Suspended && !g.State.Ended() {
			n++
		}
	}
	if len(h.GuestIDs) == 1 {
		return n, "it is"
	}
	return n, "they are"
}

// PolicyText says a host's owner policy in one line.
func (c Cluster) PolicyText(h Host) string {
	p := h.Policy
	if !p.Owned && !p.Claimed {
		return fmt.Sprintf("%s has no owner", h.ID)
	}
	words := []string{"guests " + become(p.Vacate) + " when its owner stays"}
	if p.Vacate == "" {
		words[0] = "when its owner stays, the cluster's policy applies: " + string(c.Rules.Chosen().Name)
	}
	if p.Nowhere != "" {
		words = append(words, "those that cannot leave "+become(p.Nowhere))
	}
	if p.Preset != "" {
		words = append(words, "the sensors are judged as "+p.Preset+" does")
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
		words = append(words, "the owner has claimed it by hand")
	}
	return fmt.Sprintf("%s has an owner: %s", h.ID, strings.Join(words, "; "))
}

// become is what guests do by an action.
func become(v fleet.Vacate) string {
	switch v {
	case fleet.Suspend:
		return "are suspended"
	case fleet.Evacuate:
		return "leave"
	}
	return string(v)
}

// Hours writes a time range of the day as parseHours reads it.
func Hours(h fleet.Hours) string {
	at := func(d time.Duration) string {
		return fmt.Sprintf("%02d:%02d", int(d.Hours()), int(d.Minutes())%60)
	}
	return at(h.From) + "-" + at(h.To)
}

package view

import (
	"fmt"
	"strings"
	"time"

	"pagurus/fleet"
)

// Unwell is a host with signs of failing.
type Unwell struct {
	Host    fleet.HostID       `json:"host"`
	State   fleet.HostState    `json:"state"`
	Policy  fleet.HealthPolicy `json:"policy"`
	Emptied bool               `json:"emptied"` // for these signs
	Guests  int                `json:"guests"`  // still there
	Signs   []fleet.Sign       `json:"signs"`
}

// Unwell lists the hosts with signs of failing.
func (c Cluster) Unwell() []Unwell {
	out := []Unwell{}
	for _, h := range c.Hosts {
		if f := h.Facts.Health; f != nil && len(f.Signs) > 0 {
			out = append(out, Unwell{h.ID, h.State, f.Policy, h.ForHealth, len(h.GuestIDs), f.Signs})
		}
	}
	return out
}

// HealthTable lists the signs of all hosts.
func (c Cluster) HealthTable() Table {
	looking, blind := 0, map[string][]string{}
	var order []string
	for _, h := range c.Hosts {
		if h.Facts.Health == nil || h.Facts.Health.Policy == fleet.HealthOff {
			continue
		}
		looking++
		for _, what := range h.Facts.Health.Blind {
			if blind[what] == nil {
				order = append(order, what)
			}
			blind[what] = append(blind[what], string(h.ID))
		}
	}
	t := Table{
		Columns: []string{"HOST", "SIGN", "WHERE", "COUNT", "SINCE", "LAST", "GRAVE", "DONE"},
		Empty:   "no host shows signs of failing; of " + Count(len(c.Hosts), "host") + fmt.Sprintf(" %d looked for them", looking),
	}
	for _, u := range c.Unwell() {
		for _, s := range u.Signs {
			t.Rows = append(t.Rows, []string{cell(string(u.Host)), cell(string(s.Kind)), orDash(cell(s.Where)), countOf(s),
				Age(c.At.Sub(s.Since)), Age(c.At.Sub(s.Last)), yesNo(s.Grave), u.done(s)})
			if s.Says != "" {
				t.Notes = append(t.Notes, fmt.Sprintf("the check of %s says: %s", u.Host, cell(s.Says)))
			}
		}
	}
	for _, h := range c.Hosts {
		if lost := h.RecentLosses(c.At); len(lost) > 0 {
			t.Notes = append(t.Notes, fmt.Sprintf("%s was lost %s in %d days, last %s ago; see `pagurus explain %s`", h.ID, Count(len(lost), "time"), int(fleet.LossWindow/(24*time.Hour)), Age(c.At.Sub(lost[len(lost)-1])), h.ID))
		}
	}
	for _, what := range order {
		t.Notes = append(t.Notes, fmt.Sprintf("%s: %s", fleet.Enumerate(blind[what], "and"), what))
	}
	return t
}

func countOf(s fleet.Sign) string {
	if s.Count == 0 {
		return "-"
	}
	return fmt.Sprint(s.Count)
}

func yesNo(yes bool) string {
	if yes {
		return "yes"
	}
	return "no"
}

// done says what was done about a sign.
func (u Unwell) done(s fleet.Sign) string {
	switch {
	case !s.Grave:
		return "shown"
	case u.Policy == fleet.HealthWarn:
		return "shown, as its policy says"
	case u.Emptied && u.Guests > 0:
		return Count(u.Guests, "guest") + " to leave"
	case u.Emptied:
		return "emptied"
	case u.State == fleet.HostDraining:
		return "drains anyway"
	}
	return "undrained by a person"
}

// healthNotes says which hosts are emptied for their health.
func (c Cluster) healthNotes(t *Table) {
	for _, u := range c.Unwell() {
		if !u.Emptied {
			continue
		}
		var all []string
		for _, s := range u.Signs {
			if s.Grave {
				all = append(all, cell(s.Sentence()))
			}
		}
		t.Notes = append(t.Notes, fmt.Sprintf("%s is emptied, since it may fail: %s; see `pagurus health`", u.Host, strings.Join(all, ", and ")))
	}
}

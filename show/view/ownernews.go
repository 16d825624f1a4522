package view

import (
	"fmt"
	"slices"
	"strings"

	"pagurus/fleet"
)

// mostNamed is how many guests a sentence names.
const mostNamed = 3

// OwnerNews says which guests came to an owner's machine and which went, from one answer of its agent to a
// later one; empty: none.
func OwnerNews(before, now fleet.OwnerAnswer) string {
	var says []string
	if came := guestsWithout(now, before); came != "" {
		says = append(says, fmt.Sprintf("%s came to %s", came, now.Host))
	}
	if left := guestsWithout(before, now); left != "" {
		says = append(says, fmt.Sprintf("%s left %s", left, now.Host))
	}
	if len(says) == 0 {
		return ""
	}
	rest := "none is here now"
	if n := len(now.Guests); n > 0 {
		rest = Count(n, "guest") + " now"
	}
	return fmt.Sprintf("%s: %s.", strings.Join(says, ", "), rest)
}

// guestsWithout names the guests of one answer that another does not have; empty: there are none.
func guestsWithout(of, other fleet.OwnerAnswer) string {
	var ids []fleet.GuestID
	for _, g := range of.Guests {
		if !slices.ContainsFunc(other.Guests, func(o fleet.OwnerGuest) bool { return o.ID == g.ID }) {
			ids = append(ids, g.ID)
		}
	}
	switch {
	case len(ids) == 0:
		return ""
	case len(ids) > mostNamed:
		return Count(len(ids), "guest")
	}
	return List(ids)
}

package view

import (
	"fmt"
	"slices"
	"strings"

	"pagurus/fleet"
)

// readMembers puts users and tokens in order.
func (c *Cluster) readMembers(s fleet.Snapshot) {
	c.Users, c.Tokens = []fleet.User{}, []fleet.JoinToken{}
	for _, u := range s.Users {
		c.Users = append(c.Users, u)
	}
	for _, t := range s.Tokens {
		c.Tokens = append(c.Tokens, t)
	}
	slices.SortFunc(c.Users, func(a, b fleet.User) int { return Compare(string(a.ID), string(b.ID)) })
	slices.SortFunc(c.Tokens, func(a, b fleet.JoinToken) int { return a.Since.Compare(b.Since) })
}

// UserTable shows users.
func (c Cluster) UserTable() Table {
	t := Table{Columns: []string{"USER", "ROLE", "UID", "GID", "LOGINS", "OWNS"}, Empty: "no users: `pagurus user add NAME` adds one; on the controller's own machine no login is needed"}
	for _, u := range c.Users {
		owns := make([]string, 0, len(u.Owns))
		for _, host := range u.Owns {
			owns = append(owns, string(host))
		}
		t.Rows = append(t.Rows, []string{cell(string(u.ID)), cell(string(u.Role)), fmt.Sprint(u.UID), fmt.Sprint(u.GID), fmt.Sprint(len(u.Keys)), orDash(cell(strings.Join(owns, ",")))})
	}
	return t
}

// TokenTable shows join tokens, without what opens anything.
func (c Cluster) TokenTable() Table {
	t := Table{Columns: []string{"TOKEN", "ROLE", "USER", "SITE", "USES", "EXPIRES"}, Empty: "no join tokens: `pagurus token create` makes one"}
	for _, k := range c.Tokens {
		expires := "expired"
		if left := k.Expires.Sub(c.At); left > 0 {
			expires = "in " + Age(left)
		}
		t.Rows = append(t.Rows, []string{cell(string(k.ID)), cell(string(k.Role)), orDash(cell(string(k.User))), orDash(cell(k.Site)), uses(k), expires})
	}
	return t
}

// uses says how often a token can be used.
func uses(k fleet.JoinToken) string {
	if k.Access {
		return "programs"
	}
	return fmt.Sprint(k.Uses)
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

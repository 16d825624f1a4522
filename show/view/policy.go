package view

import (
	"fmt"

	"pagurus/fleet"
)

// Policy says what becomes of guests when owners return.
type Policy struct {
	fleet.VacatePolicy
	InForce bool   `json:"in_force"`
	CPU     string `json:"cpu_level,omitempty"` // of virtual machines that start, for the one in force; empty: what each host's agent is told
}

// Policies lists all policies. For the one in force Placement is the present one.
func Policies(r fleet.Rules) []Policy {
	var out []Policy
	for _, p := range fleet.VacatePolicies {
		row := Policy{VacatePolicy: p, InForce: p.Name == r.Chosen().Name}
		if row.InForce {
			row.Placement, row.CPU = r.Places(), r.CPU
		}
		out = append(out, row)
	}
	return out
}

// PolicyTable lists the policies.
func PolicyTable(r fleet.Rules) Table {
	t := Table{Columns: []string{"POLICY", "IN FORCE", "PLACEMENT", "WHAT HAPPENS TO GUESTS WHEN AN OWNER STAYS"}}
	for _, p := range Policies(r) {
		in := "-"
		if p.InForce {
			in = "yes"
		}
		t.Rows = append(t.Rows, []string{string(p.Name), in, p.Placement, p.Says})
	}
	return t
}

// Text is a policy in words.
func (p Policy) Text() string {
	force := ""
	if p.InForce {
		force = " (in force)"
	}
	way := "hosts with most room are chosen first"
	if p.Placement == "longest-idle" {
		way = "hosts whose owners have been away longest are chosen first, and of those the ones in the site of the rest of the job"
	}
	return fmt.Sprintf("%s%s: %s; %s", p.Name, force, p.Says, way)
}

// This file decides which CPUs of a host may be isolated. It must not know how that is
// done. Its tests use hosts of several shapes.

package planner

import (
	"fmt"
	"slices"

	"pagurus/fleet"
)

// amendIsolated applies a request for isolated CPUs to a host. It returns the host and
// notes, or the reason for a refusal, both for people.
func amendIsolated(h fleet.Host, r fleet.Request) (out fleet.Host, notes []string, reason string) {
	switch f := h.Facts; {
	case r.Isolation == nil:
		return h, nil, "the request does not say which CPUs to isolate; pagurus and its controller may be of different versions, see `pagurus version`"
	case !r.Isolation.On && len(r.Isolation.CPUs) > 0:
		return h, nil, "off always puts back all CPUs; leave --" + fleet.CoresFlag + " out"
	case !r.Isolation.On:
		h.IsolatedCPUs = nil
		return h, nil, ""
	case f.SeenAt.IsZero():
		return h, nil, fmt.Sprintf("%s has not been heard from, so its CPUs are not known; start its agent, see `pagurus host ls`", h.ID)
	case f.Isolation == nil || f.Topology == nil:
		return h, nil, fmt.Sprintf("the agent of %s does not say whether it can; it may be of an older version, see `pagurus version`", h.ID)
	case f.Isolation.Unable != "":
		return h, nil, fmt.Sprintf("%s cannot keep cores for guests: %s; ask it of a host whose agent runs on the machine itself", h.ID, f.Isolation.Unable)
	}
	t := *h.Facts.Topology
	want := r.Isolation.CPUs
	if len(want) == 0 {
		want = usual(t)
	}
	if reason := invalid(h.ID, want, t.CPUs()); reason != "" {
		return h, nil, reason
	}
	h.IsolatedCPUs = want
	return h, siblings(t, want), ""
}

// usual is all but the first core.
func usual(t fleet.Topology) fleet.CPUSet {
	all := t.CPUs()
	if len(all) == 0 {
		return nil
	}
	for _, n := range t.Nodes {
		for _, c := range n.Cores {
			if slices.Contains(c.CPUs, all[0]) {
				return all.Minus(slices.Sorted(slices.Values(c.CPUs)))
			}
		}
	}
	return nil
}

func invalid(id fleet.HostID, want, all fleet.CPUSet) string {
	missing := want.Minus(all)
	switch {
	case len(missing) > 0:
		return fmt.Sprintf("%s has no CPU %s; it has %s", id, missing, all)
	case len(want) == 0:
		return fmt.Sprintf("%s has only one core, which all other processes need", id)
	case len(want) == len(all):
		return fmt.Sprintf("these are all CPUs of %s, and other processes need at least one; leave out the first, as in --"+fleet.CoresFlag+" %s", id, all[1:])
	}
	return ""
}

// siblings names the cores that have isolated threads and others.
func siblings(t fleet.Topology, want fleet.CPUSet) (notes []string) {
	for _, n := range t.Nodes {
		for _, c := range n.Cores {
			mine := fleet.CPUSet(slices.Sorted(slices.Values(c.CPUs)))
			if others := mine.Minus(want); mine.Meets(want) && len(others) > 0 {
				notes = append(notes, fmt.Sprintf("CPU %s is not isolated and is on the same core as CPU %s: programs there slow guests here", others, mine.Minus(others)))
			}
		}
	}
	return notes
}

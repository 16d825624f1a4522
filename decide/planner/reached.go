// This file says how a job's files reach its guests.
//
// It decides nothing. The planner's tests cover it.

package planner

import (
	"fmt"
	"slices"
	"strings"

	"pagurus/decide/desired"
	"pagurus/decide/placement"
	"pagurus/fleet"
)

// directories are a job's directories, for people.
func directories(s fleet.JobSpec) []string {
	var all []string
	for _, d := range s.Directories() {
		if d.ReadOnly {
			d.Path += " to read only"
		}
		all = append(all, d.Path)
	}
	return all
}

// reached says how the files reach guests that their hosts show them to, where that is not
// in place.
func (e *explainer) reached(j fleet.Job) (out []string) {
	said := map[string][]string{}
	var order []string
	for _, id := range desired.GuestIDs(j) {
		g, ok := e.s.Guests[id]
		if !ok || g.State.Ended() || g.Kind.Traits().MountsFiles {
			continue
		}
		var by []string
		for _, d := range j.Spec.Directories() {
			switch way, _ := placement.Reach(d, j.Spec.Machine, e.s.Hosts[g.Home].Facts); way {
			case placement.Shared:
				by = append(by, fmt.Sprintf("%s is the one that %s shares with others anyway", d.Path, g.Home))
			case placement.Mounted:
				by = append(by, fmt.Sprintf("%s mounts %s from %s", g.Home, d.Path, j.ShareHost))
			}
		}
		if what := strings.Join(by, ", and "); what != "" {
			if said[what] == nil {
				order = append(order, what)
			}
			said[what] = append(said[what], string(id))
		}
	}
	for _, what := range order {
		out = append(out, fmt.Sprintf("For %s %s.", fleet.Enumerate(slices.Clone(said[what]), "and"), what))
	}
	return out
}

// filesOf says which files reach a host's guests that do not mount them themselves.
func filesOf(f fleet.Facts) (out []string) {
	var shared []string
	for _, d := range f.Shared {
		shared = append(shared, d.Path)
	}
	if len(shared) > 0 {
		out = append(out, fmt.Sprintf("It shares %s with other hosts that have the same.", fleet.Enumerate(shared, "and")))
	}
	if kind, a := f.Shown(); a.Trouble == "" && !a.Files && a.NoFiles != "" {
		out = append(out, fmt.Sprintf("Its %ss have only files of its own machine, and what hosts share: %s.", kind, a.NoFiles))
	}
	return out
}

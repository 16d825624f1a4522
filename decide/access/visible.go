package access

import (
	"maps"

	"pagurus/fleet"
)

// Visible is what a caller may see of the state. An environment may hold secrets, and the ends of a
// guest's console and log what its programs said: they are for the job's user and administrators.
// Where a guest is received comes with the secret of its move.
// How hosts in different networks reach each other is for administrators: with that and a host's key one could disturb it.
// Why a job waits for room is for its user, too. Tokens are for administrators, and of users everybody sees themselves.
func Visible(s fleet.Snapshot, by fleet.Caller) fleet.Snapshot {
	if by.Admin {
		return s
	}
	jobs := make(map[fleet.JobID]fleet.Job, len(s.Jobs))
	for id, j := range s.Jobs {
		if j.Spec.UID != by.UID {
			j.Spec.Env, j.Cause = nil, fleet.WithoutConsole(j.Cause)
		}
		jobs[id] = j
	}
	guests, cloned := s.Guests, false
	for id, g := range s.Guests {
		if g.Remains == nil || s.Jobs[g.Job].Spec.UID == by.UID {
			continue
		}
		if !cloned {
			guests, cloned = maps.Clone(s.Guests), true
		}
		r := *g.Remains
		r.Console, r.Log = nil, nil
		g.Remains, g.Cause = &r, fleet.WithoutConsole(g.Cause)
		guests[id] = g
	}
	migrations, cloned := s.Migrations, false
	for id, m := range s.Migrations {
		if m.Listen == "" {
			continue
		}
		if !cloned {
			migrations, cloned = maps.Clone(s.Migrations), true
		}
		m.Listen = ""
		migrations[id] = m
	}
	users := make(map[fleet.UserID]fleet.User, 1)
	if u, known := s.Users[by.User]; known {
		users[by.User] = u
	}
	tokens := map[fleet.TokenID]fleet.JoinToken{}
	for id, t := range s.Tokens {
		if t.Access && t.User == by.User && by.User != "" {
			tokens[id] = t
		}
	}
	crowded := map[fleet.JobID]string{}
	for id, why := range s.Crowded {
		if s.Jobs[id].Spec.UID == by.UID {
			crowded[id] = why
		}
	}
	s.Jobs, s.Guests, s.Migrations, s.Users, s.Tokens, s.Crowded, s.Hosts = jobs, guests, migrations, users, tokens, crowded, plainHosts(s.Hosts)
	hideSaid(s, by)
	return s
}

// hideSaid removes from hosts, which are the caller's own copies, what programs of others' jobs say.
func hideSaid(s fleet.Snapshot, by fleet.Caller) {
	for id, h := range s.Hosts {
		cloned := false
		for g, f := range h.Facts.Guests {
			if f.Said == nil || s.Jobs[s.Guests[g].Job].Spec.UID == by.UID {
				continue
			}
			if !cloned {
				h.Facts.Guests, cloned = maps.Clone(h.Facts.Guests), true
			}
			f.Said = nil
			h.Facts.Guests[g] = f
		}
		if cloned {
			s.Hosts[id] = h
		}
	}
}

// plainHosts are hosts without their keys and where they are called.
func plainHosts(all map[fleet.HostID]fleet.Host) map[fleet.HostID]fleet.Host {
	out := make(map[fleet.HostID]fleet.Host, len(all))
	for id, h := range all {
		h.WireGuard.Key, h.Facts.From = "", ""
		if w := h.Facts.WireGuard; w != nil {
			plain := *w
			plain.Key, plain.Mapped, plain.Relayed, plain.Paths = "", nil, nil, maps.Clone(w.Paths)
			for to, p := range plain.Paths {
				p.At = ""
				plain.Paths[to] = p
			}
			h.Facts.WireGuard = &plain
		}
		out[id] = h
	}
	return out
}

// VisibleOutput is what a caller may see of what is kept of output: a user sees their own part,
// and what all take together.
func VisibleOutput(o fleet.Output, by fleet.Caller) fleet.Output {
	if by.Admin {
		return o
	}
	o.Users = ofUser(o.Users, by.UID, func(u fleet.UserOutput) uint32 { return u.UID })
	o.Checkpoints.Users = ofUser(o.Checkpoints.Users, by.UID, func(u fleet.UserCheckpoints) uint32 { return u.UID })
	o.Images.Users = ofUser(o.Images.Users, by.UID, func(u fleet.UserImages) uint32 { return u.UID })
	o.Growth.Users = ofUser(o.Growth.Users, by.UID, func(u fleet.UserGrowth) uint32 { return u.UID })
	o.Changes.Users = ofUser(o.Changes.Users, by.UID, func(u fleet.UserChanges) uint32 { return u.UID })
	return o
}

func ofUser[T any](all []T, uid uint32, of func(T) uint32) []T {
	own := []T{}
	for _, u := range all {
		if of(u) == uid {
			own = append(own, u)
		}
	}
	return own
}

// VisibleUsage is what a caller may see of usage: a user sees that of their own jobs.
func VisibleUsage(a fleet.UsageAnswer, by fleet.Caller) fleet.UsageAnswer {
	if by.Admin {
		return a
	}
	own := []fleet.UsageRecord{}
	for _, r := range a.Records {
		if r.UID == by.UID {
			own = append(own, r)
		}
	}
	a.Records = own
	a.Users = map[uint32]fleet.UserID{}
	if by.User != "" {
		a.Users[by.UID] = by.User
	}
	return a
}

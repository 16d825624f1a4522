// Package desired computes what should exist on each host: its guests, and its part of
// their jobs' networks. It decides nothing, so it must not know requests, policies or
// future moves. The planner's tests cover it in every state.
package desired

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"strconv"

	"pagurus/decide/lifecycle"
	"pagurus/decide/ways"
	"pagurus/fleet"
)

// Wanted returns everything that should exist on one host. For many hosts make one State.
func Wanted(s fleet.Snapshot, host fleet.HostID) fleet.Wanted { return New(s).Wanted(host) }

// State is a snapshot grouped by host: each host's part in each job. Making it takes one
// pass over the guests, for any number of hosts.
type State struct {
	s        fleet.Snapshot
	jobs     map[fleet.HostID][]fleet.JobID
	guests   map[fleet.HostID][]fleet.GuestID
	shown    map[fleet.JobID]map[fleet.HostID]bool // hosts that show a job's files to its guests
	on       map[fleet.JobID][]fleet.HostID        // hosts of a job, in no order
	told     map[fleet.GuestID][]fleet.HostID      // hosts that have a guest, by their facts; made when a guest is sought
	partners map[fleet.HostID][]fleet.HostID       // whose vault a host uses, or who uses its own
	grants   map[fleet.HostID][]fleet.VaultGrant   // what others may do in a host's vault
	clones   map[fleet.HostID][]fleet.JobClones    // of files on a host's machine
	envoys   map[string]fleet.HostID               // by site; made when a host's peers are asked for
	stands   map[fleet.HostID]bool                 // hosts that are envoys
	relays   map[ways.Pair]fleet.HostID            // made then, too
	relaying map[fleet.HostID]bool                 // hosts that are relays
}

// New groups a snapshot by host.
func New(s fleet.Snapshot) *State {
	a := &State{s: s, jobs: map[fleet.HostID][]fleet.JobID{}, guests: map[fleet.HostID][]fleet.GuestID{}, on: map[fleet.JobID][]fleet.HostID{}, shown: map[fleet.JobID]map[fleet.HostID]bool{}}
	for _, j := range Jobs(s) {
		on := map[fleet.HostID]bool{}
		if j.ShareHost != "" {
			on[j.ShareHost] = true
		}
		if j.Gateway != "" {
			on[j.Gateway] = true
		}
		for _, id := range GuestIDs(j) {
			g, ok := s.Guests[id]
			if !ok {
				continue
			}
			for _, host := range a.places(g) {
				on[host] = true
				a.guests[host] = append(a.guests[host], id)
				if j.Spec.Export != "" && host != j.ShareHost { // of guests that mount them themselves, for their checkpoints
					a.show(j.ID, host)
				}
			}
		}
		for host := range on {
			a.jobs[host] = append(a.jobs[host], j.ID)
			a.on[j.ID] = append(a.on[j.ID], host)
		}
	}
	a.grants, a.clones = grants(s), clones(s)
	a.partners = map[fleet.HostID][]fleet.HostID{}
	for vault, all := range a.grants {
		for _, g := range all {
			a.partners[vault], a.partners[g.Host] = append(a.partners[vault], g.Host), append(a.partners[g.Host], vault)
		}
	}
	return a
}

// places are the hosts where a guest may exist in any state. A guest that is sought is left
// alone wherever a host says that it has it.
func (a *State) places(g fleet.Guest) []fleet.HostID {
	all := lifecycle.Places(g, Live(a.s, g))
	if g.State != fleet.GuestSought {
		return all
	}
	if a.told == nil {
		a.told = map[fleet.GuestID][]fleet.HostID{}
		for id, h := range a.s.Hosts {
			for has := range h.Facts.Guests {
				a.told[has] = append(a.told[has], id)
			}
		}
	}
	all = append(slices.Clone(a.told[g.ID]), all...)
	slices.Sort(all)
	return slices.Compact(all)
}

// Wanted returns everything that should exist on one host.
func (a *State) Wanted(host fleet.HostID) fleet.Wanted {
	w := fleet.Wanted{
		Cluster: a.s.Cluster.ID, Revision: a.s.Revision, Guests: slices.Sorted(slices.Values(a.guests[host])),
		Policy: a.s.Hosts[host].Policy, IsolatedCPUs: a.s.Hosts[host].IsolatedCPUs, WireGuard: a.wireGuard(host),
	}
	for _, id := range w.Guests {
		if g := a.s.Guests[id]; g.Suspended && g.Home == host {
			w.Suspended = append(w.Suspended, id)
		}
	}
	w.VaultGrants, w.Clones = a.grants[host], a.clones[host]
	for _, id := range a.jobs[host] {
		w.Networks = append(w.Networks, a.network(a.s.Jobs[id], host))
	}
	return w
}

// Apart reports whether what is wanted on a host follows from its own record and the cluster's: it has no part in any job, and other
// hosts need nothing of it.
func (a *State) Apart(host fleet.HostID) bool {
	return len(a.jobs[host])+len(a.guests[host])+len(a.partners[host])+len(a.grants[host])+len(a.clones[host]) == 0 && !a.wires(host)
}

func (a *State) show(job fleet.JobID, host fleet.HostID) {
	if a.shown[job] == nil {
		a.shown[job] = map[fleet.HostID]bool{}
	}
	a.shown[job][host] = true
}

// clients adds the file clients of a job: one on each host that shows the job's files and
// is not on the machine that has them. It depends on nothing that may change while guests
// run there, such as what else the host shares: that would cut them off.
func (a *State) clients(n *fleet.Network, j fleet.Job, host fleet.HostID) {
	for _, id := range slices.Sorted(maps.Keys(a.shown[j.ID])) {
		h := a.s.Hosts[id]
		if h.Number == 0 || h.Facts.Machine == j.Spec.Machine {
			continue
		}
		e := fleet.Endpoint{Addr: fleet.ClientAddr(h.Number), MAC: fleet.ClientMAC(h.Number), Host: id, VTEP: a.vtep(id), Mount: true}
		n.Endpoints = append(n.Endpoints, e)
		if id == host && h.Facts.Machine != "" {
			n.Mount = &fleet.Mount{Addr: e.Addr, MAC: e.MAC}
		}
	}
}

// network returns one job's network as one host must know it.
func (a *State) network(j fleet.Job, host fleet.HostID) fleet.Network {
	n := fleet.Network{Job: j.ID, Subnet: j.Subnet, MTU: j.MTU, VLAN: j.VLAN}
	for _, id := range GuestIDs(j) { // by index, so by address
		g, ok := a.s.Guests[id]
		if !ok || g.State.Ended() {
			continue
		}
		m := Live(a.s, g)
		carrier := lifecycle.Carrier(g, m)
		n.Endpoints = append(n.Endpoints, fleet.Endpoint{
			Addr: j.Subnet.GuestAddr(g.Index), MAC: j.Subnet.GuestMAC(g.Index),
			Host: carrier, VTEP: a.vtep(carrier), Next: a.next(g, m), Guest: g.ID,
		})
		if slices.Contains(a.places(g), host) {
			n.Ports = append(n.Ports, fleet.Port{Guest: g.ID, Index: g.Index, MAC: j.Subnet.GuestMAC(g.Index), Kind: plugged(g)})
		}
	}
	if j.ShareHost != "" {
		n.Endpoints = append(n.Endpoints, fleet.Endpoint{
			Addr: j.Subnet.ShareAddr(), MAC: j.Subnet.ShareMAC(), Host: j.ShareHost, VTEP: a.vtep(j.ShareHost),
		})
	}
	if j.ShareHost == host {
		n.Share = &fleet.Share{Export: j.Spec.Export, UID: j.Spec.UID, GID: j.Spec.GID, Files: j.Spec.Files}
	}
	if j.Gateway != "" {
		n.Endpoints = append(n.Endpoints, fleet.Endpoint{
			Addr: j.Subnet.GatewayAddr(), MAC: j.Subnet.GatewayMAC(), Host: j.Gateway, VTEP: a.vtep(j.Gateway), Gate: true,
		})
	}
	if j.Gateway == host && host != "" {
		n.Gateway = &fleet.Gateway{Guests: j.Spec.MostGuests()}
	}
	a.clients(&n, j, host)
	if j.VLAN == 0 { // else none of its frames come by our tunnels
		n.Peers = a.senders(j.ID, host)
	}
	slices.SortFunc(n.Endpoints, func(a, b fleet.Endpoint) int { return a.Addr.Compare(b.Addr) })
	return n
}

// senders are where frames of a job may come from to a host. They are WireGuard's peers for this job, from the same snapshot: so
// the host that a guest moves to is one before the guest runs there, and that it leaves until the move is over.
func (a *State) senders(job fleet.JobID, host fleet.HostID) (all []string) {
	for _, id := range a.on[job] {
		if at := a.vtep(id); id != host && at != "" {
			all = append(all, at)
		}
	}
	slices.Sort(all)
	return all
}

// plugged is the kind of guest for a port; empty for a virtual machine, because older
// agents know no other.
func plugged(g fleet.Guest) fleet.Kind {
	if g.Kind.Traits().Tap {
		return ""
	}
	return g.Kind
}

// next is the address of the host that a guest moves to, while frames still go to the
// source.
func (a *State) next(g fleet.Guest, m fleet.Migration) string {
	if to := lifecycle.Next(g, m); to != "" {
		return a.vtep(to)
	}
	return ""
}

// vtep is where VXLAN reaches a host: inside WireGuard, or at its last reported address. Where a
// cluster encrypts, a host without a key is not reached at all.
func (a *State) vtep(id fleet.HostID) string {
	h := a.s.Hosts[id]
	if !a.s.Cluster.Encryption.On() {
		return underlay(h)
	}
	if inside := fleet.WireGuardAddr(h.Number); inside.IsValid() && end(h).Key != "" {
		return inside.String()
	}
	return ""
}

// underlay is the host's last reported address.
func underlay(h fleet.Host) string { return cmp.Or(h.Facts.Address, h.Address) }

// By6 reports whether other hosts reach a host by IPv6.
func By6(h fleet.Host) bool {
	at, err := netip.ParseAddr(underlay(h))
	return err == nil && at.Unmap().Is6()
}

// Jobs returns the jobs that may have something on hosts, in order of submission.
func Jobs(s fleet.Snapshot) []fleet.Job {
	out := make([]fleet.Job, 0, len(s.Jobs))
	for _, j := range s.Jobs {
		if j.State != fleet.JobEnded && j.State != fleet.JobPending && j.State != fleet.JobSuspended {
			out = append(out, j)
		}
	}
	slices.SortFunc(out, func(a, b fleet.Job) int {
		return cmp.Or(cmp.Compare(len(a.ID), len(b.ID)), cmp.Compare(a.ID, b.ID))
	})
	return out
}

// GuestIDs names a job's guests, by index, with those that start because it grows.
func GuestIDs(j fleet.Job) []fleet.GuestID {
	ids := make([]fleet.GuestID, j.Size())
	for i := range ids {
		ids[i] = GuestID(j.ID, i)
	}
	return ids
}

// GuestID names one guest of a job.
func GuestID(j fleet.JobID, i int) fleet.GuestID {
	return fleet.GuestID(string(j) + "g" + strconv.Itoa(i))
}

// Live returns a guest's migration, or the zero Migration.
func Live(s fleet.Snapshot, g fleet.Guest) fleet.Migration {
	m := s.Migrations[g.Migration]
	if m.Phase.Ended() {
		return fleet.Migration{}
	}
	return m
}

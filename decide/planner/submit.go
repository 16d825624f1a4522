package planner

import (
	"cmp"
	"fmt"
	"slices"

	"pagurus/decide/desired"
	"pagurus/decide/lifecycle"
	"pagurus/decide/placement"
	"pagurus/decide/quota"
	"pagurus/fleet"
)

// requestBytes limits the ID of a request, with whose it is.
const requestBytes = 128 + 16

// submit makes a new job, which starts now or waits for room.
func (d *draft) submit(r fleet.Request) (fleet.Answer, error) {
	if len(r.ID) > requestBytes {
		return refuse(r, "the request's ID has %d bytes; give it one of %d or fewer", len(r.ID), requestBytes)
	}
	if before, asked := d.l.Submitted(r.ID); asked {
		return fleet.Answer{Job: before, Notes: d.told(d.Jobs.At(before))}, nil
	}
	if r.Spec == nil {
		return refuse(r, "the request has no job in it; pagurus and its controller may be of different versions, see `pagurus version`")
	}
	spec := completeJob(*r.Spec)
	if reason := d.invalid(spec, r.Image); reason != "" {
		return refuse(r, "%s", reason)
	}
	if reason := quota.RefusedJob(d.l.Live(spec.UID), *r.Spec); reason != "" {
		return refuse(r, "%s", reason)
	}
	if reason := quota.RefusedGrow(d.p.GrowEach, spec.Grow); reason != "" {
		return refuse(r, "%s", reason)
	}
	if len(d.l.Room().On(spec.Machine)) == 0 && !d.anyUnseen() {
		return refuse(r, "%s", unservedWords(spec.Export))
	}
	if reason, hosts := d.noGateway(spec); reason != "" {
		return fleet.Answer{}, &Refusal{Request: r, Reason: reason, Hosts: hosts}
	}
	c := d.counters()
	id := fleet.JobID(fmt.Sprintf("j%d", c.NextJob))
	c.NextJob++
	d.Jobs.Put(id, lifecycle.Enqueue(fleet.Job{
		ID: id, Born: d.at.UnixNano(), Request: r.ID, Asks: r.Asks, Spec: spec, Digest: r.Image.Digest, MPI: r.Image.MPI, Submitted: d.at, Traffic: r.Traffic,
	}, "", d.at))
	return d.admitted(r, id, d.dequeue())
}

// admitted is the answer about a new job, once the queue has had its turn.
func (d *draft) admitted(r fleet.Request, id fleet.JobID, q *queueing) (fleet.Answer, error) {
	j := d.Jobs.At(id)
	if j.State != fleet.JobPending {
		return fleet.Answer{Job: id, Notes: d.told(j)}, nil
	}
	if reason, hosts := d.neverFits(j.Spec); reason != "" {
		return fleet.Answer{}, &Refusal{Request: r, Reason: reason, Hosts: hosts}
	}
	w := q.why(d, j)
	if r.Now {
		return fleet.Answer{}, &Refusal{Request: r, Hosts: w.hosts, Reason: w.reason + "; ask for fewer guests with --" + fleet.GuestsFlag + ", less memory with --" + fleet.MemFlag +
			", or wait for room without --" + fleet.NowFlag}
	}
	if reason := quota.RefusedWaiting(d.l.Queued(j.Spec.UID)); reason != "" {
		return refuse(r, "%s", reason)
	}
	j.Reason = w.reason
	d.Jobs.Put(id, j)
	return fleet.Answer{Job: id, Notes: d.told(j)}, nil
}

// told is what whoever asks for a job is told of it, the first time and again.
func (d *draft) told(j fleet.Job) (notes []string) {
	switch j.State {
	case fleet.JobPending:
		notes = []string{waitsSince(j.ID, j.Reason)}
	case fleet.JobStarting, fleet.JobRunning:
		var chosen []placement.Choice
		for _, g := range d.guestsOf(j) {
			chosen = append(chosen, placement.Choice{Host: g.Home, Kind: g.Kind, Reason: g.Reason})
		}
		notes = append(placement.Kinds(j.Spec.Kind, desired.GuestIDs(j), chosen), aboutFewCPUs(j)...)
	}
	return append(notes, planned(j.Spec, d.base.Hosts)...)
}

// waitsSince tells whoever asked for a job that it waits.
func waitsSince(id fleet.JobID, reason string) string {
	return fmt.Sprintf("%s waits: %s; `pagurus explain %s` says when it would start", id, reason, id)
}

// invalid says what is wrong with a job and how to fix it; empty: nothing.
func (d *draft) invalid(s fleet.JobSpec, image *fleet.Image) string {
	if reason := invalidJob(s, image); reason != "" {
		return reason
	}
	return cmp.Or(d.invalidHosts(s), d.refusedVLAN(s))
}

// invalidHosts says what is wrong with the hosts that a job names; empty: nothing.
func (d *draft) invalidHosts(s fleet.JobSpec) string {
	if len(s.On) > len(d.base.Hosts) { // the loop below limits the names
		return fmt.Sprintf("%d hosts are named and the cluster has %d; name each host once", len(s.On), len(d.base.Hosts))
	}
	for _, id := range s.On {
		if _, known := d.Hosts.Find(id); !known {
			return fmt.Sprintf("there is no host %s; `pagurus host ls` lists them", id)
		}
	}
	return ""
}

// shareHost chooses the host that serves the job's files: one on the machine that has
// them, preferably with a guest of the job. Where none is heard, as when another controller has begun to lead, it says so.
func (d *draft) shareHost(s fleet.JobSpec, before fleet.HostID, chosen []placement.Choice) (fleet.HostID, string) {
	var found fleet.HostID
	on := d.l.Room().On(s.Machine) // by ID
	if s.Need.Device == fleet.NetFunction && len(on) > 0 {
		if on = slices.DeleteFunc(slices.Clone(on), func(id fleet.HostID) bool { return !hasCard(d.base.Hosts[id]) }); len(on) == 0 {
			return "", fmt.Sprintf("no host that could serve %s to the guests has a card for them: give its agent --%s", s.Export, fleet.DeviceNetFlag)
		}
	}
	// Guests of a checkpoint have handles of files that the host has signed which served them before.
	if h := d.base.Hosts[before]; before != "" && slices.Contains(on, before) && placement.Heard(h, d.base.At) {
		return before, ""
	}
	for _, id := range on {
		h := d.base.Hosts[id]
		if !placement.Heard(h, d.base.At) {
			continue
		}
		if slices.ContainsFunc(chosen, func(c placement.Choice) bool { return c.Host == h.ID }) {
			return h.ID, ""
		}
		if found == "" {
			found = h.ID
		}
	}
	if found == "" {
		if len(on) == 0 {
			return "", unservedWords(s.Export)
		}
		return "", fmt.Sprintf("%s, which serves %s to the guests, is not heard", fleet.Enumerate(hostNames(on), "or"), s.Export)
	}
	return found, ""
}

// unservedWords say that no host is known to be on the machine that has a job's files.
func unservedWords(files string) string {
	return fmt.Sprintf("no host can serve %s to the guests, because no agent on this machine is connected; start one here with `pagurus agent`", files)
}

// anyUnseen reports whether a host has not been heard since this controller leads: its machine is not known.
func (d *draft) anyUnseen() bool {
	return slices.ContainsFunc(d.l.AllHosts(), func(id fleet.HostID) bool { return d.Hosts.At(id).Facts.SeenAt.IsZero() })
}

// subnet finds a free network. It starts where the last search ended, so that numbers
// are reused as late as possible.
func (d *draft) subnet() (fleet.Subnet, bool) {
	for i := range int(fleet.MaxSubnet) + 1 {
		n := fleet.Subnet((int(d.base.Cluster.NextSubnet) + i) % (int(fleet.MaxSubnet) + 1))
		if !d.l.Taken(n) {
			return n, true
		}
	}
	return 0, false
}

package planner

import (
	"fmt"
	"slices"

	"pagurus/decide/desired"
	"pagurus/decide/placement"
	"pagurus/decide/quota"
	"pagurus/decide/topology"
	"pagurus/fleet"
)

// requestBytes limits the ID of a request.
const requestBytes = 128

// admit submits a job, if the store has room for it. A job that is only to start again has room there.
func (d *draft) admit(r fleet.Request) (fleet.Answer, error) {
	if _, asked := d.l.Submitted(r.ID); r.Spec != nil && !asked {
		if reason := quota.RefusedJob(d.l.Live(r.Spec.UID), *r.Spec); reason != "" {
			return refuse(r, "%s", reason)
		}
	}
	return d.submit(r)
}

// submit places all guests of a new job, or none.
func (d *draft) submit(r fleet.Request) (fleet.Answer, error) {
	if len(r.ID) > requestBytes {
		return refuse(r, "the request's ID has %d bytes; give it one of %d or fewer", len(r.ID), requestBytes)
	}
	if before, asked := d.l.Submitted(r.ID); asked {
		return fleet.Answer{Job: before}, nil
	}
	if r.Spec == nil {
		return refuse(r, "the request has no job in it; pagurus and its controller may be of different versions, see `pagurus version`")
	}
	spec := completeJob(*r.Spec)
	if reason := d.invalid(spec, r.Image); reason != "" {
		return refuse(r, "%s", reason)
	}
	chosen, err := d.place(r, spec)
	if err != nil {
		return fleet.Answer{}, err
	}
	share, reason := d.shareHost(spec, chosen)
	if reason != "" {
		return refuse(r, "%s", reason)
	}
	subnet, free := d.subnet()
	if !free {
		return refuse(r, "all %d networks are in use by other jobs; wait until one of them ends", int(fleet.MaxSubnet)+1)
	}
	c := d.counters()
	j := fleet.Job{
		ID: fleet.JobID(fmt.Sprintf("j%d", c.NextJob)), Born: d.at.UnixNano(), Request: r.ID, Spec: spec, State: fleet.JobStarting, Since: d.at,
		Digest: r.Image.Digest, MPI: r.Image.MPI, Subnet: subnet, ShareHost: share, Submitted: d.at, Traffic: r.Traffic,
	}
	if d.base.Cluster.Encryption.On() {
		j.MTU = d.base.Cluster.Encryption.GuestMTU()
	}
	c.NextJob++
	c.NextSubnet = (subnet + 1) % (fleet.MaxSubnet + 1)
	d.Jobs.Put(j.ID, j)
	for i, id := range desired.GuestIDs(j) {
		d.Guests.Put(id, fleet.Guest{
			ID: id, Job: j.ID, Index: i, Kind: chosen[i].Kind, State: fleet.GuestStarting, Home: chosen[i].Host, Gen: 1, Born: j.Born,
			Since: d.at, Need: spec.Need, Image: j.Digest, Reason: chosen[i].Reason,
			Shape: topology.For(d.base.Hosts, chosen[i].Host, chosen[i].Kind, spec),
		})
	}
	return fleet.Answer{Job: j.ID, Notes: placement.Kinds(spec.Kind, desired.GuestIDs(j), chosen)}, nil
}

// invalid says what is wrong with a job and how to fix it; empty: nothing.
func (d *draft) invalid(s fleet.JobSpec, image *fleet.Image) string {
	if reason := invalidJob(s, image); reason != "" {
		return reason
	}
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

// place chooses a host for every guest of a job, considering earlier choices.
func (d *draft) place(r fleet.Request, s fleet.JobSpec) ([]placement.Choice, error) {
	a := placement.Ask{Need: s.Need, Kind: s.Kind, Only: s.On, Files: s.Machine, Directories: s.Directories()}
	asks, all := slices.Repeat([]placement.Ask{a}, s.Guests), make([]fleet.Guest, s.Guests)
	for i := range all {
		all[i].Index = i
	}
	placement.MarkAffinity(d.room(), placement.AffinityView{Job: func(fleet.JobID) fleet.Job { return fleet.Job{Spec: s, Traffic: r.Traffic} }}, all, asks)
	chosen, stuck := d.room().PlaceAll(asks)
	if stuck >= 0 {
		what := fmt.Sprintf("there is no room for guest %d of %d (%d MiB each)", stuck+1, s.Guests, s.Need.MemoryBytes>>20)
		return nil, &Refusal{Request: r, Hosts: placement.Explain(d.room(), a),
			Reason: what + "; ask for fewer guests with --" + fleet.GuestsFlag + ", less memory with --" + fleet.MemFlag + ", or wait until there is room"}
	}
	return chosen, nil
}

// shareHost chooses the host that serves the job's files: one on the machine that has
// them, preferably with a guest of the job.
func (d *draft) shareHost(s fleet.JobSpec, chosen []placement.Choice) (fleet.HostID, string) {
	var found fleet.HostID
	for _, id := range d.l.Room().On(s.Machine) { // by ID
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
		return "", fmt.Sprintf("no host can serve %s to the guests, because no agent on this machine is connected; start one here with `pagurus agent`", s.Export)
	}
	return found, ""
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

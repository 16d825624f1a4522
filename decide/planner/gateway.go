// This file chooses the host that leads a job to the Internet. It stays while guests move, because connections to the outside end
// there: with it they would break. When it drains or is lost they do, and another host leads new ones.
//
// It must not know how guests are led. Its tests are the planner's.

package planner

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"pagurus/decide/desired"
	"pagurus/decide/placement"
	"pagurus/fleet"
)

// leads says why a host cannot lead jobs to the Internet now; empty: it can.
func (d *draft) leads(h fleet.Host) string {
	switch o := h.Facts.Internet; {
	case o == nil || !o.Allowed:
		return "its owner does not let jobs use its way to the Internet"
	case o.Trouble != "":
		return o.Trouble
	case h.State != fleet.HostUp:
		return "it drains"
	case !placement.Heard(h, d.at):
		return "its agent is not heard"
	case d.base.Cluster.Encryption.On() && (h.Number == 0 || h.WireGuard.Key == "" && (h.Facts.WireGuard == nil || h.Facts.WireGuard.Key == "")):
		return "it cannot encrypt what passes to other hosts"
	}
	return ""
}

// gatewayFor chooses the host that leads a job: one with a guest of it, because then less passes between hosts, and else one that leads few.
// not is out of the question. false: the job needs one, and there is none.
func (d *draft) gatewayFor(s fleet.JobSpec, chosen []placement.Choice, not fleet.HostID) (fleet.HostID, bool) {
	if !s.Outward() {
		return "", true
	}
	var best fleet.Host
	here := func(h fleet.Host) int {
		if slices.ContainsFunc(chosen, func(c placement.Choice) bool { return c.Host == h.ID }) {
			return 0
		}
		return 1
	}
	for _, id := range d.l.AllHosts() { // by ID
		h := d.Hosts.At(id)
		if !h.Facts.Leads() || id == not || d.leads(h) != "" { // the first is quick
			continue
		}
		if best.ID == "" || cmp.Or(cmp.Compare(here(h), here(best)), cmp.Compare(h.Facts.Internet.Jobs, best.Facts.Internet.Jobs)) < 0 {
			best = h
		}
	}
	return best.ID, best.ID != ""
}

// outwardLost says what a checkpoint of a job that reaches the Internet lacks: the other ends of its connections are outside.
const outwardLost = "of this checkpoint connections to the Internet are no part: they are broken where the job goes on from it"

// mostNamed is how many hosts a reason names.
const mostNamed = 8

// noGateway says why no host leads a job that needs that; empty: one does.
func (d *draft) noGateway(s fleet.JobSpec) (string, []placement.Why) {
	if _, leads := d.gatewayFor(s, nil, ""); leads {
		return "", nil
	}
	var hosts []placement.Why
	for _, id := range d.l.AllHosts() {
		h := d.Hosts.At(id)
		if o := h.Facts.Internet; o != nil && o.Allowed && len(hosts) < mostNamed {
			hosts = append(hosts, placement.Why{Host: id, Reason: d.leads(h)})
		}
	}
	if len(hosts) == 0 {
		return fmt.Sprintf("no host leads guests to the Internet: a host's owner allows it by %s = true in [agent] of its configuration (--%s of its agent); or run the job without --%s %s",
			fleet.InternetFlag, fleet.InternetFlag, fleet.NetFlag, fleet.Internet), nil
	}
	return "no host leads guests to the Internet now", hosts
}

// keepGateways gives another gateway to jobs whose gateway drains, is lost, or leads nobody any more. Where there is none, the job keeps what it has:
// its own network goes on, and the host may come back.
func (d *draft) keepGateways() {
	for _, id := range d.l.Outward() {
		j, there := d.Jobs.Find(id)
		if !there || j.State == fleet.JobStopping || !d.gatewayOver(j.Gateway) {
			continue
		}
		if next, found := d.gatewayFor(j.Spec, d.homesOf(j), j.Gateway); found {
			j.Gateway = next
			d.Jobs.Put(id, j)
		}
	}
}

// gatewayOver reports whether a host leads no job any more. One that has not been heard since this controller began may do.
func (d *draft) gatewayOver(id fleet.HostID) bool {
	h, known := d.Hosts.Find(id)
	if !known || h.State == fleet.HostDraining {
		return true
	}
	return placement.Unheard(d.base, id, d.at) > 0 || !h.Facts.SeenAt.IsZero() && !h.Facts.Leads()
}

// homesOf are where a job's guests are.
func (d *draft) homesOf(j fleet.Job) (out []placement.Choice) {
	for _, g := range d.guestsOf(j) {
		out = append(out, placement.Choice{Host: g.Home})
	}
	return out
}

// gatewaysLeave says which jobs' connections to the outside end because a host drains.
func (d *draft) gatewaysLeave(id fleet.HostID) (notes []string) {
	for _, job := range d.l.Outward() {
		j := d.Jobs.At(job)
		if j.Gateway != id {
			continue
		}
		note := fmt.Sprintf("%s reaches the Internet through %s: its connections to the outside break, its own network does not", job, id)
		if next, found := d.gatewayFor(j.Spec, d.homesOf(j), id); found {
			note += fmt.Sprintf("; new ones go through %s", next)
		} else {
			note = fmt.Sprintf("%s goes on reaching the Internet through %s, because no other host leads it there; its connections break when %s is switched off", job, id, id)
		}
		notes = append(notes, note)
	}
	return notes
}

// outward says how a job reaches the Internet.
func (e *explainer) outward(j fleet.Job) []string {
	if !j.Spec.Outward() {
		return nil
	}
	out := fmt.Sprintf("Its guests reach the Internet through %s, also when they move; if %s drains or is lost, their connections to the outside break, and new ones go through another host.", j.Gateway, j.Gateway)
	if unheard := placement.Unheard(e.s, j.Gateway, e.s.At); unheard > 0 {
		out += fmt.Sprintf(" %s has not been heard from, and no other host leads guests there.", j.Gateway)
	} else if o := e.s.Hosts[j.Gateway].Facts.Internet; o != nil && o.Trouble != "" {
		out += fmt.Sprintf(" It cannot now: %s.", o.Trouble)
	}
	return []string{out}
}

// leadsWhom says what a host does for jobs that reach the Internet.
func (e *explainer) leadsWhom(h fleet.Host) []string {
	o := h.Facts.Internet
	if o == nil || !o.Allowed {
		return nil
	}
	if o.Trouble != "" {
		return []string{fmt.Sprintf("Its owner lets jobs use its way to the Internet, and it has none: %s.", o.Trouble)}
	}
	var jobs []string
	for _, j := range desired.Jobs(e.s) {
		if j.Gateway == h.ID {
			jobs = append(jobs, string(j.ID))
		}
	}
	if len(jobs) == 0 {
		return []string{"Jobs may use its way to the Internet (run --" + fleet.NetFlag + " " + string(fleet.Internet) + "), and none does."}
	}
	return []string{fmt.Sprintf("The guests of %s reach the Internet through it; if it drains, their connections to the outside break.", strings.Join(jobs, ", "))}
}

// Package placement chooses hosts for guests: filters, then a score, then a reason for
// people. A Policy is a pure function of a survey; the live controller and the simulator
// use the same ones.
//
// It must not know why a guest is placed, nor change anything. Its tests use small
// clusters made by hand and random ones.
package placement

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"pagurus/fleet"
)

// Ask is one placement question.
type Ask struct {
	Need       fleet.Resources
	Kind       fleet.Kind     // Auto: the best kind for the host
	Files      string         // the machine that has the job's files
	Only       []fleet.HostID // the only hosts to consider; empty: any
	Except     []fleet.HostID // hosts not to consider
	NoArrivals bool           // exclude hosts that are already a move's target
	Alive      *Source        // set for a guest that must keep running when it moves
	Restores   *Source        // set for a guest that is made from a checkpoint
	Affinity   *Affinity      // its preferred site; nil: none
	Site       *string        // where it has to be, if its network is a VLAN; nil: anywhere

	Directories []fleet.Directory // the job's, on that machine

	busyToo  bool // see IfFree
	function bool // one that moves, too, needs a virtual function that is free
}

// Leaving is the placement question for a running guest.
func Leaving(s fleet.Snapshot, g fleet.Guest) Ask {
	f := s.Hosts[g.Home].Facts
	needs, known := f.Abilities[g.Kind]
	needs.Model = g.CPU // its own, whatever guests get that start there now
	return Ask{
		Need: g.Need, Kind: g.Kind, Site: SiteOf(g.Need, f), Files: s.Jobs[g.Job].Spec.Machine, Directories: s.Jobs[g.Job].Spec.Directories(),
		Alive: &Source{Host: g.Home, Needs: needs, Known: known, Shape: g.Shape, Protocol: f.Protocol},
	}
}

// Source is the state of a running guest that limits where it can move.
type Source struct {
	Host     fleet.HostID
	Needs    fleet.Abilities // the source's abilities for the guest's kind; its Model is the guest's
	Known    bool            // Needs is the last report of the source's agent
	PostCopy bool            // it moves in post-copy
	Protocol int             // what the source's agent speaks
	Shape    *fleet.Shape    // the guest's shape; nil: it sees what its host shows to all
}

// Choice is a host that passed every filter.
type Choice struct {
	Host   fleet.HostID
	Kind   fleet.Kind // of the guest, never Auto
	Score  float64    // higher is better
	Reason string     // for people: why it was chosen
}

// Why is a host that was rejected, with the first filter that it failed, for people.
type Why struct {
	Host   fleet.HostID
	Reason string
}

// Policy says which of two hosts is better for a guest. It does not filter: with every
// policy the hosts in Explain are excluded.
type Policy interface {
	Name() string
	// Score rates a host that would have freeBytes of memory free and cpus virtual CPUs
	// in use: higher is better. The order of two hosts of one capacity must not change
	// when both have less free by the same amount.
	Score(h *fleet.Host, freeBytes int64, cpus int) float64
}

// Named returns the policy of a name, and false if there is none.
func Named(name string) (Policy, bool) {
	for _, p := range []Policy{Spread{}, LongestIdle{}} {
		if name == p.Name() || name == "" {
			return p, true
		}
	}
	return nil, false
}

// InForce returns the policy for placing guests: said, or the one of the cluster's rules
// if nil.
func InForce(said Policy, r fleet.Rules) Policy {
	if said != nil {
		return said
	}
	p, known := Named(r.Places())
	if !known { // set by a newer controller
		p = Spread{}
	}
	return p
}

// Spread prefers the host with the largest free share of memory and the fewest virtual
// CPUs for each of its own, to even out the load.
type Spread struct{}

// Name is "spread".
func (Spread) Name() string { return "spread" }

// CPUs count less than free memory, because CPUs can be shared. Their present use does
// not count: it says little about the next hour, and may come from a job that just ended.
const cpusWeight = 0.5

// Score is the free share of memory minus half the promised CPUs for each CPU of the
// host.
func (Spread) Score(h *fleet.Host, freeBytes int64, cpus int) float64 {
	share := float64(freeBytes) / float64(max(h.Facts.Capacity.MemoryBytes, 1))
	return share - cpusWeight*float64(cpus)/float64(max(h.Facts.Capacity.CPUs, 1))
}

// LongestIdle prefers the host whose owner has been away longest: then a return within
// the next hour is least likely. A host without an owner comes first, one with guests
// after those without.
type LongestIdle struct{}

// Name is "longest-idle".
func (LongestIdle) Name() string { return "longest-idle" }

// crowd is the value, in hours of idleness, of the share of a host's CPUs that is not
// promised to other guests. It exceeds any real idle time, since guests that share a CPU
// are both slow.
const crowd = 1e9

// Score is in hours of idleness, counted from a fixed day. All idle times grow at the
// same rate, so the scores stay constant while nothing happens.
func (LongestIdle) Score(h *fleet.Host, freeBytes int64, cpus int) float64 {
	score := -crowd * float64(cpus) / float64(max(h.Facts.Capacity.CPUs, 1))
	o := h.Facts.Owner
	switch {
	case o == nil || o.State == "": // no owner
		return score + (Spread{}).Score(h, freeBytes, 0)
	case o.Present:
		return score - crowd
	}
	return score - float64(o.Since.Unix())/3600
}

// Explain lists every host that cannot take the guest, with the reason, sorted by name.
func Explain(v *Survey, a Ask) []Why {
	var out []Why
	for _, h := range v.Hosts() {
		if reason := Unfit(v, &h, a); reason != "" {
			out = append(out, Why{Host: h.ID, Reason: reason})
		}
	}
	return out
}

// Unfit says why a host cannot take the guest; empty: it can.
func Unfit(v *Survey, h *fleet.Host, a Ask) string {
	if a.Kind == fleet.Auto {
		return unfitAnyhow(v, h, a)
	}
	able, has := h.Facts.Abilities[a.Kind]
	_, arriving := v.Busy(h.ID)
	switch {
	case len(a.Only) > 0 && !slices.Contains(a.Only, h.ID):
		return "is not among the hosts asked for"
	case slices.Contains(a.Except, h.ID):
		return "failed to start it before, or still has its earlier guest"
	case a.NoArrivals && arriving > 0:
		return "takes in another move"
	case a.Alive != nil && a.Alive.Host == h.ID:
		return "is where it runs now"
	case h.ForOwner || h.Facts.Owner != nil && h.Facts.Owner.Present:
		return "has its owner there"
	case h.ForHealth:
		return "shows signs of failing"
	case h.State != fleet.HostUp && !h.EmptyBy.IsZero():
		return "goes away soon"
	case h.State != fleet.HostUp:
		return "is draining"
	case h.Facts.SeenAt.IsZero():
		return "has not been heard from yet"
	case !Heard(*h, v.At):
		return "has not been heard from for " + ago(v.At.Sub(h.Facts.SeenAt))
	}
	if reason := apart(h, a); reason != "" {
		return reason
	}
	if reason := unable(able, has, a); reason != "" {
		return reason
	}
	if reason := unreached(h, a); reason != "" {
		return reason
	}
	if reason := v.beneath(h, able, a); reason != "" {
		return reason
	}
	if reason := v.lacksDevice(h, a); reason != "" {
		return reason
	}
	if free := v.FreeBytes(h); free < a.Need.MemoryBytes {
		return fmt.Sprintf("has %s of memory free, %s needed", size(max(free, 0)), size(a.Need.MemoryBytes))
	}
	return ""
}

// Hindered says what prevents any move of a running guest: a device of its host, and what its host
// last reported; empty: nothing known.
func Hindered(s fleet.Snapshot, g fleet.Guest) string {
	found := s.Hosts[g.Home].Facts.Guests[g.ID].Obstacles
	if holds := g.Need.Device.Holds(); holds != "" {
		found = append([]string{holds}, found...)
	}
	return strings.Join(found, "; ")
}

// apart says why the agents of two hosts cannot pass a running guest to each other.
func apart(h *fleet.Host, a Ask) string {
	if a.Alive == nil || !a.Alive.Known {
		return ""
	}
	return fleet.Apart(fleet.Speaker{Name: "its agent", Protocol: h.Facts.Protocol},
		fleet.Speaker{Name: fmt.Sprintf("the agent of %s", a.Alive.Host), Protocol: a.Alive.Protocol})
}

// unable says why hosts with these abilities cannot take the guest.
func unable(able fleet.Abilities, has bool, a Ask) string {
	switch {
	case !has:
		return fmt.Sprintf("cannot run guests of kind %s", a.Kind)
	case able.Trouble != "":
		return fmt.Sprintf("cannot run guests of kind %s: %s", a.Kind, able.Trouble)
	}
	return cmp.Or(unfitAlive(able, a), unfitRestored(able, a))
}

// unfitAlive says why a running guest could not keep running there.
func unfitAlive(able fleet.Abilities, a Ask) string {
	if a.Alive == nil {
		return ""
	}
	switch {
	case a.Alive.PostCopy && !able.PostCopy && able.NoPostCopy != "":
		return "cannot take in a guest by post-copy: " + able.NoPostCopy
	case a.Alive.PostCopy && !able.PostCopy:
		return "cannot take in a guest by post-copy"
	case !a.Alive.Known:
		return ""
	case !able.Live:
		return "cannot take in a running guest"
	case !a.Alive.Needs.Live:
		return fmt.Sprintf("%s, where it runs, cannot send a running guest", a.Alive.Host)
	}
	return unlike(able, a.Alive.Needs, sees(able, a) != "")
}

// unfitRestored says why a guest could not be made there from a checkpoint.
func unfitRestored(able fleet.Abilities, a Ask) string {
	switch {
	case a.Restores == nil:
		return ""
	case !able.Checkpoint:
		return "cannot make a guest from a checkpoint: " + cmp.Or(able.NoCheckpoint, "its agent does not say that it can")
	case !a.Restores.Known:
		return ""
	}
	return unlike(able, a.Restores.Needs, sees(able, a) != "")
}

// unlike says why programs that ran on a host with other abilities could not run on here. level: the guest sees a level
// of CPU that is checked elsewhere.
func unlike(able, from fleet.Abilities, level bool) string {
	if from.Accelerator != able.Accelerator {
		return fmt.Sprintf("runs guests by %s, the guest runs by %s", able.Accelerator, from.Accelerator)
	}
	if lacks := lacking(able.Processor, from.Processor); lacks != "" {
		return fmt.Sprintf("has a processor without %s, which the guest's programs may use", lacks)
	}
	if from.Model != "" && able.Model == "" {
		return fmt.Sprintf("has an agent that shows guests its own CPU alone, the guest sees %s", from.Model)
	}
	if same := from.CPU == "" || able.CPU == "" || from.CPU == able.CPU; level || same {
		return ""
	}
	switch {
	case from.Model == "":
		return fmt.Sprintf("shows guests the CPU %s, the guest sees %s", able.CPU, from.CPU)
	case fleet.OwnProcessor(from.Model):
		return fmt.Sprintf("has the CPU %s, the guest sees %s as %s", able.CPU, from.CPU, from.Model)
	case from.Model != able.Model:
		return fmt.Sprintf("has another processor and starts guests with the CPU %s, the guest sees %s", able.Model, from.Model)
	case from.Lacks != "" || able.Lacks != "":
		return fmt.Sprintf("has another processor, and not both have all of %s, which the guest sees: %s", from.Model, cmp.Or(able.Lacks, from.Lacks))
	}
	return ""
}

// beneath says why a host does not have the level of CPU that the guest sees, or would see from its start by the cluster's rules.
func (v *Survey) beneath(h *fleet.Host, able fleet.Abilities, a Ask) string {
	level, who := sees(able, a), "the guest sees"
	if starts := a.Alive == nil && a.Restores == nil; starts && able.Accelerator == fleet.KVM && fleet.IsCPULevel(v.index.cpu) {
		level, who = v.index.cpu, "virtual machines get that start"
		if able.Model == "" {
			return fmt.Sprintf("has an agent that shows guests its own CPU alone, not %s, which %s", level, who)
		}
	}
	if level != "" && (h.Facts.Topology == nil || !h.Facts.Topology.HasCPU(level)) {
		return fmt.Sprintf("has no CPU of level %s, which %s", level, who)
	}
	return ""
}

// sees is the CPU level that a guest was given, if hardware runs it; empty: none.
func sees(able fleet.Abilities, a Ask) string {
	from := cmp.Or(a.Alive, a.Restores)
	switch {
	case from == nil || !from.Known || able.Accelerator != fleet.KVM:
	case fleet.IsCPULevel(from.Needs.Model):
		return from.Needs.Model
	case from.Needs.Model == "" && from.Shape != nil:
		return from.Shape.CPU
	}
	return ""
}

// lacking names, for people, the features of one processor that another lacks; empty:
// none, or one is unknown.
func lacking(have, want string) string {
	const most = 4
	words := strings.Fields(have)
	if len(words) == 0 {
		return ""
	}
	var out []string
	for w := range strings.FieldsSeq(want) {
		if !slices.Contains(words, w) {
			out = append(out, w)
		}
	}
	if more := len(out) - most; more > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(out[:most], ", "), more)
	}
	return strings.Join(out, ", ")
}

// Words joins the hosts' reasons to one line, grouped by reason; empty for no hosts.
func Words(whys []Why) string {
	var order []string
	hosts := map[string][]string{}
	for _, w := range whys {
		if hosts[w.Reason] == nil {
			order = append(order, w.Reason)
		}
		hosts[w.Reason] = append(hosts[w.Reason], string(w.Host))
	}
	parts := make([]string, len(order))
	for i, reason := range order {
		parts[i] = listed(hosts[reason]) + " " + reason
	}
	return strings.Join(parts, "; ")
}

// listed names a few and counts the rest, so that a line stays readable with thousands of
// hosts.
func listed(names []string) string {
	const most = 8
	if len(names) > most {
		return fmt.Sprintf("%s and %d more:", strings.Join(names[:most], ", "), len(names)-most)
	}
	if len(names) > 1 {
		return strings.Join(names, ", ") + ":"
	}
	return names[0]
}

func appendCount(to []byte, n int, what string) []byte {
	to = append(append(strconv.AppendInt(to, int64(n), 10), ' '), what...)
	if n != 1 {
		to = append(to, 's')
	}
	return to
}

func size(bytes int64) string { return string(appendSize(nil, bytes)) }

func appendSize(to []byte, bytes int64) []byte {
	switch {
	case bytes < 0:
		return appendSize(append(to, '-'), -bytes)
	case bytes >= 10<<30:
		return append(strconv.AppendInt(to, bytes>>30, 10), " GiB"...)
	case bytes >= 1<<30:
		return append(strconv.AppendFloat(to, float64(bytes)/(1<<30), 'f', 1, 64), " GiB"...)
	}
	return append(strconv.AppendInt(to, bytes>>20, 10), " MiB"...)
}

func ago(d time.Duration) string { return d.Round(time.Second).String() }

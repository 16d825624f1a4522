// Package placement chooses hosts for guests: filters, then a score, then a
// reason that a person can read. A Policy is a pure function of a survey; the
// live controller and the simulator run the same ones.
//
// It must not know why a guest is to be placed, nor change anything. Its tests
// run against small clusters made by hand and random ones.
package placement

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"pagurus/decide/topology"
	"pagurus/fleet"
)

// Ask is one placement question.
type Ask struct {
	Need       fleet.Resources
	Kind       fleet.Kind     // Auto: what suits the host best
	Files      string         // the machine that has the job's files
	Only       []fleet.HostID // the only hosts to consider; empty: any
	NoArrivals bool           // leave out hosts that take in a move already
	Alive      *Source        // set for a guest that runs and must arrive running
	Affinity   *Affinity      // where it had better be; nil: that is all the same
}

// Leaving is the question for a guest that runs.
func Leaving(s fleet.Snapshot, g fleet.Guest) Ask {
	needs, known := s.Hosts[g.Home].Facts.Abilities[g.Kind]
	return Ask{
		Need: g.Need, Kind: g.Kind, Files: s.Jobs[g.Job].Spec.Machine,
		Alive: &Source{Host: g.Home, Needs: needs, Known: known, Shape: g.Shape},
	}
}

// Source is where a running guest is, as far as that bounds where it can go.
type Source struct {
	Host     fleet.HostID
	Needs    fleet.Abilities // the source's own of the guest's kind
	Known    bool            // Needs is what the source's agent last said
	PostCopy bool            // it arrives by post-copy
	Shape    *fleet.Shape    // what the guest sees of itself; nil: what its host shows to all
}

// Choice is a host that passed every filter.
type Choice struct {
	Host   fleet.HostID
	Kind   fleet.Kind // of guest, never Auto
	Score  float64    // higher is better
	Reason string     // for people: what spoke for it
}

// Why is a host that did not pass, and the first filter it failed, for people.
type Why struct {
	Host   fleet.HostID
	Reason string
}

// Policy says which of two hosts is the better one for a guest. Where a guest
// can go at all is not its business: every policy leaves out the hosts that
// Explain names.
type Policy interface {
	Name() string
	// Score rates a host that would have so much memory free, and so many
	// virtual CPUs on it: higher is better. Which of two hosts of one capacity
	// is better must not change when both have less free by the same.
	Score(h *fleet.Host, freeBytes int64, cpus int) float64
}

// Named gives the policy of a name, and false if there is none.
func Named(name string) (Policy, bool) {
	for _, p := range []Policy{Spread{}, LongestIdle{}} {
		if name == p.Name() || name == "" {
			return p, true
		}
	}
	return nil, false
}

// InForce gives the policy by which guests are placed where somebody may have
// said one, and else the cluster's rules do.
func InForce(said Policy, r fleet.Rules) Policy {
	if said != nil {
		return said
	}
	p, known := Named(r.Places())
	if !known { // a newer controller's
		p = Spread{}
	}
	return p
}

// Spread prefers the host with the largest free share of memory and the fewest
// virtual CPUs on each of its own, so that no host carries more than it must.
type Spread struct{}

// Name is "spread".
func (Spread) Name() string { return "spread" }

// CPUs count less than free memory: memory cannot be shared, CPUs can. What
// guests use of them at the moment does not count: it says little of the next
// hour, and after a job has ended it is still that job's.
const cpusWeight = 0.5

// Score is the free share of memory less half the CPUs promised for each there
// is.
func (Spread) Score(h *fleet.Host, freeBytes int64, cpus int) float64 {
	share := float64(freeBytes) / float64(max(h.Facts.Capacity.MemoryBytes, 1))
	return share - cpusWeight*float64(cpus)/float64(max(h.Facts.Capacity.CPUs, 1))
}

// LongestIdle prefers the host whose owner has been away for longest: the longer they
// have been, the less likely they come back within the next hour. A host that
// is nobody's comes before all others, one that has guests after those that
// have none.
type LongestIdle struct{}

// Name is "longest-idle".
func (LongestIdle) Name() string { return "longest-idle" }

// crowd is how many hours of idleness a CPU is worth that no other guest is
// promised, of as many as a host may have: more than there have ever been, since
// guests that share one both run slowly.
const crowd = 1e9

// Score is by hours of idleness. Since all hosts idle on at the same pace it is
// counted from a fixed day, and stays what it is while nothing happens.
func (LongestIdle) Score(h *fleet.Host, freeBytes int64, cpus int) float64 {
	score := -crowd * float64(cpus) / float64(max(h.Facts.Capacity.CPUs, 1))
	o := h.Facts.Owner
	switch {
	case o == nil || o.State == "": // nobody's but ours
		return score + (Spread{}).Score(h, freeBytes, 0)
	case o.Present:
		return score - crowd
	}
	return score - float64(o.Since.Unix())/3600
}

// Explain gives every host that cannot take the guest and why, in the order of
// their names.
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
	case a.NoArrivals && arriving > 0:
		return "takes in another move"
	case a.Alive != nil && a.Alive.Host == h.ID:
		return "is where it runs now"
	case h.ForOwner || h.Facts.Owner != nil && h.Facts.Owner.Present:
		return "has its owner there"
	case h.State != fleet.HostUp:
		return "is draining"
	case h.Facts.SeenAt.IsZero():
		return "has not been heard from yet"
	case !Heard(*h, v.At):
		return "has not been heard from for " + ago(v.At.Sub(h.Facts.SeenAt))
	}
	if reason := unable(able, has, a); reason != "" {
		return reason
	}
	if !a.Kind.Traits().MountsFiles && a.Files != h.Facts.Machine && !able.Files {
		return "has no way to the job's files, which are on another machine"
	}
	if level := sees(able, a); level != "" && (h.Facts.Topology == nil || !topology.Holds(*h.Facts.Topology, level)) {
		return fmt.Sprintf("has no CPU of level %s, which the guest sees", level)
	}
	if free := v.FreeBytes(h); free < a.Need.MemoryBytes {
		return fmt.Sprintf("has %s of memory free, %s needed", size(max(free, 0)), size(a.Need.MemoryBytes))
	}
	return ""
}

// Hindered says what keeps a running guest from being moved wherever to, by what
// its host last saw in it; empty: nothing is known of.
func Hindered(s fleet.Snapshot, g fleet.Guest) string {
	return strings.Join(s.Hosts[g.Home].Facts.Guests[g.ID].Obstacles, "; ")
}

// unable says why hosts of these abilities cannot take the guest, whatever
// else they are.
func unable(able fleet.Abilities, has bool, a Ask) string {
	switch {
	case !has:
		return fmt.Sprintf("cannot run guests of kind %s", a.Kind)
	case able.Trouble != "":
		return fmt.Sprintf("cannot run guests of kind %s: %s", a.Kind, able.Trouble)
	}
	return unfitAlive(able, a)
}

// unfitAlive says why a running guest could not arrive running.
func unfitAlive(able fleet.Abilities, a Ask) string {
	if a.Alive == nil {
		return ""
	}
	from := a.Alive.Needs
	switch {
	case a.Alive.PostCopy && !able.PostCopy && able.NoPostCopy != "":
		return "cannot take in a guest by post-copy: " + able.NoPostCopy
	case a.Alive.PostCopy && !able.PostCopy:
		return "cannot take in a guest by post-copy"
	case !a.Alive.Known:
		return ""
	case !able.Live:
		return "cannot take in a running guest"
	case !from.Live:
		return fmt.Sprintf("%s, where it runs, cannot send a running guest", a.Alive.Host)
	case from.Accelerator != able.Accelerator:
		return fmt.Sprintf("runs guests by %s, the guest runs by %s", able.Accelerator, from.Accelerator)
	}
	if lacks := lacking(able.Processor, from.Processor); lacks != "" {
		return fmt.Sprintf("has a processor without %s, which the guest's programs may use", lacks)
	}
	if sees(able, a) == "" && from.CPU != "" && able.CPU != "" && from.CPU != able.CPU {
		return fmt.Sprintf("shows guests the CPU %s, the guest sees %s", able.CPU, from.CPU)
	}
	return ""
}

// sees is the level of CPU that a running guest was told to have, where it is the
// hardware that runs it; empty: none.
func sees(able fleet.Abilities, a Ask) string {
	if a.Alive == nil || !a.Alive.Known || a.Alive.Shape == nil || able.Accelerator != fleet.KVM {
		return ""
	}
	return a.Alive.Shape.CPU
}

// lacking gives, for people, what of one processor another does not have; empty:
// nothing, or one of them is not known.
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

// Words joins the reasons of hosts to one line, those of the same reason
// together; empty for no hosts.
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

// listed names a few and counts the rest: a line must stay readable when a
// cluster has thousands of hosts.
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

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
	"strings"
	"time"

	"pagurus/decide/topology"
	"pagurus/fleet"
)

// Ask is one placement question.
type Ask struct {
	Need  fleet.Resources
	Kind  fleet.Kind     // Auto: what suits the host best
	Files string         // the machine that has the job's files
	Only  []fleet.HostID // the only hosts to consider; empty: any
	Not   []fleet.HostID // hosts to leave out, for a reason the asker knows
	Alive *Source        // set for a guest that runs and must arrive running
}

// Source is where a running guest is, as far as that bounds where it can go.
type Source struct {
	Host  fleet.HostID
	Needs fleet.Abilities // the source's own of the guest's kind
	Known bool            // Needs is what the source's agent last said
	Late  bool            // it arrives by post-copy
	Shape *fleet.Shape    // what the guest sees of itself; nil: what its host shows to all
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

// Policy ranks hosts for one guest, best first. Every policy leaves out the
// hosts that Explain names.
type Policy interface {
	Name() string
	Rank(*Survey, Ask) []Choice
}

// Named gives the policy of a name, and false if there is none.
func Named(name string) (Policy, bool) {
	if name == "" || name == (Spread{}).Name() {
		return Spread{}, true
	}
	return nil, false
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

// Rank gives every host that can take the guest, best first; equals in the
// order of their names. A kind that is left open is settled first: hosts of a
// better kind leave out all others.
func (Spread) Rank(v *Survey, a Ask) []Choice {
	for _, s := range settled(a) {
		if out := spread(v, s); len(out) > 0 {
			return out
		}
	}
	return nil
}

func spread(v *Survey, s suit) []Choice {
	var out []Choice
	a := s.ask
	for _, h := range v.Hosts {
		if Unfit(v, h, a) != "" || !s.suits(h) {
			continue
		}
		cpus := float64(max(h.Facts.Capacity.CPUs, 1))
		free := v.FreeBytes(h)
		share := float64(free-a.Need.MemoryBytes) / float64(max(h.Facts.Capacity.MemoryBytes, 1))
		guests := v.Guests(h.ID)
		out = append(out, Choice{
			Host: h.ID, Kind: a.Kind,
			Score: share - cpusWeight*float64(v.CPUs(h.ID))/cpus,
			Reason: s.why + fmt.Sprintf("%s of %s memory free, %.1f of %d CPUs busy, %s there",
				size(free), size(h.Facts.Capacity.MemoryBytes), h.Facts.LoadCPUs, h.Facts.Capacity.CPUs, count(guests, "guest")),
		})
	}
	slices.SortStableFunc(out, func(a, b Choice) int {
		switch {
		case a.Score > b.Score:
			return -1
		case a.Score < b.Score:
			return 1
		}
		return 0
	})
	return out
}

// Explain gives every host that cannot take the guest and why, in the order of
// their names.
func Explain(v *Survey, a Ask) []Why {
	var out []Why
	for _, h := range v.Hosts {
		if reason := Unfit(v, h, a); reason != "" {
			out = append(out, Why{Host: h.ID, Reason: reason})
		}
	}
	return out
}

// Unfit says why a host cannot take the guest; empty: it can.
func Unfit(v *Survey, h fleet.Host, a Ask) string {
	if a.Kind == fleet.Auto {
		return unfitAnyhow(v, h, a)
	}
	able, has := h.Facts.Abilities[a.Kind]
	switch {
	case len(a.Only) > 0 && !slices.Contains(a.Only, h.ID):
		return "is not among the hosts asked for"
	case slices.Contains(a.Not, h.ID):
		return "is left out"
	case a.Alive != nil && a.Alive.Host == h.ID:
		return "is where it runs now"
	case h.State != fleet.HostUp:
		return "is draining"
	case h.Facts.SeenAt.IsZero():
		return "has not been heard from yet"
	case !Heard(h, v.At):
		return "has not been heard from for " + ago(v.At.Sub(h.Facts.SeenAt))
	case !has:
		return fmt.Sprintf("cannot run guests of kind %s", a.Kind)
	case able.Trouble != "":
		return fmt.Sprintf("cannot run guests of kind %s: %s", a.Kind, able.Trouble)
	}
	if a.Kind == fleet.Container && a.Files != h.Facts.Machine && !able.Files {
		return "has no way to the job's files, which are on another machine: its kernel has no NFS"
	}
	if reason := unfitAlive(h.Facts.Topology, able, a); reason != "" {
		return reason
	}
	if free := v.FreeBytes(h); free < a.Need.MemoryBytes {
		return fmt.Sprintf("has %s of memory free, %s needed", size(max(free, 0)), size(a.Need.MemoryBytes))
	}
	return ""
}

// unfitAlive says why a running guest could not arrive running.
func unfitAlive(host *fleet.Topology, able fleet.Abilities, a Ask) string {
	if a.Alive == nil {
		return ""
	}
	from := a.Alive.Needs
	switch {
	case a.Alive.Late && !able.PostCopy && able.NoPostCopy != "":
		return "cannot take in a guest by post-copy: " + able.NoPostCopy
	case a.Alive.Late && !able.PostCopy:
		return "cannot take in a guest by post-copy"
	case !a.Alive.Known:
		return ""
	case !able.Live:
		return "cannot take in a running guest"
	case !from.Live:
		return fmt.Sprintf("%s, where it runs, cannot send a running guest", a.Alive.Host)
	case from.Accelerator != able.Accelerator:
		return fmt.Sprintf("runs guests by %s, the guest runs by %s", able.Accelerator, from.Accelerator)
	case a.Alive.Shape != nil && a.Alive.Shape.CPU != "" && able.Accelerator == fleet.KVM:
		if host == nil || !topology.Holds(*host, a.Alive.Shape.CPU) {
			return fmt.Sprintf("has no CPU of level %s, which the guest sees", a.Alive.Shape.CPU)
		}
	case from.CPU != "" && able.CPU != "" && from.CPU != able.CPU:
		return fmt.Sprintf("shows guests the CPU %s, the guest sees %s", able.CPU, from.CPU)
	}
	return ""
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

func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

func size(bytes int64) string {
	switch {
	case bytes < 0:
		return "-" + size(-bytes)
	case bytes >= 10<<30:
		return fmt.Sprintf("%d GiB", bytes>>30)
	case bytes >= 1<<30:
		return fmt.Sprintf("%.1f GiB", float64(bytes)/(1<<30))
	}
	return fmt.Sprintf("%d MiB", bytes>>20)
}

func ago(d time.Duration) string { return d.Round(time.Second).String() }

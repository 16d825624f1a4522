package view

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"pagurus/fleet"
)

// SitePath is how two sites reach each other, as their hosts measure it.
type SitePath struct {
	Sites   [2]string      `json:"sites"` // sorted
	Kind    string         `json:"kind"`  // direct, relayed, mixed or none
	Relays  []fleet.HostID `json:"relays,omitempty"`
	Latency time.Duration  `json:"latency_ns,omitempty"`       // of a round trip, the median of all hosts'
	Lost    float64        `json:"lost"`                       // the share of echoes, the mean
	Rates   [2]float64     `json:"bytes_per_second,omitempty"` // the most, from the first site to the second and back; 0: not measured
	Since   time.Time      `json:"since,omitzero"`             // when the last of the paths changed
	Paths   []HostPath     `json:"paths"`
}

// HostPath is a path with its hosts.
type HostPath struct {
	From fleet.HostID `json:"from"`
	To   fleet.HostID `json:"to"`
	fleet.Path
}

// SitePaths lists the paths between sites that hosts know.
func (c Cluster) SitePaths() []SitePath {
	all := map[[2]string]*SitePath{}
	for _, h := range c.Hosts {
		if h.Facts.WireGuard == nil || !h.Facts.Connected {
			continue
		}
		for _, to := range slices.Sorted(maps.Keys(h.Facts.WireGuard.Paths)) {
			other, known := c.Host(to)
			a, b := h.Facts.Site, other.Facts.Site
			if !known || a == "" || b == "" || a == b {
				continue
			}
			key := [2]string{min(a, b), max(a, b)}
			if all[key] == nil {
				all[key] = &SitePath{Sites: key}
			}
			p := h.Facts.WireGuard.Paths[to]
			all[key].Paths = append(all[key].Paths, HostPath{h.ID, to, p})
			way := 0
			if a != key[0] {
				way = 1
			}
			all[key].Rates[way] = max(all[key].Rates[way], p.BytesPerSecond)
		}
	}
	out := []SitePath{}
	for _, key := range slices.SortedFunc(maps.Keys(all), func(a, b [2]string) int {
		return cmp.Or(Compare(a[0], b[0]), Compare(a[1], b[1]))
	}) {
		all[key].sum()
		out = append(out, *all[key])
	}
	return out
}

// sum joins what the hosts say.
func (p *SitePath) sum() {
	var took []time.Duration
	kinds := map[string]bool{}
	for _, each := range p.Paths {
		kinds[cmp.Or(string(each.Kind), "none")] = true
		if each.Latency > 0 {
			took = append(took, each.Latency)
		}
		p.Lost += each.Lost / float64(len(p.Paths))
		if each.Since.After(p.Since) {
			p.Since = each.Since
		}
		if each.Kind == fleet.RelayedPath && !slices.Contains(p.Relays, each.Relay) {
			p.Relays = append(p.Relays, each.Relay)
		}
	}
	slices.Sort(p.Relays)
	p.Kind = "mixed"
	if len(kinds) == 1 {
		p.Kind = slices.Collect(maps.Keys(kinds))[0]
	}
	if slices.Sort(took); len(took) > 0 {
		p.Latency = took[len(took)/2]
	}
}

// SiteTable lists the paths between sites.
func (c Cluster) SiteTable() Table {
	t := Table{
		Columns: []string{"SITES", "PATH", "LATENCY", "LOST", "BANDWIDTH", "HOSTS", "SINCE"},
		Empty:   "no path between two sites is known: agents' --site says where hosts are, and sites are connected where the cluster encrypts; `pagurus lab up --sites 3` makes some on this machine",
	}
	for _, p := range c.SitePaths() {
		kind := p.Kind
		if len(p.Relays) > 0 {
			var names []string
			for _, r := range p.Relays {
				names = append(names, string(r))
			}
			kind += " by " + strings.Join(names, ",")
		}
		latency, since := "-", "-"
		if p.Latency > 0 {
			latency = Took(p.Latency)
		}
		if !p.Since.IsZero() {
			since = Age(c.At.Sub(p.Since))
		}
		t.Rows = append(t.Rows, []string{cell(p.Sites[0] + " - " + p.Sites[1]), cell(kind), latency,
			fmt.Sprintf("%.0f %%", 100*p.Lost), bandwidths(p.Rates), cell(pathHosts(p.Paths)), since})
		if p.Kind == "none" || p.Kind == "mixed" {
			t.Notes = append(t.Notes, unreached(p)...)
		}
	}
	return t
}

func bandwidths(rates [2]float64) string {
	var said []string
	for _, r := range rates {
		if r == 0 {
			said = append(said, "-")
		} else {
			said = append(said, Rate(r))
		}
	}
	return strings.Join(said, " / ")
}

// pathHosts names the pairs of hosts.
func pathHosts(paths []HostPath) string {
	pairs := map[string]bool{}
	for _, p := range paths {
		pairs[string(min(p.From, p.To))+" - "+string(max(p.From, p.To))] = true
	}
	if len(pairs) > 2 {
		return Count(len(pairs), "pair")
	}
	return strings.Join(slices.Sorted(maps.Keys(pairs)), ", ")
}

// unreached says what to do about hosts that do not reach each other.
func unreached(p SitePath) (notes []string) {
	said := map[[2]fleet.HostID]bool{}
	for _, each := range p.Paths {
		pair := [2]fleet.HostID{min(each.From, each.To), max(each.From, each.To)}
		if each.Kind != "" || !each.NeedsRelay || said[pair] {
			continue
		}
		said[pair] = true
		switch {
		case each.Relay == "":
			notes = append(notes, fmt.Sprintf("%s and %s do not reach each other directly, and no host relays: start an agent, without --%s off, on a machine that both reach, like the controller's", pair[0], pair[1], fleet.RelayFlag))
		case each.Dead:
			notes = append(notes, fmt.Sprintf("%s and %s do not reach each other directly, and nothing comes by %s: let UDP to its ports for relaying pass (--%s)", pair[0], pair[1], each.Relay, fleet.RelayPortFlag))
		}
	}
	return notes
}

// pathColumn says how many peers in other networks a host reaches how, if there are any.
func (c Cluster) pathColumn(t *Table) {
	if !slices.ContainsFunc(c.Hosts, func(h Host) bool { return h.Facts.WireGuard != nil && len(h.Facts.WireGuard.Paths) > 0 }) {
		return
	}
	t.Columns = append(t.Columns, "PATHS")
	for i, h := range c.Hosts {
		count := map[fleet.PathKind]int{}
		if h.Facts.WireGuard != nil {
			for _, p := range h.Facts.WireGuard.Paths {
				count[p.Kind]++
			}
		}
		var said []string
		for _, k := range []struct {
			kind fleet.PathKind
			word string
		}{{fleet.DirectPath, "direct"}, {fleet.RelayedPath, "relayed"}, {"", "none"}} {
			if n := count[k.kind]; n > 0 {
				said = append(said, fmt.Sprintf("%d %s", n, k.word))
			}
		}
		t.Rows[i] = append(t.Rows[i], cmp.Or(strings.Join(said, ", "), "-"))
	}
}

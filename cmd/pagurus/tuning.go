// This file has the commands about what guests mirror of their hosts: `pagurus tune`.
// Package topology decides it; here it is shown.
//
// It must not change anything. Its tests show recorded machines.

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"pagurus/decide/topology"
	"pagurus/fleet"
	"pagurus/serve/wire"
	"pagurus/show/cli"
	"pagurus/show/view"
)

// tuneCommand makes the command `pagurus tune`.
func tuneCommand(out io.Writer) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "tune",
		Short:   "Show what guests mirror of their hosts",
		Long:    "Guests mirror their hosts if they are started with `pagurus run --tune`.",
		Example: "  pagurus tune show host1\n  pagurus run --tune hpc -n 8 -- ./a.out",
		Args:    cli.OnlyVerbs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(showCommand(out))
	return cmd
}

// tuneWish is a planned guest.
type tuneWish struct {
	cpus   int
	memory int64
	tune   string
}

// tuneVerb is `tune show` below a noun.
func tuneVerb(out io.Writer, what, id string) *cobra.Command {
	cmd := showCommand(out)
	cmd.Use, cmd.Example = "tune "+what, "  pagurus tune "+id
	return cmd
}

func showCommand(out io.Writer) *cobra.Command {
	w := tuneWish{memory: 512 << 20}
	cmd := &cobra.Command{
		Use:   "show HOST|GUEST",
		Short: "Show a host's topology and what a guest would get there, or what a guest has",
		Long: `For a host, it prints its nodes, sockets, cores, threads and huge pages, and what a
guest with --cpus and --mem would see and get there. For a guest it prints the
topology that the guest sees, which never changes, and where its parts are now. The
agent also asks the guest itself, every half minute while nothing moves.`,
		Example: `  pagurus tune show host1
  pagurus tune show host1 --cpus 8 --mem 16G --tune numa,pin
  pagurus tune show j3g0`,
		Args:              cli.Exactly(1, "one host or guest: `pagurus host ls` and `pagurus guest ls` list them"),
		ValidArgsFunction: cli.CompleteHostOrGuest,
		RunE: func(cmd *cobra.Command, args []string) error {
			if least := fleet.VM.Traits().LeastMemoryBytes; w.memory < least {
				return fmt.Errorf("--"+fleet.MemFlag+": a virtual machine has at least %s", view.Bytes(least))
			}
			where, err := cli.Controller(cmd.Flags(), wire.UserCredentials())
			if err != nil {
				return err
			}
			c, err := wire.Dial(where)
			if err != nil {
				return err
			}
			defer c.Close()
			s, err := c.Snapshot(cmd.Context())
			if err != nil {
				return err
			}
			asJSON, _ := cmd.Flags().GetBool("json")
			return show(out, s, args[0], w, asJSON)
		},
	}
	cmd.Flags().IntVar(&w.cpus, cpusFlag, 0, "CPUs of the guest (default: as many as the host has cores)")
	cli.Size(cmd.Flags(), &w.memory, fleet.MemFlag, "its memory")
	cmd.Flags().StringVar(&w.tune, tuneFlag, "hpc", "what it mirrors, as in run --tune")
	cli.NoLess(cmd.Flags(), cpusFlag, 1)
	cli.JudgeTune(cmd.Flags(), tuneFlag)
	return cmd
}

// plan is the output for --json.
type plan struct {
	Topology  *fleet.Topology  `json:"topology,omitempty"`
	Shape     *fleet.Shape     `json:"shape,omitempty"`
	Layout    *fleet.Layout    `json:"layout,omitempty"`
	Isolation *fleet.Isolation `json:"isolation,omitempty"`
	Seen      *fleet.Topology  `json:"seen,omitempty"`    // the guest's own report; nil: not yet asked
	Differs   []string         `json:"differs,omitempty"` // where that differs from its shape
}

func show(out io.Writer, s fleet.Snapshot, name string, w tuneWish, asJSON bool) error {
	p, text, err := of(s, name, w)
	if err != nil {
		return err
	}
	if asJSON {
		e := json.NewEncoder(out)
		e.SetIndent("", "  ")
		return e.Encode(p)
	}
	_, err = io.WriteString(out, text)
	return err
}

func of(s fleet.Snapshot, name string, w tuneWish) (plan, string, error) {
	if h, ok := s.Hosts[fleet.HostID(name)]; ok {
		return ofHost(s, h, w)
	}
	g, ok := s.Guests[fleet.GuestID(name)]
	switch {
	case !ok:
		return plan{}, "", fmt.Errorf("there is no host and no guest %q: `pagurus host ls` and `pagurus guest ls` list them", name)
	case g.Shape == nil:
		return plan{}, "", fmt.Errorf("guest %s mirrors nothing of its host: it was not started with `run --"+tuneFlag+"`", name)
	}
	facts := s.Hosts[g.Home].Facts.Guests[g.ID]
	p := plan{Shape: g.Shape, Layout: facts.Layout}
	text := fmt.Sprintf("Guest %s sees %s\n", g.ID, sees(*g.Shape))
	if facts.Seen != nil {
		p.Seen = facts.Seen
		p.Differs = topology.Differs(*g.Shape, *p.Seen)
		text += asSeen(p.Differs)
	}
	if p.Layout == nil {
		return p, text + fmt.Sprintf("%s has not reported where its parts are.\n", g.Home), nil
	}
	return p, text + fmt.Sprintf("On %s:\n%s", g.Home, layoutText(*g.Shape, *p.Layout)), nil
}

func ofHost(s fleet.Snapshot, h fleet.Host, w tuneWish) (plan, string, error) {
	t := h.Facts.Topology
	if t == nil {
		return plan{}, "", fmt.Errorf("the agent of %s has not reported its topology yet", h.ID)
	}
	tune, err := cli.ParseTune(w.tune)
	if err != nil {
		return plan{}, "", fmt.Errorf("--"+tuneFlag+" %w", err)
	}
	cpus := w.cpus
	if cpus == 0 {
		for _, n := range t.Nodes {
			cpus += len(n.Cores)
		}
	}
	if cpus < 1 {
		return plan{}, "", errors.New("--" + cpusFlag + " has to be at least 1")
	}
	need := fleet.Resources{CPUs: cpus, MemoryBytes: w.memory}
	var taken topology.Taken
	for _, g := range h.Facts.Guests {
		if g.Layout != nil {
			taken.Add(*g.Layout)
		}
	}
	p := plan{Topology: t, Isolation: h.Facts.Isolation}
	text := ofTopology(*t)
	for _, line := range view.IsolationText(h) {
		text += view.Clean(line) + "\n"
	}
	p.Shape = topology.For(s.Hosts, h.ID, fleet.VM, fleet.JobSpec{Need: need, Tune: tune}, s.Cluster.Rules.CPU)
	if p.Shape == nil {
		return p, text, nil
	}
	ours := *t
	if p.Isolation != nil {
		ours = t.Only(p.Isolation.CPUs)
	}
	layout := topology.Fit(ours, *p.Shape, need, tune, taken)
	p.Layout = &layout
	text += fmt.Sprintf("\nA guest of %s and %s would see %s\nand get:\n%s", view.Count(cpus, "CPU"), view.Bytes(w.memory), sees(*p.Shape), layoutText(*p.Shape, layout))
	return p, text, nil
}

func ofTopology(t fleet.Topology) string {
	table := view.Table{Columns: []string{"NODE", "SOCKETS", "CORES", "CPUS", "MEMORY", "HUGE PAGES", "DISTANCES"}}
	for _, n := range t.Nodes {
		var sockets, cpus []int
		for _, c := range n.Cores {
			cpus = append(cpus, c.CPUs...)
			if !slices.Contains(sockets, c.Socket) {
				sockets = append(sockets, c.Socket)
			}
		}
		var pages []string
		for _, h := range n.Huge {
			pages = append(pages, fmt.Sprintf("%d of %d × %s free", h.Free, h.Total, view.Bytes(h.SizeBytes)))
		}
		table.Rows = append(table.Rows, []string{fmt.Sprint(n.ID), dash(list(sockets)), fmt.Sprint(len(n.Cores)), dash(list(cpus)), view.Bytes(n.MemoryBytes),
			dash(strings.Join(pages, ", ")), dash(strings.Trim(fmt.Sprint(n.Distances), "[]"))})
	}
	text := table.Text()
	if t.Level != "" {
		text += "Its CPUs are " + t.Level + ". "
	}
	if t.Transparent {
		return text + "Its kernel makes huge pages on request.\n"
	}
	return text + "Its kernel does not make huge pages by itself.\n"
}

// sees describes what a guest sees of itself.
func sees(s fleet.Shape) string {
	text := fmt.Sprintf("%s of %s with %s", view.Count(s.Sockets, "socket"), view.Count(s.Cores, "core"), view.Count(s.Threads, "thread"))
	if len(s.Nodes) > 0 {
		text += ", in " + view.Count(len(s.Nodes), "node")
	}
	if s.CPU != "" {
		text += ", CPUs " + s.CPU
	}
	return text
}

// asSeen describes the guest's own report.
func asSeen(differs []string) string {
	if len(differs) == 0 {
		return "The guest itself reports the same.\n"
	}
	return "The guest itself reports something else:\n  " + strings.Join(differs, "\n  ") + "\n"
}

// layoutText describes the places of a guest's parts.
func layoutText(s fleet.Shape, l fleet.Layout) string {
	table := view.Table{Columns: []string{"GUEST NODE", "GUEST CPUS", "MEMORY", "ON HOST NODES", "PAGES", "ON HOST CPUS"}, Notes: l.Notes}
	nodes := s.Nodes
	if len(nodes) == 0 {
		nodes = []fleet.ShapeNode{{CPUs: s.Sockets * s.Cores * s.Threads}}
	}
	first := 0
	for i, n := range nodes {
		var mine []int
		for c := first; c < first+n.CPUs; c++ {
			mine = append(mine, c)
		}
		first += n.CPUs
		row := []string{fmt.Sprint(i), list(mine), "-", "any", "the kernel's choice", "any"}
		if n.MemoryBytes > 0 {
			row[2] = view.Bytes(n.MemoryBytes)
		}
		if i < len(l.Nodes) {
			if len(l.Nodes[i].Hosts) > 0 {
				row[3] = list(l.Nodes[i].Hosts)
			}
			if l.Nodes[i].PageBytes > 0 {
				row[4] = view.Bytes(l.Nodes[i].PageBytes)
			}
		}
		if len(l.Pins) >= first {
			row[5] = pins(l.Pins[first-n.CPUs : first])
		}
		table.Rows = append(table.Rows, row)
	}
	text := table.Text()
	if len(l.Rest) > 0 {
		text += "The rest of it runs on CPUs " + list(l.Rest) + ".\n"
	}
	return text
}

// pins describes the pinning of CPUs: one to one, or all to the same.
func pins(all [][]int) string {
	alone := true
	var flat []int
	for _, p := range all {
		alone = alone && len(p) == 1
		flat = append(flat, p...)
	}
	different := slices.Compact(slices.Sorted(slices.Values(flat)))
	if alone && len(different) == len(all) {
		return strings.Trim(strings.ReplaceAll(fmt.Sprint(flat), " ", ","), "[]") + " one to one"
	}
	return list(different) + " together"
}

// list writes numbers in the kernel's format: "0-3,8".
func list(all []int) string {
	all = slices.Sorted(slices.Values(all))
	var parts []string
	for i := 0; i < len(all); {
		j := i
		for j+1 < len(all) && all[j+1] == all[j]+1 {
			j++
		}
		if i == j {
			parts = append(parts, fmt.Sprint(all[i]))
		} else {
			parts = append(parts, fmt.Sprintf("%d-%d", all[i], all[j]))
		}
		i = j + 1
	}
	return strings.Join(parts, ",")
}

func dash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

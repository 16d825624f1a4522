// This file says which CPU virtual machines get that start, and which hosts cannot give it.

package view

import (
	"fmt"

	"pagurus/fleet"
)

// CPUText says which CPU virtual machines get that start, and the most that all hosts could give; empty: KVM runs none.
func (c Cluster) CPUText() string {
	common, lacking, different := c.cpus()
	if common == nil {
		return ""
	}
	text := "virtual machines that start have the CPU that each host's agent is told"
	switch {
	case c.Rules.CPU == fleet.HostCPU:
		text = "virtual machines that start have their host's CPU"
	case c.Rules.CPU != "":
		text = "virtual machines that start have the CPU " + c.Rules.CPU
	}
	if len(lacking) > 0 {
		text += ", and none start on " + fleet.Enumerate(lacking, "and") + ", without that level"
	}
	if *common == "" {
		return text + "; not all hosts that run them with KVM say which level they have"
	}
	text += fmt.Sprintf("; %s is the highest level that all hosts have that run them with KVM", *common)
	if different {
		text += ", whose processors are different"
	}
	return text
}

// cpuNotes says what follows from different processors.
func (c Cluster) cpuNotes(t *Table) {
	switch common, lacking, different := c.cpus(); {
	case len(lacking) > 0:
		t.Notes = append(t.Notes, c.CPUText()+": `pagurus policy set --cpu-level`")
	case different && c.Rules.CPU == "" && *common != "" && *common != fleet.CPULevels[0]:
		t.Notes = append(t.Notes, fmt.Sprintf("hosts' processors are different: with `pagurus policy set --cpu-level %s` virtual machines that start move between all of them", *common))
	}
}

// cpus looks at the processors of hosts that run virtual machines with KVM: the highest level that all have, nil if there is no such host; which lack
// that of the rules; and whether guests that see their host's own see different ones.
func (c Cluster) cpus() (common *string, lacking []string, different bool) {
	var all []fleet.Topology
	seen := map[string]bool{}
	for _, h := range c.Hosts {
		if !h.UsesKVM() {
			continue
		}
		var t fleet.Topology
		if h.Facts.Topology != nil {
			t = *h.Facts.Topology
		}
		all = append(all, t)
		for _, can := range h.Facts.Abilities {
			if can.Accelerator == fleet.KVM && fleet.OwnProcessor(can.Model) {
				seen[can.CPU] = true
			}
		}
		if fleet.IsCPULevel(c.Rules.CPU) && !t.HasCPU(c.Rules.CPU) {
			lacking = append(lacking, string(h.ID))
		}
	}
	if all != nil {
		level := fleet.CommonCPU(all)
		common = &level
	}
	return common, lacking, len(seen) > 1
}

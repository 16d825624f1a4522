package xen

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"pagurus/fleet"
)

// about is what Xen says of its host.
type about struct {
	version string
	cpu     string // that guests see
	room    fleet.Resources
}

// Room is what the host has for guests: all CPUs, and the memory that the first domain does not have.
func (d *Driver) Room() fleet.Resources { return d.about.room }

// What is kept of the memory that the first domain does not have: Xen's own, and a part for the tables of domains.
const (
	keptMiB  = 64
	keptPart = 50 // the fiftieth part
)

// about says what host this is.
func (t tools) about(ctx context.Context) (about, error) {
	info, err := t.output(ctx, "info")
	if err != nil {
		return about{}, err
	}
	list, err := t.output(ctx, "list", "0")
	if err != nil {
		return about{}, err
	}
	return parseAbout(info, list)
}

// parseAbout reads what xl info says, and xl list of the first domain.
func parseAbout(info, list string) (a about, err error) {
	said := map[string]string{}
	for line := range strings.Lines(info) {
		if name, value, found := strings.Cut(line, ":"); found {
			said[strings.TrimSpace(name)] = strings.TrimSpace(value)
		}
	}
	if !strings.Contains(said["xen_caps"], "hvm-3.0-x86_64") && !strings.Contains(said["virt_caps"], "hvm") {
		return a, errors.New("the processor has no hardware virtualization, or the firmware has it switched off, and Xen's PVH guests need it")
	}
	if a.version = said["xen_version"]; a.version == "" {
		return a, errors.New("xl info does not say which Xen this is")
	}
	a.cpu = "as Xen " + said["xen_major"] + "." + said["xen_minor"] + " shows: " + said["hw_caps"]
	first := strings.Fields(list[strings.LastIndex(strings.TrimSpace(list), "\n")+1:])
	if len(first) < 3 {
		return a, fmt.Errorf("xl list says %q of the first domain", list)
	}
	cpus, err := strconv.Atoi(said["nr_cpus"])
	total, err2 := strconv.ParseInt(said["total_memory"], 10, 64)
	its, err3 := strconv.ParseInt(first[2], 10, 64)
	if err := errors.Join(err, err2, err3); err != nil {
		return a, fmt.Errorf("how large the host is: %w", err)
	}
	left := total - its - keptMiB
	left -= left / keptPart
	a.room = fleet.Resources{CPUs: cpus, MemoryBytes: left * mebi}
	if least := fleet.Xen.Traits().LeastMemoryBytes; a.room.MemoryBytes < least {
		return a, fmt.Errorf("the first domain has %d of the host's %d MiB, so there is no room for guests: add dom0_mem=2G,max:2G to Xen's command line", its, total)
	}
	return a, nil
}

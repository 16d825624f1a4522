package main

import (
	"pagurus/act/qemu"
	"pagurus/fleet"
)

// cgroups limits what a host's guests use together and each.
type cgroups = qemu.Cgroups

func openGroups(hostFlags) (cgroups, error) { return nil, nil }

type hostGroups struct{}

func cgroupsOf(fleet.HostID) hostGroups { return hostGroups{} }
func (hostGroups) remove() error        { return nil }

package main

import (
	"os"

	"pagurus/act/cgroup"
	"pagurus/cmd/roles"
	"pagurus/fleet"
)

// labGroup is the group of the guests of a lab's host.
func labGroup(host fleet.HostID) string { return roles.Group("lab-" + string(host)) }

// group is that of the guests of a lab's host n. Where the host has so many CPUs
// altogether, it is in the group of a whole machine.
func (l lab) group(n int) string {
	if l.CPUsAltogether > 0 {
		return labGroup(hostName(n)) + "/guests"
	}
	return labGroup(hostName(n))
}

// enclose makes the group of host n as a machine, where it is one.
func (l lab) enclose(n int) error {
	if l.CPUsAltogether == 0 {
		return nil
	}
	_, err := cgroup.Open(labGroup(hostName(n)), l.CPUsAltogether)
	return err
}

// occupy has this process, and what it is going to start, be the owner's on
// host n, beside the guests and with as much weight.
func (l lab) occupy(n int) error {
	if l.CPUsAltogether == 0 {
		return nil
	}
	machine, err := cgroup.Open(labGroup(hostName(n)), l.CPUsAltogether)
	if err != nil {
		return err
	}
	return machine.Place("owner", os.Getpid(), 1)
}

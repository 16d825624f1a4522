package main

import (
	"os"

	"pagurus/act/cgroup"
	"pagurus/cmd/roles"
	"pagurus/fleet"
)

// labGroup is the control group of the guests of a lab's host.
func labGroup(host fleet.HostID) string { return roles.Group("lab-" + string(host)) }

// group is the control group of the guests of a lab's host n. With a limit for the whole
// host, it is below the host's own group.
func (l lab) group(n int) string {
	if l.CPUsAltogether > 0 {
		return labGroup(hostName(n)) + "/guests"
	}
	return labGroup(hostName(n))
}

// enclose makes the group of host n as a whole machine, if it has one.
func (l lab) enclose(n int) error {
	if l.CPUsAltogether == 0 {
		return nil
	}
	_, err := cgroup.Open(labGroup(hostName(n)), l.CPUsAltogether)
	return err
}

// occupy puts this process and its later children into host n's group for the owner, beside
// the guests and with the same weight.
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

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"pagurus/act/daemon"
	"pagurus/bench/drive"
	"pagurus/fleet"
)

// groupFolders begins the control groups of the lab's guests: HOST/GUEST.
const groupFolders = "/pagurus-lab-"

// agentName is the name of a container's first process.
const agentName = "pagurus-guest"

// containers finds the first processes of the lab's containers. A container that is being
// restored does not count until it is in the group that holds it until it may run.
func containers() ([]copyOf, error) {
	var out []copyOf
	_, err := daemon.Processes(func(pid int) bool {
		name, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
		if err != nil || string(bytes.TrimSpace(name)) != agentName || !first(pid) {
			return false
		}
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
		if err != nil {
			return false
		}
		host, guest, ok := grouped(string(text))
		p, err := daemon.Find(pid)
		if ok && err == nil {
			out = append(out, copyOf{p, guest, host})
		}
		return false
	})
	return out, err
}

// first reports whether a process is the first one of a container.
func first(pid int) bool {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return false
	}
	for line := range strings.Lines(string(text)) {
		if all, ok := strings.CutPrefix(line, "NSpid:"); ok {
			numbers := strings.Fields(all)
			return len(numbers) > 1 && numbers[len(numbers)-1] == "1"
		}
	}
	return false
}

// grouped reads host and guest from a process's groups. It uses the group that freezes it,
// in version 1 one of many.
func grouped(text string) (fleet.HostID, fleet.GuestID, bool) {
	group := ""
	for line := range strings.Lines(text) {
		parts := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(parts) == 3 && (parts[1] == "freezer" || parts[1] == "" && group == "") {
			group = parts[2]
		}
	}
	rest, ours := strings.CutPrefix(group, groupFolders)
	parts := strings.Split(rest, "/")
	if !ours || len(parts) < 2 {
		return "", "", false
	}
	return fleet.HostID(parts[0]), fleet.GuestID(parts[1]), true
}

// members gives the processes of a container.
func members(guest fleet.GuestID, host fleet.HostID) (pids []int) {
	for _, root := range []string{"/sys/fs/cgroup/freezer" + groupFolders + "%s/%s", "/sys/fs/cgroup" + groupFolders + "%s/%s/inside"} {
		text, err := os.ReadFile(filepath.Join(fmt.Sprintf(root, host, guest), "cgroup.procs"))
		if err != nil {
			continue
		}
		for word := range strings.FieldsSeq(string(text)) {
			if pid, err := strconv.Atoi(word); err == nil {
				pids = append(pids, pid)
			}
		}
	}
	return pids
}

// used gives the CPU time of a container's processes, except those that are ending.
func used(c copyOf) time.Duration {
	sum := time.Duration(0)
	for _, pid := range members(c.guest, c.host) {
		sum += threads(pid, "")
	}
	return sum
}

// runtimes gives the processes that dump or restore a container on a host, or are about to.
func runtimes(host fleet.HostID, guest fleet.GuestID) (pids []int) {
	folder := filepath.Join(labRun, string(host), "containers", string(guest)) + "/"
	_, _ = daemon.Processes(func(pid int) bool { // an unlisted process is found by the next scan
		line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		if err == nil && runtime(strings.Split(string(line), "\x00")) && opens(pid, folder) {
			pids = append(pids, pid)
		}
		return false
	})
	return pids
}

// opens reports whether a process has an open file in a folder: a CRIU has its guest's
// images open.
func opens(pid int, folder string) bool {
	links, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	return slices.ContainsFunc(links, func(link string) bool {
		to, err := os.Readlink(link)
		return err == nil && strings.HasPrefix(to, folder)
	})
}

// runtime reports whether a command line is that of a CRIU in service mode.
func runtime(args []string) bool {
	return slices.Contains(args, "swrk") && slices.ContainsFunc(args, func(a string) bool { return filepath.Base(a) == "criu" })
}

// meetLimit is how long to wait for a process that lives for some hundredths of a second of
// a phase.
const meetLimit = 1500 * time.Millisecond

// meet kills processes as soon as there are any.
func meet(ctx context.Context, find func() []int) error {
	for end := time.Now().Add(meetLimit); time.Now().Before(end); {
		hit := false
		for _, pid := range find() {
			err := unix.Kill(pid, unix.SIGKILL)
			if err != nil && !errors.Is(err, unix.ESRCH) {
				return err
			}
			hit = hit || err == nil
		}
		if hit {
			return nil
		}
		if err := drive.Pause(ctx, 2*time.Millisecond); err != nil {
			return err
		}
	}
	return errMissed
}

// places are the folders of a host's agent for data that must not be lost.
func places(host fleet.HostID) []disk {
	return []disk{{filepath.Join(labRun, string(host), "containers")}, {filepath.Join(labRun, string(host), "ledger")}}
}

// fillPlaces fills their disks for a while, in one of two cases completely.
func (c *chaos) fillPlaces(ctx context.Context, f fault, host fleet.HostID) (err error) {
	c.mu.Lock()
	c.checker.unfit[host] = true
	c.mu.Unlock()
	rest := int64(nearlyFull)
	if f.Pick%2 == 0 {
		rest = 0
	}
	for _, d := range places(host) {
		empty, e := d.fill(rest)
		if e != nil {
			err = errors.Join(err, e)
			continue
		}
		defer func() { err = errors.Join(err, empty()) }()
	}
	if err == nil {
		_ = drive.Pause(ctx, f.Lasts)
	}
	return err
}

// withoutRuntime restarts a host's agent without CRIU, and then again with it.
func (c *chaos) withoutRuntime(ctx context.Context, f fault, host fleet.HostID) error {
	c.mu.Lock()
	c.checker.unfit[host] = true
	c.mu.Unlock()
	s := c.services[string(host)]
	if err := s.kill(0, "host.containers.before-open=error"); err != nil {
		return err
	}
	_ = drive.Pause(ctx, f.Lasts)
	if err := s.kill(f.restart(), c.naps(f.Number)); err != nil && !errors.Is(err, errMissed) {
		return err
	}
	return nil
}

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"pagurus/act/cgroup"
	"pagurus/act/daemon"
	"pagurus/cmd/pagurus/labnet"
	"pagurus/cmd/roles"
	"pagurus/fleet"
	"pagurus/serve/wire"
	"pagurus/show/cli"
	"pagurus/show/view"
)

const (
	// labUpLimit bounds the wait for controller and agents: about a second, longer on a busy
	// machine.
	labUpLimit = 90 * time.Second
	labPoll    = 100 * time.Millisecond
	labSocket  = "unix:" + wire.DefaultSocket
	// termPatience is how long a daemon may take to end properly.
	termPatience = 10 * time.Second
	// sweepLimit bounds the end of a host's guests.
	sweepLimit = 30 * time.Second
)

// up starts the lab, or its missing parts. If it cannot be started completely or is
// cancelled, nothing of it stays. A lab that was up before is left as it is; only flags that
// were given must match it.
func (l lab) up(ctx context.Context, std streams, asked func(flag string) bool) error {
	if os.Geteuid() != 0 {
		return errors.New("a lab makes network namespaces, and only root may: try `sudo pagurus lab up`")
	}
	unlock, err := lockLab()
	if err != nil {
		return err
	}
	defer unlock()
	had, err := readLab()
	before := err == nil
	if before && l.otherwise(had, asked) {
		return fmt.Errorf("a lab of %s is up already, made otherwise than asked for: `pagurus lab down` first", view.Count(had.Hosts, "host"))
	}
	if before {
		l = had
		if len(l.missing()) == 0 {
			_, err := fmt.Fprintf(std.out, "the lab is up: %s; `pagurus host ls` lists them\n", view.Count(l.Hosts, "host"))
			return err
		}
		std.say("the lab is up but not whole; starting the missing parts: " + strings.Join(l.missing(), ", "))
	} else if err := free(); err != nil {
		return err
	}
	if err = nil; l.Told == "" || l.Machines != nil {
		std.say("checking how guests can run here")
		l.Accelerator, err = accelerator(ctx)
	}
	if l.Accelerator != fleet.KVM { // each agent finds out why, and tries again what did not answer
		l.Accelerator = ""
	}
	if err == nil && l.Machines != nil && !before {
		err = l.prepare(ctx, std)
	}
	switch {
	case err != nil:
	case l.Machines != nil:
		err = l.bringUpMachines(ctx, std)
	default:
		err = l.bringUp(ctx, std)
	}
	if err == nil {
		err = ctx.Err() // cancelled at the last moment: the user will not end the lab
	}
	if err != nil {
		return l.undo(ctx, err, before)
	}
	_, err = fmt.Fprintf(std.out, "the lab is up: %s; try %s\n", view.Count(l.Hosts, "host"), l.tryThis())
	return err
}

// undo removes a lab that could not be started completely, unless it was up before, and
// returns the final error.
func (l lab) undo(ctx context.Context, err error, before bool) error {
	calledOff := ctx.Err() != nil
	if calledOff {
		err = errors.New("the lab was cancelled") // other errors follow from that
	}
	if !before {
		// The cancellation must not stop the removal.
		err = errors.Join(err, l.clearAway(context.WithoutCancel(ctx)))
	}
	if calledOff {
		return cli.Exit{Code: 130, Err: err}
	}
	return err
}

func (l lab) otherwise(had lab, asked func(flag string) bool) bool {
	return (asked(hostsFlag) || asked(machinesFlag)) && had.Hosts != l.Hosts ||
		asked(hostsFlag) && had.Machines != nil || l.Machines != nil && l.Machines.otherwise(had.Machines, asked) ||
		asked(controllersFlag) && max(1, had.Controllers) != l.Controllers ||
		asked("cpus-altogether") && had.CPUsAltogether != l.CPUsAltogether ||
		asked("cpu-list") && !reflect.DeepEqual(had.CPUList, l.CPUList) ||
		asked("cpus-per-host") && had.CPUsPerHost != l.CPUsPerHost ||
		(asked(sitesFlag) || slices.ContainsFunc(siteFlags, asked)) && !reflect.DeepEqual(had.Sites, l.Sites) ||
		asked(ipv6Flag) && had.IPv6 != l.IPv6 ||
		asked(fleet.EncryptionFlag) && had.Encryption != l.Encryption ||
		asked(acceleratorFlag) && had.Told != l.Told || asked(cpuFlag) && had.CPU != l.CPU ||
		asked("mem-per-host") && had.MemoryPerHost != l.MemoryPerHost
}

// accelerator is what guests on this machine run with.
func accelerator(ctx context.Context) (string, error) {
	ctx, stop := context.WithTimeout(ctx, roles.OpenLimit)
	defer stop()
	path, err := roles.Beside(roles.AgentProgram)
	if err != nil {
		return "", err
	}
	var said strings.Builder
	try := exec.CommandContext(ctx, path, roles.AcceleratorVerb)
	try.Stderr = &said
	try.Cancel = func() error { return try.Process.Signal(syscall.SIGTERM) } // it tidies up
	try.WaitDelay = termPatience
	found, err := try.Output()
	if err != nil {
		why := cmp.Or(strings.TrimPrefix(strings.TrimSpace(said.String()), "pagurus: "), err.Error())
		return "", fmt.Errorf("guests cannot run here: %s: `pagurus doctor` says what is missing", why)
	}
	return strings.TrimSpace(string(found)), nil
}

// free says whether this machine has no other controller, whose socket the lab
// would take.
func free() error {
	lock, err := daemon.HoldLock(roles.Lock(wire.DefaultSocket), labPurpose)
	if err != nil {
		return fmt.Errorf("%w: end it before you start a lab", err)
	}
	return lock.Release()
}

// bringUp makes what is missing, and waits until everything works together.
func (l lab) bringUp(ctx context.Context, std streams) (err error) {
	if err := l.write(); err != nil {
		return fmt.Errorf("writing the lab's record: %w", err)
	}
	std.say(fmt.Sprintf("making the network of %s", view.Count(l.Hosts, "host")))
	if err := labnet.EnsureBridge(l.family()); err != nil {
		return err
	}
	if err := l.bringUpSites(std); err != nil {
		return err
	}
	for n := 1; n <= l.Hosts; n++ {
		if err := l.namespace(n).Ensure(); err != nil {
			return err
		}
		if err := errors.Join(l.ensureUplink(n), l.enclose(n)); err != nil {
			return err
		}
	}
	std.say("starting the controller")
	ctx, stop := context.WithTimeout(ctx, labUpLimit)
	defer stop()
	c := l.controller()
	if err := c.Start(); err != nil {
		return err
	}
	// Agents need the token that the controller makes at its first start.
	if err := until(ctx, "the controller answers", c, func() bool { return l.begun(ctx) }); err != nil {
		return err
	}
	if err := l.seatControllers(ctx); err != nil {
		return err
	}
	if err := l.enlist(ctx); err != nil {
		return err
	}
	agents := l.stoppedAgents()
	std.say("starting " + view.Count(len(agents), "agent"))
	for _, n := range agents {
		if err := l.agent(n).Start(); err != nil {
			return err
		}
	}
	return l.awaitWhole(ctx)
}

// awaitWhole returns when every daemon that runs has been heard by the
// controller. What was killed on purpose is not waited for.
func (l lab) awaitWhole(ctx context.Context) error {
	if _, err := os.Stat(l.controller().PIDFile); err != nil {
		return nil
	}
	if err := until(ctx, "the controller answers", l.controller(), func() bool { return l.begun(ctx) }); err != nil {
		return err
	}
	for n := 1; n <= l.Hosts; n++ {
		a := l.agent(n)
		if _, err := os.Stat(a.PIDFile); err != nil {
			continue
		}
		if err := until(ctx, fmt.Sprintf("%s has called the controller", hostName(n)), a, func() bool { return connected(ctx, labSocket)[hostName(n)] }); err != nil {
			return err
		}
	}
	return nil
}

// connected gives the hosts whose agents are connected to a controller; nil if it does not
// answer.
func connected(ctx context.Context, address string) map[fleet.HostID]bool {
	client, err := wire.Dial(wire.Config{Address: address})
	if err != nil {
		return nil
	}
	defer func() { _ = client.Close() }()
	s, err := client.Snapshot(ctx)
	if err != nil {
		return nil
	}
	up := map[fleet.HostID]bool{}
	for id, h := range s.Hosts {
		up[id] = h.Facts.Connected
	}
	return up
}

// until polls a condition while a daemon lives.
func until(ctx context.Context, what string, d daemon.Daemon, is func() bool) error {
	for !is() {
		if _, ok := d.Running(); !ok {
			return d.Died()
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("waiting until %s: %w; its log is %s", what, ctx.Err(), d.LogFile)
		case <-time.After(labPoll):
		}
	}
	return nil
}

// missing names the daemons that are not running.
func (l lab) missing() []string {
	var names []string
	for _, d := range l.daemons() {
		if _, ok := d.Running(); !ok {
			names = append(names, d.Name)
		}
	}
	return names
}

// stoppedAgents are the hosts whose agents are to be started.
func (l lab) stoppedAgents() (stopped []int) {
	for _, n := range l.agents() {
		if _, ok := l.agent(n).Running(); !ok {
			stopped = append(stopped, n)
		}
	}
	return stopped
}

// daemons are all daemons of the lab.
func (l lab) daemons() []daemon.Daemon {
	if l.Machines != nil {
		return l.machineDaemons()
	}
	all := []daemon.Daemon{l.controller()}
	for _, n := range l.agents() {
		all = append(all, l.agent(n))
	}
	return append(all, l.otherControllers()...)
}

// down ends the lab and removes every trace of it, in whatever state it is.
func down(ctx context.Context, std streams) error {
	if os.Geteuid() != 0 {
		return errors.New("ending a lab needs root: try `sudo pagurus lab down`")
	}
	unlock, err := lockLab()
	if err != nil {
		return err
	}
	defer unlock()
	end := "the lab is down"
	l, err := readLab()
	if err != nil {
		l.Hosts = labnet.MaxHosts // the lab's size is unknown: search for everything
		end = "no lab is up"
	}
	if err := l.clearAway(ctx); err != nil {
		return err
	}
	_, err = fmt.Fprintln(std.out, end)
	return err
}

// clearAway removes everything that the lab may have made. After an error it goes on, to
// remove as much as possible.
func (l lab) clearAway(ctx context.Context) error {
	// The controller first, so that it does not react to the hosts' ends.
	var errs []error
	for _, d := range l.daemons() {
		errs = append(errs, d.Stop(termPatience))
	}
	var sweeps sync.WaitGroup
	failed := make([]error, l.Hosts+2)
	for _, n := range l.agents() { // guests in a machine end with it
		if !l.namespace(n).Exists() {
			continue
		}
		sweeps.Go(func() { failed[n] = l.sweep(ctx, n) })
	}
	sweeps.Wait()
	killed, err := killResidents()
	errs = append(errs, err)
	if !killed {
		// A sweep's errors matter only if processes were left alive; everything else goes
		// with the namespaces and folders.
		failed = nil
	}
	errs = append(errs, failed...)
	for _, name := range daemon.Namespaces(labNamespace) {
		errs = append(errs, name.Remove())
	}
	for _, n := range l.agents() { // of a wireguard-go that was killed
		errs = append(errs, removeFile(fleet.WireGuardSocket(fleet.WireGuardLink(l.run(n)))))
	}
	errs = append(errs, labnet.RemoveLinks(), unmountBelow(labRun), unmountBelow(labState), cgroup.Sweep(labGroup("*")), removeSocket(), removeSockets())
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("clearing the lab away: %w", err)
	}
	for _, dir := range append(abandonedProbes(roles.Run), labRun, labState) {
		if err := os.RemoveAll(dir); err != nil {
			errs = append(errs, fmt.Errorf("removing %s: %w", dir, err))
		}
	}
	return errors.Join(errs...)
}

// abandonedProbes lists trial guests' folders whose processes were killed before they could
// remove them.
func abandonedProbes(run string) []string {
	found, _ := filepath.Glob(filepath.Join(run, roles.ProbePrefix+"*")) // a constant pattern is well-formed
	return slices.DeleteFunc(found, func(dir string) bool {
		number, _, _ := strings.Cut(strings.TrimPrefix(filepath.Base(dir), roles.ProbePrefix), "-")
		pid, err := strconv.Atoi(number)
		if err != nil {
			return false
		}
		_, err = daemon.Find(pid)
		return err == nil
	})
}

// sweep ends the guests and servers of host n properly, by their drivers.
func (l lab) sweep(ctx context.Context, n int) error {
	ctx, stop := context.WithTimeout(ctx, sweepLimit)
	defer stop()
	var said strings.Builder
	err := l.agent(n).Once(ctx, &said, beside(roles.AgentProgram), roles.NoConfig, "--sweep", "--host", string(hostName(n)), "--run", l.run(n),
		"--state", filepath.Join(labState, string(hostName(n))), "--images", roles.Images, "--address", l.addr(n).String(),
		"--group", l.group(n))
	if err != nil {
		return fmt.Errorf("ending the guests of %s: %w: %s", hostName(n), err, strings.TrimSpace(said.String()))
	}
	return nil
}

// killResidents kills every process that still has a lab host's network. any: there was one.
func killResidents() (any bool, err error) {
	var errs []error
	// A process may fork before it is killed, so repeat.
	for range 5 {
		left, err := residents()
		if err != nil {
			return any, err
		}
		if len(left) == 0 {
			return any, nil
		}
		any, errs = true, nil
		for _, p := range left {
			errs = append(errs, p.End(0))
		}
	}
	return any, errors.Join(append(errs, errors.New("processes in the lab's namespaces come again and again"))...)
}

// unmountBelow unmounts everything in a folder, innermost first.
func unmountBelow(dir string) error {
	text, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		return fmt.Errorf("reading the mounts: %w", err)
	}
	var points []string
	for line := range strings.Lines(string(text)) {
		fields := strings.Fields(line)
		if len(fields) > 1 && strings.HasPrefix(fields[1], dir+"/") {
			points = append(points, fields[1])
		}
	}
	slices.Reverse(points)
	for _, p := range points {
		if err := unix.Unmount(p, unix.MNT_DETACH); err != nil && !errors.Is(err, unix.EINVAL) {
			return fmt.Errorf("unmounting %s: %w", p, err)
		}
	}
	return nil
}

// removeSocket removes the socket of a killed lab controller, unless another controller has
// it by now.
func removeSocket() error {
	lock, err := daemon.HoldLock(roles.Lock(wire.DefaultSocket), labPurpose)
	if errors.As(err, new(daemon.Held)) {
		return nil
	}
	if err != nil {
		return err
	}
	return errors.Join(removeFile(wire.DefaultSocket), lock.Release())
}

// removeFile removes a file, which may be gone.
func removeFile(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// fileServer is the program that serves jobs' files. Its namespace has no name, so it is
// known by its folder.
const fileServer = "ganesha.nfsd"

// serves reports whether a process is a file server of the lab.
func serves(pid int) bool {
	exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid))
	if err != nil || filepath.Base(exe) != fileServer {
		return false
	}
	line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	return err == nil && strings.Contains(string(line), "\x00"+labRun+"/")
}

// residents lists the processes in the lab's networks, and its file servers.
func residents() ([]daemon.Process, error) {
	inside := daemon.Residents(daemon.Namespaces(labNamespace))
	return daemon.Processes(func(pid int) bool { return inside(pid) || serves(pid) })
}

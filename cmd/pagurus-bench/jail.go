package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"

	"pagurus/act/cgroup"
	"pagurus/act/container/shim"
	"pagurus/act/guestlink"
	"pagurus/act/host"
	"pagurus/act/host/jail"
	"pagurus/act/image"
	"pagurus/act/qemu"
	"pagurus/bench"
	"pagurus/bench/drive"
	"pagurus/bench/stats"
	"pagurus/cmd/roles"
	"pagurus/fleet"
	"pagurus/serve/agent"
)

// What the price of QEMU's jail is measured with. A start and a move take a second or two, so there are more of them.
const (
	jailLimit   = 9 * time.Minute
	jailTimes   = 6 // the usual number of rounds
	jailMost    = 1.02
	jailGroup   = "pagurus-bench-jail"
	jailGuest   = fleet.GuestID("j1g0")
	jailBoot    = 5 * time.Minute // of an emulated guest on a busy machine
	jailSettles = 300 * time.Millisecond
)

// jailLab is the least: the guests here are not the lab's.
func jailLab() []string {
	return []string{"--hosts", "1", "--" + fleet.EncryptionFlag, string(fleet.NoEncryption)}
}

// jail compares guests whose QEMUs are in their jails with guests whose QEMUs are root's, in no namespace, group or filter of
// their own. Both are started and moved by the driver of the agents. It is asked here, so that nothing else that a
// job needs hides the jail. There is no setting of an agent that leaves the jail out.
func (b *experiments) jail(ctx context.Context) (err error) {
	defer func(usual int) { b.Repeat = usual }(b.Repeat)
	b.Repeat *= jailTimes
	var sides []bench.Arm
	for _, s := range []*jailSide{{name: "jailed"}, {name: "free", begin: beginFree}} {
		if err = s.open(ctx); err != nil {
			return errors.Join(err, s.close())
		}
		defer func() { err = errors.Join(err, s.close()) }()
		if _, err := s.measure(ctx); err != nil { // the first makes the snapshot that others start from
			return err
		}
		sides = append(sides, bench.Arm{Name: s.name, Measure: s.measure})
	}
	if err := b.Within(ctx, jailLimit, sides...); err != nil {
		return err
	}
	var errs []error
	for _, f := range []struct{ says, figure string }{
		{"start of a guest until it is a member of its job", "start_s"},
		{"total time of a move", "move_s"},
		{"downtime of a move", "downtime_s"},
	} {
		ours, theirs := b.Samples("jailed_"+f.figure), b.Samples("free_"+f.figure)
		errs = append(errs, b.Beside(f.says+", in a jail / without, mean", "jailed_"+f.figure, "free_"+f.figure), b.priceOfPairs(f.says, ours, theirs))
	}
	return errors.Join(errs...)
}

// priceOfPairs judges the median of pairs, which a few slow ones do not move.
func (b *experiments) priceOfPairs(says string, ours, theirs []float64) error {
	ratios, more := make([]float64, len(ours)), make([]float64, len(ours))
	for i := range ours {
		ratios[i], more[i] = ours[i]/theirs[i], 1000*(ours[i]-theirs[i])
	}
	ratio, err := stats.Resampled(ratios, bench.Confidence, 1)
	if err != nil {
		return err
	}
	extra, err := stats.Resampled(more, bench.Confidence, 1)
	if err != nil {
		return err
	}
	fmt.Printf("%-52s %s\n", says+", more with a jail, ms", extra)
	b.AtMost(says+", in a jail / without", ratio, jailMost)
	return nil
}

// jailSide is one side: two hosts between which a guest moves.
type jailSide struct {
	name    string
	begin   qemu.Begin // nil: in a jail
	image   fleet.Image
	folder  string
	groups  [2]*cgroup.Groups
	drivers [2]*qemu.Driver
	taps    []netlink.Link
	moves   int
}

func (s *jailSide) tap(host int) string { return fmt.Sprintf("pgb%.1s%d", s.name, host) }

func (s *jailSide) open(ctx context.Context) (err error) {
	images, err := image.Open(imageFolder)
	if err != nil {
		return err
	}
	if s.image, err = images.Find("openmpi"); err != nil {
		return err
	}
	guest, err := roles.Beside(roles.GuestProgram)
	if err != nil {
		return err
	}
	if s.folder, err = os.MkdirTemp("/run", "pagurus-bench-"+s.name+"-"); err != nil {
		return err
	}
	if err := os.Chmod(s.folder, 0o755); err != nil { // each guest's user goes through it
		return err
	}
	for i := range s.drivers {
		link := &netlink.Tuntap{LinkAttrs: netlink.NewLinkAttrs(), Mode: netlink.TUNTAP_MODE_TAP, Flags: netlink.TUNTAP_NO_PI | netlink.TUNTAP_VNET_HDR}
		link.Name = s.tap(i)
		if err := netlink.LinkAdd(link); err != nil {
			return fmt.Errorf("make the link %s: %w", link.Name, err)
		}
		s.taps = append(s.taps, link)
		c := qemu.Config{
			Run: filepath.Join(s.folder, fmt.Sprint(i)), Shim: shim.Program(), GuestAgent: guest, Address: netip.MustParseAddr("127.0.0.1"),
			ImageFolder: images.Ensure, Tap: func(fleet.Subnet, int) string { return s.tap(i) }, Converged: agent.Converged,
			Snapshots: 2, Begin: s.begin, Log: slog.New(slog.DiscardHandler),
		}
		if s.begin == nil {
			if s.groups[i], err = cgroup.Open(fmt.Sprintf("%s-host%d", jailGroup, i+1), 0); err != nil {
				return err
			}
			c.Cgroups, c.OOMKills = s.groups[i], s.groups[i].OOMKills
		}
		if s.drivers[i], err = qemu.Open(ctx, c); err != nil {
			return err
		}
	}
	return nil
}

func (s *jailSide) close() (err error) {
	for _, d := range s.drivers {
		if d != nil {
			err = errors.Join(err, d.Stop(context.Background(), jailGuest), d.Close())
		}
	}
	for _, l := range s.taps {
		err = errors.Join(err, netlink.LinkDel(l))
	}
	for _, g := range s.groups {
		if g != nil {
			err = errors.Join(err, g.Close())
		}
	}
	if s.folder != "" {
		err = errors.Join(err, os.RemoveAll(s.folder))
	}
	return err
}

// measure starts a guest, moves it, asks whether it is well, and ends it.
func (s *jailSide) measure(ctx context.Context) (figures map[string]float64, err error) {
	ctx, cancel := context.WithTimeout(ctx, jailBoot)
	defer cancel()
	s.moves++
	t := fleet.Task{
		Guest: fleet.Guest{ID: jailGuest, Job: "j1", Kind: fleet.VM, Gen: uint64(s.moves), Need: fleet.Resources{CPUs: 1, MemoryBytes: 512 << 20}, Image: s.image.Digest},
		Job:   fleet.Job{ID: "j1", Subnet: 1, MPI: s.image.MPI},
	}
	t.Order.Migration = fleet.MigrationID(fmt.Sprintf("m%d", s.moves))
	figures = map[string]float64{}
	defer func() {
		for _, d := range s.drivers {
			err = errors.Join(err, d.Stop(context.WithoutCancel(ctx), jailGuest))
		}
	}()
	begun := time.Now()
	if err := s.drivers[0].Start(ctx, t); err != nil {
		return nil, err
	}
	client := guestlink.New(func(ctx context.Context) (io.ReadWriteCloser, error) { return s.drivers[0].Link(ctx, jailGuest) })
	err = client.Setup(ctx, s.setup())
	figures["start_s"] = time.Since(begun).Seconds()
	if err = errors.Join(err, client.Close(), s.check(0)); err != nil {
		return nil, err
	}
	if err := drive.Pause(ctx, jailSettles); err != nil {
		return nil, err
	}
	if err := s.move(ctx, t, figures); err != nil {
		return nil, err
	}
	return figures, s.check(1)
}

// setup is that of a guest without files of its job.
func (s *jailSide) setup() fleet.Setup {
	at := fleet.Peer{Hostname: fleet.GuestName(0), Addr: fleet.Subnet(1).GuestAddr(0), MAC: fleet.Subnet(1).GuestMAC(0), Slots: 1}
	return fleet.Setup{
		Guest: jailGuest, Hostname: at.Hostname, Addr: at.Addr, Prefix: fleet.SubnetPrefixBits, MAC: at.MAC, MTU: fleet.NetworkMTU,
		MPI: s.image.MPI, Clock: time.Now(), Peers: []fleet.Peer{at},
	}
}

// move moves the guest from the first host to the second, as their agents do.
func (s *jailSide) move(ctx context.Context, t fleet.Task, figures map[string]float64) (err error) {
	from, to := s.drivers[0], s.drivers[1]
	begun := time.Now()
	if t.Listen, err = to.Receive(ctx, t); err != nil {
		return err
	}
	if err := from.Copy(ctx, t, func(fleet.Progress) {}); err != nil {
		return err
	}
	p, err := from.Switch(ctx, t, func(bool) {})
	if err != nil {
		return err
	}
	if err := to.Resume(ctx, jailGuest); err != nil {
		return err
	}
	figures["move_s"], figures["downtime_s"] = time.Since(begun).Seconds(), time.Since(p.SuspendedAt).Seconds()
	client := guestlink.New(func(ctx context.Context) (io.ReadWriteCloser, error) { return to.Link(ctx, jailGuest) })
	_, err = client.Topology(ctx)
	return errors.Join(err, client.Close())
}

// jailNamespaces are those that a jail has of its own, as in /proc/PID/ns.
var jailNamespaces = []string{"mnt", "net", "ipc", "uts", "pid"}

// check makes sure that the guest's QEMU has the jail that is measured, or none.
func (s *jailSide) check(at int) error {
	pid, _, err := running(filepath.Join(s.folder, fmt.Sprint(at), "guests", string(jailGuest)))
	if err != nil {
		return err
	}
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return err
	}
	return judgeJail(s.begin == nil, string(status), func(ns string) (bool, error) {
		its, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/%s", pid, ns))
		ours, e := os.Readlink("/proc/self/ns/" + ns)
		return its != ours, errors.Join(err, e)
	})
}

// judgeJail says what a process has that one in a jail must not have, or the other way round.
func judgeJail(jailed bool, status string, own func(ns string) (bool, error)) error {
	_, rest, _ := strings.Cut(status, "\nUid:")
	uid, _ := strconv.Atoi(strings.Join(slices.Concat(strings.Fields(rest), []string{""})[:1], ""))
	filtered := strings.Contains(status, "\nSeccomp:\t2\n")
	if jailed != (uid != 0) || jailed != filtered {
		return fmt.Errorf("a QEMU that is to be in a jail, %v, is user %d and its system calls are filtered, %v", jailed, uid, filtered)
	}
	for _, ns := range jailNamespaces {
		its, err := own(ns)
		if err != nil {
			return err
		}
		if its != jailed {
			return fmt.Errorf("a QEMU that is to be in a jail, %v, has a namespace %s of its own, %v", jailed, ns, its)
		}
	}
	return nil
}

// beginFree starts QEMU as somebody without Pagurus would.
func beginFree(_ string, j jail.Jail, log *os.File, files ...*os.File) (*jail.First, error) {
	cmd := &exec.Cmd{
		Path: j.Program[0], Args: withoutSandbox(j.Program), Env: j.Env, Dir: j.Folder, Stdout: log, Stderr: log, ExtraFiles: files,
		SysProcAttr: &syscall.SysProcAttr{Setsid: true},
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	p, err := host.Find(cmd.Process.Pid)
	if err != nil {
		err = errors.Join(err, cmd.Process.Kill())
		_ = cmd.Wait() // the error only says that it was killed
		return nil, err
	}
	return jail.Entered(p), cmd.Process.Release() // the driver watches and reaps it
}

// withoutSandbox is a command line of QEMU without its filter of system calls.
func withoutSandbox(line []string) []string {
	i := slices.Index(line, "-sandbox")
	if i < 0 {
		return line
	}
	return slices.Delete(slices.Clone(line), i, i+2)
}

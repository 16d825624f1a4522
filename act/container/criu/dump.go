package criu

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"

	"github.com/checkpoint-restore/go-criu/v8/rpc"
	"golang.org/x/sys/unix"
)

// GhostBytes is the largest file, open and deleted, that a dump takes along if it
// is not told otherwise: such a file has no name by which to find it again, so it
// is written to the images whole.
const GhostBytes = 64 << 20

// netKey is by what name dump and restore mean the container's network.
const netKey = "extnet"

// DumpSpec is what is dumped, and how.
type DumpSpec struct {
	PID        int               // of the container's first process, as the caller sees it
	Images     string            // an empty folder for what is dumped; the log is in it, too
	Mounts     map[string]string // what is mounted in the container from outside: the path there, and by what name RestoreSpec.Mounts knows it
	Running    bool              // the processes live on after the dump; otherwise they are killed
	Freezer    string            // folder of the control group they are in and are left frozen in, if they were; empty: there is none
	GhostBytes int64             // 0: GhostBytes
	Pages      *Address          // memory is not written to Images, but handed out here until its receiver has all; nil: it is
	Copied     bool              // nor is it written, or handed out to anybody: whoever restores has all that is private; Pages is nil

	// Steps, each nil or called once. An error ends the dump; the processes
	// live on.

	// Frozen: all processes stand still and keep doing so until the dump has
	// ended, and nothing is dumped yet.
	Frozen func() error
	// Ready: all images are written; with Pages these answer now.
	Ready func() error
}

// Address is where memory is handed out.
type Address struct {
	Host string // IP address
	Port int
}

// Dump writes a container to images. CRIU runs in the caller's network
// namespace, which must not be the container's.
//
// TCP connections are dumped as they are, and nothing keeps their packets from
// the container: the caller cuts its link before, since what arrives for a
// socket that has been dumped is lost with it.
//
// After an error the processes are as they were before, with all connections:
// running, or frozen in Freezer; the images are worth nothing. That is so too if
// the context ended, or there was no room for the images. If CRIU has to be
// killed because it hangs, the processes are frozen before in Freezer, and
// healed; without Freezer, or if somebody else kills CRIU, they are healed
// only afterwards, as Heal says. A process that CRIU had just then changed the
// registers of may not survive its death; for that there is no remedy. And unless
// Running is set, an error after Ready may lose what was typed at a terminal in
// the container and not read yet.
func (c Criu) Dump(ctx context.Context, s DumpSpec) error {
	wrap := func(err error) error { return fmt.Errorf("dump process %d: %w", s.PID, err) }
	group := freezer(s.Freezer)
	frozen, err := group.frozen()
	if err != nil {
		return wrap(err)
	}
	opts, err := s.options()
	if err != nil {
		return wrap(err)
	}
	call := &call{criu: c, kind: rpc.CriuReqType_DUMP, opts: opts, images: s.Images, log: DumpLog, about: s.PID,
		steps: map[string]func(*rpc.CriuNotify) error{"network-lock": step(s.Frozen)},
		hold:  func() { _ = group.set(true) }, // that it fails is seen below
	}
	switch {
	case s.Copied:
		ours, theirs, err := makePair()
		if err != nil {
			return wrap(err)
		}
		defer ours.Close()
		defer theirs.Close()
		config, err := declining(s.Images)
		if err != nil {
			return wrap(err)
		}
		defer os.Remove(config)
		call.files = []*os.File{theirs}
		opts.LazyPages, opts.ConfigFile = new(true), new(config)
		call.steps["status-ready"] = func(*rpc.CriuNotify) error { return decline(ours, s.Ready) }
	case s.Pages == nil:
		call.steps["post-dump"] = step(s.Ready)
	default:
		call.steps["status-ready"] = step(s.Ready)
	}
	_, err = call.do(ctx)
	if errors.Is(err, errKilled) {
		// CRIU itself thaws the group while it holds the processes.
		err = errors.Join(err, group.set(true), group.settle(), Heal(s.PID))
		if !frozen {
			err = errors.Join(err, group.set(false))
		}
	}
	if err != nil {
		return wrap(err)
	}
	return nil
}

// The names of logs among the images.
const (
	DumpLog    = "dump.log"
	RestoreLog = "restore.log"
)

func (s DumpSpec) options() (*rpc.CriuOpts, error) {
	var netns unix.Stat_t
	if err := unix.Stat(fmt.Sprintf("/proc/%d/ns/net", s.PID), &netns); err != nil {
		return nil, fmt.Errorf("find its network: %w", err)
	}
	ghost := s.GhostBytes
	if ghost == 0 {
		ghost = GhostBytes
	}
	if ghost < 0 || ghost > 1<<32-1 {
		return nil, fmt.Errorf("deleted files of up to %d bytes are more than CRIU can take", ghost)
	}
	o := common()
	o.Pid = new(int32(s.PID))
	o.GhostLimit = new(uint32(ghost))
	o.LeaveRunning = new(s.Running)
	o.External = []string{fmt.Sprintf("net[%d]:%s", netns.Ino, netKey)}
	for _, path := range slices.Sorted(maps.Keys(s.Mounts)) {
		o.External = append(o.External, fmt.Sprintf("mnt[%s]:%s", path, s.Mounts[path]))
	}
	if s.Freezer != "" {
		o.FreezeCgroup = new(s.Freezer)
	}
	if s.Pages != nil || s.Copied {
		if err := widenPipes(); err != nil {
			return nil, err
		}
	}
	if s.Pages != nil {
		o.LazyPages = new(true)
		o.Ps = &rpc.CriuPageServerInfo{Address: new(s.Pages.Host), Port: new(int32(s.Pages.Port))}
	}
	return o, nil
}

// common are the options of dump and restore.
func common() *rpc.CriuOpts {
	return &rpc.CriuOpts{
		TcpEstablished: new(true), FileLocks: new(true), LinkRemap: new(true), ExtUnixSk: new(true),
		// The caller's business, both: iptables may not be there, and a
		// container's groups are this host's.
		NetworkLock:   rpc.CriuNetworkLockMethod_SKIP.Enum(),
		ManageCgroups: new(true), ManageCgroupsMode: rpc.CriuCgMode_IGNORE.Enum(),
	}
}

func step(f func() error) func(*rpc.CriuNotify) error {
	if f == nil {
		return nil
	}
	return func(*rpc.CriuNotify) error { return f() }
}

// pipeBytes is how large a pipe CRIU makes to hold memory it hands out.
const (
	pipeBytes   = 4 << 20
	pipeSetting = "/proc/sys/fs/pipe-max-size"
)

// widenPipes makes it possible that CRIU makes its pipes. Root may make them
// larger than the setting only with CAP_SYS_RESOURCE, which it lacks inside
// many a sandbox; but it may change the setting. It stays changed: another dump
// may be using it, and what all users' pipes may take together is bounded by
// other settings.
func widenPipes() error {
	if capable(unix.CAP_SYS_RESOURCE) {
		return nil
	}
	text, err := os.ReadFile(pipeSetting)
	if err != nil {
		return fmt.Errorf("ask how large a pipe may be: %w", err)
	}
	var most int64
	if _, err := fmt.Sscan(string(text), &most); err == nil && most >= pipeBytes {
		return nil
	}
	if err := os.WriteFile(pipeSetting, fmt.Appendf(nil, "%d\n", pipeBytes), 0); err != nil {
		return fmt.Errorf("memory cannot be handed out through pipes of %d bytes: %w: `sysctl fs.pipe-max-size=%d` as the machine's root mends it", most, err, pipeBytes)
	}
	return nil
}

// capable says whether this process has a capability.
func capable(which uint) bool {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var has [2]unix.CapUserData
	if err := unix.Capget(&header, &has[0]); err != nil {
		return false
	}
	return has[which/32].Effective&(1<<(which%32)) != 0
}

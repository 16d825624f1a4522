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

// DumpSpec is what is dumped, and how.
type DumpSpec struct {
	PID        int               // of the container's first process, as the caller sees it
	Images     string            // an empty folder for what is dumped; the log is in it, too
	Mounts     map[string]string // what is mounted in the container from outside: the path there, and by what name RestoreSpec.Mounts knows it
	Running    bool              // the processes live on after the dump; otherwise they are killed
	Freezer    string            // folder of the control group they are in and are left frozen in, if they were; empty: there is none
	GhostBytes int64             // 0: GhostBytes
	Copied     bool              // no memory is written to Images: whoever restores has all that is private

	// For tests: what is called when all processes stand still and nothing is dumped
	// yet, and when all images are written. An error ends the dump.
	frozen, ready func() error
}

// Dumping is a dump whose CRIU has been started and waits: that takes as long as
// some of what it does, and nothing need stand still for it.
type Dumping struct {
	spec   DumpSpec
	call   *call
	config *os.File      // for CRIU; nil: there is none yet
	held   chan struct{} // closed when CRIU holds all processes
	enough *os.File      // where CRIU is told that no memory is asked for; nil: nowhere
}

// Dump writes a container to images. CRIU runs in the container's network
// namespace: of a network that is not its own it dumps what the kernel tracks of
// connections, which takes as long as all the rest.
//
// TCP connections are dumped as they are, and nothing keeps their packets from
// the container: the caller cuts its link before, since what arrives for a
// socket that has been dumped is lost with it, and the peers of processes that are
// killed may be told.
//
// After an error the processes are as they were before, with all connections:
// running, or frozen in Freezer; the images are worth nothing. That is so too if
// the context ended, or there was no room for the images. If CRIU has to be
// killed because it hangs, the processes are frozen before in Freezer, and
// healed; without Freezer, or if somebody else kills CRIU, they are healed
// only afterwards, as Heal says. A process that CRIU had just then changed the
// registers of may not survive its death; for that there is no remedy. And unless
// Running is set, an error after all images are written may lose what was typed at
// a terminal in the container and not read yet.
func (c Criu) Dump(ctx context.Context, s DumpSpec) error {
	d, err := c.PrepareDump(s)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Do(ctx)
}

// PrepareDump starts what Do needs. Close has to be called, whatever Do says.
func (c Criu) PrepareDump(s DumpSpec) (*Dumping, error) {
	d := &Dumping{spec: s, held: make(chan struct{})}
	if err := d.prepare(c); err != nil {
		d.Close()
		return nil, s.wrap(err)
	}
	return d, nil
}

func (s DumpSpec) wrap(err error) error { return fmt.Errorf("dump process %d: %w", s.PID, err) }

func (d *Dumping) prepare(c Criu) error {
	s := d.spec
	opts, err := s.options()
	if err != nil {
		return err
	}
	d.call = &call{criu: c, kind: rpc.CriuReqType_DUMP, opts: opts, images: s.Images, log: DumpLog, about: s.PID,
		network: fmt.Sprintf("/proc/%d/ns/net", s.PID),
		// It asks for files that it is to leave alone when it holds all processes.
		steps: map[string]func(*rpc.CriuNotify) error{"query-ext-files": func(n *rpc.CriuNotify) error {
			close(d.held)
			return step(s.frozen)(n)
		}},
		beforeKill: func() { _ = freezer(s.Freezer).set(true) }, // that it fails is seen in Do
	}
	options := validation
	if s.Copied { // it is given a socket in place of a port that anybody may connect to
		options += fmt.Sprintf("ps-socket %d\n", firstFile)
	}
	var config string
	if d.config, config, err = configure(options); err != nil {
		return err
	}
	opts.ConfigFile = new(config)
	if !s.Copied {
		d.call.steps["post-dump"] = step(s.ready)
		return d.call.startCriu()
	}
	ours, theirs, err := makePair()
	if err != nil {
		return err
	}
	defer theirs.Close()
	d.enough = ours
	d.call.files = []*os.File{theirs}
	opts.LazyPages = new(true)
	d.call.steps["status-ready"] = func(*rpc.CriuNotify) error { return decline(ours, s.ready) }
	return d.call.startCriu()
}

// Do makes the dump, once, as Dump says.
func (d *Dumping) Do(ctx context.Context) error {
	group := freezer(d.spec.Freezer)
	frozen, err := group.frozen()
	if err != nil {
		return d.spec.wrap(err)
	}
	over := make(chan struct{})
	go d.seizing(d.held, over)
	_, err = d.call.do(ctx)
	close(over)
	if errors.Is(err, errKilled) {
		// CRIU itself thaws the group while it holds the processes.
		err = errors.Join(err, group.set(true), group.awaitFrozen(), Heal(d.spec.PID))
		if !frozen {
			err = errors.Join(err, group.set(false))
		}
	}
	if err != nil {
		return d.spec.wrap(err)
	}
	return nil
}

// Close ends what Do had no use for.
func (d *Dumping) Close() {
	if d.call != nil {
		d.call.end()
	}
	if d.enough != nil {
		d.enough.Close()
	}
	if d.config != nil {
		d.config.Close()
	}
}

// The names of logs among the images.
const (
	DumpLog    = "dump.log"
	RestoreLog = "restore.log"
)

func (s DumpSpec) options() (*rpc.CriuOpts, error) {
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
	o.Timeout = new(uint32(seizeSeconds))
	for _, path := range slices.Sorted(maps.Keys(s.Mounts)) {
		o.External = append(o.External, fmt.Sprintf("mnt[%s]:%s", path, s.Mounts[path]))
	}
	if s.Freezer != "" {
		o.FreezeCgroup = new(s.Freezer)
	}
	if s.Copied {
		if err := widenPipes(); err != nil {
			return nil, err
		}
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
	return func(*rpc.CriuNotify) error {
		if f == nil {
			return nil
		}
		return f()
	}
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

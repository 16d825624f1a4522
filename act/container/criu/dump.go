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

	"pagurus/act/host"
)

// GhostBytes is the default size, in bytes, of the largest open deleted file that a dump
// includes. Such a file has no name by which it could be found again, so its whole
// content is written to the images.
const GhostBytes = 64 << 20

// DumpSpec says what is dumped, and how.
type DumpSpec struct {
	PID        int               // the container's first process, as the caller sees it
	Images     string            // an empty folder for the images and the log
	Mounts     map[string]string // folders of the host that are mounted in the container: from the path there to the name in RestoreSpec.Mounts
	Skip       []string          // mount points in the container that are not dumped; nothing may have files open there
	Running    bool              // the processes live on after the dump; otherwise they are killed
	Freezer    string            // folder of their control group; if it was frozen, it stays frozen; empty: there is none
	GhostBytes int64             // limit of open deleted files, in bytes; 0: the constant GhostBytes
	Copied     bool              // no private memory is written to Images: the restoring side has all of it
	Patient    bool              // nobody waits for the processes: only the caller's context limits how long CRIU may take to hold them

	// For tests: called when all processes are stopped and nothing is dumped yet, and
	// when all images are written. An error ends the dump.
	frozen, ready func() error
}

// Dumping is a dump whose CRIU has been started and waits. Starting CRIU takes as long as
// some steps of a dump, and the processes need not be suspended for it.
type Dumping struct {
	Kept []KeptName // set by Leave; to be removed if the guest goes on here

	spec   DumpSpec
	call   *call
	config *os.File      // configuration for CRIU; nil: there is none yet
	held   chan struct{} // closed when CRIU holds all processes
	enough *os.File      // tells CRIU that no memory is wanted; nil: not needed
}

// Dump writes a container to images. CRIU runs in the container's network namespace. Otherwise
// it would dump the connection tracking of another network, which takes as long as the rest.
//
// TCP connections are dumped as they are, and Dump does not keep packets from the container. The
// caller must cut the container's link first. What arrives for a socket that has been dumped is
// lost with the socket. Peers of killed processes may be told that they ended.
//
// After an error the processes are as they were before, with all connections: running, or frozen
// in Freezer. The images cannot be used. This is also so if the context ended or there was no
// room for the images. If CRIU has to be killed because it hangs, the processes are first frozen
// in Freezer and then healed. Without Freezer, or if another process kills CRIU, they are healed
// only afterwards, as Heal describes. If CRIU is killed just after it changed the registers of a
// process, that process may not survive; there is no remedy. Unless Running is set, an error
// after all images are written may lose input typed at a terminal in the container that was not
// read yet.
func (c Criu) Dump(ctx context.Context, s DumpSpec) error {
	d, err := c.PrepareDump(s)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Do(ctx)
}

// PrepareDump starts what Do needs. The caller must call Close, whatever Do returns.
func (c Criu) PrepareDump(s DumpSpec) (*Dumping, error) {
	d := &Dumping{spec: s, held: make(chan struct{})}
	if err := d.prepare(c); err != nil {
		d.Close()
		return nil, s.wrap(err)
	}
	return d, nil
}

func (s DumpSpec) wrap(err error) error { return fmt.Errorf("dump the container: %w", err) }

func (d *Dumping) prepare(c Criu) error {
	s := d.spec
	opts, err := s.options()
	if err != nil {
		return err
	}
	d.call = &call{criu: c, kind: rpc.CriuReqType_DUMP, opts: opts, images: s.Images, log: DumpLog, about: s.PID, hurry: !s.Patient,
		network: fmt.Sprintf("/proc/%d/ns/net", s.PID),
		// CRIU asks which files to leave out when it holds all processes.
		steps: map[string]func(*rpc.CriuNotify) error{"query-ext-files": func(n *rpc.CriuNotify) error {
			close(d.held)
			return step(s.frozen)(n)
		}},
		beforeKill: func() { _ = host.Freezer(s.Freezer).Set(true) }, // Do reports the failure
	}
	options := validation
	if s.Copied { // CRIU is given a socket, because any process could connect to a port
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

// Do makes the dump, as Dump describes. Call it once.
func (d *Dumping) Do(ctx context.Context) error {
	group := host.Freezer(d.spec.Freezer)
	frozen, err := group.Frozen()
	if err != nil {
		return d.spec.wrap(err)
	}
	over := make(chan struct{})
	if !d.spec.Patient {
		go d.seizing(d.held, over)
	}
	_, err = d.call.do(ctx)
	close(over)
	if errors.Is(err, errKilled) {
		// CRIU itself thaws the group while it holds the processes.
		err = errors.Join(err, group.Freeze(), Heal(d.spec.PID))
		if !frozen {
			err = errors.Join(err, group.Set(false))
		}
	}
	if err != nil {
		return d.spec.wrap(err)
	}
	return nil
}

// Close ends what Do has not used.
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
	if s.Patient {
		o.Timeout = new(uint32(probeLimit.Seconds()))
	}
	for _, path := range slices.Sorted(maps.Keys(s.Mounts)) {
		o.External = append(o.External, fmt.Sprintf("mnt[%s]:%s", path, s.Mounts[path]))
	}
	o.SkipMnt = s.Skip
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

// common returns the options of both dump and restore.
func common() *rpc.CriuOpts {
	return &rpc.CriuOpts{
		TcpEstablished: new(true), FileLocks: new(true), LinkRemap: new(true), ExtUnixSk: new(true),
		// The caller handles both: iptables may be missing, and a container's groups
		// belong to this host.
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

// pipeBytes is the size of the pipe that CRIU makes for memory to be sent.
const (
	pipeBytes   = 4 << 20
	pipeSetting = "/proc/sys/fs/pipe-max-size"
)

// widenPipes allows CRIU to make its large pipes. Root may exceed the limit on a pipe's
// size only with CAP_SYS_RESOURCE, which it lacks in many sandboxes; but it may change
// the limit. The limit stays changed, because another dump may be using it. Other
// settings limit the total size of all users' pipes.
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
		return fmt.Errorf("memory cannot be sent through pipes of %d bytes: %w: `sysctl fs.pipe-max-size=%d` as the machine's root fixes it", most, err, pipeBytes)
	}
	return nil
}

// capable reports whether this process has a capability.
func capable(which uint) bool {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var has [2]unix.CapUserData
	if err := unix.Capget(&header, &has[0]); err != nil {
		return false
	}
	return has[which/32].Effective&(1<<(which%32)) != 0
}

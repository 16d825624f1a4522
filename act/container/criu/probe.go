package criu

import (
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"github.com/checkpoint-restore/go-criu/v8/rpc"
	"golang.org/x/sys/unix"

	"pagurus/internal/thread"
)

// Ability holds what a probe found.
type Ability struct {
	Version   string `json:"version"`    // of CRIU
	Lazy      bool   `json:"lazy"`       // CRIU can restore processes that run before their memory has arrived
	Faults    bool   `json:"faults"`     // the kernel has userfaultfd
	Written   bool   `json:"written"`    // the kernel reports pages written since the last scan: PAGEMAP_SCAN with asynchronous write protection
	SoftDirty bool   `json:"soft_dirty"` // the kernel reports them in the way that CRIU itself uses
}

// remembered is an Ability with the CRIU and the kernel that have it.
type remembered struct {
	Path     string    `json:"path"`
	Modified time.Time `json:"modified"`
	Kernel   string    `json:"kernel"`
	Ability  Ability   `json:"ability"`
}

// memoryFile stores a probe's result.
const memoryFile = "criu.json"

// probeProgram is the process that is dumped and restored; probe.c is its source.
//
//go:embed probe/probe.bin
var probeProgram []byte

// probeFine is the program's exit status if all is well. probeLimit limits the whole
// probe: dump and restore take 0.1 s each.
const (
	probeFine  = 42
	probeLimit = 30 * time.Second
	probeAgain = time.Millisecond
)

// Probe finds out whether containers can be moved by dumping and restoring one: a small
// process in namespaces of its own, with a TCP connection on which data is in transit.
// The answer is kept in folder as long as CRIU and the kernel stay the same; a failed
// probe is repeated the next time. Nothing else is left behind, even if this process is
// killed meanwhile.
func (c Criu) Probe(ctx context.Context, folder string) (Ability, error) {
	wrap := func(err error) (Ability, error) {
		return Ability{}, fmt.Errorf("try whether containers can be moved: %w", err)
	}
	info, err := os.Stat(c.Path)
	if err != nil {
		return wrap(err)
	}
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		return wrap(err)
	}
	now := remembered{Path: c.Path, Modified: info.ModTime().UTC(), Kernel: unix.ByteSliceToString(name.Release[:])}
	path := filepath.Join(folder, memoryFile)
	var before remembered
	if text, err := os.ReadFile(path); err == nil && json.Unmarshal(text, &before) == nil {
		now.Ability = before.Ability
		if now == before && before.Ability.Version == c.Version {
			return before.Ability, nil
		}
	}
	ctx, stop := context.WithTimeoutCause(ctx, probeLimit, fmt.Errorf("it did not come to its end within %s", probeLimit))
	defer stop()
	if err := thread.Own(func() error { return c.tryOne(ctx, folder) }); err != nil {
		return wrap(err)
	}
	if now.Ability, err = c.features(ctx); err != nil {
		return wrap(err)
	}
	text, err := json.Marshal(now)
	if err == nil {
		err = os.WriteFile(path, text, 0o644)
	}
	if err != nil {
		return Ability{}, fmt.Errorf("keep the probe's result: %w", err)
	}
	return now.Ability, nil
}

// tryOne dumps and restores one process. It changes its thread for good.
func (c Criu) tryOne(ctx context.Context, folder string) error {
	root, images, err := stage(folder)
	if err != nil {
		return err
	}
	host, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		return fmt.Errorf("find the host's network: %w", err)
	}
	defer host.Close()
	var nets [2]*os.File
	for i := range nets {
		if nets[i], err = newNetwork(); err != nil {
			return err
		}
		defer nets[i].Close()
	}
	if err := unix.Setns(int(nets[0].Fd()), unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("go to a network: %w", err)
	}
	cmd := exec.Command(filepath.Join(root, "probe"), root)
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWPID | unix.CLONE_NEWNS | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS,
		Pdeathsig:  unix.SIGKILL, // when this thread ends; the dump includes this setting
	}
	err = cmd.Start()
	if back := unix.Setns(int(host.Fd()), unix.CLONE_NEWNET); back != nil {
		err = errors.Join(err, back)
	}
	if err != nil {
		return fmt.Errorf("start a container's process: %w", err)
	}
	defer cmd.Wait()
	defer cmd.Process.Kill()
	if err := await(ctx, filepath.Join(root, "ready"), cmd.Process.Pid); err != nil {
		return err
	}
	if err := c.Dump(ctx, DumpSpec{PID: cmd.Process.Pid, Images: images, Patient: true}); err != nil {
		return err
	}
	cmd.Wait() // the dump has ended it
	pid, err := c.Restore(ctx, RestoreSpec{Images: images, Root: root, Netns: fmt.Sprintf("/proc/self/fd/%d", nets[1].Fd())})
	if err != nil {
		return err
	}
	return ask(ctx, pid)
}

// stage makes the process's files in memory, visible only to this thread and its
// children.
func stage(folder string) (root, images string, err error) {
	if err := unix.Unshare(unix.CLONE_NEWNS | unix.CLONE_FS); err != nil {
		return "", "", fmt.Errorf("make file systems of its own: %w", err)
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return "", "", fmt.Errorf("keep file systems to itself: %w", err)
	}
	if err := unix.Mount("probe", folder, "tmpfs", 0, "mode=0700,size=64m"); err != nil {
		return "", "", fmt.Errorf("make a file system in memory: %w", err)
	}
	root, images = filepath.Join(folder, "root"), filepath.Join(folder, "images")
	for _, dir := range []string{images, filepath.Join(root, "proc")} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return "", "", err
		}
	}
	if err := os.WriteFile(filepath.Join(root, "probe"), probeProgram, 0o755); err != nil {
		return "", "", err
	}
	if err := unix.Mount(root, root, "", unix.MS_BIND, ""); err != nil {
		return "", "", fmt.Errorf("make a root: %w", err)
	}
	return root, images, nil
}

// newNetwork makes a network namespace with only loopback, and leaves the thread in it.
func newNetwork() (*os.File, error) {
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		return nil, fmt.Errorf("make a network: %w", err)
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("make a network: %w", err)
	}
	defer unix.Close(fd)
	link, err := unix.NewIfreq("lo")
	if err == nil {
		link.SetUint16(unix.IFF_UP)
		err = unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, link)
	}
	if err != nil {
		return nil, fmt.Errorf("make a network's loopback work: %w", err)
	}
	return os.Open("/proc/thread-self/ns/net")
}

// await waits for a file that the process creates when it is ready.
func await(ctx context.Context, path string, pid int) error {
	for {
		if _, err := os.Stat(path); err == nil {
			return nil
		}
		if st, err := readStat(pid); err != nil || st.state == "Z" {
			var status unix.WaitStatus
			_, err := unix.Wait4(pid, &status, 0, nil)
			return errors.Join(fmt.Errorf("a container's process ended at its step %d", status.ExitStatus()), err)
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(probeAgain):
		}
	}
}

// ask makes the restored process check its connection, and waits for its exit status.
func ask(ctx context.Context, pid int) error {
	stop := context.AfterFunc(ctx, func() { _ = unix.Kill(pid, unix.SIGKILL) })
	defer stop()
	if err := unix.Kill(pid, unix.SIGUSR1); err != nil {
		return fmt.Errorf("ask the restored process: %w", err)
	}
	var status unix.WaitStatus
	if _, err := unix.Wait4(pid, &status, 0, nil); err != nil {
		return fmt.Errorf("wait for the restored process: %w", err)
	}
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case status.Signaled():
		return fmt.Errorf("the restored process was ended by signal %d", status.Signal())
	case status.ExitStatus() != probeFine:
		return fmt.Errorf("the restored process lost its TCP connection, at its step %d", status.ExitStatus())
	}
	return nil
}

// features asks CRIU for its features, and tests the kernel for those that CRIU does not
// use.
func (c Criu) features(ctx context.Context) (Ability, error) {
	a := Ability{Version: c.Version}
	call := &call{criu: c, kind: rpc.CriuReqType_FEATURE_CHECK,
		features: &rpc.CriuFeatures{MemTrack: new(true), LazyPages: new(true)}}
	resp, err := call.do(ctx)
	if err != nil {
		return a, fmt.Errorf("ask criu for its features: %w", err)
	}
	a.Lazy, a.SoftDirty = resp.GetFeatures().GetLazyPages(), resp.GetFeatures().GetMemTrack()
	a.Faults, a.Written = tryWritten()
	return a, nil
}

package share

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"pagurus/act/host/jail"
	"pagurus/act/share/handle"
	"pagurus/internal/note"
)

// A server runs in a jail as the job's user. Its first process is a guard, which signs file handles: see
// package handle. The server itself has no right but its user's; root's has what it takes to act as any user of the
// job's guests.

const (
	// guardPath is where the jail has the guard's program.
	guardPath = "/pagurus-shim"
	// mountList is where ganesha looks for the list of mounts. It exports only what is in it, and from
	// version 6 on no tmpfs, such as Debian 13's /tmp, because a tmpfs loses its files at a reboot. A job's files in
	// a tmpfs are the user's choice.
	mountList = "/etc/mtab"
	// mostMemory is the most addresses of a server and its guard, each: a server takes some 300 MiB.
	mostMemory = 4 << 30
)

// noNames configures the mapping of users to names: there are none, guests and server have numbers only.
const noNames = "[General]\nDomain = pagurus\n[Translation]\nMethod = static\n"

// The descriptors that a jail's first process inherits.
const (
	keyFile = 3 + iota // which the guard takes
	guardTree
	roomTree  // of the records of the server's clients
	firstTree // of the job's directories
)

// jail is what the server has on this host. trees are the job's directories.
func (v *server) jail(ctx context.Context, trees []*os.File) (j jail.Jail, err error) {
	s := v.network.Share
	j = jail.Jail{
		UID: s.UID, GID: s.GID, Rights: handle.Rights(s.UID), Root: v.folder, Hostname: string(v.job), Folder: recoveryPath(v.folder), Binary: guardPath, Network: true,
		Env:       []string{"LANG=C.UTF-8", "MALLOC_ARENA_MAX=2"}, // otherwise glibc reserves an arena for each thread
		Scratch:   "/tmp",                                         // where ganesha tries whether the kernel has locks of open files; else it would pass none to the host
		MountList: mountList, Texts: map[string]string{"/etc/idmapd.conf": noNames}, FileBytes: math.MaxUint64, OpenFiles: openFiles, Memory: mostMemory,
	}
	program, err := exec.LookPath(v.program)
	if err != nil {
		return j, fmt.Errorf("the NFS server is missing: apt-get install nfs-ganesha nfs-ganesha-vfs: %w", err)
	}
	if j.Files, err = serverFiles(ctx, program); err != nil {
		return j, err
	}
	guard, err := jail.Libraries(ctx, v.shim)
	if err != nil {
		return j, err
	}
	j.Files = append(j.Files, jail.File{Path: guardPath, Tree: guardTree, Runs: true}, jail.File{Path: v.configPath()}, jail.File{Path: recoveryPath(v.folder), Tree: roomTree, Writable: true})
	for _, f := range guard[1:] { // of a test; pagurus-shim has none
		if !has(j.Files, f.Path) {
			j.Files = append(j.Files, f)
		}
	}
	var paths []string
	for i, d := range s.Directories() {
		at := filesPath(v.folder, i)
		paths = append(paths, at)
		j.Files = append(j.Files, jail.File{Path: at, Tree: firstTree + i, Writable: !d.ReadOnly})
	}
	for _, path := range []string{"/dev/null", "/dev/urandom"} {
		dev, err := jail.DeviceAt(path)
		if err != nil {
			return j, err
		}
		j.Devices = append(j.Devices, dev)
	}
	j.Program = handle.Command(guardPath, v.unsigned(), paths,
		[]string{program, "-F", "-f", v.configPath(), "-L", "STDERR", "-p", filepath.Join(recoveryPath(v.folder), "ganesha.pid")})
	return j, nil
}

func has(files []jail.File, path string) bool {
	for _, f := range files {
		if f.Path == path {
			return true
		}
	}
	return false
}

// serverFiles are what ganesha is loaded from, with its module for file systems, and what its
// libraries read.
func serverFiles(ctx context.Context, program string) ([]jail.File, error) {
	var modules []string
	for _, name := range []string{"ganesha/libfsalvfs.so", "libnfsidmap/static.so"} {
		for _, folder := range []string{"/usr/lib/*", "/usr/lib64", "/usr/lib"} {
			found, _ := filepath.Glob(filepath.Join(folder, name)) // these patterns are well-formed
			modules = append(modules, found...)
		}
	}
	if len(modules) == 0 || !strings.Contains(modules[0], "libfsalvfs") {
		return nil, errors.New("the NFS server has no module for file systems: apt-get install nfs-ganesha-vfs")
	}
	files, err := jail.Libraries(ctx, program, modules...)
	if err != nil {
		return nil, err
	}
	// The C library loads it when a thread ends.
	for _, f := range files {
		if at := filepath.Join(filepath.Dir(f.Path), "libgcc_s.so.1"); filepath.Base(f.Path) == "libc.so.6" && !has(files, at) {
			for _, f := range jail.Existing(at) {
				f.Runs = true
				files = append(files, f)
			}
		}
	}
	return append(files, jail.Existing("/etc/netconfig")...), nil
}

// launch starts the server in its jail, in this thread's network.
func (v *server) launch(ctx context.Context, trees []*os.File, log *os.File) (err error) {
	j, err := v.jail(ctx, trees)
	if err != nil {
		return lasting{err}
	}
	guard, err := jail.HoldFile(v.shim, v.folder)
	if err != nil {
		return err
	}
	defer guard.Close()
	records, err := jail.HoldFile(recordsPath(v.folder), v.folder)
	if err != nil {
		return err
	}
	defer records.Close()
	files := append([]*os.File{nil, guard, records}, trees...)
	key, ours, err := os.Pipe()
	if err != nil {
		return err
	}
	defer key.Close()
	files[0] = key
	_, err = ours.Write(handle.KeyFor(v.secret, string(v.job)))
	if err = errors.Join(err, ours.Close()); err != nil {
		return err
	}
	first, err := jail.Start(v.shim, j, log, files...)
	if err != nil {
		return err
	}
	// It is recorded before it goes on, so that the next agent finds it.
	if err := note.Replace(v.recordPath(), first.Process); err != nil {
		return errors.Join(err, first.Kill())
	}
	if v.process, err = holdProcess(first.Process); err != nil {
		return errors.Join(err, first.Kill())
	}
	if err := first.Enter(); err != nil {
		return errors.Join(err, first.Kill())
	}
	return nil
}

// loadSecret reads the secret from which jobs' keys follow, or makes it. It lasts as long as
// the host: guests keep handles while it reboots.
func loadSecret(path string) ([]byte, error) {
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		text = make([]byte, handle.KeyBytes)
		rand.Read(text)
		err = note.WriteDurably(path, text, 0o600)
	}
	if err == nil && len(text) != handle.KeyBytes {
		err = fmt.Errorf("it has %d bytes instead of %d: remove it, and jobs that run here lose their files", len(text), handle.KeyBytes)
	}
	if err != nil {
		return nil, fmt.Errorf("reading the secret of file handles in %s: %w", path, err)
	}
	return text, nil
}

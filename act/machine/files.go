package machine

import (
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"path"
	"slices"
	"strings"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// sharing are the types of file systems that hosts share, besides those that begin with a
// word of families.
var (
	sharing  = []string{"nfs", "nfs4", "cifs", "smb3", "ceph", "lustre", "gpfs", "beegfs", "gfs2", "ocfs2", "afs", "pvfs2", "panfs", "wekafs"}
	families = []string{"fuse.glusterfs", "fuse.ceph", "fuse.moosefs", "fuse.juicefs", "fuse.lizardfs"}
)

// OnDemand is the type of a directory below which file systems are mounted when they are
// used.
const OnDemand = "autofs"

// fileSystem is a mount, and what statfs says of it.
type fileSystem struct {
	root, at, kind, source, options string
	device                          string // MAJOR:MINOR
	fsid                            uint64 // 0: it has none
}

// Source says what a directory is: two hosts whose directories have the same source have
// the same directory. kind is the file system's type. An empty source: this cannot be told.
func Source(dir string) (source, kind string, err error) {
	var st unix.Statx_t
	if err := unix.Statx(unix.AT_FDCWD, dir, unix.AT_NO_AUTOMOUNT, unix.STATX_BASIC_STATS|unix.STATX_MNT_ID, &st); err != nil {
		return "", "", fmt.Errorf("read the directory %s: %w", dir, err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR {
		return "", "", fmt.Errorf("%s is not a directory", dir)
	}
	table, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return "", "", err
	}
	defer func() { _ = table.Close() }() // it was only read
	f, ok, err := mountOf(table, st.Mnt_id)
	if err != nil {
		return "", "", fmt.Errorf("find the mount of %s: %w", dir, err)
	}
	if !ok {
		return "", "", fmt.Errorf("the mount of %s is not among this process's", dir)
	}
	var fs unix.Statfs_t
	if f.kind != OnDemand && unix.Statfs(dir, &fs) == nil {
		f.fsid = uint64(uint32(fs.Fsid.Val[0]))<<32 | uint64(uint32(fs.Fsid.Val[1]))
	}
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", "", err
	}
	return f.name(dir, strings.TrimSpace(string(boot))), f.kind, nil
}

// mountOf finds a mount in the text of /proc/self/mountinfo.
func mountOf(text io.Reader, id uint64) (f fileSystem, ok bool, err error) {
	found, err := mountinfo.GetMountsFromReader(text, func(m *mountinfo.Info) (skip, stop bool) {
		is := uint64(m.ID) == id
		return !is, is
	})
	if err != nil || len(found) == 0 {
		return f, false, err
	}
	m := found[0]
	return fileSystem{root: m.Root, at: m.Mountpoint, device: fmt.Sprintf("%d:%d", m.Major, m.Minor),
		kind: m.FSType, source: m.Source, options: m.VFSOptions}, true, nil
}

// name is the source of a directory on the file system.
func (f fileSystem) name(dir, boot string) string {
	rest, below := strings.CutPrefix(dir, strings.TrimSuffix(f.at, "/"))
	if !below {
		return ""
	}
	within := path.Join("/", f.root, rest)
	switch {
	case f.kind == OnDemand:
		return ""
	case f.kind == "nfs" || f.kind == "nfs4":
		if f.loops() {
			return ""
		}
		return "nfs " + strings.TrimSuffix(f.source, "/") + strings.TrimSuffix(within, "/")
	case !slices.Contains(sharing, f.kind) && !slices.ContainsFunc(families, func(s string) bool { return strings.HasPrefix(f.kind, s) }):
		// A disk of this machine: hosts that are one kernel have it in common.
		return fmt.Sprintf("kernel %s %s:%s", boot, f.device, within)
	case f.fsid != 0:
		return fmt.Sprintf("%s %016x:%s", f.kind, f.fsid, within)
	case strings.Contains(f.source, ":") || strings.HasPrefix(f.source, "//"):
		return fmt.Sprintf("%s %s:%s", f.kind, f.source, within)
	}
	return ""
}

// loops reports whether the server is at this machine's loopback: the same name elsewhere
// is another server.
func (f fileSystem) loops() bool {
	for o := range strings.SplitSeq(f.options, ",") {
		if text, ok := strings.CutPrefix(o, "addr="); ok {
			a, err := netip.ParseAddr(text)
			return err != nil || a.IsLoopback()
		}
	}
	return strings.HasPrefix(f.source, "localhost:")
}

// NoNFSClient says why this kernel cannot mount jobs' files of other machines, and how to
// change that; empty: it can. It loads the kernel's module if there is one.
func NoNFSClient() string {
	has := func() bool {
		text, _ := os.ReadFile("/proc/filesystems")
		return slices.Contains(strings.Fields(string(text)), "nfs4")
	}
	if has() {
		return ""
	}
	out, err := exec.Command("modprobe", "nfsv4").CombinedOutput()
	if err == nil && has() {
		return ""
	}
	said, _, _ := strings.Cut(strings.TrimSpace(string(out)), "\n")
	if said == "" && err != nil {
		said = err.Error()
	}
	return fmt.Sprintf("its kernel has no NFS client (%s): install one with the module nfsv4, such as Debian's linux-image-amd64", said)
}

package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"pagurus/fleet"
)

const (
	nfsPort = 2049
	// shareWait is how long the file server may start after the guest.
	shareWait = 60 * time.Second
	// forceTime is the part of a call's time kept for a forced unmount.
	forceTime = 2 * time.Second
)

// shareOptions are the mount's options. hard: a program never sees an error because the file
// server restarts. actimeo and lookupcache: a rank's writes are seen on another guest within
// a second without closing and opening, and a new file at once; with the defaults it could
// take up to a minute.
const shareOptions = "vers=4.1,proto=tcp,port=2049,sec=sys,hard,timeo=100,retrans=2,actimeo=1,lookupcache=positive"

// keepClear are directories that a share must not cover, because the image's programs would
// be hidden.
var keepClear = []string{"/bin", "/boot", "/dev", "/etc", "/lib", "/lib64", "/proc", "/run", "/sbin", "/sys", "/usr"}

// directories are the job's, its own first.
func directories(s fleet.Setup) []fleet.Directory {
	if s.Export == "" {
		return s.Files
	}
	return append([]fleet.Directory{{Path: s.Export}}, s.Files...)
}

// mountShares mounts the job's directories at the paths they have on the submit host. After
// an error some may be mounted; a later call mounts the rest.
func mountShares(s fleet.Setup) error {
	if !s.Share.IsValid() {
		return nil
	}
	for _, d := range directories(s) {
		if err := mountable(d.Path); err != nil {
			return err
		}
	}
	for _, d := range directories(s) {
		if err := mountShare(s, d); err != nil {
			return err
		}
	}
	return nil
}

// mountShare mounts one of them.
func mountShare(s fleet.Setup, d fleet.Directory) error {
	if mounted(d.Path) {
		return nil
	}
	if err := os.MkdirAll(d.Path, 0o755); err != nil {
		return fmt.Errorf("making the mount point: %w", err)
	}
	var flags uintptr = unix.MS_NOSUID | unix.MS_NODEV
	if d.ReadOnly {
		flags |= unix.MS_RDONLY
	}
	source := s.Share.String() + ":" + d.Path
	options := fmt.Sprintf("%s,addr=%s,clientaddr=%s", shareOptions, s.Share, s.Addr)
	var last error
	for deadline := time.Now().Add(shareWait); time.Now().Before(deadline); time.Sleep(200 * time.Millisecond) {
		// The kernel would wait far longer for an absent server.
		if last = reachable(s.Share); last != nil {
			continue
		}
		if last = unix.Mount(source, d.Path, "nfs4", flags, options); last == nil {
			return nil
		}
		if errors.Is(last, unix.ENODEV) {
			return fmt.Errorf("the image's kernel has no NFS client; rebuild the image: %w", last)
		}
	}
	return fmt.Errorf("%s did not become available within %s: %w", source, shareWait, last)
}

func mountable(export string) error {
	if !filepath.IsAbs(export) || filepath.Clean(export) != export {
		return fmt.Errorf("%q is not an absolute path", export)
	}
	if export == "/" {
		return errors.New("/ cannot be shared with guests: it would hide the image; run from a directory of your own")
	}
	for _, dir := range keepClear {
		if within(export, dir) {
			return fmt.Errorf("%s cannot be shared with guests: it would hide the image's own %s; run from a directory of your own", export, dir)
		}
	}
	return nil
}

func reachable(server netip.Addr) error {
	conn, err := net.DialTimeout("tcp", netip.AddrPortFrom(server, nfsPort).String(), 2*time.Second)
	if err != nil {
		return err
	}
	return conn.Close()
}

// mounted reports whether an NFS share is mounted at exactly path.
func mounted(path string) bool {
	f, err := os.Open("/proc/self/mounts")
	if err != nil {
		return false
	}
	defer f.Close()
	escaped := strings.NewReplacer(`\`, `\134`, " ", `\040`, "\t", `\011`, "\n", `\012`).Replace(path)
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if f := strings.Fields(lines.Text()); len(f) > 2 && f[1] == escaped && strings.HasPrefix(f[2], "nfs") {
			return true
		}
	}
	return false
}

// unmountShares unmounts the job's directories as unmountShare does.
func unmountShares(ctx context.Context, all []fleet.Directory) error {
	var errs []error
	for _, d := range all {
		errs = append(errs, unmountShare(ctx, d.Path))
	}
	return errors.Join(errs...)
}

// unmountShare writes all files and unmounts the share, if there is one. ctx must have a
// deadline. Shortly before it, a server that does not take the files is given up: an error,
// since unwritten data is lost.
func unmountShare(ctx context.Context, export string) error {
	if export == "" || !mounted(export) {
		return nil
	}
	end, _ := ctx.Deadline()
	trying, cancel := context.WithDeadline(ctx, end.Add(-forceTime))
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- unmount(trying, export) }() // the kernel may never let it return
	var err error
	select {
	case err = <-done:
		if !mounted(export) {
			return err
		}
	case <-trying.Done():
		err = fmt.Errorf("not all files in %s could be written in time, the rest is lost", export)
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	unix.Unmount(export, unix.MNT_DETACH|unix.MNT_FORCE) // fails only if it has gone meanwhile
	return err
}

// unmount writes all files and tries to unmount the share until ctx ends.
func unmount(ctx context.Context, export string) (flushed error) {
	if dir, err := os.Open(export); err == nil { // otherwise unmounting must write them
		flushed = os.NewSyscallError("writing the job's files", unix.Syncfs(int(dir.Fd())))
		dir.Close()
	}
	for {
		err := unix.Unmount(export, 0)
		if err == nil || errors.Is(err, unix.EINVAL) { // an earlier call may have done it
			return flushed
		}
		// EBUSY: an ending process is still closing its files.
		if !errors.Is(err, unix.EBUSY) || ctx.Err() != nil {
			return errors.Join(flushed, fmt.Errorf("unmounting %s: %w", export, err))
		}
		time.Sleep(20 * time.Millisecond)
	}
}

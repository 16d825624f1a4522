package image

import (
	"bufio"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"pagurus/fleet"
)

// TraceLibrary is where an image with MPI has the library that traces MPI calls when
// preloaded.
const TraceLibrary = "/usr/lib/pagurus/libpagurus-trace.so"

// WaitLibrary is where it has a variant that also lets waiting ranks sleep, for emulated
// guests.
const WaitLibrary = "/usr/lib/pagurus/libpagurus-wait.so"

// whichMPI returns the MPI library of mpirun and its package's version.
func whichMPI(root string) (mpi, version string) {
	target, err := os.Readlink(filepath.Join(root, "etc/alternatives/mpirun"))
	if err != nil {
		return "", ""
	}
	pkg := ""
	switch {
	case strings.Contains(target, "openmpi"):
		mpi, pkg = "openmpi", "openmpi-bin"
	case strings.Contains(target, "mpich"):
		mpi, pkg = "mpich", "mpich"
	}
	return mpi, packageVersion(root, pkg)
}

// packageVersion reads the version of an installed package.
func packageVersion(root, pkg string) string {
	f, err := os.Open(filepath.Join(root, "var/lib/dpkg/status"))
	if err != nil {
		return ""
	}
	defer f.Close()
	here := false
	in := bufio.NewScanner(f)
	in.Buffer(nil, 1<<20)
	for in.Scan() {
		if name, ok := strings.CutPrefix(in.Text(), "Package: "); ok {
			here = name == pkg
		}
		if v, ok := strings.CutPrefix(in.Text(), "Version: "); ok && here {
			return v
		}
	}
	return ""
}

// compile compiles Pagurus's own programs with the image's MPI compiler.
func (b *build) compile(ctx context.Context) error {
	root := b.path("root")
	if _, err := os.Stat(filepath.Join(root, "usr/bin/gcc")); err != nil {
		return nil // an image without compilers; its jobs are not traced
	}
	dir := filepath.Dir(TraceLibrary)
	if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
		return err
	}
	for _, name := range sourceNames {
		source := filepath.Join(root, dir, name)
		if err := os.WriteFile(source, sourceOf(name), 0o644); err != nil {
			return err
		}
		defer os.Remove(source)
	}
	library := func(at string, flags ...string) []string {
		return append(flags, "-fPIC", "-shared", "-Wl,--as-needed", "-o", at, dir+"/trace.c", "-ldl", "-lpthread")
	}
	return errors.Join(
		b.mpicc(ctx, library(TraceLibrary)...),
		b.mpicc(ctx, library(WaitLibrary, "-DPAGURUS_WAITS")...),
		b.mpicc(ctx, "-o", dir+"/hello", dir+"/hello.c"),
	)
}

func (b *build) mpicc(ctx context.Context, args ...string) error {
	runtime.LockOSThread() // see bootstrap
	defer runtime.UnlockOSThread()
	cmd := contained(ctx, append([]string{"chroot", b.path("root"), "mpicc", "-O2", "-Wl,--build-id=none"}, args...)...)
	cmd.Env = append(cmd.Env, "HOME=/root") // Open MPI's compiler wrapper needs it
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("mpicc %s: %w: %s", strings.Join(args, " "), err, lastLines(out))
	}
	return nil
}

// tidy removes what differs between builds, or belongs to a machine and not to an image.
// Paths are patterns below the root.
func tidy(root string) error {
	for _, p := range []string{
		"var/log/*", "var/cache/*/*", "var/lib/apt/lists/*", "tmp/*", "var/tmp/*", "run/*", "dev/*",
		"etc/hostname", "etc/resolv.conf", "etc/ssh/ssh_host_*", "etc/apt/apt.conf.d/99mmdebstrap",
		"etc/dpkg/dpkg.cfg.d/99mmdebstrap", "etc/.pwd.lock", "etc/*-", "var/lib/dpkg/*-old",
		"var/lib/systemd/random-seed", "usr/lib/locale/locale-archive", "root/.*history",
		"usr/share/man", // temporary folders of the installation, and links to files that were not unpacked
	} {
		found, err := filepath.Glob(filepath.Join(root, p))
		if err != nil {
			return err
		}
		for _, f := range found {
			if err := os.RemoveAll(f); err != nil {
				return err
			}
		}
	}
	for _, d := range []string{"proc", "sys", "dev", "run", "tmp", "mnt", "var/log", "var/tmp", "root"} {
		if err := os.MkdirAll(filepath.Join(root, d), 0o755); err != nil {
			return err
		}
	}
	for _, d := range []string{"tmp", "var/tmp"} {
		if err := os.Chmod(filepath.Join(root, d), 0o777|os.ModeSticky); err != nil {
			return err
		}
	}
	for file, text := range map[string]string{
		"etc/machine-id": "", "etc/hostname": "guest\n", "etc/resolv.conf": "",
		"etc/apt/sources.list": "", // the mirror belongs to the building machine, not to the image
		"etc/hosts":            "127.0.0.1 localhost\n::1 localhost\n",
	} {
		path := filepath.Join(root, file)
		if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) { // a link may lead to this machine's own file
			return err
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// pack writes RootFile.
func (b *build) pack(ctx context.Context) error {
	runtime.LockOSThread() // see bootstrap
	defer runtime.UnlockOSThread()
	stamp := strconv.Itoa(epoch)
	cmd := contained(ctx, "mksquashfs", b.path("root"), b.path("files", RootFile),
		"-noappend", "-no-progress", "-quiet", "-no-xattrs", "-no-exports",
		// Half the work of zstd, here and under emulation in each guest, for 1.4 times
		// the size.
		"-comp", "lz4", "-b", "128K",
		"-reproducible", "-mkfs-time", stamp, "-all-time", stamp)
	// mksquashfs refuses two settings for the time.
	cmd.Env = slices.DeleteFunc(cmd.Env, func(v string) bool { return strings.HasPrefix(v, "SOURCE_DATE_EPOCH=") })
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("mksquashfs: %w: %s", err, strings.TrimSpace(string(out)))
	}
	f, err := os.Open(b.path("files", RootFile))
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

// digestFolder returns the digest of an image's files: over their names and SHA-256 sums,
// in the format of sha256sum.
func digestFolder(dir string) (fleet.Digest, int64, error) {
	var list strings.Builder
	var total int64
	for _, name := range []string{ModulesFile, RootFile, KernelFile} {
		sum, n, err := hashFile(filepath.Join(dir, name))
		if err != nil {
			return "", 0, err
		}
		total += n
		fmt.Fprintf(&list, "%x  %s\n", sum, name)
	}
	return digestOf([]byte(list.String())), total, nil
}

func hashFile(path string) ([]byte, int64, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, 0, err
	}
	defer f.Close()
	h := sha256.New()
	n, err := io.Copy(h, f)
	return h.Sum(nil), n, err
}
